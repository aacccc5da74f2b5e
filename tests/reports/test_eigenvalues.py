"""Singular values of images, and test against training eigenvalues: the numbers of FTW-ERM's Figures 2 and 3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st

from fedbench.reports.figures.eigenvalues import compare, spectrum
from tests.support.frames import few, refused

DRAWN = np.random.default_rng(5)


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
    assert bound[0] * (bound[0] - 1) == pytest.approx(2 / (2 + train.values[0] ** 2))
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
        (lambda: spectrum(np.zeros((0, 5), np.uint8)), "needs rows of numbers"),
        (lambda: spectrum(np.zeros(5)), "needs rows of numbers"),
        (lambda: spectrum(np.array([[1.0, np.nan], [0.0, 1.0]])), "needs finite data"),
        (lambda: spectrum(np.array([[1.0, np.inf], [0.0, 1.0]])), "needs finite data"),
        (lambda: compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 5))), "inputs have 4 numbers and test inputs 5"),
        (lambda: compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 4)), 0), "ridge penalty must be above 0"),
    ],
)
def test_what_cannot_be_asked(of: Callable[[], object], says: str) -> None:
    refused(says, of)
