"""Recovered density ratios, the two terms of Theorem 2.5, and Figure 3's drift."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedbench.errors import FedbenchError
from fedbench.theory import feddrm
from fedbench.theory.feddrm import consistency, densities, descent, drift, rates, softmax
from fedbench.theory.feddrm.check import exponent


def test_true_ratios_are_those_of_a_library() -> None:
    gaussians = densities.random_gaussians(np.random.default_rng(0), equal=False)
    x = np.random.default_rng(1).standard_normal((50, 2))
    log_density = np.column_stack(
        [multivariate_normal(m, c).logpdf(x) for m, c in zip(gaussians.mean, gaussians.covariance, strict=True)]
    )
    np.testing.assert_allclose(gaussians.log_ratios(x), log_density - log_density[:, :1], atol=1e-10)


def test_samples_have_their_clients_moments() -> None:
    gaussians = densities.random_gaussians(np.random.default_rng(2), equal=False)
    x, client = gaussians.sample(np.random.default_rng(3), 140_000)
    np.testing.assert_array_equal(np.bincount(client), [20_000, 40_000, 80_000])
    for i in range(3):
        np.testing.assert_allclose(x[client == i].mean(axis=0), gaussians.mean[i], atol=0.03)
        np.testing.assert_allclose(np.cov(x[client == i].T), gaussians.covariance[i], atol=0.05)


def test_a_large_sample_gives_the_true_ratios() -> None:
    rng = np.random.default_rng(4)
    gaussians = densities.random_gaussians(rng, equal=True)
    x, client = gaussians.sample(rng, 200_000)
    head, true = densities.head(x, client), gaussians.log_ratios(x[:500])
    np.testing.assert_allclose(head.log_ratios(x[:500]), true, atol=0.08)
    left = head.log_ratios(x[:500], prior=False) - true
    np.testing.assert_allclose(left.mean(axis=0), np.log([1, 2, 4]), atol=0.08)


def test_ratios_get_better_at_the_rate_only_where_the_model_holds() -> None:
    exact, raw, bent, richer = rates.of_ratios(np.random.default_rng(0), 8)
    assert (exact.holds, raw.holds, bent.holds, richer.holds) == (True, False, False, True)
    assert (exact.control, raw.control, bent.control, richer.control) == (False, True, True, False)
    errors = [point.measured for point in exact.points[:-1]]
    assert errors == sorted(errors, reverse=True)


def test_the_population_error_is_the_inverse_information() -> None:
    """At N = 3,000 the mean squared error over 60 samples is near tr I⁻¹/N: an oracle that the fit does not know."""
    rng = np.random.default_rng(5)
    truth = consistency.random_truth(rng)
    expected = (1 / consistency.eigenvalues(truth.client_information)).sum()
    assert len(consistency.eigenvalues(truth.client_information)) == 3 * 2
    errors = [truth.client_error(x, who, 0.8, 0.0) for x, who, _ in (truth.sample(rng, 3000) for _ in range(60))]
    assert 3000 * np.mean(errors) == pytest.approx(expected, rel=0.35)


def test_claimed_is_the_printed_numerator() -> None:
    truth = consistency.random_truth(np.random.default_rng(6))
    least = [
        np.sort(np.linalg.eigvalsh(i))[b.shape[0]]  # as many are 0 as there are features
        for i, b in ((truth.client_information, truth.client), (truth.target_information, truth.target))
    ]
    assert truth.claimed(0.8, 0.1) == pytest.approx(1 / (0.2 * least[0] + 0.1) + 1 / (0.8 * least[1] + 0.1))


def test_statistics_by_theorem_2_5() -> None:
    free, fixed, lemma, right = rates.of_statistics(np.random.default_rng(1), 8)
    assert (free.holds, fixed.holds, lemma.holds, right.holds) == (True, False, False, True)
    assert np.ptp([point.measured for point in lemma.points]) < 1e-3  # λ changes no minimiser


def test_fedavg_stays_below_the_bound_and_falls_with_the_square_of_the_rate() -> None:
    bound, proportional = rates.of_descent(np.random.default_rng(2), 1)
    assert (bound.holds, proportional.holds) == (True, False)
    assert proportional.points[-1].measured == pytest.approx(2, abs=0.1)
    assert all(0 <= point.measured <= point.claimed for point in bound.points)


def test_the_bound_fails_beyond_its_step_size() -> None:
    """η ≤ 1/L is needed: where η ρ > 2, even the penalty alone overshoots ever further."""
    clients = descent.random_clients(np.random.default_rng(3))
    largest = 1 / clients.smoothness(0.8, 0.3)
    options = {"weight": 0.8, "ridge": 0.3, "steps": 2, "rounds": 60}
    well = descent.follow(clients, rate=largest / 8, **options)
    assert (well.distance <= well.bound).all()
    assert well.distance[-1] < well.distance[0] / 10
    beyond = descent.follow(clients, rate=7.5, **options)
    assert not (beyond.distance <= beyond.bound).all()


def test_smoothness_bounds_every_hessian() -> None:
    clients = descent.random_clients(np.random.default_rng(7))
    for weight in (0.5, 0.9):
        bound = clients.smoothness(weight, 0.1)
        for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
            assert labels.shape == clients.target.shape
            for x in clients.features:
                hessian = scale * softmax.information(x, np.zeros((3, classes))) + 0.1 * np.eye(3 * classes)
                assert np.linalg.eigvalsh(hessian)[-1] <= bound


def test_drift_of_the_two_heads() -> None:
    """At the first round all logits are 0, so that every gradient is known: E x (1/C - [class])."""
    client, target = drift.simulate(0, rounds=3)
    data = drift.clients(np.random.default_rng(0))
    assert data.features.shape == (3, 1000, 33)
    assert set(np.unique(data.target)) <= set(range(10))
    for head, (labels, classes) in zip((client, target), data.heads, strict=True):
        gradients = np.array(
            [x.T @ (1 / classes - np.eye(classes)[y]) / 1000 for x, y in zip(data.features, labels, strict=True)]
        )
        mean = gradients.mean(axis=0)
        expected = np.mean([np.sum((g - mean) ** 2) for g in gradients])
        assert head.drift[0] == pytest.approx(expected)
        assert head.relative[0] == pytest.approx(expected / np.sum(mean**2))
        assert head.drift.shape == (3,)
    assert (client.relative > target.relative).all()
    assert (client.drift > target.drift).all()


def test_equal_clients_do_not_drift_in_their_target_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heterogeneity only the client head's one-sided labels pull apart: the paper's explanation."""
    monkeypatch.setattr(drift, "_SPREAD", 0.0)
    client, target = drift.simulate(0, rounds=2)
    assert target.relative[0] < 0.1 < 10 < client.relative[0]


def test_exponent_of_a_power() -> None:
    assert exponent([1, 10, 100], [5, 0.05, 0.0005]) == pytest.approx(-2)


def test_all_checks_and_their_limits() -> None:
    checks = feddrm.checks(1, 3)
    assert [c.source for c in checks] == sorted((c.source for c in checks), key=[c.source for c in checks].index)
    assert len(checks) == 15
    for draws in (0, feddrm.MOST + 1):
        with pytest.raises(FedbenchError, match="at least 1 draw and at most 10,000"):
            feddrm.checks(draws)
    with pytest.raises(FedbenchError, match="the seed must be in"):
        feddrm.checks(1, -1)
