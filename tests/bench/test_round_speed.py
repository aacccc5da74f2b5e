"""A FedAvg round of pFedFDA's CIFAR-10 setting against the same round done the usual way, in one run.

The usual way: one eager model, a DataLoader over a TensorDataset of normalised floats, one client after another,
all cores as intra-op threads. Speed does not depend on what the pixels show, so random ones serve; the client
sizes are those of the paper's Dir(0.5) partition.

    pytest -m bench -s tests/bench
"""

from __future__ import annotations

import copy
import statistics
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedbench import methods, models, protocol
from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.trainer import Trainer, initialise
from fedbench.partition import draw
from fedbench.spec import DatasetSpec

pytestmark = pytest.mark.bench

PAIRS = 3
#: What the usual way must take at least, as a multiple of ours.
TARGET = 1.3


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Not here: the usual way takes all cores."""


@pytest.fixture(scope="module")
def federation() -> Federation:
    labels = np.tile(np.arange(10), 6000)
    rules = protocol.load("pfedfda")
    spec = rules.partition_spec(DatasetSpec("cifar10", "random", ""), 10, scheme="dirichlet", alpha=0.5)
    sides = draw(labels, spec)
    sample = np.concatenate([np.concatenate(s) for s in sides])
    client = np.repeat(np.arange(100), [len(a) + len(b) for a, b in sides])
    is_test = np.concatenate([np.repeat([False, True], [len(a), len(b)]) for a, b in sides])
    images = np.random.default_rng(0).integers(0, 256, (len(sample), 32, 32, 3), np.uint8)
    return Federation.of(images, labels[sample], client, sample, is_test, 10)


def ours(federation: Federation, trainer: Trainer, t: int) -> float:
    started = time.perf_counter()
    trainer.round(trainer.server, t, evaluate=False)
    return time.perf_counter() - started


def usual(federation: Federation, model: nn.Module, cohort: list[int], sets: dict[int, TensorDataset]) -> float:
    """Plain PyTorch: load the global weights, five epochs of a DataLoader, average the state dicts."""
    started = time.perf_counter()
    start = copy.deepcopy(model.state_dict())
    mean = {name: torch.zeros_like(v) for name, v in start.items()}
    total = sum(len(sets[i]) for i in cohort)
    for i in cohort:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, weight_decay=5e-4)
        loader = DataLoader(sets[i], batch_size=50, shuffle=True, drop_last=True)
        for _ in range(5):
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimiser.step()
        for name, v in model.state_dict().items():
            mean[name] += v * (len(sets[i]) / total)
    model.load_state_dict(mean)
    return time.perf_counter() - started


def test_a_fedavg_round_beats_the_usual_way(federation: Federation, tmp_path, capsys) -> None:
    rules = protocol.load("pfedfda")
    part = rules.partition_spec(DatasetSpec("cifar10", "random", ""), 10, scheme="dirichlet", alpha=0.5)
    setting = rules.setting(part, "paper")
    method = methods.load("fedavg")[0].create({})
    plan = Plan(setting, federation.n_train, (32, 32))

    def build() -> nn.Module:
        return models.build("cifar_cnn", shape=(32, 32, 3), classes=10, seed=0)

    network, initial = initialise(method, build, federation, 0)
    executor = executors.make("cores", network, federation, plan)
    trainer = Trainer(setting, method, federation, network, initial, executor, plan, Checkpoint(tmp_path))
    cohort = plan.cohort(1)
    sets = {
        i: TensorDataset(
            (federation.images[rows].permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(), federation.labels[rows]
        )
        for i in cohort
        for rows in [federation.train[i]]
    }
    plain = build()
    usual(federation, plain, cohort[:2], sets)  # warm-up of both
    trainer.round(trainer.server, 1, evaluate=False)
    pairs = [(ours(federation, trainer, 1), usual(federation, plain, cohort, sets)) for _ in range(PAIRS)]
    executor.close()
    ratio = statistics.median(b / a for a, b in pairs)
    with capsys.disabled():
        print(f"\n{len(cohort)} clients, {torch.get_num_threads()} threads; seconds (ours, usual):", end=" ")
        print(", ".join(f"({a:.1f}, {b:.1f})" for a, b in pairs), f"-> the usual way takes {ratio:.2f} times as long")
    assert ratio >= TARGET
