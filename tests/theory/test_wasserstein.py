"""xi of FLUX's descriptors: transport of Gaussians without covariances against the whole formula, and all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from fedbench.errors import FedbenchError
from fedbench.theory.wasserstein import deviations

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


def test_a_descriptor_that_is_the_gaussian_deviates_nowhere() -> None:
    x = np.random.default_rng(1).uniform(0, 1, (6, 8))
    assert deviations(x, x).tolist() == [0.0] * 15


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
