"""Which executor runs a setting: a rule, so that one command gives the same bits however busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import data, models, partitions, protocol
from fedbench.core import executors
from fedbench.core.executors import suited
from fedbench.core.federation import Federation
from fedbench.engine.job import Job
from fedbench.engine.run import execute, execute_all
from fedbench.errors import FedbenchError
from fedbench.machine import CORES
from fedbench.store import Store
from tests.support.lab import setting

DIGITS, GREY, COLOR = (8, 8, 1), (28, 28, 1), (32, 32, 3)


def blank(shape: tuple[int, int, int]) -> Federation:
    """A federation of one image of this shape."""
    one = np.zeros(1, np.int64)
    return Federation.of(np.zeros((1, *shape), np.uint8), one, one, one, one > 0, 10)


@pytest.mark.parametrize(
    ("model", "shape", "trainees", "changes", "name"),
    [
        ("digits_cnn", DIGITS, 10, {}, "stacked"),
        ("lenet5", GREY, 10, {"batch_size": 64}, "stacked"),
        ("lenet5", GREY, 7, {"batch_size": 64}, "cores"),
        ("lenet5", GREY, 100, {"batch_size": 64, "participation": 0.05}, "cores"),
        ("lenet5", GREY, 100, {"batch_size": 64, "cohort": 4}, "cores"),
        ("lenet5", GREY, 10, {"precision": "bf16"}, "cores"),
        ("lenet5_flux", GREY, 10, {"batch_size": 64}, "cores"),
        ("emnist_cnn", GREY, 30, {}, "cores"),
        ("cifar_cnn", COLOR, 100, {"batch_size": 50}, "cores"),
        ("resnet18_gn", COLOR, 100, {"batch_size": 1}, "cores"),
    ],
)
def test_small_steps_of_many_clients_are_stacked(
    model: str, shape: tuple[int, int, int], trainees: int, changes: dict[str, Any], name: str
) -> None:
    network = models.build(model, shape=shape, classes=10, seed=0)
    before = [t.clone() for t in network.state_dict().values()]
    assert suited(network, blank(shape), setting(model=model, **changes), trainees) == name
    assert network.training
    assert all(torch.equal(a, b) for a, b in zip(before, network.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("model", "batch", "trainees", "name"),
    [("cifar_cnn", 50, 2, "graphed"), ("cifar_cnn", 50, 1, "streams"), ("resnet18_gn", 128, 8, "streams")],
)
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch, model: str, batch: int, trainees: int, name: str) -> None:
    monkeypatch.setitem(executors.RULES, "cpu", executors.RULES["cuda"])  # in the place of a GPU
    network = models.build(model, shape=COLOR, classes=10, seed=0)
    assert suited(network, blank(COLOR), setting(batch_size=batch), trainees) == name


def of_digits(seed: int, method: str = "fedavg") -> Job:
    """A run of eight clients that the rule stacks."""
    rules, digits = protocol.load("plain"), data.resolve("digits", Store(Path("nowhere")))
    part = rules.partition_spec(digits, 10, scheme="iid", clients=8, subsample=0.3)
    return Job.of(rules.setting(part, "smoke", {"seed": seed, "rounds": 1}), method, {})


def predictions(store: Store, seed: int = 7) -> bytes:
    run = execute(of_digits(seed), store, [])
    assert run.provenance["executor"] == "stacked"
    return (run.path / "predictions.parquet").read_bytes()


def test_the_same_bytes_however_busy_in_any_store_on_any_cores_alone_or_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = predictions(Store(tmp_path / "quiet"))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        busy = predictions(Store(tmp_path / "busy"))
        other.kill()
    assert busy == quiet
    monkeypatch.setenv(CORES, "1")
    used = Store(tmp_path / "used")
    execute(of_digits(8, "ditto"), used, [])
    assert predictions(used) == quiet
    several = Store(tmp_path / "several")
    execute_all([of_digits(seed) for seed in (6, 7)], several, [])
    assert predictions(several) == quiet


def test_a_setting_that_measures_times_names_its_executor(store: Store) -> None:
    """Whatever else is asked for: the executor is part of what is measured, and of the run's identity."""
    rules = protocol.load("pfedfda")
    part = rules.partition_spec(data.resolve("digits", store), 10, scheme="iid")
    partitions.build(part, store)
    free = rules.setting(part, "smoke")
    timed = rules.setting(part, "smoke", {"executor": "sequential"})
    assert free.id != timed.id
    assert timed.budget == "smoke"
    run = execute(Job.of(timed, "fedavg", {}), store, [], executor="stacked")
    assert run.provenance["executor"] == "sequential"
    with pytest.raises(FedbenchError, match="executor"):
        rules.setting(part, "smoke", {"executor": "sequentail"})
