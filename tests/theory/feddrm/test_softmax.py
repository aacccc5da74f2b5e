"""A softmax head on fixed features: its fit, its information, FedAvg of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from fedbench.errors import FedbenchError
from fedbench.theory.feddrm import federated, softmax
from fedbench.theory.feddrm.newton import minimise

RNG = np.random.default_rng(3)
X = softmax.with_constant(RNG.standard_normal((200, 2)))
LABELS = (X @ RNG.standard_normal((3, 4)) + RNG.gumbel(size=(200, 4))).argmax(axis=1)


def test_the_fit_is_a_librarys() -> None:
    library = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    np.testing.assert_allclose(softmax.fit(X, LABELS, 4), softmax.centred(library.coef_.T), atol=1e-5)
    ridge = LogisticRegression(C=1 / (200 * 0.05), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    ours = softmax.fit(X, LABELS, 4, scale=0.5, ridge=0.025)
    np.testing.assert_allclose(ours, ridge.coef_.T, atol=1e-5)
    np.testing.assert_allclose(ours.sum(axis=1), 0, atol=1e-12)


def test_cross_entropy_is_a_sum_over_samples() -> None:
    logits = X @ RNG.standard_normal((3, 4)) + 700.0  # exp of it alone would be infinite
    p = np.exp(logits - 700.0)
    expected = -sum(np.log(row[y] / row.sum()) for row, y in zip(p, LABELS, strict=True))
    assert softmax.cross_entropy(logits, LABELS) == pytest.approx(expected, rel=1e-12)


def test_information_is_the_covariance_of_the_score() -> None:
    b = RNG.standard_normal((3, 4))
    p = np.exp(softmax.log_probabilities(X @ b))
    expected = np.zeros((12, 12))
    for x, q in zip(X, p, strict=True):
        for label, chance in enumerate(q):
            score = np.outer(x, np.eye(4)[label] - q).ravel()
            expected += chance * np.outer(score, score) / len(X)
    np.testing.assert_allclose(softmax.information(X, b), expected, atol=1e-12)


def test_a_function_that_falls_for_ever_has_no_minimum() -> None:
    with pytest.raises(FedbenchError, match="a slope: no solution within 200 Newton steps"):
        minimise(lambda x: (-float(np.log(x[0])), -1 / x, np.diag(1 / x**2)), np.ones(1), "a slope")


def test_newton_stops_at_the_border_of_the_domain() -> None:
    def barrier(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        if point[0] <= 0:
            return np.inf, point, np.eye(1)
        return float(point[0] - np.log(point[0])), 1 - 1 / point, np.diag(1 / point**2)

    np.testing.assert_allclose(minimise(barrier, np.array([1e-3]), "a barrier"), 1, rtol=1e-9)


def test_fedavg_is_the_average_of_local_descents() -> None:
    x, labels = X[:180].reshape(3, 60, 3), LABELS[:180].reshape(3, 60)
    states = list(federated.train(x, labels, 4, rate=0.3, steps=4, rounds=3, scale=0.7, ridge=0.1))
    assert len(states) == 4
    shared = np.zeros((3, 4))
    for state in states:
        np.testing.assert_allclose(state.coefficients, shared, atol=1e-13)
        local = []
        for own, y, gradient in zip(x, labels, state.gradients, strict=True):
            b = shared.copy()
            for step in range(4):
                p = np.exp(own @ b)
                p /= p.sum(axis=1, keepdims=True)
                slope = 0.7 * own.T @ (p - np.eye(4)[y]) / 60 + 0.1 * b
                if step == 0:
                    np.testing.assert_allclose(gradient, slope, atol=1e-13)
                b -= 0.3 * slope
            local.append(b)
        mean = state.gradients.mean(axis=0)
        assert state.drift == pytest.approx(np.mean([np.sum((g - mean) ** 2) for g in state.gradients]))
        assert state.squared_gradient == pytest.approx(np.sum(mean**2))
        shared = np.mean(local, axis=0)


def test_one_local_step_ends_at_the_pooled_minimum() -> None:
    x, labels = X[:180].reshape(3, 60, 3), LABELS[:180].reshape(3, 60)
    *_, last = federated.train(x, labels, 4, rate=0.5, steps=1, rounds=400, ridge=0.1)

    def loss(flat: np.ndarray) -> float:
        b = flat.reshape(3, 4)
        return softmax.cross_entropy(X[:180] @ b, LABELS[:180]) / 180 + 0.05 * float(flat @ flat)

    best = minimize(loss, np.zeros(12), tol=1e-12).x.reshape(3, 4)
    np.testing.assert_allclose(last.coefficients, best, atol=1e-4)
