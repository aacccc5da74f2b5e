"""What methods cost beside FedAvg: FLUX's whole rounds, and pFedFDA's local training (the paper's Table 6: 1.23 times).

    python tests/bench/overhead.py          exit code 1 if one costs more than MOST

FLUX's are inspection, descriptors, clustering and the test phase. Rounds of a method and of FedAvg are made in turn,
and counted in the seconds of this thread, whatever else the machine is at.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
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

MOST = {"flux": 1.05, "pfedfda": 1.23}
#: Ten clients with a quarter of the images that they have in FLUX's paper (training, validation, test).
CLIENTS, SIZES = 10, (1200, 300, 250)
#: Of pFedFDA's CIFAR-10 setting a few clients, five epochs a round.
FEW, ROUNDS = 6, 7


def trainer(name: str, data: Federation, plan: Plan, where: Path, **chosen: int) -> Trainer:
    """A run by one client after another."""
    s, method = plan.setting, methods.load(name)[0].create(chosen)
    network, initial = initialise(
        method, lambda: models.build(s.model, shape=data.shape, classes=data.classes, seed=0), data, s
    )
    executor = executors.make("sequential", network, data, s)
    where.mkdir()
    return Trainer(s, method, data, network, initial, executor, plan, Checkpoint(where))


def seconds(it: Trainer) -> tuple[float, float]:
    """Of the clients' work in the next round, and of the whole of it, evaluation included."""
    started = time.thread_time()
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    began = time.thread_time()
    it.executor.run(cohort, it.method.local)
    local = time.thread_time() - began
    it.leave(round, cohort)
    it.finish(round, local)
    it.commit(round)
    return local, time.thread_time() - started


def flux(folder: Path) -> float:
    """Ten rounds of two epochs of LeNet-5 on grey images as large as MNIST's; FLUX inspects four, and clusters in the
    fifth."""
    rng, n = np.random.default_rng(0), sum(SIZES)
    images = rng.integers(0, 256, (CLIENTS * n, 28, 28, 1), np.uint8)
    labels, client = rng.integers(0, workloads.CLASSES, len(images)), np.repeat(np.arange(CLIENTS), n)
    side = np.tile(np.repeat([0, 1, 2], SIZES), CLIENTS)
    data = Federation.of(
        images, labels, client, np.arange(len(images)), side == 2, workloads.CLASSES, validation=side == 1
    )
    setting = Setting(
        partition_spec(DatasetSpec("random", "random", ""), "iid", CLIENTS, 0, 0.8), "custom", "lenet5_flux", rounds=10,
        epochs=2, batch_size=64, lr=0.005, momentum=0.9, weight_decay=0.0, momentum_restarts=True, test_phase=True,
        votes=False, window=1, seed=42,
    )  # fmt: skip
    plan = Plan(setting, data.n_train, data.shape[:2])
    both = [trainer("fedavg", data, plan, folder / "a"), trainer("flux", data, plan, folder / "b", start=5)]
    with one_thread():
        for it in both:
            it.resume()
        rounds = [[seconds(it)[1] for it in both] for _ in range(10)]
    if both[1].method.round_metrics(both[1].server)["clustering_round"] != 5:
        raise RuntimeError("FLUX did not cluster in round 5")
    print("FLUX, round by round:", *(f"{ours / fedavg:.2f}" for fedavg, ours in rounds))
    return sum(ours for _, ours in rounds) / sum(fedavg for fedavg, _ in rounds)


def pfedfda(folder: Path) -> float:
    """The median over rounds, after one that warms up."""
    everybody = workloads.cifar_cnn("cpu")
    workload = replace(everybody, train=everybody.train[:FEW], epochs=5)
    data, plan = workload.federation(), workload.plan()
    both = [trainer(name, data, plan, folder / name) for name in ("fedavg", "pfedfda")]
    rounds = [[seconds(it)[0] for it in both] for _ in range(1 + ROUNDS)][1:]
    line = both[1].checkpoint.rounds[-1]
    parts = {part: line[f"part_{part}_seconds"] for part in ("network", "estimation", "interpolation")}
    print("pFedFDA:", ", ".join(f"{part} {s / line['client_seconds']:.1%}" for part, s in parts.items()))
    return statistics.median(ours / fedavg for fedavg, ours in rounds)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = {"flux": flux(Path(folder)), "pfedfda": pfedfda(Path(folder))}
    for name, ratio in found.items():
        print(f"{name} takes {ratio:.3f} times FedAvg's seconds, of {MOST[name]} at most")
    return int(any(ratio > MOST[name] for name, ratio in found.items()))


if __name__ == "__main__":
    sys.exit(main())
