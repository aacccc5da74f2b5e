"""The task that labels define, one class or several labels per image: losses, predictions and counts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class Task:
    """Loss, predictions and counts of a task; this class: one class per image, labels y [B] int64."""

    multi_label = False

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean loss [] of a batch."""
        return F.cross_entropy(logits, y)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each image [B]; `loss` is their mean."""
        return F.cross_entropy(logits, y, reduction="none")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities [B, K] of the classes, or of each label separately."""
        return torch.softmax(logits, 1)

    def outputs(self, probabilities: Tensor) -> Tensor:
        """Logits with these probabilities, for a client that combines the predictions of several models."""
        return probabilities.clamp(min=torch.finfo(torch.float32).tiny).log()

    def answer(self, probabilities: Tensor) -> Tensor:
        """Predictions: the class [B] with the highest probability (any scores in that order will do), or for
        multi-label images the probabilities themselves [B, K]."""
        return probabilities.argmax(1)

    def right(self, logits: Tensor, y: Tensor) -> Tensor:
        """Whether each prediction is correct, 0 or 1 [B]; for multi-label images the share of correct labels."""
        return (logits.argmax(1) == y).float()

    def members(self, y: Tensor, classes: int) -> Tensor:
        """0 or 1 [B, K]: the classes or labels of each image."""
        return F.one_hot(y, classes)

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """[K] float32: number of images per class or label."""
        return torch.bincount(y, minlength=classes).float()


class MultiLabel(Task):
    """K independent labels per image: y [B, K] float32, 0 or 1."""

    multi_label = True

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def outputs(self, probabilities: Tensor) -> Tensor:
        return torch.logit(probabilities, 1e-7)

    def answer(self, probabilities: Tensor) -> Tensor:
        return probabilities

    def right(self, logits: Tensor, y: Tensor) -> Tensor:
        return ((logits > 0) == (y > 0)).float().mean(1)

    def members(self, y: Tensor, classes: int) -> Tensor:
        return y

    def counts(self, y: Tensor, classes: int) -> Tensor:
        return y.sum(0)


ONE_CLASS, MULTI_LABEL = Task(), MultiLabel()


def task_of(y: Tensor) -> Task:
    """The task, from the shape of the labels."""
    return MULTI_LABEL if y.dim() > 1 else ONE_CLASS
