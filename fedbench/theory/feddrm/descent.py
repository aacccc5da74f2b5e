"""Theorem 2.5 of FedDRM, its part on FedAvg (App. E, Eq. 10): how far from the minimiser of the loss FedAvg ends.

    ‖ζ^T - ζ̂‖² ≤ (1 - ημ)^(E T) ‖ζ^0 - ζ̂‖² + η² E² Ḡ² / (1 - (1 - ημ)^E)

with Ḡ² the sum of each head's largest drift over the rounds, times (1-λ)² and λ². It takes a μ-strongly convex and
L-smooth loss, η ≤ 1/L, η L E ≤ 1/4. (Its proof leaves out the cross term of a square, and measures drift in the middle
of a round by that at its start.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm import federated
from fedbench.theory.feddrm.softmax import Labels, fit, with_constant


@dataclass(frozen=True, eq=False)
class Clients:
    """m clients of n samples each, whose inputs and classes differ."""

    features: Array  #: [m, n, 1 + d]
    target: Labels  #: [m, n]
    classes: int

    @property
    def heads(self) -> tuple[tuple[Labels, int], tuple[Labels, int]]:
        """Labels [m, n] and number of outputs of the client head and of the target head."""
        m, n = self.target.shape
        return (np.repeat(np.arange(m)[:, None], n, axis=1), m), (self.target, self.classes)

    def smoothness(self, weight: float, ridge: float) -> float:
        """An L of every client's loss: half the largest eigenvalue of E[xxᵀ], times the larger weight, and ρ."""
        moments = np.einsum("mna,mnb->mab", self.features, self.features) / self.features.shape[1]
        return max(weight, 1 - weight) * float(np.linalg.eigvalsh(moments).max()) / 2 + ridge


@dataclass(frozen=True, eq=False)
class Path:
    """Squared distances [T + 1] to the minimiser before each round and after the last, and what (10) allows."""

    distance: Array
    bound: Array


def descend(clients: Clients, *, weight: float, ridge: float, rate: float, steps: int, rounds: int) -> Path:
    """Run FedAvg on both heads from 0 (λ = `weight`, ρ = μ = `ridge`, η = `rate`, E = `steps`)."""
    distance, drift = np.zeros(rounds + 1), np.zeros(rounds + 1)
    peak = 0.0
    x = clients.features
    for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
        best = fit(x.reshape(-1, x.shape[2]), labels.ravel(), classes, scale=scale, ridge=ridge)
        states = federated.train(x, labels, classes, rate=rate, steps=steps, rounds=rounds, scale=scale, ridge=ridge)
        for t, state in enumerate(states):
            distance[t] += np.square(state.coefficients - best).sum()
            drift[t] = state.drift
        peak += drift.max()
    shrink = (1 - rate * ridge) ** (steps * np.arange(rounds + 1))
    settled = rate**2 * steps**2 * peak / (1 - (1 - rate * ridge) ** steps)
    return Path(distance, shrink * distance[0] + settled)


def random_clients(rng: np.random.Generator, clients: int = 3, n: int = 100, d: int = 2, classes: int = 4) -> Clients:
    """Inputs N(μ_i, I) with μ_i of N(0, I), labels of one softmax model of coefficients N(0, 1)."""
    inputs = rng.standard_normal((clients, 1, d)) + rng.standard_normal((clients, n, d))
    x = with_constant(inputs)
    logits = x @ rng.standard_normal((1 + d, classes))
    return Clients(x, np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=2)), classes)
