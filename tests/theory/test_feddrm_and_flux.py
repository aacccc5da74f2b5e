"""FedDRM's statements on random problems: a softmax head on fixed features, Theorems 2.1 and 2.2 with the empirical
likelihood by its definition, recovered density ratios, the two terms of Theorem 2.5, and Figure 3's drift; and xi of
FLUX's descriptors: transport of Gaussians without covariances against the whole formula."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression

from fedbench.errors import FedbenchError
from fedbench.theory import feddrm
from fedbench.theory.feddrm import (
    consistency,
    densities,
    descent,
    drift,
    federated,
    identities,
    rates,
    softmax,
    tilts,
)
from fedbench.theory.feddrm import profile as p
from fedbench.theory.feddrm.check import exponent
from fedbench.theory.feddrm.newton import minimise
from fedbench.theory.wasserstein import deviations

quick = settings(max_examples=12)
RNG = np.random.default_rng(3)
X = softmax.with_constant(RNG.standard_normal((200, 2)))
LABELS = (X @ RNG.standard_normal((3, 4)) + RNG.gumbel(size=(200, 4))).argmax(axis=1)


def test_a_softmax_head() -> None:
    """The fit is a library's, cross-entropy a sum over samples, information the covariance of the score."""
    library = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    np.testing.assert_allclose(softmax.fit(X, LABELS, 4), softmax.centred(library.coef_.T), atol=1e-5)
    ridge = LogisticRegression(C=1 / (200 * 0.05), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    ours = softmax.fit(X, LABELS, 4, scale=0.5, ridge=0.025)
    np.testing.assert_allclose(ours, ridge.coef_.T, atol=1e-5)
    np.testing.assert_allclose(ours.sum(axis=1), 0, atol=1e-12)
    logits = X @ RNG.standard_normal((3, 4)) + 700.0  # exp of it alone would be infinite
    p = np.exp(logits - 700.0)
    expected = -sum(np.log(row[y] / row.sum()) for row, y in zip(p, LABELS, strict=True))
    assert softmax.cross_entropy(logits, LABELS) == pytest.approx(expected, rel=1e-12)
    b = RNG.standard_normal((3, 4))
    p = np.exp(softmax.log_probabilities(X @ b))
    expected = np.zeros((12, 12))
    for x, q in zip(X, p, strict=True):
        for label, chance in enumerate(q):
            score = np.outer(x, np.eye(4)[label] - q).ravel()
            expected += chance * np.outer(score, score) / len(X)
    np.testing.assert_allclose(softmax.information(X, b), expected, atol=1e-12)


def test_newton_steps_end_at_a_minimum_or_say_that_there_is_none() -> None:
    with pytest.raises(FedbenchError, match="a slope: no solution within 200 Newton steps"):
        minimise(lambda x: (-float(np.log(x[0])), -1 / x, np.diag(1 / x**2)), np.ones(1), "a slope")

    def barrier(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        if point[0] <= 0:  # the border of the domain
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


def _sample(seed: int, m: int = 3, d: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """h [N, d], clients [N] of unequal sizes, and some ξ [m, d]."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), rng.integers(12, 30, m))
    h = rng.standard_normal((m, d))[client] + rng.standard_normal((len(client), d))
    return h, client, 0.7 * rng.standard_normal((m, d))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(st.integers(0, 2**32 - 1))
@quick
def test_the_tilted_classes_are_what_2_and_3_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    joint, claimed = tilts.random_joint(rng)
    probability = joint.probability
    np.testing.assert_allclose(probability.sum(axis=(1, 2)), 1)
    share = probability.sum(axis=2)
    given_class = probability / share[:, :, None]
    # (2): log dP_k/dP_1 less log(π_i1/π_ik) is the same function at all clients.
    common = np.log(given_class / given_class[:, :1]) - np.log(share[:, :1] / share)[:, :, None]
    np.testing.assert_allclose(common, np.broadcast_to(common[:1], common.shape), atol=1e-9)
    # (3): log dP_1^(i)/dP_1^(0) is an affine function of h.
    first = tilts.Joint(given_class[:, :1], joint.h)
    assert tilts.distance(first) < 1e-9
    # Theorem 2.1, from the sum over classes alone.
    np.testing.assert_allclose(joint.log_ratios, claimed, atol=1e-9)


def test_label_shift_keeps_inputs_of_a_class_and_breaks_the_model() -> None:
    rng = np.random.default_rng(1)
    joint, _ = tilts.random_joint(rng)
    shares = rng.dirichlet(np.ones(4), 3)
    shifted = tilts.label_shift(joint, shares)
    np.testing.assert_allclose(shifted.probability[1:].sum(axis=2), shares)
    conditional = shifted.probability / shifted.probability.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(conditional, np.broadcast_to(conditional[:1], conditional.shape))
    assert tilts.distance(joint) < 1e-9 < 0.02 < tilts.distance(shifted)


@pytest.mark.parametrize("seed", range(2))
def test_the_profile_is_the_supremum_that_a_library_finds(seed: int) -> None:
    """SciPy maximises Σ log p under the constraints themselves, by SLSQP, at parameters that are not optimal."""
    h, client, xi = _sample(seed, m=2)
    h, client = h[::2], client[::2]
    n = len(h)
    # Weights other than 1/N fix γ, so that (5) can be met.
    start = np.random.default_rng(seed).dirichlet(np.full(n, 20.0))
    gamma = -np.log(start @ np.exp(h @ xi.T))
    tilt = np.exp(gamma + h @ xi.T)
    rows = np.column_stack([np.ones(n), tilt])
    library = minimize(
        lambda q: -np.log(q).sum(), start, jac=lambda q: -1 / q, method="SLSQP", bounds=[(1e-9, 1)] * n,
        constraints={"type": "eq", "fun": lambda q: q @ rows - 1, "jac": lambda q: rows.T},
        options={"maxiter": 500, "ftol": 1e-12},
    )  # fmt: skip
    assert library.success
    ours = p.profile(h, client, gamma, xi)
    own = (gamma + h @ xi.T)[np.arange(n), client].sum()
    assert ours.value == pytest.approx(own - library.fun, abs=1e-5)
    np.testing.assert_allclose(ours.weights @ rows, 1, atol=1e-9)
    counts = np.bincount(client)
    assert np.abs(ours.multipliers - counts / n).max() > 1e-3  # n_l/N belongs to the optimum alone
    assert p.dual(h, client, gamma, xi) > ours.value + 1e-6


@given(st.integers(0, 10_000), st.integers(2, 4))
@quick
def test_theorem_2_2(seed: int, m: int) -> None:
    h, client, xi = _sample(seed, m)
    n, counts = len(h), np.bincount(client)
    gamma = p.optimal_intercepts(h, client, xi)
    best = p.profile(h, client, gamma, xi)
    np.testing.assert_allclose(best.weights.sum(), 1, atol=1e-8)
    np.testing.assert_allclose(best.weights @ np.exp(gamma + h @ xi.T), 1, atol=1e-8)
    np.testing.assert_allclose(best.multipliers, counts / n, atol=1e-4)
    logits = np.log(counts) + gamma + h @ xi.T
    cross_entropy = sum(np.log(np.exp(row).sum()) - row[i] for row, i in zip(logits, client, strict=True))
    constant = (counts * np.log(counts)).sum()
    assert best.value == pytest.approx(-cross_entropy - constant, rel=1e-9)
    assert p.dual(h, client, gamma, xi) == pytest.approx(-cross_entropy - constant, rel=1e-12)
    # The optimal intercepts are a maximum, and the dual is above.
    for direction in (*np.eye(m), np.ones(m)):
        for size in (1e-3, -1e-3):
            aside = gamma + size * direction
            value = p.profile(h, client, aside, xi).value
            assert value < best.value
            assert value <= p.dual(h, client, aside, xi)
    assert p.profile(h, client, gamma + 50, xi).value == -np.inf  # every tilt is above 1: no weights are possible


def test_all_checks_and_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [c for part in (identities.of_marginals, identities.of_likelihood) for c in part(_rng(), 3)]
    assert [c.holds for c in checks] == [True, False, True, True, False]
    assert all(np.isfinite(point.measured) for c in checks for point in c.points)
    right = p.dual

    def wrong(h: np.ndarray, client: np.ndarray, gamma: np.ndarray, xi: np.ndarray) -> float:
        return right(h, client, gamma - np.log(np.bincount(client)), xi)  # without log n_l in the logits

    monkeypatch.setattr(p, "dual", wrong)
    _, value, _ = identities.of_likelihood(_rng(), 3)
    assert not value.holds
    assert exponent([1, 10, 100], [5, 0.05, 0.0005]) == pytest.approx(-2)
    checks = feddrm.checks(1, 3)
    assert [c.source for c in checks] == sorted((c.source for c in checks), key=[c.source for c in checks].index)
    assert len(checks) == 15
    for draws in (0, feddrm.MOST + 1):
        with pytest.raises(FedbenchError, match="at least 1 draw and at most 10,000"):
            feddrm.checks(draws)
    with pytest.raises(FedbenchError, match="the seed must be in"):
        feddrm.checks(1, -1)


def test_gaussians() -> None:
    """Their true ratios are a library's, and samples have their clients' moments."""
    gaussians = densities.random_gaussians(np.random.default_rng(0), equal=False)
    x = np.random.default_rng(1).standard_normal((50, 2))
    log_density = np.column_stack(
        [multivariate_normal(m, c).logpdf(x) for m, c in zip(gaussians.mean, gaussians.covariance, strict=True)]
    )
    np.testing.assert_allclose(gaussians.log_ratios(x), log_density - log_density[:, :1], atol=1e-10)
    gaussians = densities.random_gaussians(np.random.default_rng(2), equal=False)
    x, client = gaussians.sample(np.random.default_rng(3), 140_000)
    np.testing.assert_array_equal(np.bincount(client), [20_000, 40_000, 80_000])
    for i in range(3):
        np.testing.assert_allclose(x[client == i].mean(axis=0), gaussians.mean[i], atol=0.03)
        np.testing.assert_allclose(np.cov(x[client == i].T), gaussians.covariance[i], atol=0.05)


def test_rates() -> None:
    """Ratios get better only where the model holds; Theorem 2.5; FedAvg stays below its bound."""
    exact, raw, bent, richer = rates.of_ratios(np.random.default_rng(0), 8)
    assert (exact.holds, raw.holds, bent.holds, richer.holds) == (True, False, False, True)
    assert (exact.control, raw.control, bent.control, richer.control) == (False, True, True, False)
    errors = [point.measured for point in exact.points[:-1]]
    assert errors == sorted(errors, reverse=True)
    free, fixed, lemma, right = rates.of_statistics(np.random.default_rng(1), 8)
    assert (free.holds, fixed.holds, lemma.holds, right.holds) == (True, False, False, True)
    assert np.ptp([point.measured for point in lemma.points]) < 1e-3  # λ changes no minimiser
    bound, proportional = rates.of_descent(np.random.default_rng(2), 1)
    assert (bound.holds, proportional.holds) == (True, False)
    assert proportional.points[-1].measured == pytest.approx(2, abs=0.1)
    assert all(0 <= point.measured <= point.claimed for point in bound.points)


def test_the_population_error_is_the_inverse_information() -> None:
    """At N = 3,000 the mean squared error over 60 samples is near tr I⁻¹/N: an oracle that the fit does not know."""
    rng = np.random.default_rng(5)
    truth = consistency.random_truth(rng)
    expected = (1 / consistency.eigenvalues(truth.client_information)).sum()
    assert len(consistency.eigenvalues(truth.client_information)) == 3 * 2
    errors = [truth.client_error(x, who, 0.8, 0.0) for x, who, _ in (truth.sample(rng, 3000) for _ in range(60))]
    assert 3000 * np.mean(errors) == pytest.approx(expected, rel=0.35)
    truth = consistency.random_truth(np.random.default_rng(6))
    least = [
        np.sort(np.linalg.eigvalsh(i))[b.shape[0]]  # as many are 0 as there are features
        for i, b in ((truth.client_information, truth.client), (truth.target_information, truth.target))
    ]
    assert truth.claimed(0.8, 0.1) == pytest.approx(1 / (0.2 * least[0] + 0.1) + 1 / (0.8 * least[1] + 0.1))


def test_the_bound_of_descent() -> None:
    """η ≤ 1/L is needed: where η ρ > 2, even the penalty alone overshoots ever further. L bounds every Hessian."""
    clients = descent.random_clients(np.random.default_rng(3))
    largest = 1 / clients.smoothness(0.8, 0.3)
    options = {"weight": 0.8, "ridge": 0.3, "steps": 2, "rounds": 60}
    well = descent.follow(clients, rate=largest / 8, **options)
    assert (well.distance <= well.bound).all()
    assert well.distance[-1] < well.distance[0] / 10
    beyond = descent.follow(clients, rate=7.5, **options)
    assert not (beyond.distance <= beyond.bound).all()
    clients = descent.random_clients(np.random.default_rng(7))
    for weight in (0.5, 0.9):
        bound = clients.smoothness(weight, 0.1)
        for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
            assert labels.shape == clients.target.shape
            for x in clients.features:
                hessian = scale * softmax.information(x, np.zeros((3, classes))) + 0.1 * np.eye(3 * classes)
                assert np.linalg.eigvalsh(hessian)[-1] <= bound


def test_drift_of_the_two_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first round all logits are 0, so that every gradient is known: E x (1/C - [class]). Without heterogeneity
    only the client head's one-sided labels pull apart."""
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
    monkeypatch.setattr(drift, "_SPREAD", 0.0)
    client, target = drift.simulate(0, rounds=2)
    assert target.relative[0] < 0.1 < 10 < client.relative[0]


seeds = st.integers(0, 2**32 - 1)


def transport(m: np.ndarray, s: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    """The 2-Wasserstein distance of two Gaussians by their covariance matrices (Dowson and Landau, 1982)."""
    a, b = np.diag(s**2), np.diag(s2**2)
    half = sqrtm(a)
    return float(np.sqrt(((m - m2) ** 2).sum() + np.trace(a + b - 2 * np.real(sqrtm(half @ b @ half)))))


@given(seeds)
def test_pairs_in_order_against_the_formula_of_any_gaussians(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, means, stds = rng.standard_normal((5, 7)), rng.standard_normal((5, 3)), rng.uniform(0.2, 2, (5, 3))
    values = deviations(d, np.concatenate([means, stds], 1))
    expected = [
        abs(np.linalg.norm(d[i] - d[j]) - transport(means[i], stds[i], means[j], stds[j]))
        for i, j in itertools.combinations(range(5), 2)
    ]
    assert values == pytest.approx(expected, abs=1e-6)
    x = np.random.default_rng(1).uniform(0, 1, (6, 8))
    assert deviations(x, x).tolist() == [0.0] * 15, "a descriptor that is the Gaussian deviates nowhere"


@pytest.mark.parametrize(
    ("descriptors", "gaussians", "line"),
    [
        (np.zeros((1, 3)), np.zeros((1, 4)), "a pair needs two snapshots, and there are 1"),
        (np.zeros((2, 3)), np.zeros((3, 4)), "snapshots need descriptors"),
        (np.full((2, 3), np.nan), np.zeros((2, 4)), "its model has diverged"),
        (np.zeros((2, 3)), np.full((2, 4), np.inf), "its model has diverged"),
    ],
)
def test_what_is_no_pair_is_refused(descriptors: np.ndarray, gaussians: np.ndarray, line: str) -> None:
    with pytest.raises(FedbenchError, match=line):
        deviations(descriptors, gaussians)
