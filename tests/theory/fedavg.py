"""The FedAvg part of Theorem 2.5 of FedDRM (App. E, Eq. 10): the distance between FedAvg's result and the minimiser,
for linear softmax heads on fixed features, full batches and clients of equal size.

    ‖ζ^T - ζ̂‖² ≤ (1 - ημ)^(E T) ‖ζ^0 - ζ̂‖² + η² E² Ḡ² / (1 - (1 - ημ)^E)

with Ḡ² the sum of each head's largest drift over the rounds, times (1-λ)² and λ². It assumes a μ-strongly convex and
L-smooth loss, η ≤ 1/L, η L E ≤ 1/4. (Its proof omits the cross term of a square, and uses the drift at the start of a
round for that in its middle.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from tests.theory.softmax import Array, Labels, fit, with_constant


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
    """Yield the state before each round, starting with coefficients 0, and the final one: `rounds` + 1 items.

    Arguments:
        features, labels: of the clients, [m, n, d] and [m, n].
        rate, steps: η and E.
        scale, ridge: the loss is scale · cross-entropy + (ridge/2) ‖B‖².
    """
    (m, n, d), one_hot = features.shape, np.eye(classes)[labels]
    transposed = np.ascontiguousarray(np.swapaxes(features, 1, 2)) * (scale / n)

    def gradients(b: Array) -> Array:
        return np.asarray(transposed @ (np.exp(log_softmax(features @ b, axis=-1)) - one_hot) + ridge * b)

    shared = np.zeros((d, classes))
    for _ in range(rounds):
        first = gradients(np.broadcast_to(shared, (m, d, classes)))
        yield Round(shared, first)
        local = shared - rate * first
        for _ in range(steps - 1):
            local -= rate * gradients(local)
        shared = local.mean(axis=0)
    yield Round(shared, gradients(np.broadcast_to(shared, (m, d, classes))))


@dataclass(frozen=True, eq=False)
class Clients:
    """m clients with n samples each; their inputs and classes differ."""

    features: Array  #: [m, n, 1 + d]
    target: Labels  #: [m, n]
    classes: int

    @property
    def heads(self) -> tuple[tuple[Labels, int], tuple[Labels, int]]:
        """Labels [m, n] and number of outputs, of the client head and then of the target head."""
        m, n = self.target.shape
        return (np.repeat(np.arange(m)[:, None], n, axis=1), m), (self.target, self.classes)

    def smoothness(self, weight: float, ridge: float) -> float:
        """Return an L valid for all clients: largest eigenvalue of E[xxᵀ] / 2, times the larger weight, plus ρ."""
        moments = np.einsum("mna,mnb->mab", self.features, self.features) / self.features.shape[1]
        return max(weight, 1 - weight) * float(np.linalg.eigvalsh(moments).max()) / 2 + ridge


@dataclass(frozen=True, eq=False)
class Path:
    """Squared distances [T + 1] to the minimiser before each round and after the last, and the bound (10) on them."""

    distance: Array
    bound: Array


def descend(clients: Clients, *, weight: float, ridge: float, rate: float, steps: int, rounds: int) -> Path:
    """Run FedAvg on both heads from 0 (λ = `weight`, ρ = μ = `ridge`, η = `rate`, E = `steps`)."""
    distance, drift = np.zeros(rounds + 1), np.zeros(rounds + 1)
    peak = 0.0
    x = clients.features
    for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
        best = fit(x.reshape(-1, x.shape[2]), labels.ravel(), classes, scale=scale, ridge=ridge)
        states = train(x, labels, classes, rate=rate, steps=steps, rounds=rounds, scale=scale, ridge=ridge)
        for t, state in enumerate(states):
            distance[t] += np.square(state.coefficients - best).sum()
            drift[t] = state.drift
        peak += drift.max()
    shrink = (1 - rate * ridge) ** (steps * np.arange(rounds + 1))
    settled = rate**2 * steps**2 * peak / (1 - (1 - rate * ridge) ** steps)
    return Path(distance, shrink * distance[0] + settled)


def random_clients(rng: np.random.Generator, clients: int = 3, n: int = 100, d: int = 2, classes: int = 4) -> Clients:
    """Draw inputs N(μ_i, I) with μ_i of N(0, I), and labels of one softmax model with coefficients N(0, 1)."""
    inputs = rng.standard_normal((clients, 1, d)) + rng.standard_normal((clients, n, d))
    x = with_constant(inputs)
    logits = x @ rng.standard_normal((1 + d, classes))
    return Clients(x, np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=2)), classes)
