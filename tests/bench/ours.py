"""The workloads through fedbench's core with a named executor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workloads import Workload

from fedbench import methods
from fedbench.core import evaluation, executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.simulation import initialise
from fedbench.core.state import state_of
from fedbench.core.trainer import Round, Trainer, work
from fedbench.core.usage import Clock


class Timed:
    """A workload that can be done `once`."""

    device: torch.device
    images: int = 0  #: of the last time

    def once(self) -> None:
        raise NotImplementedError

    def repeat(self) -> float:
        """Seconds of the workload done once."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        self.once()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing to stop, as a rule."""


class Ours(Timed):
    """A workload on the trainer core."""

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        precision: str = "fp32",
        executor: str = "sequential",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.workload, self.device = workload, device
        federation, plan = workload.federation(device), workload.plan(precision)
        method = methods.load("fedavg")[0].create({})
        network, initial = initialise(method, workload.build, federation, plan.setting)
        self.executor = executors.make(executor, network, federation, plan.setting, **(options or {}))
        nowhere = Checkpoint(Path())  # a round writes nothing
        self.trainer = Trainer(plan.setting, method, federation, network, initial, self.executor, plan, nowhere)
        if workload.answers:
            networks = [workload.build(seed).to(device) for seed in range(len(workload.train))]
            self.trainer.server.personal = {i: state_of(n) for i, n in enumerate(networks)}

    def once(self) -> None:
        self.images = self.votes().size if self.workload.answers else self.round().line["images"]

    def round(self) -> Round:
        """A round of FedAvg without evaluation. The trainer does not go on from it unless it is committed."""
        trainer = self.trainer
        under_way, local = trainer.begin(), Clock(self.device)
        for block in trainer.blocks(under_way.cohort):
            work([(trainer, under_way, block)], local)
        trainer.finish(under_way, local.reset()["local"])
        return under_way

    def votes(self) -> np.ndarray:
        """[images, models] labels: every personal model answers every client's test images."""
        votes = evaluation.evaluate(self.trainer, self.trainer.server, 1, {}, dict)[0]["plain"].votes
        assert votes is not None
        return votes

    def close(self) -> None:
        self.executor.close()
