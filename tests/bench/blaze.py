"""BlazeFL's way: its thread pool, a thread a core, each client with a model, a DataLoader and an optimiser of its own.

Its own public classes, with the workload's network, optimiser and batches in their places; as in `usual`, the data are
tensors of normalised floats, made before the clock starts. BlazeFL (pip install 'blazefl[contrib,reproducibility]')
wants Python 3.12 or newer; its threads share the interpreter's lock, unless Python was built without it.
"""

from __future__ import annotations

from threading import Event
from typing import Any

import torch
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer, FedAvgUplinkPackage
from blazefl.core import deserialize_model, serialize_model
from machine import Timed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from usual import data_of, passes
from workloads import Workload

from fedbench.core.executors import available_cores


class Blaze(Timed):
    """A training workload done by BlazeFL's threads. `threads`: intra-op threads of each (None: torch's own number)."""

    def __init__(self, workload: Workload, device: torch.device, threads: int | None = None) -> None:
        self.device = device
        clients, kind = len(workload.train), device.type
        data = _Data(data_of(workload), workload)
        self.server = FedAvgBaseServerHandler(_Model(workload), "", data, 1, clients, 1.0, kind, workload.batch, 0)
        self.clients = _Threads(workload, data, kind, threads)

    def once(self) -> None:
        self.clients.local_process(self.server.downlink_package(), self.server.sample_clients())
        uploads = self.clients.uplink_package()
        for upload in uploads:
            self.server.load(upload)
        self.steps, self.images = (sum(int(u.metadata[key]) for u in uploads) for key in ("steps", "images"))


class _Model:
    """BlazeFL's ModelSelector: builds the network, anew for each client and round."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def select_model(self, model_name: str) -> nn.Module:
        return self.workload.build()


class _Data:
    """BlazeFL's PartitionedDataset."""

    def __init__(self, sets: list[TensorDataset], workload: Workload) -> None:
        self.sets, self.drop = sets, workload.tail == "drop"

    def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: torch.Generator) -> DataLoader:
        data = self.sets[cid]
        return DataLoader(data, min(batch_size, len(data)), shuffle=True, drop_last=self.drop, generator=generator)


class _Threads(FedAvgThreadPoolClientTrainer):
    """Its trainer of FedAvg, whose optimiser has no momentum and whose length is in epochs, with the workload's."""

    def __init__(self, workload: Workload, data: _Data, kind: str, threads: int | None) -> None:
        w = workload
        super().__init__(_Model(w), "", data, kind, len(w.train), w.epochs, w.batch, w.lr, 0, available_cores())
        self.workload, self.threads = workload, threads

    def progress_fn(self, it: list[Any]) -> list[Any]:
        return it  # no bar

    def train(
        self,
        model: nn.Module,
        model_parameters: torch.Tensor,
        train_loader: DataLoader,
        device: str,
        epochs: int,
        lr: float,
        stop_event: Event,
        cid: int,
    ) -> FedAvgUplinkPackage:
        if self.threads is not None:
            torch.set_num_threads(self.threads)  # a property of the thread
        w = self.workload
        model.to(device)
        deserialize_model(model, model_parameters)
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=w.momentum, weight_decay=w.weight_decay)
        steps = images = 0
        for x, y in passes(w, train_loader):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps, images = steps + 1, images + len(y)
        told = {"steps": steps, "images": images}
        return FedAvgUplinkPackage(cid, serialize_model(model), len(self.dataset.sets[cid]), told)
