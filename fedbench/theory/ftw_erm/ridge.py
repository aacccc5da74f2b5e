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
from numpy.typing import ArrayLike

from fedbench.errors import FedbenchError
from fedbench.specs import require
from fedbench.theory.arrays import Array


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
