"""The statistical part of Theorem 2.5 of FedDRM (Lemma E.1, Eq. 9): the distance between the minimiser of the pooled
loss and the true parameters, with a fixed embedding and labels of a multinomial logistic model.

The two heads then share nothing, so each is fitted separately: the client head's loss has the factor 1 - λ, the
target head's λ, and both have the penalty (ρ/2)‖·‖². A softmax head is unique except for shifts of all classes:
errors are those of coefficients of mean 0, and λ_min is the smallest positive eigenvalue (otherwise the printed bound
is infinite for ρ = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.theory.softmax import Array, Labels, centred, fit, information, with_constant

#: Number of inputs for the mean that approximates the population's Fisher information.
_POPULATION = 20_000


@dataclass(frozen=True, eq=False)
class Truth:
    """Both heads' coefficients, with mean 0 over the classes, and their Fisher information."""

    client: Array  #: [1 + d, m]
    target: Array  #: [1 + d, K]
    client_information: Array
    target_information: Array

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Labels, Labels]:
        """Draw features [n, 1 + d] of inputs N(0, I), with the client and the class [n] of each."""
        x = with_constant(rng.standard_normal((n, len(self.client) - 1)))
        client, target = (_labels(rng, x @ b) for b in (self.client, self.target))
        return x, client, target

    def claimed(self, weight: float, ridge: float) -> float:
        """1/((1-λ) λ_min(I_γ) + ρ) + 1/(λ λ_min(I_β) + ρ), which the theorem divides by N; λ = `weight`."""
        least = [eigenvalues(i)[0] for i in (self.client_information, self.target_information)]
        return float(1 / ((1 - weight) * least[0] + ridge) + 1 / (weight * least[1] + ridge))

    def client_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """Return ‖γ̂ - γ‖² of the client head fitted to this sample; λ = `weight`."""
        return _error(self.client, x, labels, 1 - weight, ridge)

    def target_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """Return ‖β̂ - β‖² of the target head."""
        return _error(self.target, x, labels, weight, ridge)


def random_truth(rng: np.random.Generator, clients: int = 3, classes: int = 4, d: int = 2) -> Truth:
    """Draw coefficients of N(0, 1), and compute the information on a large sample of inputs."""
    client, target = (centred(rng.standard_normal((1 + d, c))) for c in (clients, classes))
    x = with_constant(rng.standard_normal((_POPULATION, d)))
    return Truth(client, target, information(x, client), information(x, target))


def eigenvalues(fisher: Array) -> Array:
    """Return the positive eigenvalues in ascending order."""
    values = np.linalg.eigvalsh(fisher)
    return np.asarray(values[values > 1e-9 * values[-1]])


def _error(true: Array, x: Array, labels: Labels, scale: float, ridge: float) -> float:
    return float(np.square(fit(x, labels, true.shape[1], scale=scale, ridge=ridge) - true).sum())


def _labels(rng: np.random.Generator, logits: Array) -> Labels:
    """Draw a class for each row with its softmax probabilities (the largest logit plus Gumbel noise)."""
    return np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=1))
