"""The usual way: one eager model, a DataLoader a client, one client after another, all cores as intra-op threads.

It is given its data ready: tensors of normalised floats, made before the clock starts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import torch
from machine import Timed
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from workloads import Workload

from fedbench.core.precision import autocast

EVALUATION_BATCH = 128


def data_of(workload: Workload) -> list[TensorDataset]:
    """Each client's images, for training or (`answers`) for test."""
    federation = workload.federation()
    rows = federation.test if workload.answers else federation.train
    return [
        TensorDataset((federation.images[r].permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(), federation.labels[r])
        for r in rows
    ]


def passes(workload: Workload, loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a client's round: so many passes over its data, or so many steps."""
    if workload.epochs:
        for _ in range(workload.epochs):
            yield from loader
        return
    done = 0
    while done < workload.steps:
        for batch in itertools.islice(loader, workload.steps - done):
            yield batch
            done += 1


class Usual(Timed):
    """A workload done as plain PyTorch code does it."""

    def __init__(self, workload: Workload, device: torch.device, precision: str = "fp32") -> None:
        self.workload, self.device, self.precision = workload, device, precision
        self.sets = data_of(workload)
        seeds = range(len(workload.train)) if workload.answers else [0]
        self.models = [workload.build(seed).to(device) for seed in seeds]

    def once(self) -> None:
        self.steps = self.images = 0
        self.evaluate() if self.workload.answers else self.train()

    def train(self) -> None:
        """A round of FedAvg: load the global weights, train, average the state dicts."""
        w, model = self.workload, self.models[0].train()
        start = copy.deepcopy(model.state_dict())
        mean = {name: torch.zeros_like(v) for name, v in start.items()}
        total = sum(w.train)
        for data in self.sets:
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=w.lr, momentum=w.momentum, weight_decay=w.weight_decay)
            loader = DataLoader(data, batch_size=min(w.batch, len(data)), shuffle=True, drop_last=w.tail == "drop")
            for x, y in passes(w, loader):
                x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
                with autocast(self.precision, self.device):
                    loss = F.cross_entropy(model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                self.steps, self.images = self.steps + 1, self.images + len(y)
            for name, v in model.state_dict().items():
                mean[name] += v * (len(data) / total)
        model.load_state_dict(mean)

    @torch.no_grad()
    def evaluate(self) -> torch.Tensor:
        """[models, images] labels: every model answers every client's test images."""
        votes = []
        for model in self.models:
            model.eval()
            for data in self.sets:
                for x, _ in DataLoader(data, batch_size=EVALUATION_BATCH):
                    with autocast(self.precision, self.device):
                        votes.append(model(x.to(self.device, non_blocking=True)).argmax(1).cpu())
                    self.images += len(x)
        return torch.cat(votes).view(len(self.models), -1)
