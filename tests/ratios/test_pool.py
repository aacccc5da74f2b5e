"""The privacy step: what the pool holds, what it hides, and what it costs."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.ratios.pool import contributions, pool_traffic, shuffled_pool


def clients(sizes: list[int]) -> list[np.ndarray]:
    """Disjoint test sets of those sizes."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in itertools.pairwise(ends)]


@given(sizes=st.lists(st.integers(3, 30), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_every_client_gives_equally_many_of_its_own_samples(sizes: list[int], seed: int) -> None:
    tests = clients(sizes)
    pool = shuffled_pool(tests, 3, seed)
    assert pool.shape == (3 * len(sizes),)
    assert len(set(pool.tolist())) == len(pool)
    for own in tests:
        assert np.isin(pool, own).sum() == 3
    np.testing.assert_array_equal(pool, shuffled_pool(tests, 3, seed))
    given_by = contributions(tests, 3, seed)
    assert sorted(pool.tolist()) == sorted(np.concatenate(given_by).tolist())


@given(seed=st.integers(0, 2**32), deal=st.permutations(range(24)))
def test_order_does_not_depend_on_who_holds_what(seed: int, deal: list[int]) -> None:
    """The same samples dealt out to clients in any way make the same pool."""
    usual = shuffled_pool(clients([8, 8, 8]), 8, seed)
    dealt = shuffled_pool(np.array(deal).reshape(3, 8), 8, seed)
    np.testing.assert_array_equal(usual, dealt)


def test_every_sample_is_as_likely_to_stand_anywhere() -> None:
    """Client 0's share at each place of the pool, over 2000 seeds: 1/3 within 5 standard errors."""
    first = np.mean([shuffled_pool(clients([4, 4, 4]), 2, seed) < 4 for seed in range(2000)], axis=0)
    np.testing.assert_allclose(first, 1 / 3, atol=5 * np.sqrt(2 / 9 / 2000))


def test_draw_is_uniform_over_a_client_s_samples() -> None:
    seen = Counter(int(i) for seed in range(2000) for i in contributions(clients([5]), 2, seed)[0])
    np.testing.assert_allclose([seen[i] / 2000 for i in range(5)], 2 / 5, atol=5 * np.sqrt(0.24 / 2000))


def test_a_client_s_draw_is_its_own() -> None:
    """Another client more, or other samples elsewhere, change nothing of it."""
    few, more = contributions(clients([9, 9]), 4, 7), contributions([*clients([9, 9]), np.arange(50, 60)], 4, 7)
    for a, b in zip(few, more, strict=False):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(few[0], contributions(clients([9, 9]), 4, 8)[0])
    assert not np.array_equal(few[0], few[1] - 9)


def test_clients_may_share_samples() -> None:
    """Copies of one data set (the 100 clients of Table 2) each give their own draw."""
    assert len(shuffled_pool([np.arange(10)] * 5, 4, 0)) == 20


@pytest.mark.parametrize(
    ("tests", "per_client", "message"),
    [
        ([], 5, "at least one client"),
        (clients([5, 0, 5]), 5, "client 1 has no test samples"),
        (clients([5, 4]), 5, "client 1 has 4 test samples and is to give 5 to the pool; give at most 4"),
        (clients([5]), 0, "at least one test sample"),
    ],
)
def test_bad_input(tests: list[np.ndarray], per_client: int, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        shuffled_pool(tests, per_client, 0)


def test_traffic_of_appendix_e() -> None:
    """1000 CIFAR images: about 25e6 bits, 3.1 MB; against 3.5 TB of a ResNet-18 in 8e4 rounds it is nothing."""
    traffic = pool_traffic(clients=10, per_client=100, sample_bytes=32 * 32 * 3)
    assert traffic.down == 10 * traffic.up == 3_072_000
    assert round(8 * traffic.down / 1e6) == 25
    training_bits = 11_000_000 * 32 * 80_000
    assert training_bits == 2.816e13
    assert 8 * traffic.down / training_bits < 1e-6
