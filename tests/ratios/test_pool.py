"""The privacy step: what clients send to the pool, what its order hides, and what it costs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.conformance.lab import federation, setting, trainer
from fedbench.core import message
from fedbench.errors import FedbenchError
from fedbench.methods.ftw_erm import FTWERM
from fedbench.methods.parts.importance import Pool, sample
from fedbench.ratios.pool import contribution, shuffle


@given(count=st.integers(3, 30), client=st.integers(0, 50), seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_client_gives_so_many_of_its_own_samples(count: int, client: int, seed: int) -> None:
    chosen = contribution(count, 3, seed, client)
    assert len(set(chosen.tolist())) == 3
    assert set(chosen.tolist()) <= set(range(count))
    np.testing.assert_array_equal(chosen, contribution(count, 3, seed, client))


@given(count=st.integers(0, 40), seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_the_order_of_the_pool_is_one_of_all_its_samples(count: int, seed: int) -> None:
    order = shuffle(count, seed)
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order, shuffle(count, seed))


def test_draws_and_orders_are_uniform() -> None:
    """Client 0's share at each place of a pool of three clients' two samples, over 1000 seeds: 1/3 within 5 standard
    errors; and each of a client's five samples is as often one of two."""
    first = np.mean([shuffle(6, seed) < 2 for seed in range(1000)], axis=0)
    np.testing.assert_allclose(first, 1 / 3, atol=5 * np.sqrt(2 / 9 / 1000))
    seen = Counter(int(i) for seed in range(1000) for i in contribution(5, 2, seed, 0))
    np.testing.assert_allclose([seen[i] / 1000 for i in range(5)], 2 / 5, atol=5 * np.sqrt(0.24 / 1000))


def test_a_client_s_draw_is_its_own() -> None:
    """Neither another's nor that of another seed."""
    own = contribution(9, 4, 7, 0)
    assert not np.array_equal(own, contribution(9, 4, 8, 0))
    assert not np.array_equal(own, contribution(9, 4, 7, 1))


@pytest.mark.parametrize(
    ("count", "size", "message"),
    [
        (0, 5, "client 1 has no test samples"),
        (4, 5, "client 1 has 4 test samples and is to give 5 to the pool; give at most 4"),
        (5, 0, "at least one test sample"),
    ],
)
def test_bad_input(count: int, size: int, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
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


def test_the_pool_holds_equally_many_of_each_client_s_test_images(tmp_path: Path) -> None:
    it, pool = asked(tmp_path)
    own = [rows_of(sample(it.client(i, {}, 0), 3)) for i in range(len(SIZES))]
    assert sorted(rows_of(pool)) == sorted(image for images in own for image in images)
    for i, images in enumerate(own):
        assert set(images) <= set(rows_of(DATA.images[DATA.test[i]]))
    assert rows_of(pool) != [image for images in own for image in images], "who sent what cannot be told by the order"


def test_the_order_does_not_depend_on_what_the_samples_are(tmp_path: Path) -> None:
    """Other images at the same places come in the same order."""
    _, usual = asked(tmp_path / "a")
    _, inverted = asked(tmp_path / "b", dataclasses.replace(DATA, images=255 - DATA.images))
    assert torch.equal(inverted, 255 - usual)


def test_the_pool_is_what_the_clients_are_counted_for(tmp_path: Path) -> None:
    """Each sends its samples and receives the pool: the questions before the first round take no other bytes."""
    it, pool = asked(tmp_path)
    assert len(pool) == 3 * len(SIZES)
    assert it.surveyed == (pool.nbytes, len(SIZES) * pool.nbytes)
    assert message.size(message.Question()) == 0


def test_traffic_of_appendix_e() -> None:
    """1000 CIFAR images: about 25e6 bits, 3.1 MB."""
    image = torch.zeros(32, 32, 3, dtype=torch.uint8)
    up, down = (message.size(Pool(image.expand(count, -1, -1, -1))) for count in (100, 10 * 100))
    assert down == 10 * up == 3_072_000
    assert round(8 * down / 1e6) == 25
