"""The quadratic programme on the simplex, against its optimality condition, enumeration and SLSQP."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.methods.fedpac.simplex import Floats, nearest_to_origin


def solved(b: Floats) -> Floats:
    a = nearest_to_origin(b)
    assert a is not None
    return a


def factor(seed: int, clients: int, rows: int, scale: float = 1.0) -> Floats:
    """A random B [rows, clients]: with fewer rows than clients, B^T B is singular."""
    return scale * np.random.default_rng(seed).normal(0.4, 1.0, (rows, clients))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 12), rows=st.integers(1, 15), power=st.integers(-6, 6))
def test_the_solution_lies_on_the_simplex_and_no_point_of_it_is_lower(
    seed: int, clients: int, rows: int, power: int
) -> None:
    b = factor(seed, clients, rows, 10.0**power)
    a = solved(b)
    assert a.shape == (clients,)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    # f is convex: no point of the simplex lies lower than f(a) by more than this gap between a and the best corner.
    gradient = 2 * b.T @ (b @ a)
    gap = a @ gradient - gradient.min()
    assert gap <= 1e-9 * np.trace(b.T @ b) / clients


def test_independent_variances_are_weighted_by_their_inverses() -> None:
    variances = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(solved(np.diag(np.sqrt(variances))), np.array([4, 2, 1]) / 7, rtol=1e-12)


def test_a_column_of_zeros_takes_all() -> None:
    b = factor(0, 4, 6)
    b[:, 2] = 0
    np.testing.assert_allclose(solved(b), [0, 0, 1, 0], atol=1e-12)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e200])
def test_what_has_no_solution(value: float) -> None:
    b = np.zeros((3, 3))
    b[1, 1] = value
    assert nearest_to_origin(b) is None


def test_a_solver_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", fail)
    assert nearest_to_origin(np.eye(3)) is None
