"""Class means of features.

Shapes: M clients, K classes, d features, n rows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import Client, Collect, Context
from fedbench.core.state import State
from fedbench.methods.base import features

#: Names of prototypes in a state: class means of features [K, d], and the number of images [K] of each; a class without
#: images has no prototype.
MEAN, COUNT = "prototypes.mean", "prototypes.count"


def none(model: Any, context: Context) -> State:
    """Return an empty set of prototypes."""
    return {MEAN: torch.zeros(context.classes, model.feature_size), COUNT: torch.zeros(context.classes)}


def class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return each class's mean row [K, d], float64, from rows [n, d] and labels [n]; 0 for classes without rows."""
    members = F.one_hot(labels, classes).T.double()
    return members @ rows.double() / members.sum(1, keepdim=True).clamp(min=1)


def own_class_means(client: Client, model: str = "") -> Generator[Collect, Any, Tensor]:
    """Compute the mean features of each class [K, d], float32, of the client's training images under one of its models,
    in evaluation mode."""
    rows, labels = yield Collect(features, model=model)
    return class_means(rows, labels, client.context.classes).float()


def pooled(states: Sequence[State]) -> State:
    """Combine the clients' prototypes into those of their pooled images."""
    means, counts = (torch.stack([state[name] for state in states]).double() for name in (MEAN, COUNT))
    total = counts.sum(0)
    mean = torch.einsum("mk,mkd->kd", counts, means) / total.clamp(min=1)[:, None]
    return {MEAN: mean.float(), COUNT: total.float()}
