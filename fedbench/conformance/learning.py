"""Checks that a method learns, also on few, unusual or cropped data."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedbench.conformance.lab import (
    digits,
    federation,
    same,
    vectors,
)
from fedbench.conformance.subject import Subject
from fedbench.core.federation import Federation
from fedbench.core.trainer import Interrupted, Progress
from fedbench.errors import FedbenchError
from fedbench.specs import require

#: Required accuracy: chance is 10 %, and a linear model on as many digits (84 per client) has over 80 %.
ENOUGH = 0.5
#: (rounds, learning rate) of successive attempts: methods without momentum need more of both.
TRIES = ((6, 0.05), (20, 0.2))


def learns(subject: Subject) -> None:
    """On digits, with all classes at every client, six rounds (or twenty with a higher learning rate) reach an accuracy
    above 50 %, where chance is 10 %, and reduce the loss."""
    best, loss = 0.0, ""
    for rounds, rate in TRIES:
        try:
            reports = _train(subject, rounds, rate)
        except FedbenchError as error:
            if "diverged" not in error.message:
                raise
            loss = "diverged"
            continue
        if _learned(reports):
            return
        best, loss = (
            max(best, reports[-1].accuracy or 0.0),
            f"went from {reports[0].loss:.3g} to {reports[-1].loss:.3g}",
        )
    raise FedbenchError(
        f"after {TRIES[-1][0]} rounds of training {best:.0%} of the answers are right, chance is 10 %; the loss {loss}",
        "see that local trains what answers, that aggregate takes what was trained, and the sign of the loss",
    )


def _learned(reports: Sequence[Progress]) -> bool:
    """Whether the accuracy is over ENOUGH and the loss has decreased."""
    losses = [report.loss for report in reports if report.loss is not None]
    return (reports[-1].accuracy or 0.0) > ENOUGH and losses[-1] < losses[0]


def _train(subject: Subject, rounds: int, rate: float) -> list[Progress]:
    """The progress of a run, which is stopped as soon as it has learned."""
    data = federation((120, 120, 120, 120), skew=float("inf"))
    s = subject.setting(rounds=rounds, window=1, every=1, epochs=3, lr=rate)
    if s.steps is not None:  # the method computes one gradient per client and round
        s = subject.setting(rounds=7 * rounds, window=1, every=7, lr=rate / 5)
    reports: list[Progress] = []

    def listen(progress: Progress) -> None:
        reports.append(progress)
        if _learned(reports):
            raise KeyboardInterrupt

    with contextlib.suppress(Interrupted):
        subject.train(data, s, observe=listen)
    return reports


def tiny_clients(subject: Subject) -> None:
    """Clients with one class, with fewer images than a batch, with one training image, and with dropped short batches
    all predict, and every value is finite."""
    images, labels = digits()
    pool = np.arange(len(labels))
    single = pool[labels == np.bincount(labels).argmax()][:12]
    rest = np.setdiff1d(pool, single)
    parts = [single, rest[:50], rest[50:58], rest[58:60]]
    rows = np.concatenate(parts)
    client = np.repeat(np.arange(4), [len(p) for p in parts])
    is_test = np.concatenate([np.arange(len(p)) >= len(p) / 2 for p in parts])
    data = Federation.of(images[rows], labels[rows], client, rows, is_test, 10)
    run = subject.train(data, subject.setting(tail="drop", epochs=2))
    remedy = "look for a division by a client's number of images or classes, and for a batch norm over one image"
    for name, value in run.tensors.items():
        require(bool(np.isfinite(value).all()), f"'{name}' is not finite with clients of 6, 25, 4 and 1 images", remedy)
    last = run.predictions.slice(len(run.predictions) - sum(data.n_test))
    answered = np.bincount(last["client"].to_numpy(), minlength=4).tolist()
    require(answered == data.n_test, f"clients with {data.n_test} test images have {answered} answers", remedy)
    require(max(last["own"].to_pylist()) < 10, "an answer is none of the ten classes", "client.answer holds classes")


def crops_of_colour_images(subject: Subject) -> None:
    """Training on cropped images with three channels differs from training on whole images, and both runs end with
    predictions."""
    data, common = federation((40, 30, 25), color=True), {"rounds": 3, "window": 1}
    where = subject.place()
    s = subject.setting(**common, augment="crop")
    cropped = _first_round(subject, data, s, where)
    views = set(subject.train(data, s, where=where).predictions["view"].to_pylist())
    require(views == {"crop", "plain"}, f"the last round answered {sorted(views)}", "answer in every view")
    whole = _first_round(subject, data, subject.setting(**common), subject.place())
    wrong = "crops train the same network as whole images"
    require(not same(whole, cropped), wrong, "train by requests: they crop images as the setting says")


def vectors_of_numbers(subject: Subject) -> None:
    """On vectors instead of images (table rows, embeddings) its network changes and stays finite; skipped for methods
    with `takes_vectors = False` and networks that need images."""
    data, model = vectors(), subject.model or "mlp"
    if not subject.kind.takes_vectors:
        return
    try:
        subject.network(data)
    except FedbenchError:
        return
    run = subject.train(data, subject.setting(model=model, rounds=3, votes=False))
    remedy = "take an image's shape from client.context.shape, and let the network make features of it"
    initial, trained = run.trainer.server.initial, run.trainer.server.tensors()
    for name, value in trained.items():
        require(bool(value.isfinite().all()), f"'{name}' is not finite after training on vectors", remedy)
    moved = any(not torch.equal(t, initial[n]) for name, t in trained.items() if (n := name.split("/")[-1]) in initial)
    require(moved, "on vectors nothing of the network is trained", remedy)


def _first_round(subject: Subject, data: Federation, s: Any, where: Any) -> dict[str, np.ndarray]:
    tensors: dict[str, torch.Tensor] = subject.stopped(data, s, 1, where).server.tensors()
    return {name: t.numpy() for name, t in tensors.items()}
