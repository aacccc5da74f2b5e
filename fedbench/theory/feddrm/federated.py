"""FedAvg of one linear softmax head on fixed features, full batches, clients of one size (FedDRM, Section 2.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm.softmax import Labels, log_probabilities


@dataclass(frozen=True, eq=False)
class Round:
    """The shared coefficients [d, C] before a round, and each client's gradient there [m, d, C]."""

    coefficients: Array
    gradients: Array

    @property
    def drift(self) -> float:
        """G² = (1/m) Σ ‖∇ℓ_i - ∇ℓ‖² (footnote 2)."""
        return float(np.square(self.gradients - self.gradients.mean(axis=0)).sum() / len(self.gradients))

    @property
    def squared_gradient(self) -> float:
        """‖∇ℓ‖²."""
        return float(np.square(self.gradients.mean(axis=0)).sum())


def train(
    features: Array,
    labels: Labels,
    classes: int,
    *,
    rate: float,
    steps: int,
    rounds: int,
    scale: float = 1.0,
    ridge: float = 0.0,
) -> Iterator[Round]:
    """Every round from coefficients 0, and after the last one where it has led: `rounds` + 1 items.

    Arguments:
        features, labels: of the clients, [m, n, d] and [m, n].
        rate, steps: η and E.
        scale, ridge: the loss is scale · cross-entropy + (ridge/2) ‖B‖².
    """
    (m, n, d), one_hot = features.shape, np.eye(classes)[labels]
    transposed = np.ascontiguousarray(np.swapaxes(features, 1, 2)) * (scale / n)

    def gradients(b: Array) -> Array:
        return np.asarray(transposed @ (np.exp(log_probabilities(features @ b)) - one_hot) + ridge * b)

    shared = np.zeros((d, classes))
    for _ in range(rounds):
        first = gradients(np.broadcast_to(shared, (m, d, classes)))
        yield Round(shared, first)
        local = shared - rate * first
        for _ in range(steps - 1):
            local -= rate * gradients(local)
        shared = local.mean(axis=0)
    yield Round(shared, gradients(np.broadcast_to(shared, (m, d, classes))))
