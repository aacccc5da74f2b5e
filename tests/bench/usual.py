"""The usual way: one eager model, a DataLoader a client, one client after another, all cores as intra-op threads.

It is given its data ready: tensors of normalised floats, made before the clock starts.
"""

from __future__ import annotations

import copy
import time

import torch
from machine import autocast, wait
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from workloads import Workload

EVALUATION_BATCH = 128


class Usual:
    """A workload done as plain PyTorch code does it."""

    def __init__(self, workload: Workload, device: torch.device, precision: str = "fp32") -> None:
        self.workload, self.device, self.precision = workload, device, precision
        self.steps = self.images = 0  #: of the last repeat
        federation = workload.federation()
        rows = federation.test if workload.answers else federation.train
        self.sets = [
            TensorDataset(
                (federation.images[r].permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(), federation.labels[r]
            )
            for r in rows
        ]
        seeds = range(len(workload.train)) if workload.answers else [0]
        self.models = [workload.build(seed).to(device) for seed in seeds]

    def repeat(self) -> float:
        """Seconds of the workload done once."""
        wait(self.device)
        started = time.perf_counter()
        self.steps = self.images = 0
        self.evaluate() if self.workload.answers else self.train()
        wait(self.device)
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing to stop."""

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
            done, passes = 0, 0
            while passes < w.epochs if w.epochs else done < w.steps:
                for x, y in loader:
                    x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
                    with autocast(self.device, self.precision):
                        loss = F.cross_entropy(model(x), y)
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    done, self.images = done + 1, self.images + len(y)
                    if done == w.steps:
                        break
                passes += 1
            self.steps += done
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
                    with autocast(self.device, self.precision):
                        votes.append(model(x.to(self.device, non_blocking=True)).argmax(1).cpu())
                    self.images += len(x)
        return torch.cat(votes).view(len(self.models), -1)
