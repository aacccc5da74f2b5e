"""Weighted ridge regression: the estimate and its excess risk (FTW-ERM, Lemma 1).

    θ̂ = argmin Σ_i w_i (θᵀx_i - y_i)² + λ‖θ‖²,  y = Xθ* + ε,  E ε = 0,  E ε² = σ²

The excess risk is R = E‖θ̂ - θ*‖² in the norm of Σ_te = E[xxᵀ] of the test inputs. (The paper's loss has a factor ½
that its own lemma drops.) Sums, no 1/n: λ stands against X's column sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import require
from fedbench.theory.arrays import Array

# -- ridge -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Risk:
    """An excess risk in two parts: numbers, or arrays of one shape (one entry a problem or a coordinate)."""

    bias: Any  #: what is left of θ* because of the penalty
    variance: Any  #: what the label noise adds

    @property
    def total(self) -> Any:
        return self.bias + self.variance


@dataclass(frozen=True, eq=False)
class Expectation:
    """A Monte-Carlo mean over designs, with the standard error of each part."""

    mean: Risk
    error: Risk
    total_error: float  #: of bias + variance, which are correlated
    draws: int


def estimate(x: ArrayLike, y: ArrayLike, weights: ArrayLike, ridge: float) -> Array:
    """θ̂ [..., d, m] of labels y [..., n, m] (m noise draws at once), or [..., d] of y [..., n] (Eq. L.1).

    Arguments: x [..., n, d], weights [..., n] (not negative), ridge λ. Raises FedbenchError as `risk` does.
    """
    design, weight = _design(x, weights, ridge)
    weighted = np.swapaxes(design * weight[..., None], -1, -2)  # XᵀW
    right = weighted @ (labels if (labels := np.asarray(y, float)).ndim == design.ndim else labels[..., None])
    theta_hat = _solve(weighted @ design, ridge, right)
    return theta_hat if labels.ndim == design.ndim else theta_hat[..., 0]


def risk(x: ArrayLike, weights: ArrayLike, ridge: float, theta: ArrayLike, noise: float, sigma: ArrayLike) -> Risk:
    """Bias and variance for given training inputs: the fixed design of Lemma 1 and Remark 2.

        B = λ² θ*ᵀ A⁻¹ Σ A⁻¹ θ*,  V = σ² tr(A⁻¹ XᵀW²X A⁻¹ Σ),  A = XᵀWX + λI

    Arguments:
        x: training inputs [..., n, d]; leading axes are problems.
        weights: of the samples [..., n], not negative.
        ridge: λ.
        theta: the true parameter θ* [..., d].
        noise: variance σ² of the label noise.
        sigma: second moment [d, d] of the inputs that the risk is taken over (Σ_te).

    Raises FedbenchError for weights that are negative or not finite, and where A is singular (λ = 0, too few inputs).
    """
    require(noise >= 0, f"the noise variance cannot be negative, as {noise} is")
    design, weight = _design(x, weights, ridge)
    moment = np.asarray(sigma, float)
    weighted = np.swapaxes(design * weight[..., None], -1, -2)
    truth = np.broadcast_to(np.asarray(theta, float), (*design.shape[:-2], design.shape[-1]))[..., None]
    # One factorisation serves both parts: A⁻¹[θ* | XᵀW].
    solved = _solve(weighted @ design, ridge, np.concatenate([truth, weighted], axis=-1))
    quadratic = np.einsum("...ij,ik,...kj->...j", solved, moment, solved)
    return Risk(ridge**2 * quadratic[..., 0], noise * quadratic[..., 1:].sum(axis=-1))


def expected_risk(
    draw: Callable[[np.random.Generator, int], ArrayLike],
    ratio: Callable[[Array], ArrayLike],
    ridge: float,
    theta: ArrayLike,
    noise: float,
    sigma: ArrayLike,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Expectation:
    """The same over random designs, the expectation of Lemma 1 over X, by Monte Carlo.

    Only X is drawn: given X, the expectation over the label noise is exact.

    Arguments:
        draw: (generator, draws) -> training inputs [draws, n, d].
        ratio: inputs [draws, n, d] -> weights [draws, n], such as p_te/p_tr.
    """
    require(draws >= 2, f"a Monte-Carlo mean needs at least 2 draws, not {draws}")
    x = np.asarray(draw(np.random.default_rng(seed), draws), float)
    risks = risk(x, ratio(x), ridge, theta, noise, sigma)

    def error(values: Array) -> float:
        return float(values.std(ddof=1) / np.sqrt(draws))

    return Expectation(
        mean=Risk(float(risks.bias.mean()), float(risks.variance.mean())),
        error=Risk(error(risks.bias), error(risks.variance)),
        total_error=error(risks.total),
        draws=draws,
    )


def _design(x: ArrayLike, weights: ArrayLike, ridge: float) -> tuple[Array, Array]:
    design, weight = np.asarray(x, float), np.asarray(weights, float)
    require(design.ndim >= 2, f"training inputs must be [n, d], not of shape {design.shape}")
    require(ridge >= 0, f"the ridge penalty cannot be negative, as {ridge} is")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise FedbenchError("a weight is negative or not a number", "density ratios are finite and at least 0")
    return design, np.broadcast_to(weight, design.shape[:-1])


def _solve(gram: Array, ridge: float, right: Array) -> Array:
    try:
        return np.asarray(np.linalg.solve(gram + ridge * np.eye(gram.shape[-1]), right), float)
    except np.linalg.LinAlgError as error:
        raise FedbenchError("the weighted inputs do not determine the parameter", "use a ridge above 0") from error


# -- spectrum --------------------------------------------------------------------------------------------------
# Do training and test inputs have alike eigenvalues? The check behind FTW-ERM's Figures 2 and 3.
#
# Remark 3 asks for s_i = sqrt(λ'_i/λ_i) < (1 + sqrt(1 + 4ξ_i))/2, with λ_i the eigenvalues of E[xxᵀ], sorted. Of a
# data
# matrix of n rows with singular values S_i these are S_i²/n. The paper's figures leave out the 1/n and so show
# sqrt(n_test/n_train) times s_i: below 1 for want of test images. Both are computed here.


#: Bounds of s_i that hold whatever λ and μ are: the smallest (ξ = 0) and the largest (ξ = 1, the golden ratio).
LEAST_BOUND = 1.0
LARGEST_BOUND = (1 + 5**0.5) / 2
#: Rows that are converted to float64 at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values S_1 ≥ S_2 ≥ ... of an uncentred data matrix [n, d], as many as its smaller side."""

    values: Array  #: [min(n, d)]; from the rank on, rounding errors
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
    """Singular values of data [n, ...], every row flattened; uint8 pixels are divided by 255.

    They are roots of the eigenvalues of the Gram matrix of the smaller side. Products of bytes are summed exactly
    (integers below 2^53), so the Gram matrix of an image matrix is free of rounding. Raises FedbenchError if there are
    no data, or some are not finite.
    """
    require(data.ndim >= 2 and data.size > 0, f"a spectrum needs rows of numbers, not an array of shape {data.shape}")
    rows = data.reshape(len(data), -1)
    n, d = rows.shape
    rows = rows[:, rows.any(axis=0)]  # an empty channel or an empty border adds zeros only
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
    """Test against training spectrum, for the ranks i = 1..r with r the smaller of the two numerical ranks."""

    raw: Array  #: S'_i/S_i [r], as the paper's figures have it
    normalised: Array  #: s_i = sqrt(λ'_i/λ_i) [r]
    bound: Array  #: (1 + sqrt(1 + 4ξ_i))/2 [r]

    @property
    def rank(self) -> int:
        return len(self.raw)

    @property
    def largest(self) -> float:
        """max s_i; NaN without a rank."""
        return float(self.normalised.max()) if self.rank else float("nan")

    def share_below(self, bound: float | Array) -> float:
        """Share of the ranks with s_i below a bound (one number, or [r]); NaN without a rank."""
        return float((self.normalised < bound).mean()) if self.rank else float("nan")


def compare(train: Spectrum, test: Spectrum, ridge: float = 1.0) -> Comparison:
    """Set the test spectrum against the training spectrum.

    For the bound, ξ_i = λ/(λ + μ_i) takes λ = `ridge` and μ_i = S_i², the eigenvalues of the training inputs' XᵀX, as
    Theorem 2 defines them; pixels lie in [0, 1]. The paper fixes no λ for its figures: λ → 0 gives LEAST_BOUND in every
    rank, λ → ∞ gives LARGEST_BOUND. Raises FedbenchError if the inputs differ in dimension or the ridge is not above 0.
    """
    require(train.d == test.d, f"training inputs have {train.d} numbers and test inputs {test.d}")
    require(ridge > 0, f"the ridge penalty must be above 0, not {ridge}")
    rank = min(train.rank, test.rank)
    raw = test.values[:rank] / train.values[:rank]
    xi = ridge / (ridge + train.values[:rank] ** 2)
    return Comparison(raw, raw * np.sqrt(train.n / test.n), printed_bound(xi))


# -- conditions ------------------------------------------------------------------------------------------------
# When does weighting help, coordinate by coordinate? FTW-ERM's conditions as printed, and the exact ones.
#
# All are functions of w_i, s_i = sqrt(λ'_i/λ_i) and ξ_i = λ/(λ+μ_i) alone (arrays of one shape), and return booleans.
# The exact ones follow from the closed forms of `OneHot` without an inequality lost: they are equivalences wherever
# θ_i ≠ 0 and σ² > 0. Written without divisions, so that μ_i = 0 (ξ_i = 1) needs no special limit.
#
# The printed ones are indicators: (4.3) does not imply that FTW-ERM wins, and Proposition 3's half about the variance
# has the wrong direction; `fedbench.theory.ftw_erm.census` counts how often either fails.


Truth = NDArray[np.bool_]


def printed_lower(w: Array, s: Array) -> Truth:
    """The lower half of (4.3), s - 1 ≤ w; meant to give B_FTW ≤ B_ERM, which it does not."""
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
    """V_FTW ≤ V_ERM in the paper's scoring ⇔ s ≤ 1-ξ or w ≤ ξ/(s-1+ξ) ⇔ w (s-1+ξ) ≤ ξ; or μ = 0: nothing to vary."""
    return (w * (s - 1 + xi) <= xi) | (xi >= 1)


def exact_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """What Theorem 2 needs: neither bias nor variance rises. Some w does that only where s ≤ 1."""
    return bias_falls(w, s, xi) & variance_falls(w, s, xi)


def corrected_proposition(w: Array, s: Array, xi: Array) -> Truth:
    """Proposition 3 with its variance half turned round: ξ/(s-1+ξ) ≤ w ≤ s + (s-1) λ/μ; neither bias nor variance of
    ERM is above FTW-ERM's. Some w does that only where s ≥ 1."""
    return (w * (1 - xi) <= s - xi) & ((w * (s - 1 + xi) >= xi) | (xi >= 1))


def consistent_bias_falls(w: Array, xi: Array) -> Truth:
    """B_FTW ≤ B_ERM, both under Σ_te ⇔ w ≥ 1 (or μ = 0)."""
    return (w >= 1) | (xi >= 1)


def consistent_variance_falls(w: Array, xi: Array) -> Truth:
    """V_FTW ≤ V_ERM, both under Σ_te ⇔ w ≤ 1 (or μ = 0): with the bias's, a pure trade-off."""
    return (w <= 1) | (xi >= 1)
