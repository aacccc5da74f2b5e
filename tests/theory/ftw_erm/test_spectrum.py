"""Spectra of data matrices, and the ratio of Figures 2 and 3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm import compare, spectrum

RNG = np.random.default_rng(0)


def _pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


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
    assert found.rank == min(n, 12)
    assert len(found.values) == min(n, 48)
    np.testing.assert_allclose(found.values, np.linalg.svd(data.reshape(n, -1) / 255.0, compute_uv=False), atol=1e-5)


def test_black_images_have_rank_zero() -> None:
    black, grey = spectrum(np.zeros((3, 5), np.uint8)), spectrum(_pixels(9, 5))
    assert black.rank == 0
    both = compare(grey, black)
    assert (both.rank, len(both.normalised)) == (0, 0)
    assert np.isnan([both.largest, both.share_below(1)]).all()


@given(st.integers(2, 6))
def test_only_the_raw_ratio_counts_the_images(times: int) -> None:
    few = _pixels(40, 12)
    both = compare(spectrum(np.tile(few, (times, 1))), spectrum(few))
    np.testing.assert_allclose(both.normalised, 1, rtol=1e-9)
    np.testing.assert_allclose(both.raw, 1 / np.sqrt(times), rtol=1e-9)


def test_eigenvalues_are_those_of_the_second_moment() -> None:
    data = _pixels(50, 6)
    x = data / 255
    found = spectrum(data)
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(x.T @ x / 50)[::-1], rtol=1e-9)
    test = spectrum(_pixels(30, 6))
    both = compare(found, test)
    np.testing.assert_allclose(both.normalised, np.sqrt(test.eigenvalues / found.eigenvalues), rtol=1e-12)
    assert both.largest == both.normalised.max()
    assert both.share_below(float(np.sort(both.normalised)[3])) == 0.5


def test_the_bound_follows_the_penalty() -> None:
    train, test = spectrum(_pixels(50, 6)), spectrum(_pixels(30, 6))
    np.testing.assert_allclose(compare(train, test, 1e-12).bound, 1)
    np.testing.assert_allclose(compare(train, test, 1e12).bound, (1 + 5**0.5) / 2)
    bound = compare(train, test, 2.0).bound
    assert (np.diff(bound) > 0).all()  # the smaller an eigenvalue, the more the penalty weighs
    xi = 2 / (2 + train.values[0] ** 2)
    assert bound[0] * (bound[0] - 1) == pytest.approx(xi)


def test_the_smaller_rank_ends_the_comparison() -> None:
    thin = _pixels(50, 6)
    thin[:, 5] = thin[:, 0]
    assert compare(spectrum(_pixels(50, 6)), spectrum(thin)).rank == 5
    assert compare(spectrum(thin), spectrum(_pixels(3, 6))).rank == 3


def test_bad_input() -> None:
    with pytest.raises(FedbenchError, match="needs rows of numbers"):
        spectrum(np.zeros((0, 5), np.uint8))
    with pytest.raises(FedbenchError, match="needs rows of numbers"):
        spectrum(np.zeros(5))
    for bad in (np.nan, np.inf):
        with pytest.raises(FedbenchError, match="needs finite data"):
            spectrum(np.array([[1.0, bad], [0.0, 1.0], [2.0, 1.0]]))
    with pytest.raises(FedbenchError, match="training inputs have 4 numbers and test inputs 5"):
        compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 5)))
    with pytest.raises(FedbenchError, match="ridge penalty must be above 0"):
        compare(spectrum(_pixels(6, 4)), spectrum(_pixels(6, 4)), 0)
