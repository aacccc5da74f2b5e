"""ConFREE's combinations of updates, from inner products alone, against loops over whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.methods.confree.conflicts import guidance, orders, pairs, worst
from tests.support.conflicts_lab import ALPHA, SIZES, guide, projected_pairs, step, updates


def test_pairs_by_inner_products_are_the_projections() -> None:
    for seed in range(5):
        u = updates(seed=seed)
        weights = pairs(u @ u.T, SIZES)
        np.testing.assert_allclose(weights @ u, projected_pairs(u, SIZES), rtol=1e-9, atol=1e-15)
        assert (weights >= np.array(SIZES) / sum(SIZES)).all()
        assert weights.sum() > 1.01, "nothing conflicts"


def test_of_two_in_conflict_neither_keeps_what_is_against_the_other() -> None:
    u = np.array([[1.0, 0.0], [-1.0, 2.0]])
    first, second = (pairs(u @ u.T, sizes) @ u for sizes in ([1, 0], [0, 1]))
    np.testing.assert_allclose([first @ u[1], second @ u[0]], 0, atol=1e-7)


def test_guidance_by_inner_products_is_the_projections() -> None:
    for seed in range(5):
        u, order = updates(seed=seed), orders(np.random.default_rng(seed), 5)
        np.testing.assert_allclose(guidance(u @ u.T, order) @ u, guide(u, order), rtol=1e-9, atol=1e-15)


def test_the_order_matters_and_has_all_others() -> None:
    u, order = updates(), orders(np.random.default_rng(1), 5)
    assert [sorted([i, *row]) for i, row in enumerate(order.tolist())] == [list(range(5))] * 5
    assert len({tuple(row) for row in order.tolist()}) == 5
    assert not np.allclose(guidance(u @ u.T, order), guidance(u @ u.T, order[:, ::-1]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_the_step_is_the_best_for_the_worst_client_near_the_guidance_vector(seed: int, scale: float) -> None:
    u, order = scale * updates(seed=seed), orders(np.random.default_rng(seed), 5)
    ours, expected = worst(u @ u.T, order, ALPHA) @ u, step(u, order)
    np.testing.assert_allclose(ours, expected, atol=2e-3 * float(np.abs(expected).max()))
    centre = guide(u, order) / (1 + ALPHA**2)
    assert (u @ ours).min() > (u @ centre).min()
    assert np.linalg.norm(ours - centre) == pytest.approx(ALPHA * np.linalg.norm(centre), rel=1e-3)


def test_one_client_and_clients_that_have_not_moved() -> None:
    alone = orders(np.random.default_rng(0), 1)
    assert worst(np.array([[4.0]]), alone, 0.0).tolist() == [1.0]
    assert worst(np.array([[4.0]]), alone, 0.5) == pytest.approx([1.5 / 1.25])
    assert worst(np.zeros((3, 3)), orders(np.random.default_rng(0), 3), 0.5) == pytest.approx([1 / 3] * 3)
    still = np.diag([1.0, 0.0])  # one has not moved
    assert np.isfinite(worst(still, orders(np.random.default_rng(0), 2), 0.5)).all()
