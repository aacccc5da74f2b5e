"""FTW-ERM's code: its server's loop with given ratios, and its matching of ratios, handed fedbench's batches and first
weights. All clients join every round, and count equally."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.methods.agreement import Difference
from fedbench.partitions.distribution import Densities, counted
from fedbench.ratios import matching
from tests.agreement.cases import BATCH, EQUAL, ONE_BATCH, UNEQUAL, Batch, Case, Ours, network, ours, parameters
from tests.agreement.compare import Against
from tests.agreement.foreign import Settings, importable

TITLE = "FTW-ERM's code"
REPOSITORY = "LIONS-EPFL/Federated_Learning_Covariate_Shift_Code"
CHANGES = (
    "loaders hand out fedbench's batches, and networks are ours",
    "numpy.math, which NumPy 2 lacks, is Python's math",
    "nobody is evaluated or logged; stubs replace wandb and datargs where they are missing",
)
ROUNDS = 12
EPOCHS = 3
BOUND = 10.0
ONE_STEP = {
    "rounds": ROUNDS,
    "epochs": None,
    "steps": 1,
    "passes": "endless",
    "lr": 0.01,
    "weight_decay": 1e-6,
    "votes": False,
}
ADAM = "Adam divides the first gradient by its size, so where that is near 1e-8 rounding becomes a step"
METHODS = {"fedsgd": "uniform ratios", "fitw_erm": "true ratios", "ftw_erm": "true ratios, test sets combined"}


@cache
def shifted(case: Case) -> Federation:
    """The case's clients, with declared class probabilities: of training those that they have, of tests drawn ones."""
    data = case.data
    rows, clients = data.train.rows.numpy(), len(case.sizes)
    counts = counted(data.client[rows], data.labels.numpy()[rows], clients, 10)
    test = np.random.default_rng(2).dirichlet(np.ones(10), clients)
    return replace(data, densities=Densities(data.labels.numpy(), counts / counts.sum(1, keepdims=True), test))


class Batches:
    """Stands for a DataLoader: hands out these batches, so many a pass, and goes on where the last pass ended."""

    def __init__(self, batches: Sequence[Batch], a_pass: int) -> None:
        self.left, self.a_pass = iter(batches), a_pass

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.a_pass):
            try:
                yield next(self.left)
            except StopIteration:
                return


def ratio_models(method: str, data: Federation) -> list[nn.Module]:
    """Its models of ratios for each client, from its own table of them."""
    theirs = importlib.import_module("dafl.ratio_estimation")
    if method == "fedsgd":
        return [theirs.UniformRatioModel() for _ in range(data.clients)]
    train, test = (
        [dict(enumerate(map(float, row))) for row in side] for side in (data.densities.train, data.densities.test)
    )
    shift = importlib.import_module("dafl.target_shift").TargetShift(10)
    table = shift.get_ratios(test, train, combine_testsets=method == "ftw_erm")
    return [theirs.TrueRatioModel(row) for row in table]


def run_theirs(method: str, run: Ours, data: Federation) -> list[Any]:
    """Their shared model after each round."""
    client_module, server_module = (importlib.import_module(f"dafl.{name}") for name in ("client", "server"))
    settings = Settings(
        device="cpu",
        public_testset_size=1,
        batch_size=BATCH,
        test_batch_size=BATCH,
        dataloader_kwargs={},
        num_subsample=-1,
        optimizer="adam",
        lr=ONE_STEP["lr"],
        weight_decay=ONE_STEP["weight_decay"],
        num_steps=ROUNDS,
        batch_norm_agg="FedAvg",
        log_interval=ROUNDS,
    )
    clients = []
    for i, ratios in enumerate(ratio_models(method, data)):
        client = client_module.Client(i, [0], [0, 0], network(), ratios, F.cross_entropy, settings)
        steps = range(1, ROUNDS + 1)
        batches = [run.rows(i, next(iter(run.positions(i, t, epochs=None, steps=1)))) for t in steps]
        client.train_loader = Batches(batches, run.plan.batches_a_pass(i))
        clients.append(client)
    server = server_module.Server(network(), clients, F.cross_entropy, settings)
    after: list[Any] = []
    server.train(on_step_end=lambda step: after.append(parameters(tuple(server.server_model.parameters()))))
    return after


def rounds(method: str, case: Case) -> Iterator[Difference]:
    data = shifted(case)
    run = ours(case, method, {}, data=data, **ONE_STEP)
    found = Against(method, METHODS[method], case.name)
    for mine, theirs in zip(run.rounds, run_theirs(method, run, data), strict=True):
        found.see("shared model", {n: mine.shared[n] for n in theirs}, theirs)
    yield from found.differences({"shared model": ADAM})


def matched(case: Case) -> Iterator[Difference]:
    """The ratio network of each client after some passes, on the pool of all test images."""
    theirs = importlib.import_module("dafl.ratio_estimation")
    data = case.data
    pool = torch.cat([data.images[rows] for rows in data.test])
    found = Against("ftw_erm", "LSIF matching", case.name)
    for i, n in enumerate(case.sizes):
        train = data.images[data.train[i]]
        mine = network()
        mine.head = nn.Linear(mine.feature_size, 1)
        nn.init.normal_(mine.head.weight, generator=torch.Generator().manual_seed(i))
        other, seen = deepcopy(mine), list[Tensor]()

        def prepare(images: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(to_input(images))
            return seen[-1]

        how = matching.Matching(epochs=EPOCHS, batch_size=BATCH)
        matching.fit(mine, train, pool, how, BOUND, 0, i, prepare)
        settings = Settings(
            device="cpu",
            model="lenet",
            re_batch_size=BATCH,
            re_batch_drop_last=False,
            dataloader_kwargs={},
            re_type="lsif",
            re_optimizer="adam",
            re_lr=how.lr,
            re_weight_decay=how.weight_decay,
            re_lr_milestones=[],
            re_epochs=EPOCHS,
            re_upper_bound=BOUND,
            re_descent_only=False,
            re_batch_size_snd_epoch=None,
        )
        it = theirs.RatioEstimation(i, other, [0], [0], settings)
        # Ours prepares a batch of training images and one of the pool for each step.
        pairs = [[(x, x) for x in seen[k::2]] for k in (0, 1)]
        it.train_loader, it.public_test_loader = (Batches(side, n // BATCH) for side in pairs)
        it.train()
        found.see("ratio network of HDRM", dict(mine.state_dict()), dict(other.state_dict()))
        with torch.no_grad():
            ratios = theirs.ForcePositive(other.eval())(to_input(train)).flatten().clamp(max=BOUND)
        found.see("ratios of HDRM", {"all": matching.ratios(mine, train, how, BOUND, i, to_input)[0]}, {"all": ratios})
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(np, "math", math, create=True))
        stack.enter_context(importable(folder, ("wandb", "datargs")))
        for case in (EQUAL, UNEQUAL, ONE_BATCH):
            for method in METHODS:
                if method in chosen:
                    yield from rounds(method, case)
            if "ftw_erm" in chosen:
                yield from matched(case)
