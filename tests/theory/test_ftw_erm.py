"""FTW-ERM's statements: Lemma 1, the one-hot case of Theorem 2 in closed form, the conditions, of which the exact ones
hold without exception and the paper's are counted, and the spectra of Figures 2 and 3."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm import OneHot, census, compare, estimate, expected_risk, risk, spectrum
from fedbench.theory.ftw_erm import conditions as c
from fedbench.theory.ftw_erm.census import inside, problems

quick = settings(max_examples=25)


N, D = 12, 3
RIDGE, NOISE = 0.8, 0.3
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, D))
W = RNG.uniform(0.1, 3, N)
THETA = np.array([1.0, -2.0, 0.5])
_ROOT = RNG.standard_normal((D, D))
SIGMA = _ROOT @ _ROOT.T


def test_the_estimate_and_the_risk() -> None:
    """Against a library; without noise only the bias is left, without a penalty the variance; many problems at once."""
    y = RNG.standard_normal(N)
    library = Ridge(alpha=RIDGE, fit_intercept=False).fit(X, y, sample_weight=W)
    np.testing.assert_allclose(estimate(X, y, W, RIDGE), library.coef_, rtol=1e-10)
    exact = estimate(X, X @ THETA, W, RIDGE) - THETA
    quiet = risk(X, W, RIDGE, THETA, 0.0, SIGMA)
    assert (quiet.variance, quiet.bias) == (0, pytest.approx(exact @ SIGMA @ exact))
    assert risk(X, W, 0.0, THETA, NOISE, SIGMA).bias == 0
    np.testing.assert_allclose(estimate(X, X @ THETA, W, 0.0), THETA)
    once, thrice = (risk(X, c * W, c * RIDGE, THETA, NOISE, SIGMA) for c in (1, 3))
    assert (once.bias, once.variance) == (pytest.approx(thrice.bias), pytest.approx(thrice.variance))
    x = RNG.standard_normal((4, N, D))
    w = RNG.uniform(0.1, 3, (4, N))
    together = risk(x, w, RIDGE, THETA, NOISE, SIGMA)
    for i in range(4):
        alone = risk(x[i], w[i], RIDGE, THETA, NOISE, SIGMA)
        assert (together.bias[i], together.variance[i]) == (pytest.approx(alone.bias), pytest.approx(alone.variance))


def test_bias_and_variance_are_those_of_simulated_labels() -> None:
    draws = 100_000
    noise = np.sqrt(NOISE) * np.random.default_rng(6).standard_normal((N, draws))
    gap = estimate(X, (X @ THETA)[:, None] + noise, W, RIDGE) - THETA[:, None]  # [d, draws]
    losses = np.einsum("id,ij,jd->d", gap, SIGMA, gap)
    mean = gap.mean(axis=1)
    found = risk(X, W, RIDGE, THETA, NOISE, SIGMA)
    error = losses.std() / np.sqrt(draws)
    assert abs(losses.mean() - found.total) < 4 * error
    assert error < 0.02 * found.total  # and that says something
    spread = losses.mean() - mean @ SIGMA @ mean
    assert found.variance == pytest.approx(spread, abs=4 * error)
    slope = 2 * (gap.T @ SIGMA @ mean).std() / np.sqrt(draws)
    assert abs(mean @ SIGMA @ mean - found.bias) < 4 * slope < 0.1 * found.bias


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
    weighted, consistent, paper = problem.weighted(problem.ratio), problem.erm("consistent"), problem.erm()
    for found, bias, variance, total in (
        (weighted, 0.055753, 0.060004, 0.115757),
        (consistent, 0.120561, 0.042814, 0.163375),
        (paper, 0.056428, 0.032616, 0.089044),
    ):
        assert found.bias == pytest.approx(bias, abs=6e-7)
        assert found.variance == pytest.approx(variance, abs=6e-7)
        assert found.total == pytest.approx(total, abs=6e-7)


@given(st.integers(0, 10_000))
@quick
def test_closed_forms(seed: int) -> None:
    """They are Lemma 1's; weights s are an implicit penalty; the true ratio never satisfies the printed condition."""
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
        np.testing.assert_allclose(found.bias, closed.bias[0], rtol=1e-9)
        np.testing.assert_allclose(found.variance, closed.variance[0], rtol=1e-9)
    problem, _ = problems(np.random.default_rng(seed), 5)
    np.testing.assert_allclose(problem.weighted(problem.s).bias, problem.implicit_bias(), rtol=1e-9)
    problem, _ = problems(np.random.default_rng(seed), 100)
    holds = c.printed_for_true_ratio(problem.s, problem.xi)
    np.testing.assert_array_equal(holds, problem.s <= np.cbrt(problem.xi))
    assert not holds.all(axis=-1).any()


@given(st.integers(0, 10_000), st.floats(1.01, 5))
@quick
def test_more_penalty_more_bias_less_variance_and_more_weight_the_reverse(seed: int, factor: float) -> None:
    problem, w = problems(np.random.default_rng(seed), 5)
    told = {name: getattr(problem, name) for name in REFERENCE}
    harder = OneHot(**{**told, "ridge": factor * problem.ridge})
    before, penalised, weighted = (
        problem.weighted_terms(w),
        harder.weighted_terms(w),
        problem.weighted_terms(factor * w),
    )
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
    assert c.consistent_variance_falls(w, problem.xi).all()
    assert c.consistent_bias_falls(w / 9, problem.xi).all()


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
    weighted, paper, fair = problem.weighted_terms(w), problem.erm_terms("paper"), problem.erm_terms("consistent")
    for condition, inequality in (
        (c.bias_falls(w, s, xi), weighted.bias <= paper.bias),
        (c.variance_falls(w, s, xi), weighted.variance <= paper.variance),
        (c.consistent_bias_falls(w, xi), weighted.bias <= fair.bias),
        (c.consistent_variance_falls(w, xi), weighted.variance <= fair.variance),
    ):
        assert 0.1 < condition.mean() < 0.9
        np.testing.assert_array_equal(condition, inequality)
    problem, w = drawn
    better = c.exact_theorem(w, problem.s, problem.xi)
    worse = c.corrected_proposition(w, problem.s, problem.xi)
    weighted, erm = problem.weighted_terms(w), problem.erm_terms("paper")
    assert better.sum() > 2_000
    assert worse.sum() > 2_000
    assert (weighted.total <= erm.total)[better].all()
    assert (erm.total <= weighted.total)[worse].all()


def test_the_printed_conditions_are_the_papers() -> None:
    """Transcribed with its divisions, on values away from the borders."""
    rng = np.random.default_rng(2)
    ratio, mu, ridge, w = (
        rng.uniform(0.05, 4, DRAWS),
        rng.uniform(1, 9, DRAWS),
        rng.uniform(1, 9, DRAWS),
        rng.uniform(0, 3, DRAWS),
    )
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


@given(st.floats(0.05, 3), st.floats(0.01, 0.99))
@quick
def test_where_a_weight_can_satisfy_them(s: float, xi: float) -> None:
    assert c.printed_bound(np.array([0.0, 1.0])).tolist() == [1.0, (1 + 5**0.5) / 2]
    bound = float(c.printed_bound(np.array(xi)))
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


def test_what_is_wrong_shows() -> None:
    found = {(f.source, f.condition.split(",")[0] + " → " + f.promise): f for f in census(20_000, 0)}
    theorem, proposition = "Theorem 2 (4.3)", "Proposition 3"
    share = {key: f.share for key, f in found.items()}
    assert share[theorem, "upper half: w ≤ ξ/s → V_FTW ≤ V_ERM"] == 1
    assert 0.5 < share[theorem, "lower half: w ≥ s - 1 → B_FTW ≤ B_ERM"] < 0.75
    assert share[theorem, "both halves → R_FTW ≤ R_ERM"] < 0.2
    impossible = found[theorem, "the true ratio w = λ'/λ → R_FTW ≤ R_ERM"]
    assert (impossible.held, impossible.share, impossible.drawn) == (0, None, 20_000)
    assert share["exact", "w ≥ s + (s-1)λ/μ → B_FTW ≤ B_ERM, V_FTW ≤ V_ERM"] == 1
    assert share[proposition, "as printed → V_ERM ≤ V_FTW"] == 0
    assert 0.7 < share[proposition, "as printed → R_ERM ≤ R_FTW"] < 1
    assert share["corrected", "ξ/(s-1+ξ) ≤ w ≤ s + (s-1)λ/μ → R_ERM ≤ R_FTW"] == 1
    assert share["both under Σ_te", "w ≠ 1 → B_FTW ≤ B_ERM, V_FTW ≤ V_ERM"] == 0
    assert all(f.held > 400 for f in found.values() if f is not impossible)
    assert {f.unit for f in found.values() if f.drawn == 20_000} == {"problems"}
    assert census(1000, 3) == census(1000, 3) != census(1000, 4)


def _pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


@pytest.mark.parametrize("n", [5, 20, 21, 60, 5000], ids=lambda n: f"{n} rows of 21")
def test_singular_values_are_those_of_a_library(n: int) -> None:
    data = _pixels(n, 7, 3)
    found = spectrum(data)
    np.testing.assert_allclose(found.values, np.linalg.svd(data.reshape(n, -1) / 255, compute_uv=False), rtol=1e-7)
    assert (found.n, found.d, found.rank, len(found.values)) == (n, 21, min(n, 21), min(n, 21))
    np.testing.assert_allclose(spectrum(data / 255).values, found.values, rtol=1e-7)


@pytest.mark.parametrize("n", [10, 200])
def test_empty_pixels_and_repeated_ones_have_no_rank(n: int) -> None:
    data = np.zeros((n, 4, 4, 3), np.uint8)
    data[..., 0] = _pixels(n, 4, 4)
    data[:, 3, :, 0] = data[:, 0, :, 0]
    found = spectrum(data)
    assert found.rank == min(n, 12)
    assert len(found.values) == min(n, 48)
    np.testing.assert_allclose(found.values, np.linalg.svd(data.reshape(n, -1) / 255.0, compute_uv=False), atol=1e-5)


def test_ranks_and_eigenvalues() -> None:
    """Black images have rank 0, the smaller rank ends a comparison, and the bound follows the penalty."""
    black, grey = spectrum(np.zeros((3, 5), np.uint8)), spectrum(_pixels(9, 5))
    assert black.rank == 0
    both = compare(grey, black)
    assert (both.rank, len(both.normalised)) == (0, 0)
    assert np.isnan([both.largest, both.share_below(1)]).all()
    data = _pixels(50, 6)
    x = data / 255
    found = spectrum(data)
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(x.T @ x / 50)[::-1], rtol=1e-9)
    test = spectrum(_pixels(30, 6))
    both = compare(found, test)
    np.testing.assert_allclose(both.normalised, np.sqrt(test.eigenvalues / found.eigenvalues), rtol=1e-12)
    assert both.largest == both.normalised.max()
    assert both.share_below(float(np.sort(both.normalised)[3])) == 0.5
    train, test = spectrum(_pixels(50, 6)), spectrum(_pixels(30, 6))
    np.testing.assert_allclose(compare(train, test, 1e-12).bound, 1)
    np.testing.assert_allclose(compare(train, test, 1e12).bound, (1 + 5**0.5) / 2)
    bound = compare(train, test, 2.0).bound
    assert (np.diff(bound) > 0).all()  # the smaller an eigenvalue, the more the penalty weighs
    xi = 2 / (2 + train.values[0] ** 2)
    assert bound[0] * (bound[0] - 1) == pytest.approx(xi)
    thin = _pixels(50, 6)
    thin[:, 5] = thin[:, 0]
    assert compare(spectrum(_pixels(50, 6)), spectrum(thin)).rank == 5
    assert compare(spectrum(thin), spectrum(_pixels(3, 6))).rank == 3


@given(st.integers(2, 6))
@quick
def test_only_the_raw_ratio_counts_the_images(times: int) -> None:
    few = _pixels(40, 12)
    both = compare(spectrum(np.tile(few, (times, 1))), spectrum(few))
    np.testing.assert_allclose(both.normalised, 1, rtol=1e-9)
    np.testing.assert_allclose(both.raw, 1 / np.sqrt(times), rtol=1e-9)


def designed(weights: Any = W, ridge: float = RIDGE, noise: float = NOISE) -> object:
    return risk(X, weights, ridge, THETA, noise, SIGMA)


def one_hot(**changed: Any) -> OneHot:
    return OneHot(**{**REFERENCE, **changed})


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (lambda: designed(-W), "a weight is negative or not a number"),
        (lambda: designed(np.where(np.arange(N) == 3, np.nan, W)), "a weight is negative or not a number"),
        (lambda: designed(np.where(np.arange(N) == 3, np.inf, W)), "a weight is negative or not a number"),
        (lambda: designed(0 * W, 0.0), "do not determine the parameter; use a ridge above 0"),
        (lambda: designed(ridge=-1.0), "the ridge penalty cannot be negative"),
        (lambda: designed(noise=-1.0), "the noise variance cannot be negative"),
        (lambda: expected_risk(None, None, 1, X[0, :2], 1, np.eye(2), draws=1), "at least 2 draws"),
        (lambda: one_hot(train=[0.4, 0.3, 0.3, 0.1]), "train probabilities must be above 0 and sum to 1"),
        (lambda: one_hot(test=[0.5, 0.5, 0, 0]), "test probabilities must be above 0 and sum to 1"),
        (lambda: one_hot(counts=[1, 2, 3]), "different shapes"),
        (lambda: one_hot(counts=[1, 2, 3, -1]), "counts of training points cannot be negative"),
        (lambda: one_hot(noise=-0.1), "noise variance cannot be negative"),
        (lambda: one_hot(ridge=0), "ridge penalty must be above 0"),
        (lambda: one_hot().erm("papr"), "unknown scoring 'papr'; did you mean 'paper'"),
        (lambda: one_hot().weighted([1, 1, 1, -1]), "weights cannot be negative"),
        (lambda: one_hot().weighted([1, 1, 1, np.nan]), "weights cannot be negative"),
        (lambda: census(0), "at least 1 draw"),
        (lambda: spectrum(np.zeros((0, 5), np.uint8)), "needs rows of numbers"),
        (lambda: spectrum(np.zeros(5)), "needs rows of numbers"),
        (lambda: spectrum(np.array([[1.0, np.nan], [0.0, 1.0]])), "needs finite data"),
        (lambda: spectrum(np.array([[1.0, np.inf], [0.0, 1.0]])), "needs finite data"),
        (lambda: compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 5))), "inputs have 4 numbers and test inputs 5"),
        (lambda: compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 4)), 0), "ridge penalty must be above 0"),
    ],
)
def test_what_cannot_be_asked(of: Any, says: str) -> None:
    with pytest.raises(FedbenchError, match=says):
        of()
