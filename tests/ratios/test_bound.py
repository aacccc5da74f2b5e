"""The bound from bins and clusters, with a row of Table 13 (as a whole: tests/bench/table_13.py); the privacy step:
what clients send to the pool, what its order hides, and what it costs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_info, threadpool_limits

from fedbench.conformance.lab import federation, setting, trainer
from fedbench.core import message
from fedbench.data.readers import read_idx
from fedbench.errors import FedbenchError
from fedbench.methods.ftw_erm import FTWERM
from fedbench.methods.parts.importance import Pool, sample
from fedbench.ratios.bound import Bound, histogram_bound, kmeans_bound
from fedbench.ratios.matching import contribution, shuffle

BINS = 6
NUMBERS = st.lists(st.integers(0, BINS - 1), min_size=1, max_size=60)


def test_by_hand() -> None:
    """Bin 0: (3/6)/(4/8) = 1; bin 1: (1/6)/(1/8) = 4/3; bin 2: 0; bin 3 has no training sample."""
    train, pool = [0, 0, 0, 0, 1, 2, 2, 2], [0, 0, 0, 1, 3, 3]
    found = histogram_bound(train, pool, 4)
    assert found == Bound(pytest.approx(4 / 3), train_count=1)


@given(train=NUMBERS, pool=NUMBERS)
@settings(max_examples=40)
def test_every_bin_is_below_and_one_attains_it(train: list[int], pool: list[int]) -> None:
    shares = {b: (pool.count(b) / len(pool)) / (train.count(b) / len(train)) for b in range(BINS) if b in train}
    if not max(shares.values()):
        with pytest.raises(FedbenchError, match="no bin of 6 holds both"):
            histogram_bound(train, pool, BINS)
        return
    found = histogram_bound(train, pool, BINS)
    assert found.value == pytest.approx(max(shares.values()))
    assert found.train_count in {train.count(b) for b, share in shares.items() if share == pytest.approx(found.value)}


def blobs(counts: list[int], seed: int = 0) -> np.ndarray:
    """Four far-apart clouds of points in the plane."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0], [100, 0], [0, 100], [100, 100]])
    return np.repeat(centres, counts, axis=0) + rng.normal(size=(sum(counts), 2))


def test_clusters_of_separate_clouds_give_the_exact_largest_ratio() -> None:
    train, pool = blobs([70, 10, 20, 0]), blobs([5, 20, 20, 5], 1)
    found = kmeans_bound(train, pool, 4)
    assert found.value == pytest.approx((20 / 50) / (10 / 100))
    assert found.train_count == 10
    assert kmeans_bound(train.reshape(-1, 1, 2, 1), pool.reshape(-1, 1, 2, 1), 4) == found, "images"


def test_same_seed_same_bound_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several threads would depend on how many there are."""
    threads: list[int] = []
    original = KMeans.fit_predict

    def spy(self: KMeans, samples: np.ndarray) -> np.ndarray:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return original(self, samples)

    monkeypatch.setattr(KMeans, "fit_predict", spy)
    x = np.random.default_rng(0).random((300, 5))
    with threadpool_limits(2):
        values = [kmeans_bound(x[:200], x[200:] ** 2, 7, 1, seed).value for seed in (0, 0, 1, 2)]
    assert set(threads) == {1}
    assert values[0] == values[1]
    assert len(set(values)) > 1


def test_restarts_make_the_bound_steady() -> None:
    """Digits in Table 13's way: a single start in few clusters may miss the rare digits, the best of ten does not."""
    images, labels = load_digits(return_X_y=True)
    high = labels >= 5
    train = np.concatenate([images[:1200][high[:1200]], images[:1200][~high[:1200]][:30]])
    pool = np.concatenate([images[1200:][~high[1200:]], images[1200:][high[1200:]][:15]])
    single, many = ([kmeans_bound(train, pool, 8, n, seed).value for seed in range(6)] for n in (1, 10))
    assert np.std(many) < 0.2 * np.std(single)


def test_more_clusters_than_samples() -> None:
    with pytest.raises(FedbenchError, match="6 samples cannot make 7 clusters; take 1 to 6"):
        kmeans_bound(np.zeros((3, 2)), np.zeros((3, 2)), 7, 1)


def test_needs_no_torch() -> None:
    modules = ", ".join(f"fedbench.ratios.{name}" for name in ("bound", "exact"))
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'sklearn', 'scipy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_table_13_with_20_clusters(data_root: Path) -> None:
    """MNIST, train 271 of each digit 0-4 and 5421 of 5-9, test 892 and 44."""
    sides = []
    for split, counts in (("train", [271] * 5 + [5421] * 5), ("t10k", [892] * 5 + [44] * 5)):
        images = read_idx(data_root / "mnist" / f"{split}-images-idx3-ubyte.gz")
        labels = read_idx(data_root / "mnist" / f"{split}-labels-idx1-ubyte.gz")
        sides.append(images[np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(counts)])])
    assert [len(x) for x in sides] == [28_460, 4_680]
    assert 14 < kmeans_bound(*sides, clusters=20, restarts=1).value < 17


@given(count=st.integers(3, 30), client=st.integers(0, 50), seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_client_gives_so_many_of_its_own_samples_and_the_pool_has_an_order_of_all(
    count: int, client: int, seed: int
) -> None:
    chosen = contribution(count, 3, seed, client)
    assert len(set(chosen.tolist())) == 3
    assert set(chosen.tolist()) <= set(range(count))
    np.testing.assert_array_equal(chosen, contribution(count, 3, seed, client))
    for size in (0, 1, count):
        order = shuffle(size, seed)
        assert sorted(order.tolist()) == list(range(size))
        np.testing.assert_array_equal(order, shuffle(size, seed))


def test_draws_and_orders_are_uniform() -> None:
    """Client 0's share at each place of a pool of three clients' two samples, over 1000 seeds: 1/3 within 5 standard
    errors; and each of a client's five samples is as often one of two."""
    first = np.mean([shuffle(6, seed) < 2 for seed in range(1000)], axis=0)
    np.testing.assert_allclose(first, 1 / 3, atol=5 * np.sqrt(2 / 9 / 1000))
    seen = Counter(int(i) for seed in range(1000) for i in contribution(5, 2, seed, 0))
    np.testing.assert_allclose([seen[i] / 1000 for i in range(5)], 2 / 5, atol=5 * np.sqrt(0.24 / 1000))
    own = contribution(9, 4, 7, 0)
    for another in (contribution(9, 4, 8, 0), contribution(9, 4, 7, 1)):
        assert not np.array_equal(own, another), "the draw of another seed or client"
    for count, size, line in (
        (0, 5, "client 1 has 0 test samples"),
        (4, 5, "client 1 has 4 test samples and is to give 5 to the pool; give at most 4"),
    ):
        with pytest.raises(FedbenchError, match=line):
            contribution(count, size, 0, 1)


class Watching(FTWERM):
    """Keeps the pool that the server broadcasts."""

    pools: list[torch.Tensor] = []  # noqa: RUF012

    def learn(self, server: Any, cohort: Any, t: int) -> None:
        super().learn(server, cohort, t)
        if isinstance(server.memory, Pool):
            self.pools.append(server.memory.images)


SIZES = (30, 20, 20, 20)
DATA = federation(SIZES)
ONE_STEP: dict[str, Any] = {"steps": 1, "passes": "endless", "momentum": 0.0, "rounds": 1, "window": 1}


def asked(where: Path, data: Any = DATA) -> tuple[Any, torch.Tensor]:
    """(the trainer, the pool) after the server's questions before the first round; three samples a client."""
    how = Watching(ratios="hdrm", n_te=3, clusters=2, restarts=1, matching_epochs=1)
    it = trainer(how, data, where, setting(**ONE_STEP))
    Watching.pools.clear()
    it.resume()
    it.executor.close()
    (pool,) = Watching.pools
    return it, pool


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [one.numpy().tobytes() for one in images]


def test_the_pool(tmp_path: Path) -> None:
    """Equally many of each client's test images, in an order that does not depend on them, and counted as sent."""
    it, pool = asked(tmp_path)
    own = [rows_of(sample(it.client(i, {}, 0), 3)) for i in range(len(SIZES))]
    assert sorted(rows_of(pool)) == sorted(image for images in own for image in images)
    for i, images in enumerate(own):
        assert set(images) <= set(rows_of(DATA.images[DATA.test[i]]))
    assert rows_of(pool) != [image for images in own for image in images], "who sent what cannot be told by the order"
    _, inverted = asked(tmp_path / "inverted", dataclasses.replace(DATA, images=255 - DATA.images))
    assert torch.equal(inverted, 255 - pool)
    assert len(pool) == 3 * len(SIZES)
    assert it.surveyed == (pool.nbytes, len(SIZES) * pool.nbytes)
    assert message.size(message.Question()) == 0
    image = torch.zeros(32, 32, 3, dtype=torch.uint8)
    up, down = (message.size(Pool(image.expand(count, -1, -1, -1))) for count in (100, 10 * 100))
    assert down == 10 * up == 3_072_000
    assert round(8 * down / 1e6) == 25
