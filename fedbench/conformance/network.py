"""Checks of a network alone; nothing is trained."""

from __future__ import annotations

import torch

from fedbench import models
from fedbench.conformance.expect import expect
from fedbench.conformance.subject import Subject, strange_generators
from fedbench.models.base import FLModel
from fedbench.models.form import check


def form(subject: Subject) -> None:
    """It has backbone, projection and head, whose sizes are those it names, for digits and for 32x32 colour images of
    seven classes."""
    for shape, classes in ((_digits(subject), 10), ((32, 32, 3), 7)):
        network = _made(subject, shape, classes, 1)
        check(network, subject.model or "", shape, classes)


def weights_from_the_seed(subject: Subject) -> None:
    """Its weights are determined by the seed: the same for the same, others for another."""
    one, again, other = (_made(subject, _digits(subject), 10, seed).state_dict() for seed in (1, 1, 2))
    remedy = "draw weights in the layers' own reset_parameters, or override initialise(self, module)"
    for name, value in one.items():
        expect(torch.equal(value, again[name]), f"'{name}' differs in two networks of one seed", remedy)
    moved = any(not torch.equal(value, other[name]) for name, value in one.items())
    expect(moved, "two seeds give the same weights", remedy)


def _digits(subject: Subject) -> tuple[int, int, int]:
    return 8 * subject.scale, 8 * subject.scale, 1


def _made(subject: Subject, shape: tuple[int, int, int], classes: int, seed: int) -> FLModel:
    with strange_generators():
        return models.build(subject.model or "", shape=shape, classes=classes, seed=seed)
