"""FLUX's shifts in the draw order of the paper's generator, so that a seed gives the paper's clients.

The public ANDA seeds torch and NumPy's legacy generator with the run's seed. torch draws the order of the training
images and then of the test images, which are cut into consecutive shards. NumPy draws everything else, in sequence
(flux/protocol.md#draws). The distributions follow the same law as those of `partitions/bank.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partitions import bank
from fedbench.partitions.bank import Level
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.scheme import Assignment, Indices, shards
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: The shifts whose draw order is public.
SHIFTS = ("px", "py", "pyx", "pxy")


def draw(at: Level, dataset: Dataset, pools: Sequence[Indices]) -> Assignment:
    """Assign the images of the training and test pools to clients, and draw the clients' distributions.

    Raises FedbenchError if the data have too few classes, or a client has no image of the classes that it keeps.
    """
    import torch

    clients, rng = at.spec.clients, np.random.RandomState(at.seed)
    order = torch.Generator().manual_seed(at.seed)
    trains, tests = (shards(pool[torch.randperm(len(pool), generator=order).numpy()], clients) for pool in pools)
    if at.spec.shift == "py":
        distributions = []
        entries = [bank.subset(i, _classes(at, at.scaled(11 - at.level), rng)) for i in range(bank.BANK)]
        for c in range(clients):
            distributions.append(entries[rng.choice(bank.BANK)])
            trains[c] = _padded(trains[c], distributions[c], dataset, rng, f"client {c} has no training image")
            tests[c] = _padded(tests[c], distributions[c], dataset, rng, f"client {c} has no test image")
        drawn = Drawn.of([distributions, distributions])
    else:
        drawn = without_images(at)
    return Assignment.of(zip(trains, tests, strict=True), drawn=drawn)


def without_images(at: Level) -> Drawn:
    """Draw the clients' distributions under shifts other than P(Y), which do not depend on the images.

    Raises FedbenchError if the data have too few classes.
    """
    distributions = {"px": _px, "pyx": _pyx, "pxy": _pxy}[at.spec.shift](at, np.random.RandomState(at.seed))
    return Drawn.of([distributions, distributions])


def _classes(at: Level, number: int, rng: np.random.RandomState) -> list[int]:
    at.check(number)
    return [int(k) for k in rng.choice(at.classes, number, replace=False)]


def _px(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    entries = bank.of_images(at.level)
    return [entries[i] for i in rng.randint(0, len(entries), size=at.spec.clients)]


def _pyx(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    pool, distributions = _classes(at, at.pool, rng), []
    for _ in range(at.spec.clients):
        rng.uniform()  # ANDA draws the share of labels to swap here, although it swaps all of them
        labels = list(pool)
        rng.shuffle(labels)
        distributions.append(Distribution(labels=tuple(sorted(zip(pool, labels, strict=True)))))
    return distributions


def _pxy(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    """Draw all clients' angles before all clients' colours; colours occur only with many classes."""
    turned, coloured = (sorted(_classes(at, at.scaled(at.level), rng)) for _ in range(2))
    clients = range(at.spec.clients)
    angles = [{k: int(rng.choice(at.angles)) for k in turned} for _ in clients]
    colours = [{k: str(rng.choice(at.colours)) for k in coloured} if at.colours else {} for _ in clients]
    return [
        Distribution(rotations=tuple((k, Rotation(a.get(k, 0), c.get(k))) for k in sorted({*a, *c})))
        for a, c in zip(angles, colours, strict=True)
    ]


def _padded(shard: Indices, of: Distribution, dataset: Dataset, rng: np.random.RandomState, who: str) -> Indices:
    """Keep the shard's images of the distribution's classes, and append draws from them; round the number down."""
    classes = of.classes or ()
    mine = shard[np.isin(dataset.labels[shard], classes)]
    require(len(mine) > 0, f"{who} of classes {list(classes)}", "fewer clients, or --draws fedbench")
    more = int(len(mine) * (len(dataset.classes) / len(classes) - 1))
    return np.concatenate([mine, mine[rng.choice(len(mine), more)]])
