"""The one-hot case of Theorem 2: closed forms, reference values, identities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm import OneHot, estimate, risk
from fedbench.theory.ftw_erm.census import problems

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


@pytest.mark.parametrize("weigh", [True, False], ids=["weighted", "unweighted"])
def test_monte_carlo_of_the_labels(weigh: bool) -> None:
    problem, draws = OneHot(**REFERENCE), 100_000
    points = np.repeat(np.arange(4), REFERENCE["counts"])
    x, w = np.eye(4)[points], problem.ratio if weigh else np.ones(4)
    noise = np.sqrt(0.25) * np.random.default_rng(1).standard_normal((len(points), draws))
    gap = estimate(x, (x @ problem.theta)[:, None] + noise, w[points], 1.0) - problem.theta[:, None]
    losses = problem.test @ gap**2
    error = losses.std() / np.sqrt(draws)
    assert abs(losses.mean() - problem.weighted(w).total) < 4 * error < 0.02


@given(st.integers(0, 10_000))
def test_the_closed_forms_are_lemma_1s(seed: int) -> None:
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


@given(st.integers(0, 10_000))
def test_weights_s_are_an_implicit_penalty(seed: int) -> None:
    problem, _ = problems(np.random.default_rng(seed), 5)
    np.testing.assert_allclose(problem.weighted(problem.s).bias, problem.implicit_bias(), rtol=1e-9)


@given(st.integers(0, 10_000), st.floats(1.01, 5))
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


def test_a_coordinate_without_a_training_point_keeps_its_bias_and_has_no_variance() -> None:
    problem = OneHot(**{**REFERENCE, "counts": [8, 6, 4, 0]})
    terms = problem.weighted_terms(problem.ratio)
    assert (terms.bias[3], terms.variance[3]) == (pytest.approx(0.4 * 1.5**2), 0)
    assert problem.xi[3] == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": [0.4, 0.3, 0.3, 0.1]}, "train probabilities must be above 0 and sum to 1"),
        ({"test": [0.5, 0.5, 0, 0]}, "test probabilities must be above 0 and sum to 1"),
        ({"counts": [1, 2, 3]}, "different shapes"),
        ({"counts": [1, 2, 3, -1]}, "counts of training points cannot be negative"),
        ({"noise": -0.1}, "noise variance cannot be negative"),
        ({"ridge": 0}, "ridge penalty must be above 0"),
    ],
)
def test_bad_problems(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        OneHot(**{**REFERENCE, **changed})


def test_bad_questions() -> None:
    problem = OneHot(**REFERENCE)
    with pytest.raises(FedbenchError, match="unknown scoring 'papr'; did you mean 'paper'"):
        problem.erm("papr")
    for weight in (-1, np.nan):
        with pytest.raises(FedbenchError, match="weights cannot be negative"):
            problem.weighted([1, 1, 1, weight])
