"""What FTW-ERM's conditions are worth: how often each holds on random problems, and what it promises then.

The promise is always taken from the closed forms of bias and variance (`OneHot`), never from a condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbench.errors import FedbenchError, unknown
from fedbench.specs import check_seed, require
from fedbench.theory.arrays import Array
from fedbench.theory.ftw_erm import ridge as c
from fedbench.theory.ftw_erm.ridge import Risk

# -- onehot ----------------------------------------------------------------------------------------------------
# The one-hot case of FTW-ERM's Theorem 2, where bias and variance are sums over coordinates.
#
# Inputs are unit vectors e_1..e_d, drawn with probabilities λ_i for training and λ'_i for tests; μ_i training points
# equal e_i, and all of them have the weight w_i. The paper scores the two estimators apart: the weighted one under the
# test second moment Σ_te = diag(λ'), the unweighted one (ERM) under the *training* second moment diag(λ). So
# "paper" scoring is what its Theorem 2 and Proposition 3 speak of; "consistent" scoring takes both under Σ_te.


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


# -- census ----------------------------------------------------------------------------------------------------


DRAWS = 200_000
#: All are held in memory at the same time, and so many tell a share to 0.0002.
MOST = 5_000_000
_DIMENSION = 3


@dataclass(frozen=True)
class Finding:
    """One condition on random draws: in how many it held, and in how many of these its promise did."""

    source: str  #: where the condition comes from, such as "Theorem 2 (4.3)"
    condition: str
    promise: str
    unit: str  #: what was drawn: "coordinates" or "problems"
    drawn: int
    held: int
    followed: int
    remark: str  #: one line on what this shows

    @property
    def share(self) -> float | None:
        """Share of the draws with the condition in which the promise held; None if the condition never did."""
        return self.followed / self.held if self.held else None


def problems(rng: np.random.Generator, n: int, d: int = _DIMENSION) -> tuple[OneHot, Array]:
    """n random problems of d coordinates, and weights [n, d] drawn without regard to any condition.

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


def inside(rng: np.random.Generator, problem: OneHot) -> tuple[Array, c.Truth]:
    """Weights [n, d] drawn uniformly between the two ends of (4.3), and in which problems [n] that is possible."""
    low, high = np.maximum(problem.s - 1, 0), problem.xi / problem.s
    return low + rng.random(low.shape) * np.maximum(high - low, 0), np.all(low <= high, axis=-1)


def census(draws: int = DRAWS, seed: int = 0) -> list[Finding]:
    """Count every condition on `draws` random problems (three coordinates each). Raises FedbenchError unless draws are
    1 to MOST and the seed is one."""
    require(
        1 <= draws <= MOST, f"there must be at least 1 draw and at most {MOST:,}, which take some 3 GB, not {draws}"
    )
    check_seed(seed)
    rng = np.random.default_rng(seed)
    problem, w = problems(rng, draws)
    s, xi = problem.s, problem.xi
    weighted, erm, fair = problem.weighted_terms(w), problem.erm_terms("paper"), problem.erm_terms("consistent")
    within, possible = inside(rng, problem)

    lower_bias, lower_variance = weighted.bias <= erm.bias, weighted.variance <= erm.variance
    higher_variance = erm.variance <= weighted.variance

    def finding(source: str, condition: str, promise: str, held: c.Truth, follows: c.Truth, remark: str) -> Finding:
        unit = "problems" if held.ndim == 1 else "coordinates"
        return Finding(
            source, condition, promise, unit, held.size, int(held.sum()), int((held & follows).sum()), remark
        )

    whole = [_total(r) for r in (problem.weighted(within), problem.weighted(problem.ratio), problem.erm("paper"))]
    theorem, proposition, printed = "Theorem 2 (4.3)", "Proposition 3", c.printed_proposition(w, s, xi)
    return [
        finding(
            theorem, "upper half: w ≤ ξ/s", "V_FTW ≤ V_ERM", c.printed_upper(w, s, xi), lower_variance,
            "Right: it is sufficient for the variance.",
        ),
        finding(
            theorem, "lower half: w ≥ s - 1", "B_FTW ≤ B_ERM", c.printed_lower(w, s), lower_bias,
            "Not sufficient for the bias, which needs w ≥ s + (s-1)λ/μ.",
        ),
        finding(
            theorem, "both halves, all coordinates", "R_FTW ≤ R_ERM", possible, whole[0] <= whole[2],
            "w drawn inside (4.3) where that can be: the conclusion need not follow.",
        ),
        finding(
            theorem, "the true ratio w = λ'/λ, all coordinates", "R_FTW ≤ R_ERM",
            np.all(c.printed_for_true_ratio(s, xi), axis=-1), whole[1] <= whole[2],
            "Impossible: it needs s < 1 everywhere, but λ and λ' both sum to 1.",
        ),
        finding(
            "exact", "w ≥ s + (s-1)λ/μ, and s ≤ 1-ξ or w ≤ ξ/(s-1+ξ)", "B_FTW ≤ B_ERM, V_FTW ≤ V_ERM",
            c.exact_theorem(w, s, xi), lower_bias & lower_variance,
            "What (4.3) should say; possible only where s ≤ 1.",
        ),
        finding(
            proposition, "as printed", "V_ERM ≤ V_FTW", printed, higher_variance,
            "The variance half has the wrong direction.",
        ),
        finding(
            proposition, "as printed", "R_ERM ≤ R_FTW", printed, _total(erm) <= _total(weighted),
            "Often true all the same, because the bias decides.",
        ),
        finding(
            "corrected", "ξ/(s-1+ξ) ≤ w ≤ s + (s-1)λ/μ", "R_ERM ≤ R_FTW", c.corrected_proposition(w, s, xi),
            _total(erm) <= _total(weighted), "Proposition 3 with that half turned round; possible only where s ≥ 1.",
        ),
        finding(
            "both under Σ_te", "w ≠ 1", "B_FTW ≤ B_ERM, V_FTW ≤ V_ERM", w != 1,
            (weighted.bias <= fair.bias) & (weighted.variance <= fair.variance),
            "Scored alike, weights only trade bias (w ≥ 1) for variance (w ≤ 1).",
        ),
    ]  # fmt: skip


def _total(risk: Risk) -> Array:
    total: Array = risk.total
    return total


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int | tuple[int, ...]) -> Array:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))
