"""The exact conditions hold without exception; the paper's are counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm import Finding, OneHot, census
from fedbench.theory.ftw_erm import conditions as c
from fedbench.theory.ftw_erm.census import inside, problems

DRAWS = 200_000


@pytest.fixture(scope="module")
def drawn() -> tuple[OneHot, np.ndarray]:
    """200,000 problems of one free coordinate and its rest, half of the weights close to a condition's border."""
    rng = np.random.default_rng(7)
    problem, w = problems(rng, DRAWS, 2)
    s, xi = problem.s, problem.xi
    with np.errstate(divide="ignore"):
        borders = np.stack([(s - xi) / (1 - xi), xi / (s - 1 + xi), np.ones_like(s), xi / s])
    near = rng.choice(borders.reshape(4, -1), axis=0).reshape(w.shape) * (1 + rng.choice([-1e-6, 1e-6], w.shape))
    use = (rng.random(w.shape) < 0.5) & np.isfinite(near) & (near > 0)
    return problem, np.where(use, near, w)


def test_the_exact_conditions_are_equivalences(drawn: tuple[OneHot, np.ndarray]) -> None:
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


def test_they_decide_the_risk(drawn: tuple[OneHot, np.ndarray]) -> None:
    problem, w = drawn
    better = c.exact_theorem(w, problem.s, problem.xi)
    worse = c.corrected_proposition(w, problem.s, problem.xi)
    weighted, erm = problem.weighted_terms(w), problem.erm_terms("paper")
    assert better.sum() > 10_000
    assert worse.sum() > 10_000
    assert (weighted.total <= erm.total)[better].all()
    assert (erm.total <= weighted.total)[worse].all()


def test_without_a_training_point_only_s_counts() -> None:
    problem = OneHot(np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.zeros(2), np.ones(2), np.array(1.0), np.array(2.0))
    w = np.array([3.0, 3.0])
    weighted, erm = problem.weighted_terms(w), problem.erm_terms("paper")
    assert c.bias_falls(w, problem.s, problem.xi).tolist() == (weighted.bias <= erm.bias).tolist() == [True, False]
    assert c.variance_falls(w, problem.s, problem.xi).all()
    assert c.consistent_variance_falls(w, problem.xi).all()
    assert c.consistent_bias_falls(w / 9, problem.xi).all()


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
def test_where_a_weight_can_satisfy_them(s: float, xi: float) -> None:
    bound = float(c.printed_bound(np.array(xi)))
    w = np.linspace(max(s - 1, 0), max(s - 1, 0) + 4, 4001)
    if abs(s - bound) > 1e-9:
        assert c.printed_theorem(w, s, xi).any() == (s < bound)
    w = np.append(w, 1.0)
    if abs(s - 1) > 0.01:
        assert c.exact_theorem(w, s, xi).any() == (s < 1)
        assert c.corrected_proposition(w, s, xi).any() == (s > 1)


def test_the_bound_lies_between_1_and_the_golden_ratio() -> None:
    assert c.printed_bound(np.array([0.0, 1.0])).tolist() == [1.0, (1 + 5**0.5) / 2]


@given(st.integers(0, 10_000))
def test_the_true_ratio_never_satisfies_the_printed_condition(seed: int) -> None:
    problem, _ = problems(np.random.default_rng(seed), 100)
    holds = c.printed_for_true_ratio(problem.s, problem.xi)
    np.testing.assert_array_equal(holds, problem.s <= np.cbrt(problem.xi))
    assert not holds.all(axis=-1).any()


def test_weights_inside_the_printed_condition_are_inside() -> None:
    rng = np.random.default_rng(3)
    problem, _ = problems(rng, 5000)
    w, possible = inside(rng, problem)
    holds = c.printed_theorem(w, problem.s, problem.xi).all(axis=-1)
    assert possible.sum() > 100
    np.testing.assert_array_equal(holds, possible)
    # The lower end alone is met even where the upper end lies below it.
    assert c.printed_lower(w, problem.s).all()


def _by_key(findings: list[Finding]) -> dict[tuple[str, str], Finding]:
    return {(f.source, f.condition.split(",")[0] + " → " + f.promise): f for f in findings}


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_wrong_shows(seed: int) -> None:
    found = _by_key(census(50_000, seed))
    theorem, proposition = "Theorem 2 (4.3)", "Proposition 3"
    share = {key: f.share for key, f in found.items()}
    assert share[theorem, "upper half: w ≤ ξ/s → V_FTW ≤ V_ERM"] == 1
    assert 0.5 < share[theorem, "lower half: w ≥ s - 1 → B_FTW ≤ B_ERM"] < 0.75
    assert share[theorem, "both halves → R_FTW ≤ R_ERM"] < 0.2
    impossible = found[theorem, "the true ratio w = λ'/λ → R_FTW ≤ R_ERM"]
    assert (impossible.held, impossible.share, impossible.drawn) == (0, None, 50_000)
    assert share["exact", "w ≥ s + (s-1)λ/μ → B_FTW ≤ B_ERM, V_FTW ≤ V_ERM"] == 1
    assert share[proposition, "as printed → V_ERM ≤ V_FTW"] == 0
    assert 0.7 < share[proposition, "as printed → R_ERM ≤ R_FTW"] < 1
    assert share["corrected", "ξ/(s-1+ξ) ≤ w ≤ s + (s-1)λ/μ → R_ERM ≤ R_FTW"] == 1
    assert share["both under Σ_te", "w ≠ 1 → B_FTW ≤ B_ERM, V_FTW ≤ V_ERM"] == 0
    assert all(f.held > 1000 for f in found.values() if f is not impossible)
    assert {f.unit for f in found.values() if f.drawn == 50_000} == {"problems"}


def test_the_census_depends_on_its_seed_alone() -> None:
    assert census(1000, 3) == census(1000, 3) != census(1000, 4)
    with pytest.raises(FedbenchError, match="at least 1 draw"):
        census(0)
