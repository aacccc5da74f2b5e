"""Theorem 2.5 of FedDRM, its statistical part (Lemma E.1, Eq. 9): how near the minimiser of the pooled loss is to the
true parameters, on a fixed embedding and labels of a multinomial logistic model.

The two heads share nothing then, so each is fitted by itself: the client head's loss has the factor 1 - λ, the target
head's λ, and both have the penalty (ρ/2)‖·‖². A softmax head is known up to what moves all classes alike: errors are
those of coefficients of mean 0, and λ_min is the smallest eigenvalue above 0 (without that the printed bound is
infinite for ρ = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm.softmax import Labels, centred, fit, information, with_constant

#: Inputs that the population's Fisher information is a mean over.
_POPULATION = 20_000


@dataclass(frozen=True, eq=False)
class Truth:
    """Both heads' coefficients of mean 0 over the classes, and the Fisher information of each."""

    client: Array  #: [1 + d, m]
    target: Array  #: [1 + d, K]
    client_information: Array
    target_information: Array

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Labels, Labels]:
        """Features [n, 1 + d] of inputs N(0, I), which client each comes to and which class it has [n]."""
        x = with_constant(rng.standard_normal((n, len(self.client) - 1)))
        client, target = (_labels(rng, x @ b) for b in (self.client, self.target))
        return x, client, target

    def claimed(self, weight: float, ridge: float) -> float:
        """1/((1-λ) λ_min(I_γ) + ρ) + 1/(λ λ_min(I_β) + ρ), which the theorem divides by N; λ = `weight`."""
        least = [eigenvalues(i)[0] for i in (self.client_information, self.target_information)]
        return float(1 / ((1 - weight) * least[0] + ridge) + 1 / (weight * least[1] + ridge))

    def client_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """‖γ̂ - γ‖² of the client head fitted to this sample, λ = `weight`."""
        return _error(self.client, x, labels, 1 - weight, ridge)

    def target_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """‖β̂ - β‖² of the target head."""
        return _error(self.target, x, labels, weight, ridge)


def random_truth(rng: np.random.Generator, clients: int = 3, classes: int = 4, d: int = 2) -> Truth:
    """Coefficients of N(0, 1), and the information on a large sample of inputs."""
    client, target = (centred(rng.standard_normal((1 + d, c))) for c in (clients, classes))
    x = with_constant(rng.standard_normal((_POPULATION, d)))
    return Truth(client, target, information(x, client), information(x, target))


def eigenvalues(fisher: Array) -> Array:
    """Those above 0, from the least."""
    values = np.linalg.eigvalsh(fisher)
    return np.asarray(values[values > 1e-9 * values[-1]])


def _error(true: Array, x: Array, labels: Labels, scale: float, ridge: float) -> float:
    return float(np.square(fit(x, labels, true.shape[1], scale=scale, ridge=ridge) - true).sum())


def _labels(rng: np.random.Generator, logits: Array) -> Labels:
    """A class of each row, with the probabilities of its softmax (the largest logit plus Gumbel noise)."""
    return np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=1))
