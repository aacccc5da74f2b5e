"""What FLUX costs beside FedAvg: inspection, descriptors, clustering and the test phase (its issue: under 5 %).

pytest -s tests/bench/test_flux_overhead.py
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import workloads

from fedbench import methods, models
from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.executors import one_thread
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.simulation import initialise
from fedbench.core.trainer import Trainer
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, Setting

#: Ten clients with a quarter of the images that they have in the paper (training, validation, test).
CLIENTS, SIZES = 10, (1200, 300, 250)
MOST = 1.05


def federation() -> Federation:
    """Grey images at random, as large as MNIST's."""
    rng, n = np.random.default_rng(0), sum(SIZES)
    images = rng.integers(0, 256, (CLIENTS * n, 28, 28, 1), np.uint8)
    labels, client = rng.integers(0, workloads.CLASSES, len(images)), np.repeat(np.arange(CLIENTS), n)
    side = np.tile(np.repeat([0, 1, 2], SIZES), CLIENTS)
    return Federation.of(
        images, labels, client, np.arange(len(images)), side == 2, workloads.CLASSES, validation=side == 1
    )


def trainer(name: str, data: Federation, where: Path, **chosen: int) -> Trainer:
    """A run of FLUX's protocol: ten rounds of two epochs, LeNet-5, one client after another."""
    partition = partition_spec(DatasetSpec("random", "random", ""), "iid", CLIENTS, 0, 0.8)
    s = Setting(
        partition, "custom", "lenet5_flux", rounds=10, epochs=2, batch_size=64, lr=0.005, momentum=0.9,
        weight_decay=0.0, momentum_restarts=True, test_phase=True, votes=False, window=1, seed=42,
    )  # fmt: skip
    method = methods.load(name)[0].create(chosen)
    network, initial = initialise(
        method, lambda: models.build(s.model, shape=data.shape, classes=data.classes, seed=0), data, s
    )
    where.mkdir()
    executor = executors.make("sequential", network, data, s)
    return Trainer(
        s, method, data, network, initial, executor, Plan(s, data.n_train, data.shape[:2]), Checkpoint(where)
    )


def seconds(it: Trainer) -> float:
    """Of a whole round, evaluation included: of this thread, whatever else the machine is at."""
    started = time.thread_time()
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    it.executor.run(cohort, it.method.local)
    it.leave(round, cohort)
    it.finish(round, 0.0)
    it.commit(round)
    return time.thread_time() - started


def test_the_overhead_over_fedavg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds of both in turn; FLUX inspects four, clusters in the fifth, and assigns clients without labels."""
    data = federation()
    average, flux = trainer("fedavg", data, tmp_path / "a"), trainer("flux", data, tmp_path / "b", start=5)
    with one_thread():
        for it in (average, flux):
            it.resume()
        rounds = [(seconds(average), seconds(flux)) for _ in range(10)]
    assert flux.method.round_metrics(flux.server)["clustering_round"] == 5
    of_average, of_flux = (sum(column) for column in zip(*rounds, strict=True))
    with capsys.disabled():
        each = " ".join(f"{b / a:.2f}" for a, b in rounds)
        print(f"\nFLUX takes {of_flux / of_average:.3f} times FedAvg's seconds; round by round {each}")
    assert of_flux / of_average <= MOST
