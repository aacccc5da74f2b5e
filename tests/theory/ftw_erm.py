"""FTW-ERM's theory (Theorem 2, Proposition 3) in the one-hot case: bias and variance are sums over coordinates.

Weighted ridge regression, θ̂ = argmin Σ_i w_i (θᵀx_i - y_i)² + λ‖θ‖² of y = Xθ* + ε, E ε = 0, E ε² = σ², has the excess
risk R = E‖θ̂ - θ*‖² in the norm of Σ_te = E[xxᵀ] of the test inputs. (The paper's loss has a factor ½ that its lemma
drops.) Losses are sums, without 1/n: λ is relative to X's column sums of squares.

Inputs are unit vectors e_1..e_d, drawn with probabilities λ_i for training and λ'_i for tests; μ_i training points
equal e_i, and all of them have the weight w_i. The paper scores the two estimators differently: the weighted one
under the test second moment Σ_te = diag(λ'), the unweighted one (ERM) under the *training* second moment diag(λ).
This is "paper" scoring, on which Theorem 2 and Proposition 3 rely; "consistent" scoring evaluates both under Σ_te.

When does weighting help, coordinate by coordinate? The conditions, as printed and exact, are functions of w_i,
s_i = sqrt(λ'_i/λ_i) and ξ_i = λ/(λ+μ_i) only (arrays of one shape), and return booleans. The exact ones follow from the
closed forms of `OneHot` without estimates: they are equivalences if θ_i ≠ 0 and σ² > 0. They avoid divisions, so
μ_i = 0 (ξ_i = 1) needs no special case. The printed ones are only indicators: (4.3) does not imply that FTW-ERM wins,
and the variance half of Proposition 3 has the wrong direction.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Truth = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Risk:
    """An excess risk in two parts: numbers, or arrays of one shape (one entry per problem or coordinate)."""

    bias: Any  #: due to the penalty
    variance: Any  #: due to label noise

    @property
    def total(self) -> Any:
        return self.bias + self.variance


@dataclass(frozen=True, eq=False)
class OneHot:
    """One problem or many: arrays [..., d] over coordinates, and numbers or arrays [...] per problem."""

    train: Array  #: λ_i [..., d], above 0, with sum 1
    test: Array  #: λ'_i [..., d], above 0, with sum 1
    counts: Array  #: μ_i [..., d] training points equal to e_i
    theta: Array  #: θ*_i [..., d]
    noise: Array  #: σ² [...]
    ridge: Array  #: λ [...], above 0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, np.asarray(getattr(self, field.name), float))

    @property
    def xi(self) -> Array:
        """ξ_i = λ/(λ + μ_i) [..., d]: the weight of the penalty in a coordinate; 1 for coordinates without points."""
        ridge = self.ridge[..., None]
        return ridge / (ridge + self.counts)

    @property
    def s(self) -> Array:
        """s_i = sqrt(λ'_i/λ_i) [..., d]."""
        return np.sqrt(self.ratio)

    @property
    def ratio(self) -> Array:
        """The true density ratio λ'_i/λ_i = s_i² [..., d]: the weights of FTW-ERM."""
        return self.test / self.train

    def weighted_terms(self, weights: ArrayLike) -> Risk:
        """Return bias and variance of the weighted estimate by coordinate [..., d], under Σ_te.

        B_i = λ² θ_i² λ'_i/(μ_i w_i + λ)²,  V_i = σ² λ'_i μ_i w_i²/(μ_i w_i + λ)²
        """
        return self._terms(np.asarray(weights, float), self.test)

    def erm_terms(self, scoring: str = "paper") -> Risk:
        """Return those of the unweighted estimate, under diag(λ) ("paper") or Σ_te ("consistent")."""
        return self._terms(np.ones_like(self.train), self.train if scoring == "paper" else self.test)

    def weighted(self, weights: ArrayLike) -> Risk:
        """Return bias and variance [...] of the weighted estimate; weights [..., d], such as `ratio`."""
        return _sum(self.weighted_terms(weights))

    def erm(self, scoring: str = "paper") -> Risk:
        """Return bias and variance [...] of the unweighted estimate."""
        return _sum(self.erm_terms(scoring))

    def _terms(self, w: Array, moment: Array) -> Risk:
        ridge, noise = self.ridge[..., None], self.noise[..., None]
        below = (self.counts * w + ridge) ** 2
        return Risk(ridge**2 * self.theta**2 * moment / below, noise * moment * self.counts * w**2 / below)


def _sum(terms: Risk) -> Risk:
    return Risk(terms.bias.sum(axis=-1), terms.variance.sum(axis=-1))


def printed_lower(w: Array, s: Array) -> Truth:
    """The lower half of (4.3), s - 1 ≤ w; intended to give B_FTW ≤ B_ERM, but it does not."""
    return w >= s - 1


def printed_upper(w: Array, s: Array, xi: Array) -> Truth:
    """The upper half of (4.3), w ≤ ξ/s: sufficient for V_FTW ≤ V_ERM."""
    return w * s <= xi


def printed_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """Condition (4.3) of Theorem 2: s - 1 ≤ w ≤ ξ/s."""
    return printed_lower(w, s) & printed_upper(w, s, xi)


def printed_for_true_ratio(s: Array, xi: Array) -> Truth:
    """(4.3) with the true ratio w = s²: s ≤ ξ^⅓ < 1. Both probabilities sum to 1, so never in all coordinates."""
    return printed_theorem(s**2, s, xi)


def printed_proposition(w: Array, s: Array, xi: Array) -> Truth:
    """Proposition 3: s ≥ max(ξ, 1-ξ) and w ≤ min(1/((s-1)/ξ + 1), s + (s-1) λ/μ)."""
    return (s >= np.maximum(xi, 1 - xi)) & (w * (s - 1 + xi) <= xi) & (w * (1 - xi) <= s - xi)


def bias_falls(w: Array, s: Array, xi: Array) -> Truth:
    """B_FTW ≤ B_ERM in the paper's scoring ⇔ w ≥ s + (s-1) λ/μ ⇔ w (1-ξ) ≥ s - ξ."""
    return w * (1 - xi) >= s - xi


def variance_falls(w: Array, s: Array, xi: Array) -> Truth:
    """V_FTW ≤ V_ERM in the paper's scoring ⇔ s ≤ 1-ξ or w ≤ ξ/(s-1+ξ) ⇔ w (s-1+ξ) ≤ ξ; or μ = 0 (no variance)."""
    return (w * (s - 1 + xi) <= xi) | (xi >= 1)


def exact_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """The aim of Theorem 2: neither bias nor variance increases. Such a w exists only if s ≤ 1."""
    return bias_falls(w, s, xi) & variance_falls(w, s, xi)


def corrected_proposition(w: Array, s: Array, xi: Array) -> Truth:
    """Proposition 3 with its variance half reversed: ξ/(s-1+ξ) ≤ w ≤ s + (s-1) λ/μ; neither bias nor variance of ERM is
    above FTW-ERM's. Such a w exists only if s ≥ 1."""
    return (w * (1 - xi) <= s - xi) & ((w * (s - 1 + xi) >= xi) | (xi >= 1))


def problems(rng: np.random.Generator, n: int, d: int = 3) -> tuple[OneHot, Array]:
    """Draw n random problems of d coordinates, and weights [n, d] independent of all conditions.

    Probabilities are uniform on the simplex, counts 1..20, λ and w log-uniform in [0.1, 10], σ² in [0.01, 1], θ normal.
    """
    problem = OneHot(
        train=rng.dirichlet(np.ones(d), n),
        test=rng.dirichlet(np.ones(d), n),
        counts=rng.integers(1, 21, (n, d)).astype(float),
        theta=rng.standard_normal((n, d)),
        noise=_log_uniform(rng, 0.01, 1, n),
        ridge=_log_uniform(rng, 0.1, 10, n),
    )
    return problem, _log_uniform(rng, 0.1, 10, (n, d))


def inside(rng: np.random.Generator, problem: OneHot) -> tuple[Array, Truth]:
    """Draw weights [n, d] uniformly between the bounds of (4.3), and return for which problems [n] this is possible."""
    low, high = np.maximum(problem.s - 1, 0), problem.xi / problem.s
    return low + rng.random(low.shape) * np.maximum(high - low, 0), np.all(low <= high, axis=-1)


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int | tuple[int, ...]) -> Array:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))
