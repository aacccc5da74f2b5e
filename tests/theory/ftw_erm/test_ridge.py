"""Lemma 1: the weighted ridge estimate, its bias and its variance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm import estimate, expected_risk, risk

N, D = 12, 3
RIDGE, NOISE = 0.8, 0.3
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, D))
W = RNG.uniform(0.1, 3, N)
THETA = np.array([1.0, -2.0, 0.5])
_ROOT = RNG.standard_normal((D, D))
SIGMA = _ROOT @ _ROOT.T


def test_the_estimate_is_that_of_a_library() -> None:
    y = RNG.standard_normal(N)
    library = Ridge(alpha=RIDGE, fit_intercept=False).fit(X, y, sample_weight=W)
    np.testing.assert_allclose(estimate(X, y, W, RIDGE), library.coef_, rtol=1e-10)


def test_bias_and_variance_are_those_of_simulated_labels() -> None:
    draws = 200_000
    noise = np.sqrt(NOISE) * np.random.default_rng(6).standard_normal((N, draws))
    gap = estimate(X, (X @ THETA)[:, None] + noise, W, RIDGE) - THETA[:, None]  # [d, draws]
    losses = np.einsum("id,ij,jd->d", gap, SIGMA, gap)
    mean = gap.mean(axis=1)
    found = risk(X, W, RIDGE, THETA, NOISE, SIGMA)
    error = losses.std() / np.sqrt(draws)
    assert abs(losses.mean() - found.total) < 4 * error
    assert error < 0.01 * found.total  # and that says something
    spread = losses.mean() - mean @ SIGMA @ mean
    assert found.variance == pytest.approx(spread, abs=4 * error)
    slope = 2 * (gap.T @ SIGMA @ mean).std() / np.sqrt(draws)
    assert abs(mean @ SIGMA @ mean - found.bias) < 4 * slope < 0.1 * found.bias


def test_without_noise_only_the_bias_is_left_and_without_a_penalty_only_the_variance() -> None:
    exact = estimate(X, X @ THETA, W, RIDGE) - THETA
    quiet = risk(X, W, RIDGE, THETA, 0.0, SIGMA)
    assert (quiet.variance, quiet.bias) == (0, pytest.approx(exact @ SIGMA @ exact))
    assert risk(X, W, 0.0, THETA, NOISE, SIGMA).bias == 0
    np.testing.assert_allclose(estimate(X, X @ THETA, W, 0.0), THETA)


def test_weights_and_penalty_scale_together() -> None:
    once, thrice = (risk(X, c * W, c * RIDGE, THETA, NOISE, SIGMA) for c in (1, 3))
    assert (once.bias, once.variance) == (pytest.approx(thrice.bias), pytest.approx(thrice.variance))


def test_many_problems_at_once() -> None:
    x = RNG.standard_normal((4, N, D))
    w = RNG.uniform(0.1, 3, (4, N))
    together = risk(x, w, RIDGE, THETA, NOISE, SIGMA)
    for i in range(4):
        alone = risk(x[i], w[i], RIDGE, THETA, NOISE, SIGMA)
        assert (together.bias[i], together.variance[i]) == (pytest.approx(alone.bias), pytest.approx(alone.variance))


def test_random_designs_against_their_full_enumeration() -> None:
    """Three points from {e_1, e_2}: the expectation is a sum over the eight designs."""
    train, test = np.array([0.3, 0.7]), np.array([0.6, 0.4])
    theta, sigma, units = np.array([1.0, 2.0]), np.diag(test), np.eye(2)
    ratio = test / train

    parts = []
    for points in product(range(2), repeat=3):
        found = risk(units[list(points)], ratio[list(points)], RIDGE, theta, NOISE, sigma)
        parts.append(np.prod(train[list(points)]) * np.array([found.bias, found.variance]))
    bias, variance = np.sum(parts, axis=0)

    drawn = expected_risk(
        lambda rng, draws: units[rng.choice(2, (draws, 3), p=train)],
        lambda x: x @ ratio,
        RIDGE, theta, NOISE, sigma, draws=20_000,
    )  # fmt: skip
    assert abs(drawn.mean.bias - bias) < 4 * drawn.error.bias < 0.05 * bias
    assert abs(drawn.mean.variance - variance) < 4 * drawn.error.variance < 0.05 * variance
    assert abs(drawn.mean.total - bias - variance) < 4 * drawn.total_error
    assert drawn.draws == 20_000


@pytest.mark.parametrize(
    ("weights", "ridge", "noise", "message"),
    [
        (-W, RIDGE, NOISE, "a weight is negative or not a number"),
        (np.where(np.arange(N) == 3, np.nan, W), RIDGE, NOISE, "a weight is negative or not a number"),
        (np.where(np.arange(N) == 3, np.inf, W), RIDGE, NOISE, "a weight is negative or not a number"),
        (0 * W, 0.0, NOISE, "do not determine the parameter; use a ridge above 0"),
        (W, -1.0, NOISE, "the ridge penalty cannot be negative"),
        (W, RIDGE, -1.0, "the noise variance cannot be negative"),
    ],
)
def test_bad_input(weights: np.ndarray, ridge: float, noise: float, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        risk(X, weights, ridge, THETA, noise, SIGMA)


def test_one_draw_has_no_standard_error() -> None:
    with pytest.raises(FedbenchError, match="at least 2 draws"):
        expected_risk(
            lambda rng, n: rng.standard_normal((n, 3, 2)), lambda x: x[..., 0], 1, X[0, :2], 1, np.eye(2), draws=1
        )
