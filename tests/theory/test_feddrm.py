"""FedDRM's Theorems 2.1, 2.2 and 2.5 and its density ratios on simulated problems, on which the truth is known: what
holds, and where a statement does not hold as printed. tables/feddrm/README.md says it in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression

from tests.support.frames import SEEDS, few
from tests.theory import estimates, fedavg, gaussians, likelihood, softmax, tilts
from tests.theory.softmax import Array, Labels, minimise

RNG = np.random.default_rng(3)
X = softmax.with_constant(RNG.standard_normal((200, 2)))
LABELS = (X @ RNG.standard_normal((3, 4)) + RNG.gumbel(size=(200, 4))).argmax(axis=1)

#: Larger errors of an identity are not due to rounding.
ROUNDING = 1e-6
#: Total numbers of samples of a rate, and the λ of Theorem 2.5.
SIZES, WEIGHTS = (400, 1600, 6400), (0.5, 0.8, 0.95)


def exponent(x: Sequence[float], y: Sequence[float] | Array) -> float:
    """r of y = c xʳ, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


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
    p = np.exp(log_softmax(X @ b, axis=-1))
    expected = np.zeros((12, 12))
    for x, q in zip(X, p, strict=True):
        for label, chance in enumerate(q):
            score = np.outer(x, np.eye(4)[label] - q).ravel()
            expected += chance * np.outer(score, score) / len(X)
    np.testing.assert_allclose(softmax.information(X, b), expected, atol=1e-12)


def test_newton_steps_end_at_a_minimum_or_say_that_there_is_none() -> None:
    def slope(point: Array) -> tuple[float, Array, Array]:
        return -float(np.log(point[0])), -1 / point, np.diag(1 / point**2)

    def barrier(point: Array) -> tuple[float, Array, Array]:
        if point[0] <= 0:  # the border of the domain
            return np.inf, point, np.eye(1)
        return float(point[0] - np.log(point[0])), 1 - 1 / point, np.diag(1 / point**2)

    with pytest.raises(ArithmeticError, match="a slope: no solution within 200 Newton steps"):
        minimise(slope, np.ones(1), "a slope")
    np.testing.assert_allclose(minimise(barrier, np.array([1e-3]), "a barrier"), 1, rtol=1e-9)


@few(SEEDS, examples=12)
def test_theorem_2_1_of_classes_tilted_as_2_and_3_say(seed: int) -> None:
    joint, claimed = tilts.random_joint(np.random.default_rng(seed))
    probability = joint.probability
    np.testing.assert_allclose(probability.sum(axis=(1, 2)), 1)
    share = probability.sum(axis=2)
    given_class = probability / share[:, :, None]
    # (2): log dP_k/dP_1 less log(π_i1/π_ik) is the same function at all clients.
    common = np.log(given_class / given_class[:, :1]) - np.log(share[:, :1] / share)[:, :, None]
    np.testing.assert_allclose(common, np.broadcast_to(common[:1], common.shape), atol=1e-9)
    # (3): log dP_1^(i)/dP_1^(0) is an affine function of h.
    assert tilts.distance(tilts.Joint(given_class[:, :1], joint.h)) < 1e-9
    # Theorem 2.1, from the sum over classes alone: with α_1 = 0 and β_1 = 0, where (3) relates the clients' P_1^(i) to
    # P_1^(0), as App. C.1 has it.
    np.testing.assert_allclose(joint.log_ratios, claimed, atol=1e-9)


def test_theorem_2_1_does_not_reach_label_shift() -> None:
    """Remark 2.3 does not hold with h = g: (2) with one α for all clients fixes their class shares, and a ratio of two
    mixtures needs a richer h than g."""
    rng = np.random.default_rng(1)
    joint, _ = tilts.random_joint(rng)
    shares = rng.dirichlet(np.ones(4), 3)
    shifted = tilts.label_shift(joint, shares)
    np.testing.assert_allclose(shifted.probability[1:].sum(axis=2), shares)
    conditional = shifted.probability / shifted.probability.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(conditional, np.broadcast_to(conditional[:1], conditional.shape))
    assert tilts.distance(joint) < 1e-9 < 0.02 < tilts.distance(shifted)


def _sample(seed: int, m: int = 3, d: int = 2) -> tuple[Array, Array, Array]:
    """h [N, d], clients [N] of unequal sizes, and some ξ [m, d]."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), rng.integers(12, 30, m))
    h = rng.standard_normal((m, d))[client] + rng.standard_normal((len(client), d))
    return h, client, 0.7 * rng.standard_normal((m, d))


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
        lambda q: -np.log(q).sum(),
        start,
        jac=lambda q: -1 / q,
        method="SLSQP",
        bounds=[(1e-9, 1)] * n,
        constraints={"type": "eq", "fun": lambda q: q @ rows - 1, "jac": lambda q: rows.T},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert library.success
    ours = likelihood.profile(h, client, gamma, xi)
    own = (gamma + h @ xi.T)[np.arange(n), client].sum()
    assert ours.value == pytest.approx(own - library.fun, abs=1e-5)
    np.testing.assert_allclose(ours.weights @ rows, 1, atol=1e-9)
    counts = np.bincount(client)
    assert np.abs(ours.multipliers - counts / n).max() > 1e-3  # n_l/N belongs to the optimum alone
    assert likelihood.dual(h, client, gamma, xi) > ours.value + 1e-6


@few(st.integers(0, 10_000), st.integers(2, 4), examples=12)
def test_theorem_2_2(seed: int, m: int) -> None:
    h, client, xi = _sample(seed, m)
    n, counts = len(h), np.bincount(client)
    gamma = likelihood.optimal_intercepts(h, client, xi)
    best = likelihood.profile(h, client, gamma, xi)
    np.testing.assert_allclose(best.weights.sum(), 1, atol=1e-8)
    np.testing.assert_allclose(best.weights @ np.exp(gamma + h @ xi.T), 1, atol=1e-8)
    np.testing.assert_allclose(best.multipliers, counts / n, atol=1e-4)
    logits = np.log(counts) + gamma + h @ xi.T
    cross_entropy = sum(np.log(np.exp(row).sum()) - row[i] for row, i in zip(logits, client, strict=True))
    constant = (counts * np.log(counts)).sum()
    assert best.value == pytest.approx(-cross_entropy - constant, rel=1e-9)
    assert likelihood.dual(h, client, gamma, xi) == pytest.approx(-cross_entropy - constant, rel=1e-12)
    # The optimal intercepts are a maximum, and the dual is above.
    for direction in (*np.eye(m), np.ones(m)):
        for size in (1e-3, -1e-3):
            aside = gamma + size * direction
            value = likelihood.profile(h, client, aside, xi).value
            assert value < best.value
            assert value <= likelihood.dual(h, client, aside, xi)
    assert (
        likelihood.profile(h, client, gamma + 50, xi).value == -np.inf
    )  # every tilt is above 1: no weights are possible


def drawn(rng: np.random.Generator) -> tuple[Array, Labels, Array]:
    """h [N, d], clients [N] and ξ [m, d] of a random problem of Theorem 2.2."""
    m, d = int(rng.integers(2, 5)), int(rng.integers(2, 4))  # in one dimension many tilts are nearly dependent
    client = np.repeat(np.arange(m), rng.integers(15, 60, m))
    h = rng.standard_normal((m, d))[client] + rng.standard_normal((len(client), d))
    return h, client, 0.7 * rng.standard_normal((m, d))


def gap(h: Array, client: Labels, gamma: Array, xi: Array, aside: Array) -> float:
    """(dual - profile) per sample at γ† + `aside`, which is halved as long as no weights satisfy (5)."""
    while (value := likelihood.profile(h, client, gamma + aside, xi).value) == -np.inf:
        aside = aside / 2
    return (likelihood.dual(h, client, gamma + aside, xi) - value) / len(h)


@pytest.mark.parametrize("seed", range(3))
def test_theorem_2_2_holds_at_the_optimal_intercepts_alone(seed: int) -> None:
    """There the multipliers are n_l/N and the profile is minus the cross-entropy less the constant Σ n_l log n_l
    (App. C.4 leaves N log N out), for every ξ. Elsewhere the profile lies below: (7) is another function with the same
    maximum."""
    rng = np.random.default_rng(seed)
    h, client, xi = drawn(rng)
    gamma, counts = likelihood.optimal_intercepts(h, client, xi), np.bincount(client)
    best = likelihood.profile(h, client, gamma, xi)
    assert np.abs(best.multipliers - counts / len(h)).max() < ROUNDING
    assert abs(best.value - likelihood.dual(h, client, gamma, xi)) / len(h) < ROUNDING
    without_prior = likelihood.dual(h, client, gamma - np.log(counts), xi)  # without log n_l in the logits
    assert abs(best.value - without_prior) / len(h) > 1e-3
    assert gap(h, client, gamma, xi, 0.01 * rng.standard_normal(len(xi))) > ROUNDING


def test_gaussians() -> None:
    """Their true ratios are a library's, and samples have their clients' moments."""
    clients = gaussians.random_gaussians(np.random.default_rng(0), equal=False)
    x = np.random.default_rng(1).standard_normal((50, 2))
    each = zip(clients.mean, clients.covariance, strict=True)
    log_density = np.column_stack([multivariate_normal(m, c).logpdf(x) for m, c in each])
    np.testing.assert_allclose(clients.log_ratios(x), log_density - log_density[:, :1], atol=1e-10)
    clients = gaussians.random_gaussians(np.random.default_rng(2), equal=False)
    x, client = clients.sample(np.random.default_rng(3), 140_000)
    np.testing.assert_array_equal(np.bincount(client), [20_000, 40_000, 80_000])
    for i in range(3):
        np.testing.assert_allclose(x[client == i].mean(axis=0), clients.mean[i], atol=0.03)
        np.testing.assert_allclose(np.cov(x[client == i].T), clients.covariance[i], atol=0.05)


def squared(ratios: Array, true: Array) -> float:
    """Mean squared error over inputs and all clients but the first, which is the reference."""
    return float(np.square((ratios - true)[:, 1:]).mean())


def test_density_ratios_are_client_logits_less_log_n_where_the_model_holds() -> None:
    """The error falls as N^(-1/2) where (4) is exact: Gaussians of equal covariance with h(x) = x, unequal ones with
    the products of Example B.1. It stays where log n_i is left in (logits are of posteriors, under the clients'
    shares), and where covariances differ and h(x) = x (their log ratios are quadratic in x)."""
    rng, draws = np.random.default_rng(0), 8
    exact, raw, bent, richer = errors = np.zeros((4, draws, len(SIZES)))
    for i in range(draws):
        equal, unequal = gaussians.random_gaussians(rng, equal=True), gaussians.random_gaussians(rng, equal=False)
        for j, n in enumerate(SIZES):
            (x, client), (at, _) = equal.sample(rng, n), equal.sample(rng, 1000)
            head, true = gaussians.head(x, client), equal.log_ratios(at)
            exact[i, j] = squared(head.log_ratios(at), true)
            raw[i, j] = squared(head.log_ratios(at, prior=False), true)
            (x, client), (at, _) = unequal.sample(rng, n), unequal.sample(rng, 1000)
            true = unequal.log_ratios(at)
            bent[i, j] = squared(gaussians.head(x, client).log_ratios(at), true)
            products = gaussians.products
            richer[i, j] = squared(gaussians.head(products(x), client).log_ratios(products(at)), true)
    typical = np.exp(np.log(errors).mean(axis=1) / 2)  # geometric, so that no problem dominates
    assert [exponent(SIZES, of) for of in typical[[0, 3]]] == pytest.approx([-0.5, -0.5], abs=0.125)
    assert [exponent(SIZES, of) for of in typical[[1, 2]]] == pytest.approx([0, 0], abs=0.125)
    assert (np.diff(typical[0]) < 0).all()


def test_theorem_2_5_over_samples() -> None:
    """1/N holds with ρ = 0, as a rate: (9) has a factor that the theorem hides, the number of parameters. With the
    penalty that the theorem has, its bias stays whatever N is: ρ must vanish, but then nothing is strongly convex.

    Lemma E.1's {(1-λ) I_γ}⁻¹/N is not the client head's covariance: a factor before a loss moves no minimiser. It is
    I_γ⁻¹/N, whatever λ is.
    """
    rng, draws, weight, ridge = np.random.default_rng(1), 8, 0.8, 0.02
    truth = estimates.random_truth(rng)
    free, fixed = np.zeros((2, draws, len(SIZES)))
    client = np.zeros((draws, len(SIZES), len(WEIGHTS)))
    for i in range(draws):
        for j, n in enumerate(SIZES):
            x, who, target = truth.sample(rng, n)
            squares = [truth.client_error(x, who, w, 0.0) for w in WEIGHTS]
            client[i, j] = np.multiply(n, squares)
            free[i, j] = squares[1] + truth.target_error(x, target, weight, 0.0)
            fixed[i, j] = truth.client_error(x, who, weight, ridge) + truth.target_error(x, target, weight, ridge)
    assert exponent(SIZES, free.mean(axis=0)) == pytest.approx(-1, abs=0.25)
    assert exponent(SIZES, fixed.mean(axis=0)) > -0.75
    scaled = client.mean(axis=(0, 1))  # N E‖γ̂ - γ‖² for each λ; by Lemma E.1 it were `limit` / (1 - λ)
    limit = (1 / estimates.eigenvalues(truth.client_information)).sum()
    assert scaled == pytest.approx(np.full(3, limit), rel=0.4)
    assert np.ptp(scaled) < 1e-3


def test_the_population_error_is_the_inverse_information() -> None:
    """At N = 3,000 the mean squared error over 60 samples is near tr I⁻¹/N: an oracle that the fit does not know."""
    rng = np.random.default_rng(5)
    truth = estimates.random_truth(rng)
    expected = (1 / estimates.eigenvalues(truth.client_information)).sum()
    assert len(estimates.eigenvalues(truth.client_information)) == 3 * 2
    errors = [truth.client_error(x, who, 0.8, 0.0) for x, who, _ in (truth.sample(rng, 3000) for _ in range(60))]
    assert 3000 * np.mean(errors) == pytest.approx(expected, rel=0.35)
    truth = estimates.random_truth(np.random.default_rng(6))
    least = [
        np.sort(np.linalg.eigvalsh(i))[b.shape[0]]  # as many are 0 as there are features
        for i, b in ((truth.client_information, truth.client), (truth.target_information, truth.target))
    ]
    assert truth.claimed(0.8, 0.1) == pytest.approx(1 / (0.2 * least[0] + 0.1) + 1 / (0.8 * least[1] + 0.1))


def test_fedavg_is_the_average_of_local_descents() -> None:
    x, labels = X[:180].reshape(3, 60, 3), LABELS[:180].reshape(3, 60)
    states = list(fedavg.train(x, labels, 4, rate=0.3, steps=4, rounds=3, scale=0.7, ridge=0.1))
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


def test_theorem_2_5_over_rounds() -> None:
    """(10) holds in every round, far above what is left: a single local step ends at the minimiser itself, where (10)
    still has its term. What is left is not proportional to η, as the theorem has it, but falls with η²."""
    clients, ridge = fedavg.random_clients(np.random.default_rng(2)), 0.5  # ρ makes the loss strongly convex

    def follow(weight: float, steps: int, slower: int = 1) -> tuple[float, fedavg.Path]:
        rate = 1 / (4 * slower * steps * clients.smoothness(weight, ridge))
        rounds = round(10 / (rate * steps * ridge))
        return rate, fedavg.descend(clients, weight=weight, ridge=ridge, rate=rate, steps=steps, rounds=rounds)

    slower = [follow(WEIGHTS[1], 4, by) for by in (1, 2, 4)]
    single = follow(WEIGHTS[1], 1)
    for _, path in (*slower, single, follow(WEIGHTS[0], 4), follow(WEIGHTS[2], 4), follow(WEIGHTS[1], 8)):
        assert (path.distance <= path.bound * (1 + 1e-9)).all()
    power = exponent([rate for rate, _ in slower], [path.distance[-1] for _, path in slower])
    assert power == pytest.approx(2, abs=0.1)
    assert single[1].distance[-1] < 1e-6 < 1e-3 < single[1].bound[-1]


def test_the_bound_of_descent() -> None:
    """η ≤ 1/L is needed: where η ρ > 2, even the penalty alone overshoots ever further. L bounds every Hessian."""
    clients = fedavg.random_clients(np.random.default_rng(3))
    largest = 1 / clients.smoothness(0.8, 0.3)
    options = {"weight": 0.8, "ridge": 0.3, "steps": 2, "rounds": 60}
    well = fedavg.descend(clients, rate=largest / 8, **options)
    assert (well.distance <= well.bound).all()
    assert well.distance[-1] < well.distance[0] / 10
    beyond = fedavg.descend(clients, rate=7.5, **options)
    assert not (beyond.distance <= beyond.bound).all()
    clients = fedavg.random_clients(np.random.default_rng(7))
    for weight in (0.5, 0.9):
        bound = clients.smoothness(weight, 0.1)
        for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
            assert labels.shape == clients.target.shape
            for x in clients.features:
                hessian = scale * softmax.information(x, np.zeros((3, classes))) + 0.1 * np.eye(3 * classes)
                assert np.linalg.eigvalsh(hessian)[-1] <= bound
