"""What pFedFDA's local training costs beside FedAvg's (the paper's Table 6 has 1.23 times as much).

pytest -s tests/bench/test_pfedfda_overhead.py
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import workloads

from fedbench import methods
from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.simulation import initialise
from fedbench.core.trainer import Trainer

CLIENTS, ROUNDS = 6, 7
MOST = 1.23


def trainer(name: str) -> Trainer:
    """A few clients of pFedFDA's CIFAR-10 setting, five epochs a round, one after another."""
    everybody = workloads.cifar_cnn("cpu")
    workload = replace(everybody, train=everybody.train[:CLIENTS], epochs=5)
    federation, plan, method = workload.federation(), workload.plan(), methods.load(name)[0].create({})
    model, initial = initialise(method, workload.build, federation, plan.setting)
    executor = executors.make("sequential", model, federation, plan.setting)
    return Trainer(plan.setting, method, federation, model, initial, executor, plan, Checkpoint(Path()))


def seconds(it: Trainer) -> float:
    """Of the clients' work in the next round: of this thread, whatever else the machine is at."""
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    started = time.thread_time()
    it.executor.run(cohort, it.method.local)
    taken = time.thread_time() - started
    it.leave(round, cohort)
    it.finish(round, taken)
    it.commit(round)
    return taken


def test_the_overhead_of_local_training(capsys: pytest.CaptureFixture[str]) -> None:
    both = [trainer(name) for name in ("fedavg", "pfedfda")]
    for it in both:
        seconds(it)  # warms up
    rounds = [[seconds(it) for it in both] for _ in range(ROUNDS)]
    ratio = statistics.median(ours / fedavg for fedavg, ours in rounds)
    line = both[1].checkpoint.rounds[-1]
    parts = {part: line[f"part_{part}_seconds"] for part in ("network", "estimation", "interpolation")}
    with capsys.disabled():
        shares = ", ".join(f"{part} {s / line['client_seconds']:.1%}" for part, s in parts.items())
        print(f"\npFedFDA takes {ratio:.3f} times FedAvg's seconds ({torch.get_num_threads()} thread): {shares}")
    assert ratio <= MOST
