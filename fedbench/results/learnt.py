"""Whether runs have learnt anything: after the last round the loss of one that has not is that of a guess, ln K."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedbench.errors import FedbenchError
from fedbench.metrics.predictions import opened
from fedbench.metrics.scores import OWN
from fedbench.store import Artifact
from fedbench.words import counted, first_of

#: How near the loss is to ln K, as a share of it.
NEAR = 0.01


def not_learnt(runs: Iterable[Artifact]) -> list[str]:
    """One line that names the complete runs whose last training loss is within a hundredth of ln K, K the number of
    classes, and that answer fewer than 2 of K test images rightly (the loss of a method that trains parts of a network
    in turn may be a guess's where its models are good); empty if there are none. Runs on images of several labels,
    without a loss, or that cannot be read do not count."""
    guessing = [(run, classes) for run in runs if (classes := _guesses_among(run))]
    if not guessing:
        return []
    (first, classes), *_ = guessing
    ids = first_of([run.id for run, _ in guessing])
    have, their = ("has", "its") if len(guessing) == 1 else ("have", "their")
    guess = f"ln K ({_loss(first):.3f} of {classes} classes: {math.log(classes):.3f})"
    return [
        f"{counted(len(guessing), 'run')} {have} not learnt ({ids}): after the last round {their} loss is that of a "
        f"guess, {guess}. More rounds, or a larger --lr."
    ]


def _guesses_among(run: Artifact) -> int:
    """The number of classes that the run guesses among; 0 if it does not."""
    try:
        loss = _loss(run)
        with opened(run) as file:
            schema = file.schema_arrow
    except (FedbenchError, KeyError):
        return 0
    classes = int((schema.metadata or {}).get(b"classes", b"0"))
    if loss is None or classes < 2 or OWN in schema.names:
        return 0
    if abs(loss - math.log(classes)) > NEAR * math.log(classes) or _right(run) >= 2 / classes:
        return 0
    return classes


def _right(run: Artifact) -> float:
    """The share of test images that are answered rightly after the last evaluated round."""
    table = run.table("predictions")
    last, label, own = (table.column(name).to_numpy() for name in ("round", "label", "own"))
    answered = last == last.max(initial=0)
    return float((label[answered] == own[answered]).mean()) if answered.any() else 0.0


def _loss(run: Artifact) -> float | None:
    """The training loss of the last round in which clients trained; None if there is none."""
    rounds = run.table("rounds")
    trained = zip(*(rounds.column(name).to_pylist() for name in ("participants", "images", "loss")), strict=True)
    losses = [loss for participants, images, loss in trained if participants and images and loss is not None]
    return float(losses[-1]) if losses else None
