"""The one-hot case of FTW-ERM's Theorem 2, where bias and variance are sums over coordinates.

Inputs are unit vectors e_1..e_d, drawn with probabilities λ_i for training and λ'_i for tests; μ_i training points
equal e_i, and all of them have the weight w_i. The paper scores the two estimators apart: the weighted one under the
test second moment Σ_te = diag(λ'), the unweighted one (ERM) under the *training* second moment diag(λ). So
"paper" scoring is what its Theorem 2 and Proposition 3 speak of; "consistent" scoring takes both under Σ_te.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbench.errors import FedbenchError, unknown
from fedbench.specs import require
from fedbench.theory.arrays import Array
from fedbench.theory.ftw_erm.ridge import Risk

SCORINGS = ("paper", "consistent")


@dataclass(frozen=True, eq=False)
class OneHot:
    """One problem, or many at once: arrays [..., d] over coordinates, and numbers or arrays [...] a problem."""

    train: Array  #: λ_i [..., d], above 0, of sum 1
    test: Array  #: λ'_i [..., d], above 0, of sum 1
    counts: Array  #: μ_i [..., d] training points equal to e_i
    theta: Array  #: θ*_i [..., d]
    noise: Array  #: σ² [...]
    ridge: Array  #: λ [...], above 0

    def __post_init__(self) -> None:
        for name in ("train", "test", "counts", "theta", "noise", "ridge"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), float))
        shapes = {getattr(self, name).shape for name in ("train", "test", "counts", "theta")}
        require(len(shapes) == 1, f"train, test, counts and theta have different shapes: {_listed(shapes)}")
        for name in ("train", "test"):
            p = getattr(self, name)
            if not ((p > 0).all() and np.allclose(p.sum(axis=-1), 1, atol=1e-9)):
                raise FedbenchError(f"{name} probabilities must be above 0 and sum to 1")
        require(bool((self.counts >= 0).all()), "counts of training points cannot be negative")
        require(bool((self.noise >= 0).all()), "the noise variance cannot be negative")
        require(bool((self.ridge > 0).all()), "the ridge penalty must be above 0")

    @property
    def xi(self) -> Array:
        """ξ_i = λ/(λ + μ_i) [..., d]: how much the penalty weighs in a coordinate; 1 where no point was seen."""
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
        """Bias and variance of the weighted estimate by coordinate [..., d], under Σ_te.

        B_i = λ² θ_i² λ'_i/(μ_i w_i + λ)²,  V_i = σ² λ'_i μ_i w_i²/(μ_i w_i + λ)²
        """
        w = np.asarray(weights, float)
        require(bool((w >= 0).all()), "weights cannot be negative, nor NaN")
        return self._terms(w, self.test)

    def erm_terms(self, scoring: str = "paper") -> Risk:
        """The same of the unweighted estimate, under diag(λ) ("paper") or Σ_te ("consistent")."""
        if scoring not in SCORINGS:
            raise unknown("scoring", scoring, SCORINGS)
        return self._terms(np.ones_like(self.train), self.train if scoring == "paper" else self.test)

    def weighted(self, weights: ArrayLike) -> Risk:
        """Bias and variance [...] of the weighted estimate; weights [..., d], such as `ratio`."""
        return _sum(self.weighted_terms(weights))

    def erm(self, scoring: str = "paper") -> Risk:
        """Bias and variance [...] of the unweighted estimate."""
        return _sum(self.erm_terms(scoring))

    def implicit_bias(self) -> Array:
        """Bias [...] with the weights s_i, as Remark 3 writes it: λ² Σ θ_i² λ_i/(μ_i + λ/s_i)².

        Equal to `weighted(s).bias`: such weights act like unweighted ERM with a penalty λ/s_i of each coordinate.
        """
        ridge = self.ridge[..., None]
        terms = ridge**2 * self.theta**2 * self.train / (self.counts + ridge / self.s) ** 2
        return np.asarray(terms.sum(axis=-1))

    def _terms(self, w: Array, moment: Array) -> Risk:
        ridge, noise = self.ridge[..., None], self.noise[..., None]
        below = (self.counts * w + ridge) ** 2
        return Risk(ridge**2 * self.theta**2 * moment / below, noise * moment * self.counts * w**2 / below)


def _sum(terms: Risk) -> Risk:
    return Risk(terms.bias.sum(axis=-1), terms.variance.sum(axis=-1))


def _listed(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join(str(shape) for shape in sorted(shapes))
