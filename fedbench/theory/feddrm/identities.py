"""Theorems 2.1 and 2.2 of FedDRM on random problems: what they say is an identity, to rounding."""

from __future__ import annotations

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm import profile as p
from fedbench.theory.feddrm import tilts
from fedbench.theory.feddrm.check import Check, Point
from fedbench.theory.feddrm.softmax import Labels

#: More than this is no rounding.
_ROUNDING = 1e-6
_TILT, _ASIDE = 0.7, 0.01


def of_marginals(rng: np.random.Generator, draws: int) -> list[Check]:
    """Theorem 2.1, and what Remark 2.3 says of label shift."""
    errors, apart = [], []
    for _ in range(draws):
        joint, claimed = tilts.random_joint(rng)
        errors.append(float(np.abs(joint.log_ratios - claimed).max()))
        m, k = len(claimed), joint.probability.shape[1]
        apart.append(tilts.distance(tilts.label_shift(joint, rng.dirichlet(np.ones(k), m))))
    return [
        Check(
            "Theorem 2.1", "(2) and (3) give dP_X^(i)/dP_X^(0) = exp(γ† + ξᵀh)",
            (Point("largest error of a log ratio", max(errors), 0.0),), max(errors) < _ROUNDING,
            "With α_1 = 0 and β_1 = 0; (3) relates the clients' P_1^(i) to P_1^(0), as App. C.1 has it.",
        ),
        Check(
            "Theorem 2.1", "the same under label shift (Remark 2.3), with h = g",
            (Point("median distance from any γ + ξᵀh", float(np.median(apart)), 0.0),), max(apart) < _ROUNDING,
            "(2) with one α for all clients fixes their class shares; a ratio of two mixtures needs a richer h than g.",
        ),
    ]  # fmt: skip


def of_likelihood(rng: np.random.Generator, draws: int) -> list[Check]:
    """Theorem 2.2 at the largest likelihood for given ξ, and away from it."""
    multipliers, values, gaps = [], [], []
    for _ in range(draws):
        m, d = int(rng.integers(2, 5)), int(rng.integers(2, 4))  # in one dimension several tilts are nearly dependent
        counts = rng.integers(15, 60, m)
        client, n = np.repeat(np.arange(m), counts), int(counts.sum())
        h = rng.standard_normal((m, d))[client] + rng.standard_normal((n, d))
        xi = _TILT * rng.standard_normal((m, d))
        gamma = p.optimal_intercepts(h, client, xi)
        best = p.profile(h, client, gamma, xi)
        multipliers.append(float(np.abs(best.multipliers - counts / n).max()))
        values.append(abs(best.value - p.dual(h, client, gamma, xi)) / n)
        gaps.append(_gap(h, client, gamma, xi, _ASIDE * rng.standard_normal(m)))
    source = "Theorem 2.2"
    return [
        Check(
            source, "the multipliers are n_l/N where the likelihood is largest in γ†",
            (Point("largest |ρ_l - n_l/N|", max(multipliers), 0.0),), max(multipliers) < _ROUNDING,
            "For every ξ: only the intercepts must be optimal.",
        ),
        Check(
            source, "there the profile log-likelihood is minus the cross-entropy, and a constant",
            (Point("largest difference a sample", max(values), 0.0),), max(values) < _ROUNDING,
            "The constant is -Σ n_l log n_l (App. C.4 leaves N log N out).",
        ),
        Check(
            source, "they are the same function of the parameters (7)",
            (Point(f"median difference a sample, γ† moved by {_ASIDE:g}", float(np.median(gaps)), 0.0),),
            max(gaps) < _ROUNDING,
            "Elsewhere the profile lies below, or no weights meet (5); both have the same maximum.",
        ),
    ]  # fmt: skip


def _gap(h: Array, client: Labels, gamma: Array, xi: Array, aside: Array) -> float:
    """How far the dual is above the profile, a sample, at γ† + `aside`, or nearer if no weights meet (5)."""
    value = -np.inf
    while value == -np.inf:
        value = p.profile(h, client, gamma + aside, xi).value
        aside = aside / 2
    return (p.dual(h, client, gamma + 2 * aside, xi) - value) / len(h)
