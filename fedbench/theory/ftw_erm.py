"""FTW-ERM's theory (Lemma 1, Theorem 2, Proposition 3, the check behind Figures 2 and 3). NumPy only.

Weighted ridge regression, θ̂ = argmin Σ_i w_i (θᵀx_i - y_i)² + λ‖θ‖² of y = Xθ* + ε, E ε = 0, E ε² = σ², has the excess
risk R = E‖θ̂ - θ*‖² in the norm of Σ_te = E[xxᵀ] of the test inputs. (The paper's loss has a factor ½ that its lemma
drops.) Losses are sums, without 1/n: λ is relative to X's column sums of squares. `OneHot` computes bias and variance
for unit vectors as inputs. The conditions tell when weighting helps there, exactly and as printed in the paper.
`census` measures the conditions on random problems with the closed forms. `compare` compares the eigenvalues of two
data matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import require
from fedbench.theory.arrays import Array, check_draws


@dataclass(frozen=True, eq=False)
class Risk:
    """An excess risk in two parts: numbers, or arrays of one shape (one entry per problem or coordinate)."""

    bias: Any  #: due to the penalty
    variance: Any  #: due to label noise

    @property
    def total(self) -> Any:
        return self.bias + self.variance


# -- onehot ----------------------------------------------------------------------------------------------------
# The one-hot case of FTW-ERM's Theorem 2, in which bias and variance are sums over coordinates.
#
# Inputs are unit vectors e_1..e_d, drawn with probabilities λ_i for training and λ'_i for tests; μ_i training points
# equal e_i, and all of them have the weight w_i. The paper scores the two estimators differently: the weighted one
# under the test second moment Σ_te = diag(λ'), the unweighted one (ERM) under the *training* second moment diag(λ).
# This is "paper" scoring, on which Theorem 2 and Proposition 3 rely; "consistent" scoring evaluates both under Σ_te.


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


# -- conditions ------------------------------------------------------------------------------------------------
# When does weighting help, coordinate by coordinate? FTW-ERM's conditions as printed, and the exact ones.
#
# All are functions of w_i, s_i = sqrt(λ'_i/λ_i) and ξ_i = λ/(λ+μ_i) only (arrays of one shape), and return booleans.
# The exact ones follow from the closed forms of `OneHot` without estimates: they are equivalences if θ_i ≠ 0 and σ² >
# 0. They avoid divisions, so μ_i = 0 (ξ_i = 1) needs no special case.
#
# The printed ones are only indicators: (4.3) does not imply that FTW-ERM wins, and the variance half of Proposition 3
# has the wrong direction; `census` counts how often either fails.


Truth = NDArray[np.bool_]


def printed_lower(w: Array, s: Array) -> Truth:
    """The lower half of (4.3), s - 1 ≤ w; intended to give B_FTW ≤ B_ERM, but it does not."""
    return w >= s - 1


def printed_upper(w: Array, s: Array, xi: Array) -> Truth:
    """The upper half of (4.3), w ≤ ξ/s: sufficient for V_FTW ≤ V_ERM."""
    return w * s <= xi


def printed_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """Condition (4.3) of Theorem 2: s - 1 ≤ w ≤ ξ/s."""
    return printed_lower(w, s) & printed_upper(w, s, xi)


def printed_bound(xi: Array) -> Array:
    """Largest s for which some w satisfies (4.3) (Remark 3): (1 + sqrt(1 + 4ξ))/2, from 1 (ξ = 0) to 1.618 (ξ = 1)."""
    return (1 + np.sqrt(1 + 4 * xi)) / 2


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


# -- census ----------------------------------------------------------------------------------------------------


DRAWS = 200_000
#: All draws are in memory at the same time, and this many determine a share up to 0.0002.
MOST = 5_000_000
_DIMENSION = 3


@dataclass(frozen=True)
class Finding:
    """One condition on random draws: how often it held, and how often the promise held too."""

    source: str  #: the condition's place in the paper, such as "Theorem 2 (4.3)"
    condition: str
    promise: str
    unit: str  #: "coordinates" or "problems", which were drawn
    drawn: int
    held: int
    followed: int
    remark: str  #: conclusion, in one line

    @property
    def share(self) -> float | None:
        """Share of the draws satisfying the condition in which the promise held; None if there are none."""
        return self.followed / self.held if self.held else None


def problems(rng: np.random.Generator, n: int, d: int = _DIMENSION) -> tuple[OneHot, Array]:
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


def census(draws: int = DRAWS, seed: int = 0) -> list[Finding]:
    """Count every condition on `draws` random problems with three coordinates each. Raises FedbenchError unless `draws`
    is 1 to MOST and the seed is valid."""
    check_draws(draws, seed, MOST, "which take some 3 GB, ")
    rng = np.random.default_rng(seed)
    problem, w = problems(rng, draws)
    s, xi = problem.s, problem.xi
    weighted, erm, fair = problem.weighted_terms(w), problem.erm_terms("paper"), problem.erm_terms("consistent")
    within, possible = inside(rng, problem)

    lower_bias, lower_variance = weighted.bias <= erm.bias, weighted.variance <= erm.variance
    higher_variance = erm.variance <= weighted.variance

    def finding(source: str, condition: str, promise: str, held: Truth, follows: Truth, remark: str) -> Finding:
        unit = "problems" if held.ndim == 1 else "coordinates"
        return Finding(
            source, condition, promise, unit, held.size, int(held.sum()), int((held & follows).sum()), remark
        )

    whole = [_total(r) for r in (problem.weighted(within), problem.weighted(problem.ratio), problem.erm("paper"))]
    theorem, proposition, printed = "Theorem 2 (4.3)", "Proposition 3", printed_proposition(w, s, xi)
    return [
        finding(
            theorem, "upper half: w ≤ ξ/s", "V_FTW ≤ V_ERM", printed_upper(w, s, xi), lower_variance,
            "Right: it is sufficient for the variance.",
        ),
        finding(
            theorem, "lower half: w ≥ s - 1", "B_FTW ≤ B_ERM", printed_lower(w, s), lower_bias,
            "Not sufficient for the bias, which needs w ≥ s + (s-1)λ/μ.",
        ),
        finding(
            theorem, "both halves, all coordinates", "R_FTW ≤ R_ERM", possible, whole[0] <= whole[2],
            "w drawn inside (4.3) where that can be: the conclusion need not follow.",
        ),
        finding(
            theorem, "the true ratio w = λ'/λ, all coordinates", "R_FTW ≤ R_ERM",
            np.all(printed_for_true_ratio(s, xi), axis=-1), whole[1] <= whole[2],
            "Impossible: it needs s < 1 everywhere, but λ and λ' both sum to 1.",
        ),
        finding(
            "exact", "w ≥ s + (s-1)λ/μ, and s ≤ 1-ξ or w ≤ ξ/(s-1+ξ)", "B_FTW ≤ B_ERM, V_FTW ≤ V_ERM",
            exact_theorem(w, s, xi), lower_bias & lower_variance,
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
            "corrected", "ξ/(s-1+ξ) ≤ w ≤ s + (s-1)λ/μ", "R_ERM ≤ R_FTW", corrected_proposition(w, s, xi),
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


# -- spectrum --------------------------------------------------------------------------------------------------
# Do training and test inputs have similar eigenvalues? The check behind FTW-ERM's Figures 2 and 3.
#
# Remark 3 needs s_i = sqrt(λ'_i/λ_i) < (1 + sqrt(1 + 4ξ_i))/2, with λ_i the sorted eigenvalues of E[xxᵀ]. For a data
# matrix of n rows with singular values S_i these are S_i²/n. The paper's figures omit the 1/n and so show
# sqrt(n_test/n_train) times s_i, which is below 1 because there are fewer test images. Both are computed here.


#: Bounds of s_i for all λ and μ: the smallest (ξ = 0) and the largest (ξ = 1, the golden ratio).
LEAST_BOUND = 1.0
LARGEST_BOUND = (1 + 5**0.5) / 2
#: Number of rows that are converted to float64 at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values S_1 ≥ S_2 ≥ ... of an uncentred data matrix [n, d]; min(n, d) of them."""

    values: Array  #: [min(n, d)]; only rounding errors beyond the rank
    n: int
    d: int

    @property
    def rank(self) -> int:
        """Numerical rank: squares above the rounding error of the Gram matrix, max(n, d) · eps · S_1²."""
        squares = self.values**2
        return int((squares > max(self.n, self.d) * np.finfo(float).eps * squares[:1].sum()).sum())

    @property
    def eigenvalues(self) -> Array:
        """λ_i = S_i²/n of the second moment XᵀX/n."""
        return self.values**2 / self.n


def spectrum(data: NDArray[np.uint8] | Array) -> Spectrum:
    """Return the singular values of data [n, ...], with every row flattened; uint8 pixels are divided by 255.

    They are roots of the eigenvalues of the Gram matrix of the smaller side. Products of bytes are summed exactly
    (integers below 2^53), so the Gram matrix of uint8 images has no rounding errors. Raises FedbenchError if the data
    are empty or not finite.
    """
    require(data.ndim >= 2 and data.size > 0, f"a spectrum needs rows of numbers, not an array of shape {data.shape}")
    rows = data.reshape(len(data), -1)
    n, d = rows.shape
    rows = rows[:, rows.any(axis=0)]  # columns of an empty channel or border contribute only zeros
    if rows.shape[1] == 0:
        return Spectrum(np.zeros(min(n, d)), n, d)
    if n > rows.shape[1]:
        gram = np.zeros((rows.shape[1],) * 2)
        for start in range(0, n, _BLOCK):
            block = rows[start : start + _BLOCK].astype(float)
            gram += block.T @ block
    else:
        block = rows.astype(float)
        gram = block @ block.T
    if not np.isfinite(gram).all():
        raise FedbenchError("a spectrum needs finite data, and some are not")
    squares = np.linalg.eigvalsh(gram)[::-1]
    values = np.zeros(min(n, d))
    values[: len(squares)] = np.sqrt(np.maximum(squares, 0))
    return Spectrum(values / 255 if data.dtype == np.uint8 else values, n, d)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Test spectrum relative to training spectrum, for i = 1..r with r the smaller of the two numerical ranks."""

    raw: Array  #: S'_i/S_i [r], as in the paper's figures
    normalised: Array  #: s_i = sqrt(λ'_i/λ_i) [r]
    bound: Array  #: (1 + sqrt(1 + 4ξ_i))/2 [r]

    @property
    def rank(self) -> int:
        return len(self.raw)

    @property
    def largest(self) -> float:
        """max s_i; NaN if the rank is 0."""
        return float(self.normalised.max()) if self.rank else float("nan")

    def share_below(self, bound: float | Array) -> float:
        """Return the share of i with s_i below a bound (one number, or [r]); NaN if the rank is 0."""
        return float((self.normalised < bound).mean()) if self.rank else float("nan")


def compare(train: Spectrum, test: Spectrum, ridge: float = 1.0) -> Comparison:
    """Compare the test spectrum with the training spectrum.

    The bound uses ξ_i = λ/(λ + μ_i) with λ = `ridge` and μ_i = S_i², the eigenvalues of the training inputs' XᵀX, as in
    Theorem 2; pixels are in [0, 1]. The paper specifies no λ for its figures: λ → 0 gives LEAST_BOUND for every i, and
    λ → ∞ gives LARGEST_BOUND. Raises FedbenchError if the inputs differ in dimension or the ridge is not above 0.
    """
    require(train.d == test.d, f"training inputs have {train.d} numbers and test inputs {test.d}")
    require(ridge > 0, f"the ridge penalty must be above 0, not {ridge}")
    rank = min(train.rank, test.rank)
    raw = test.values[:rank] / train.values[:rank]
    xi = ridge / (ridge + train.values[:rank] ** 2)
    return Comparison(raw, raw * np.sqrt(train.n / test.n), printed_bound(xi))
