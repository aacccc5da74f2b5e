"""The estimate of a run's time: its probe needs no more memory than a step of the run would."""

from __future__ import annotations

import dataclasses

import pytest

from fedbench import data, partitions, protocol
from fedbench.engine import cost
from fedbench.methods.fedavg import FedAvg
from fedbench.store import Store


def test_a_batch_is_no_larger_than_a_client(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = data.resolve("digits", store, [])
    rules = protocol.load("feddrm")
    spec = rules.partition_spec(source, 10, scheme="iid", clients=4)
    setting = rules.setting(spec, "smoke")
    probed: list[int] = []
    monkeypatch.setattr(cost, "images_per_second", lambda *a: probed.append(a[3]) or 1.0)
    cost._speed.cache_clear()
    cost.seconds(dataclasses.replace(setting, batch_size=2**32), FedAvg(), store, [], "cpu")
    cost._speed.cache_clear()
    assert probed == [int(max(partitions.build(spec, store).n_train))]
