"""What a network's outputs mean: one class an image, or several labels, each there or not.

K classes or labels, B images; outputs (logits) [B, K] float32. Everything that differs between the two stands here.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Task(Protocol):
    """How outputs are trained, answered by and counted."""

    multi_label: bool

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean loss [] of a batch."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each image [B], of which `loss` is the mean."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities [B, K] of the classes, or of each label by itself."""

    def outputs(self, probabilities: Tensor) -> Tensor:
        """Outputs that mean these probabilities: of a client that answers by several models."""

    def normalised(self, logits: Tensor) -> Tensor:
        """Outputs of the same meaning in one form: log-probabilities of the classes, log-odds of each label."""

    def answer(self, probabilities: Tensor) -> Tensor:
        """What images are answered by probabilities (or, one class an image, by any scores in their order): the class
        [B], or the probabilities of all labels themselves [B, K]."""

    def right(self, logits: Tensor, y: Tensor) -> Tensor:
        """Whether each image is answered rightly, 0 or 1 [B]; of several labels the share that are."""

    def members(self, y: Tensor, classes: int) -> Tensor:
        """0 or 1 [B, K]: which classes or labels each image has."""

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """[K] float32: images of each class, or with each label."""


class OneClass:
    """Each image has one class: y [B] int64."""

    multi_label = False

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 1)

    def outputs(self, probabilities: Tensor) -> Tensor:
        return probabilities.clamp(min=torch.finfo(torch.float32).tiny).log()

    def normalised(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, 1)

    def answer(self, probabilities: Tensor) -> Tensor:
        return probabilities.argmax(1)

    def right(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) == y).float()

    def members(self, y: Tensor, classes: int) -> Tensor:
        return F.one_hot(y, classes)

    def counts(self, y: Tensor, classes: int) -> Tensor:
        return torch.bincount(y, minlength=classes).float()


class MultiLabel:
    """Each image has or has not each of K labels: y [B, K] float32, 0 or 1."""

    multi_label = True

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def outputs(self, probabilities: Tensor) -> Tensor:
        return torch.logit(probabilities, 1e-7)

    def normalised(self, logits: Tensor) -> Tensor:
        return logits

    def answer(self, probabilities: Tensor) -> Tensor:
        return probabilities

    def right(self, logits: Tensor, y: Tensor) -> Tensor:
        return ((logits > 0) == (y > 0)).float().mean(1)

    def members(self, y: Tensor, classes: int) -> Tensor:
        return y

    def counts(self, y: Tensor, classes: int) -> Tensor:
        return y.sum(0)


ONE_CLASS, MULTI_LABEL = OneClass(), MultiLabel()


def task_of(y: Tensor) -> Task:
    """The task of these labels."""
    return MULTI_LABEL if y.dim() > 1 else ONE_CLASS
