"""Statements on random problems. FedDRM's: Theorems 2.1, 2.2 and 2.5, and Figure 3's drift. FLUX's xi of descriptors.
FTW-ERM's: Lemma 1, Theorem 2's one-hot case, its conditions (the exact ones hold, the paper's are counted), spectra."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression, Ridge

from fedbench.theory import feddrm as rates
from fedbench.theory import feddrm_model as model
from fedbench.theory import ftw_erm as c
from fedbench.theory.arrays import deviations
from fedbench.theory.feddrm_model import exponent, minimise
from fedbench.theory.ftw_erm import OneHot, Risk, census, compare, inside, problems, spectrum
from tests.support.frames import SEEDS, few, refused

RNG = np.random.default_rng(3)
X = model.with_constant(RNG.standard_normal((200, 2)))
LABELS = (X @ RNG.standard_normal((3, 4)) + RNG.gumbel(size=(200, 4))).argmax(axis=1)


def test_a_softmax_head() -> None:
    """The fit is a library's, cross-entropy a sum over samples, information the covariance of the score."""
    library = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    np.testing.assert_allclose(model.fit(X, LABELS, 4), model.centred(library.coef_.T), atol=1e-5)
    ridge = LogisticRegression(C=1 / (200 * 0.05), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, LABELS)
    ours = model.fit(X, LABELS, 4, scale=0.5, ridge=0.025)
    np.testing.assert_allclose(ours, ridge.coef_.T, atol=1e-5)
    np.testing.assert_allclose(ours.sum(axis=1), 0, atol=1e-12)
    logits = X @ RNG.standard_normal((3, 4)) + 700.0  # exp of it alone would be infinite
    p = np.exp(logits - 700.0)
    expected = -sum(np.log(row[y] / row.sum()) for row, y in zip(p, LABELS, strict=True))
    assert model.cross_entropy(logits, LABELS) == pytest.approx(expected, rel=1e-12)
    b = RNG.standard_normal((3, 4))
    p = np.exp(model.log_probabilities(X @ b))
    expected = np.zeros((12, 12))
    for x, q in zip(X, p, strict=True):
        for label, chance in enumerate(q):
            score = np.outer(x, np.eye(4)[label] - q).ravel()
            expected += chance * np.outer(score, score) / len(X)
    np.testing.assert_allclose(model.information(X, b), expected, atol=1e-12)


def test_newton_steps_end_at_a_minimum_or_say_that_there_is_none() -> None:
    def slope(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return -float(np.log(point[0])), -1 / point, np.diag(1 / point**2)

    def barrier(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        if point[0] <= 0:  # the border of the domain
            return np.inf, point, np.eye(1)
        return float(point[0] - np.log(point[0])), 1 - 1 / point, np.diag(1 / point**2)

    refused("a slope: no solution within 200 Newton steps", minimise, slope, np.ones(1), "a slope")
    np.testing.assert_allclose(minimise(barrier, np.array([1e-3]), "a barrier"), 1, rtol=1e-9)


def test_fedavg_is_the_average_of_local_descents() -> None:
    x, labels = X[:180].reshape(3, 60, 3), LABELS[:180].reshape(3, 60)
    states = list(model.train(x, labels, 4, rate=0.3, steps=4, rounds=3, scale=0.7, ridge=0.1))
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


@few(SEEDS, examples=12)
def test_the_tilted_classes_are_what_2_and_3_say(seed: int) -> None:
    joint, claimed = model.random_joint(np.random.default_rng(seed))
    probability = joint.probability
    np.testing.assert_allclose(probability.sum(axis=(1, 2)), 1)
    share = probability.sum(axis=2)
    given_class = probability / share[:, :, None]
    # (2): log dP_k/dP_1 less log(π_i1/π_ik) is the same function at all clients.
    common = np.log(given_class / given_class[:, :1]) - np.log(share[:, :1] / share)[:, :, None]
    np.testing.assert_allclose(common, np.broadcast_to(common[:1], common.shape), atol=1e-9)
    # (3): log dP_1^(i)/dP_1^(0) is an affine function of h.
    first = model.Joint(given_class[:, :1], joint.h)
    assert model.distance(first) < 1e-9
    # Theorem 2.1, from the sum over classes alone.
    np.testing.assert_allclose(joint.log_ratios, claimed, atol=1e-9)


def test_label_shift_keeps_inputs_of_a_class_and_breaks_the_model() -> None:
    rng = np.random.default_rng(1)
    joint, _ = model.random_joint(rng)
    shares = rng.dirichlet(np.ones(4), 3)
    shifted = model.label_shift(joint, shares)
    np.testing.assert_allclose(shifted.probability[1:].sum(axis=2), shares)
    conditional = shifted.probability / shifted.probability.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(conditional, np.broadcast_to(conditional[:1], conditional.shape))
    assert model.distance(joint) < 1e-9 < 0.02 < model.distance(shifted)


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
    ours = model.profile(h, client, gamma, xi)
    own = (gamma + h @ xi.T)[np.arange(n), client].sum()
    assert ours.value == pytest.approx(own - library.fun, abs=1e-5)
    np.testing.assert_allclose(ours.weights @ rows, 1, atol=1e-9)
    counts = np.bincount(client)
    assert np.abs(ours.multipliers - counts / n).max() > 1e-3  # n_l/N belongs to the optimum alone
    assert model.dual(h, client, gamma, xi) > ours.value + 1e-6


@few(st.integers(0, 10_000), st.integers(2, 4), examples=12)
def test_theorem_2_2(seed: int, m: int) -> None:
    h, client, xi = _sample(seed, m)
    n, counts = len(h), np.bincount(client)
    gamma = model.optimal_intercepts(h, client, xi)
    best = model.profile(h, client, gamma, xi)
    np.testing.assert_allclose(best.weights.sum(), 1, atol=1e-8)
    np.testing.assert_allclose(best.weights @ np.exp(gamma + h @ xi.T), 1, atol=1e-8)
    np.testing.assert_allclose(best.multipliers, counts / n, atol=1e-4)
    logits = np.log(counts) + gamma + h @ xi.T
    cross_entropy = sum(np.log(np.exp(row).sum()) - row[i] for row, i in zip(logits, client, strict=True))
    constant = (counts * np.log(counts)).sum()
    assert best.value == pytest.approx(-cross_entropy - constant, rel=1e-9)
    assert model.dual(h, client, gamma, xi) == pytest.approx(-cross_entropy - constant, rel=1e-12)
    # The optimal intercepts are a maximum, and the dual is above.
    for direction in (*np.eye(m), np.ones(m)):
        for size in (1e-3, -1e-3):
            aside = gamma + size * direction
            value = model.profile(h, client, aside, xi).value
            assert value < best.value
            assert value <= model.dual(h, client, aside, xi)
    assert model.profile(h, client, gamma + 50, xi).value == -np.inf  # every tilt is above 1: no weights are possible


def test_all_checks_and_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [c for part in (rates.of_marginals, rates.of_likelihood) for c in part(np.random.default_rng(0), 3)]
    assert [c.holds for c in checks] == [True, False, True, True, False]
    assert all(np.isfinite(point.measured) for c in checks for point in c.points)
    right = model.dual

    def wrong(h: np.ndarray, client: np.ndarray, gamma: np.ndarray, xi: np.ndarray) -> float:
        return right(h, client, gamma - np.log(np.bincount(client)), xi)  # without log n_l in the logits

    monkeypatch.setattr(model, "dual", wrong)
    _, value, _ = rates.of_likelihood(np.random.default_rng(0), 3)
    assert not value.holds
    assert exponent([1, 10, 100], [5, 0.05, 0.0005]) == pytest.approx(-2)
    checks = rates.checks(1, 3)
    assert [c.source for c in checks] == sorted((c.source for c in checks), key=[c.source for c in checks].index)
    assert len(checks) == 15


def test_gaussians() -> None:
    """Their true ratios are a library's, and samples have their clients' moments."""
    gaussians = model.random_gaussians(np.random.default_rng(0), equal=False)
    x = np.random.default_rng(1).standard_normal((50, 2))
    each = zip(gaussians.mean, gaussians.covariance, strict=True)
    log_density = np.column_stack([multivariate_normal(m, c).logpdf(x) for m, c in each])
    np.testing.assert_allclose(gaussians.log_ratios(x), log_density - log_density[:, :1], atol=1e-10)
    gaussians = model.random_gaussians(np.random.default_rng(2), equal=False)
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
    truth = rates.random_truth(rng)
    expected = (1 / rates.eigenvalues(truth.client_information)).sum()
    assert len(rates.eigenvalues(truth.client_information)) == 3 * 2
    errors = [truth.client_error(x, who, 0.8, 0.0) for x, who, _ in (truth.sample(rng, 3000) for _ in range(60))]
    assert 3000 * np.mean(errors) == pytest.approx(expected, rel=0.35)
    truth = rates.random_truth(np.random.default_rng(6))
    least = [
        np.sort(np.linalg.eigvalsh(i))[b.shape[0]]  # as many are 0 as there are features
        for i, b in ((truth.client_information, truth.client), (truth.target_information, truth.target))
    ]
    assert truth.claimed(0.8, 0.1) == pytest.approx(1 / (0.2 * least[0] + 0.1) + 1 / (0.8 * least[1] + 0.1))


def test_the_bound_of_descent() -> None:
    """η ≤ 1/L is needed: where η ρ > 2, even the penalty alone overshoots ever further. L bounds every Hessian."""
    clients = rates.random_clients(np.random.default_rng(3))
    largest = 1 / clients.smoothness(0.8, 0.3)
    options = {"weight": 0.8, "ridge": 0.3, "steps": 2, "rounds": 60}
    well = rates.descend(clients, rate=largest / 8, **options)
    assert (well.distance <= well.bound).all()
    assert well.distance[-1] < well.distance[0] / 10
    beyond = rates.descend(clients, rate=7.5, **options)
    assert not (beyond.distance <= beyond.bound).all()
    clients = rates.random_clients(np.random.default_rng(7))
    for weight in (0.5, 0.9):
        bound = clients.smoothness(weight, 0.1)
        for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
            assert labels.shape == clients.target.shape
            for x in clients.features:
                hessian = scale * model.information(x, np.zeros((3, classes))) + 0.1 * np.eye(3 * classes)
                assert np.linalg.eigvalsh(hessian)[-1] <= bound


def test_drift_of_the_two_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first round all logits are 0, so that every gradient is known: E x (1/C - [class]). Without heterogeneity
    only the client head's one-sided labels pull apart."""
    client, target = rates.simulate(0, rounds=3)
    data = rates.clients(np.random.default_rng(0))
    assert data.features.shape == (3, 1000, 33)
    assert set(np.unique(data.target)) <= set(range(10))
    for head, (labels, classes) in zip((client, target), data.heads, strict=True):
        each = zip(data.features, labels, strict=True)
        gradients = np.array([x.T @ (1 / classes - np.eye(classes)[y]) / 1000 for x, y in each])
        mean = gradients.mean(axis=0)
        expected = np.mean([np.sum((g - mean) ** 2) for g in gradients])
        assert head.drift[0] == pytest.approx(expected)
        assert head.relative[0] == pytest.approx(expected / np.sum(mean**2))
        assert head.drift.shape == (3,)
    assert (client.relative > target.relative).all()
    assert (client.drift > target.drift).all()
    monkeypatch.setattr(rates, "_SPREAD", 0.0)
    client, target = rates.simulate(0, rounds=2)
    assert target.relative[0] < 0.1 < 10 < client.relative[0]


def transport(m: np.ndarray, s: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    """The 2-Wasserstein distance of two Gaussians by their covariance matrices (Dowson and Landau, 1982)."""
    a, b = np.diag(s**2), np.diag(s2**2)
    half = sqrtm(a)
    return float(np.sqrt(((m - m2) ** 2).sum() + np.trace(a + b - 2 * np.real(sqrtm(half @ b @ half)))))


@few(SEEDS, examples=100)
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


DRAWN = np.random.default_rng(5)
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
    return DRAWN.integers(0, 256, (n, *shape), dtype=np.uint8)


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
    assert (found.rank, len(found.values)) == (min(n, 12), min(n, 48))
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


@few(st.integers(2, 6), examples=25)
def test_only_the_raw_ratio_counts_the_images(times: int) -> None:
    few = _pixels(40, 12)
    both = compare(spectrum(np.tile(few, (times, 1))), spectrum(few))
    np.testing.assert_allclose(both.normalised, 1, rtol=1e-9)
    np.testing.assert_allclose(both.raw, 1 / np.sqrt(times), rtol=1e-9)


@pytest.mark.parametrize(
    ("of", "says"),
    [
        *(
            (lambda draws=draws: rates.checks(draws), "at least 1 draw and at most 10,000")
            for draws in (0, rates.MOST + 1)
        ),
        (lambda: rates.checks(1, -1), "the seed must be in"),
        (lambda: deviations(np.zeros((1, 3)), np.zeros((1, 4))), "a pair needs two snapshots, and there are 1"),
        (lambda: deviations(np.zeros((2, 3)), np.zeros((3, 4))), "snapshots need descriptors"),
        (lambda: deviations(np.full((2, 3), np.nan), np.zeros((2, 4))), "its model has diverged"),
        (lambda: deviations(np.zeros((2, 3)), np.full((2, 4), np.inf)), "its model has diverged"),
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
    refused(says, of)
