"""What FLUX costs beside FedAvg: inspection, descriptors, clustering and the test phase.

    python tests/bench/overhead.py          exit code 1 if it costs more than MOST

Ten rounds of two epochs of LeNet-5 on grey images as large as MNIST's; FLUX inspects four, and clusters in the fifth.
Rounds of both are made in turn, and counted in the seconds of this thread, whatever else the machine is at.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from workloads import CLASSES

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

MOST = 1.05
#: Ten clients with a quarter of the images that they have in FLUX's paper (training, validation, test).
CLIENTS, SIZES = 10, (1200, 300, 250)
SETTING = Setting(
    partition_spec(DatasetSpec("random", "random", ""), "iid", CLIENTS, 0, 0.8), "custom", "lenet5_flux", rounds=10,
    epochs=2, batch_size=64, lr=0.005, momentum=0.9, weight_decay=0.0, momentum_restarts=True, test_phase=True,
    votes=False, window=1, seed=42,
)  # fmt: skip


def trainer(name: str, data: Federation, where: Path, **chosen: int) -> Trainer:
    """A run by one client after another."""
    method = methods.load(name)[0].create(chosen)
    network, initial = initialise(
        method, lambda: models.build(SETTING.model, shape=data.shape, classes=CLASSES, seed=0), data, SETTING
    )
    executor = executors.make("sequential", network, data, SETTING)
    plan = Plan(SETTING, data.n_train, data.shape[:2])
    where.mkdir()
    return Trainer(SETTING, method, data, network, initial, executor, plan, Checkpoint(where))


def seconds(it: Trainer) -> float:
    """Of the next round, evaluation included."""
    started = time.thread_time()
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    it.executor.run(cohort, it.method.local)
    it.leave(round, cohort)
    it.finish(round, 0.0)
    it.commit(round)
    return time.thread_time() - started


def main() -> int:
    rng, n = np.random.default_rng(0), sum(SIZES)
    images = rng.integers(0, 256, (CLIENTS * n, 28, 28, 1), np.uint8)
    labels, client = rng.integers(0, CLASSES, len(images)), np.repeat(np.arange(CLIENTS), n)
    side = np.tile(np.repeat([0, 1, 2], SIZES), CLIENTS)
    data = Federation.of(images, labels, client, np.arange(len(images)), side == 2, CLASSES, validation=side == 1)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        both = [trainer("fedavg", data, Path(folder) / "a"), trainer("flux", data, Path(folder) / "b", start=5)]
        for it in both:
            it.resume()
        rounds = [[seconds(it) for it in both] for _ in range(SETTING.rounds)]
    if both[1].method.round_metrics(both[1].server)["clustering_round"] != 5:
        raise RuntimeError("FLUX did not cluster in round 5")
    print("round by round:", *(f"{flux / fedavg:.2f}" for fedavg, flux in rounds))
    fedavg, flux = map(sum, zip(*rounds, strict=True))
    print(f"FLUX takes {flux / fedavg:.3f} times FedAvg's seconds, of {MOST} at most")
    return int(flux > MOST * fedavg)


if __name__ == "__main__":
    sys.exit(main())
