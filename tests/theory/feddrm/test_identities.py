"""Theorems 2.1 and 2.2: marginals of tilted classes, and the empirical likelihood by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbench.theory.feddrm import identities, tilts
from fedbench.theory.feddrm import profile as p


def _sample(seed: int, m: int = 3, d: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """h [N, d], clients [N] of unequal sizes, and some ξ [m, d]."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), rng.integers(12, 30, m))
    h = rng.standard_normal((m, d))[client] + rng.standard_normal((len(client), d))
    return h, client, 0.7 * rng.standard_normal((m, d))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(st.integers(0, 2**32 - 1))
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


@pytest.mark.parametrize("seed", range(4))
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


@given(st.integers(0, 10_000))
def test_the_optimal_intercepts_are_a_maximum_and_the_dual_is_above(seed: int) -> None:
    h, client, xi = _sample(seed)
    gamma = p.optimal_intercepts(h, client, xi)
    best = p.profile(h, client, gamma, xi).value
    for direction in (*np.eye(3), np.ones(3)):
        for size in (1e-3, -1e-3):
            aside = gamma + size * direction
            value = p.profile(h, client, aside, xi).value
            assert value < best
            assert value <= p.dual(h, client, aside, xi)


def test_no_weights_meet_impossible_constraints() -> None:
    h, client, xi = _sample(0)
    gamma = p.optimal_intercepts(h, client, xi)
    assert p.profile(h, client, gamma + 50, xi).value == -np.inf  # every tilt is above 1


def test_the_checks_say_so() -> None:
    checks = [c for part in (identities.of_marginals, identities.of_likelihood) for c in part(_rng(), 3)]
    assert [c.holds for c in checks] == [True, False, True, True, False]
    assert all(np.isfinite(point.measured) for c in checks for point in c.points)


def test_a_wrong_constant_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without log n_l in the logits, the cross-entropy is another function."""
    right = p.dual

    def wrong(h: np.ndarray, client: np.ndarray, gamma: np.ndarray, xi: np.ndarray) -> float:
        return right(h, client, gamma - np.log(np.bincount(client)), xi)

    monkeypatch.setattr(p, "dual", wrong)
    _, value, _ = identities.of_likelihood(_rng(), 3)
    assert not value.holds
