"""The federations of the last runs stay in memory: they change no number, and they are those that were asked for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from fedbench import data, protocol
from fedbench.core.federation import Federation
from fedbench.engine import inputs
from fedbench.engine.job import Job
from fedbench.engine.run import execute
from fedbench.specs import PartitionSpec
from fedbench.store import Store

RULES = protocol.load("pfedfda")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    inputs._last.clear()
    yield
    inputs._last.clear()


def part(store: Store, **chosen: Any) -> PartitionSpec:
    return RULES.partition_spec(data.resolve("digits", store), 10, scheme="iid", **chosen)


def job(partition: PartitionSpec, seed: int = 0) -> Job:
    return Job.of(RULES.setting(partition, "smoke", seed=seed, rounds=1), "fedavg", {})


def kept(store: Store, *jobs: Job, device: torch.device = CPU) -> list[Federation]:
    return inputs.federations_of(jobs, store, [], device)[0]


def test_who_trained_before_changes_no_prediction(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a key without the partition (B would train on A's images), and training that writes to what is kept
    (the second run on A's images would see others than the first)."""
    a = part(store)
    order = [job(a), job(a, seed=1), job(part(store, shift="high")), job(a, seed=2)]
    loads: list[int] = []
    load = inputs.loaded
    monkeypatch.setattr(inputs, "loaded", lambda *given: loads.append(1) or load(*given))

    def predictions(where: Store, one: Job, fresh: bool) -> pa.Table:
        if fresh:
            inputs._last.clear()
        return execute(one, where, [], device="cpu", executor="sequential").table("predictions")

    together = [predictions(store, one, fresh=False) for one in order]
    assert len(loads) == 3, "the second run has the partition of the first, and no other that of the one before"
    alone = [predictions(Store(tmp_path / "alone"), one, fresh=True) for one in order]
    assert len(loads) == 3 + len(order)
    assert [one.equals(other) for one, other in zip(together, alone, strict=True)] == [True] * 4
    assert not any(one.equals(together[0]) for one in together[1:]), "they would be the same whatever they were given"


def test_what_is_shared_is_of_one_store_and_device_and_goes_before_the_next_is_loaded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = part(store)
    (first,) = kept(store, job(a))
    load, alive, images = inputs.loaded, [], weakref.ref(first.images)
    (again,) = kept(Store(store.home), job(a, seed=4))
    assert again.images is first.images
    same = first.images.clone()

    def watched(*given: Any) -> list[Federation]:
        gc.collect()
        alive.append(images() is not None)
        return load(*given)

    monkeypatch.setattr(inputs, "loaded", watched)
    del first, again
    (elsewhere,) = kept(Store(tmp_path / "elsewhere"), job(a))
    assert torch.equal(elsewhere.images, same)
    assert (alive, len(inputs._last)) == ([False], 1)
    (there,) = kept(Store(tmp_path / "elsewhere"), job(a), device=torch.device("meta"))
    assert (elsewhere.images.device.type, there.images.device.type) == ("cpu", "meta")


def test_runs_at_once_are_told_apart_by_their_order(store: Store) -> None:
    """Catches a key that is a set of partitions: each run would be given the other's clients."""
    a, b = part(store), part(store, seed=7)

    def dealt(one: Federation, client: int = 0) -> list[int]:
        return one.sample[one.train[client].numpy()].tolist()

    x, y = kept(store, job(a), job(b, seed=1))
    assert x.images is y.images
    assert dealt(x) != dealt(y)
    v, u = kept(store, job(b), job(a, seed=1))
    assert (dealt(u), dealt(v)) == (dealt(x), dealt(y))
    (alone,) = kept(store, job(a))
    assert dealt(alone) == dealt(x)
    assert len(alone.images) < len(x.images), "a run on its own is not given the images of two"
    one, other = kept(store, job(a), job(a, seed=1))
    assert one is other, "runs of one partition see the very same federation"
