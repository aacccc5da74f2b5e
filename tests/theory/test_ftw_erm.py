"""FTW-ERM's Lemma 1, Theorem 2's one-hot case and Proposition 3 on random problems: the exact conditions hold, and how
far the printed ones carry is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from fedbench.reports.figures import eigenvalues
from tests.support.frames import few
from tests.theory import ftw_erm as c
from tests.theory.ftw_erm import OneHot, Risk, inside, problems


def risk(x: np.ndarray, w: np.ndarray, ridge: float, theta: np.ndarray, noise: float, sigma: np.ndarray) -> Risk:
    """Lemma 1 and Remark 2 for given training inputs [n, d] and weights [n], by matrices:

    B = λ² θ*ᵀ A⁻¹ Σ A⁻¹ θ*,  V = σ² tr(A⁻¹ XᵀW²X A⁻¹ Σ),  A = XᵀWX + λI
    """
    inverse = np.linalg.inv(x.T * w @ x + ridge * np.eye(len(theta)))
    shrunk, spread = ridge * inverse @ theta, inverse @ (x.T * w**2 @ x) @ inverse
    return Risk(shrunk @ sigma @ shrunk, noise * np.trace(spread @ sigma))


def test_lemma_1_is_what_a_library_s_estimate_does() -> None:
    """The mean and the spread of a library's θ̂ over simulated labels."""
    rng, draws, ridge, noise = np.random.default_rng(5), 100_000, 0.8, 0.3
    x, w, theta, root = rng.standard_normal((12, 3)), rng.uniform(0.1, 3, 12), np.array([1.0, -2.0, 0.5]), np.eye(3)
    sigma = (root + 0.3 * rng.standard_normal((3, 3))) @ root
    sigma = sigma @ sigma.T
    labels = (x @ theta)[:, None] + np.sqrt(noise) * rng.standard_normal((12, draws))
    library = Ridge(alpha=ridge, fit_intercept=False).fit(x, labels, sample_weight=w)
    gap = library.coef_.T - theta[:, None]  # [d, draws]
    losses, mean = np.einsum("id,ij,jd->d", gap, sigma, gap), gap.mean(axis=1)
    found, error = risk(x, w, ridge, theta, noise, sigma), losses.std() / np.sqrt(draws)
    assert abs(losses.mean() - found.total) < 4 * error < 0.08 * found.total
    assert found.variance == pytest.approx(losses.mean() - mean @ sigma @ mean, abs=4 * error)


REFERENCE: dict[str, Any] = {
    "train": [0.4, 0.3, 0.2, 0.1],
    "test": [0.1, 0.2, 0.3, 0.4],
    "counts": [8, 6, 4, 2],
    "theta": [1, -2, 0.5, 1.5],
    "noise": 0.25,
    "ridge": 1.0,
}


def test_reference_values() -> None:
    problem = OneHot(**REFERENCE)
    for found, expected in (
        (problem.weighted(problem.ratio), (0.055753, 0.060004, 0.115757)),
        (problem.erm("consistent"), (0.120561, 0.042814, 0.163375)),
        (problem.erm(), (0.056428, 0.032616, 0.089044)),
    ):
        assert (found.bias, found.variance, found.total) == pytest.approx(expected, abs=6e-7)


@few(st.integers(0, 10_000), examples=25)
def test_closed_forms(seed: int) -> None:
    """They are Lemma 1's; the true ratio never satisfies the printed condition."""
    problem, w = problems(np.random.default_rng(seed), 1, 4)
    points = np.repeat(np.arange(4), problem.counts[0].astype(int))
    x = np.eye(4)[points]
    told = (problem.ridge[0], problem.theta[0], problem.noise[0])
    for weights, moment, closed in (
        (w[0], problem.test[0], problem.weighted(w)),
        (np.ones(4), problem.train[0], problem.erm("paper")),
        (np.ones(4), problem.test[0], problem.erm("consistent")),
    ):
        found = risk(x, weights[points], *told, np.diag(moment))
        assert (found.bias, found.variance) == pytest.approx((closed.bias[0], closed.variance[0]), rel=1e-9)
    problem, _ = problems(np.random.default_rng(seed), 100)
    holds = c.printed_for_true_ratio(problem.s, problem.xi)
    np.testing.assert_array_equal(holds, problem.s <= np.cbrt(problem.xi))
    assert not holds.all(axis=-1).any()


@few(st.integers(0, 10_000), st.floats(1.01, 5), examples=25)
def test_more_penalty_more_bias_less_variance_and_more_weight_the_reverse(seed: int, factor: float) -> None:
    problem, w = problems(np.random.default_rng(seed), 5)
    fields = {name: getattr(problem, name) for name in REFERENCE}
    harder = OneHot(**{**fields, "ridge": factor * problem.ridge})
    before, penalised = problem.weighted_terms(w), harder.weighted_terms(w)
    weighted = problem.weighted_terms(factor * w)
    assert (penalised.bias > before.bias).all()
    assert (penalised.variance < before.variance).all()
    assert (weighted.bias < before.bias).all()
    assert (weighted.variance > before.variance).all()


def test_without_a_training_point() -> None:
    """A coordinate keeps its bias and has no variance, and only s counts."""
    problem = OneHot(**{**REFERENCE, "counts": [8, 6, 4, 0]})
    terms = problem.weighted_terms(problem.ratio)
    assert (terms.bias[3], terms.variance[3]) == (pytest.approx(0.4 * 1.5**2), 0)
    assert problem.xi[3] == 1
    problem = OneHot(np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.zeros(2), np.ones(2), np.array(1.0), np.array(2.0))
    w = np.array([3.0, 3.0])
    weighted, erm = problem.weighted_terms(w), problem.erm_terms("paper")
    assert c.bias_falls(w, problem.s, problem.xi).tolist() == (weighted.bias <= erm.bias).tolist() == [True, False]
    assert c.variance_falls(w, problem.s, problem.xi).all()


DRAWS = 50_000


@pytest.fixture(scope="module")
def drawn() -> tuple[OneHot, np.ndarray]:
    """50,000 problems of one free coordinate and its rest, half of the weights close to a condition's border."""
    rng = np.random.default_rng(7)
    problem, w = problems(rng, DRAWS, 2)
    s, xi = problem.s, problem.xi
    with np.errstate(divide="ignore"):
        borders = np.stack([(s - xi) / (1 - xi), xi / (s - 1 + xi), np.ones_like(s), xi / s])
    near = rng.choice(borders.reshape(4, -1), axis=0).reshape(w.shape) * (1 + rng.choice([-1e-6, 1e-6], w.shape))
    use = (rng.random(w.shape) < 0.5) & np.isfinite(near) & (near > 0)
    return problem, np.where(use, near, w)


def test_the_exact_conditions_are_equivalences_and_decide_the_risk(drawn: tuple[OneHot, np.ndarray]) -> None:
    problem, w = drawn
    s, xi = problem.s, problem.xi
    weighted, paper = problem.weighted_terms(w), problem.erm_terms("paper")
    for condition, inequality in (
        (c.bias_falls(w, s, xi), weighted.bias <= paper.bias),
        (c.variance_falls(w, s, xi), weighted.variance <= paper.variance),
    ):
        assert 0.1 < condition.mean() < 0.9
        np.testing.assert_array_equal(condition, inequality)
    better, worse = c.exact_theorem(w, s, xi), c.corrected_proposition(w, s, xi)
    assert better.sum() > 2_000
    assert worse.sum() > 2_000
    assert (weighted.total <= paper.total)[better].all()
    assert (paper.total <= weighted.total)[worse].all()


def test_the_printed_conditions_are_the_papers() -> None:
    """Transcribed with its divisions, on values away from the borders."""
    rng = np.random.default_rng(2)
    ratio, mu, ridge, w = (rng.uniform(low, high, DRAWS) for low, high in ((0.05, 4), (1, 9), (1, 9), (0, 3)))
    s, xi = np.sqrt(ratio), ridge / (ridge + mu)
    four_three = (s - 1 <= w) & (w <= xi * np.sqrt(1 / ratio))
    largest = np.minimum(1 / ((s - 1) / xi + 1), s + ridge / mu * s - ridge / mu)
    three = (s >= np.maximum(xi, 1 - xi)) & (w <= largest)
    assert 1000 < four_three.sum() < DRAWS / 2
    assert 1000 < three.sum() < DRAWS / 2
    np.testing.assert_array_equal(c.printed_theorem(w, s, xi), four_three)
    np.testing.assert_array_equal(c.printed_proposition(w, s, xi), three)
    exact = (s <= 1 - xi) | (w <= xi / (s - 1 + xi))
    np.testing.assert_array_equal(c.variance_falls(w, s, xi), exact)
    np.testing.assert_array_equal(c.bias_falls(w, s, xi), w >= s + (s - 1) * ridge / mu)


@few(st.floats(0.05, 3), st.floats(0.01, 0.99), examples=25)
def test_where_a_weight_can_satisfy_them(s: float, xi: float) -> None:
    assert eigenvalues.bound(np.array([0.0, 1.0])).tolist() == [1.0, (1 + 5**0.5) / 2]
    bound = float(eigenvalues.bound(np.array(xi)))
    w = np.linspace(max(s - 1, 0), max(s - 1, 0) + 4, 4001)
    if abs(s - bound) > 1e-9:
        assert c.printed_theorem(w, s, xi).any() == (s < bound)
    w = np.append(w, 1.0)
    if abs(s - 1) > 0.01:
        assert c.exact_theorem(w, s, xi).any() == (s < 1)
        assert c.corrected_proposition(w, s, xi).any() == (s > 1)


def test_weights_inside_the_printed_condition_are_inside() -> None:
    rng = np.random.default_rng(3)
    problem, _ = problems(rng, 5000)
    w, possible = inside(rng, problem)
    holds = c.printed_theorem(w, problem.s, problem.xi).all(axis=-1)
    assert possible.sum() > 100
    np.testing.assert_array_equal(holds, possible)
    # The lower end alone is met even where the upper end lies below it.
    assert c.printed_lower(w, problem.s).all()


def test_how_far_the_printed_conditions_carry() -> None:
    """Of random problems or coordinates in which a condition holds, the share in which what it promises is true."""
    rng = np.random.default_rng(0)
    problem, w = problems(rng, 20_000)
    s, xi = problem.s, problem.xi
    weighted, erm, fair = problem.weighted_terms(w), problem.erm_terms("paper"), problem.erm_terms("consistent")
    lower_bias, lower_variance = weighted.bias <= erm.bias, weighted.variance <= erm.variance

    def share(condition: np.ndarray, promise: np.ndarray) -> float:
        assert condition.sum() > 400
        return float(promise[condition].mean())

    # Theorem 2, (4.3): its upper half is sufficient for the variance; its lower half is not for the bias, which needs
    # w ≥ s + (s-1)λ/μ; with both halves in all coordinates the conclusion need not follow.
    assert share(c.printed_upper(w, s, xi), lower_variance) == 1
    assert 0.5 < share(c.printed_lower(w, s), lower_bias) < 0.75
    within, possible = inside(rng, problem)
    assert share(possible, problem.weighted(within).total <= problem.erm("paper").total) < 0.2
    # The true ratio w = λ'/λ can never satisfy it: it needs s < 1 everywhere, but λ and λ' both sum to 1.
    assert not c.printed_for_true_ratio(s, xi).all(axis=-1).any()
    # What (4.3) should say.
    assert share(c.exact_theorem(w, s, xi), lower_bias & lower_variance) == 1
    # Proposition 3: the variance half has the wrong direction; its conclusion is often true all the same, because the
    # bias decides. With that half turned round it follows.
    printed, worse = c.printed_proposition(w, s, xi), erm.total <= weighted.total
    assert share(printed, erm.variance <= weighted.variance) == 0
    assert 0.7 < share(printed, worse) < 1
    assert share(c.corrected_proposition(w, s, xi), worse) == 1
    # Both scored under Σ_te, weights only trade bias (w ≥ 1) for variance (w ≤ 1).
    assert share(w != 1, (weighted.bias <= fair.bias) & (weighted.variance <= fair.variance)) == 0
