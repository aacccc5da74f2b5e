"""The fixed workloads of the benchmark, as data, and what each must reach.

Random pixels and labels serve: speed does not depend on what an image shows. Images are not cropped, so that the
usual way needs no augmentation code of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fedbench.core.federation import Federation
    from fedbench.core.plan import Plan
    from fedbench.specs import Setting

#: What the usual way must take at least, as a multiple of our best way's time.
TARGETS = {
    "cpu": {"a": 1.8, "b10": 2.0, "b1200": 2.0, "c": 1.2},
    "cuda": {"a": 15.0, "b1200": 30.0, "c": 3.0, "d": 4.0},
}
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """One round of FedAvg, or (`answers`) an evaluation of all clients' personal models on all test images."""

    model: str
    shape: tuple[int, int, int]  #: of an image: height, width, channels
    train: tuple[int, ...]  #: training images a client
    batch: int
    lr: float
    momentum: float
    weight_decay: float = 0.0
    tail: str = "keep"
    epochs: int | None = None
    steps: int | None = None
    test: int = 0  #: test images a client
    answers: bool = False
    repeats: int = 3
    scale: str = "whole"  #: the part of the issue's workload that is measured

    def setting(self, precision: str = "fp32") -> Setting:
        """The setting of a run of this workload."""
        from fedbench.partitions.schemes import spec as partition_spec
        from fedbench.specs import DatasetSpec, Setting

        partition = partition_spec(DatasetSpec("random", "random", ""), "iid", len(self.train), 0, 0.8)
        passes = {"steps": self.steps} if self.epochs is None else {"epochs": self.epochs}
        return Setting(
            partition,
            self.model,
            rounds=100,
            batch_size=self.batch,
            lr=self.lr,
            seed=0,
            tail=self.tail,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            precision=precision,
            **passes,
        )

    def plan(self, precision: str = "fp32") -> Plan:
        """The plan of that run."""
        from fedbench.core.plan import Plan

        return Plan(self.setting(precision), self.train, self.shape[:2])

    def federation(self, device: torch.device | str = "cpu") -> Federation:
        """Clients of these sizes with random images, always the same."""
        import numpy as np

        from fedbench.core.federation import Federation

        rng = np.random.default_rng(0)
        sizes = [n + self.test for n in self.train]
        images = rng.integers(0, 256, (sum(sizes), *self.shape), np.uint8)
        labels = rng.integers(0, CLASSES, len(images))
        client = np.repeat(np.arange(len(sizes)), sizes)
        is_test = np.concatenate([np.arange(n + self.test) >= n for n in self.train])
        return Federation.of(images, labels, client, np.arange(len(images)), is_test, CLASSES, device)

    def build(self, seed: int = 0) -> torch.nn.Module:
        """The network, on the CPU."""
        from fedbench import models

        return models.build(self.model, shape=self.shape, classes=CLASSES, seed=seed)

    @cached_property
    def work(self) -> tuple[int, int]:
        """(client-steps, images) of a repeat; for `answers` (0, answers): models x images."""
        if self.answers:
            return 0, len(self.train) ** 2 * self.test
        plan, clients = self.plan(), range(len(self.train))
        sizes = [len(b) for i in clients for b in plan.batches(i, 1, 0, self.epochs, self.steps)]
        return len(sizes), sum(sizes)


def cifar_cnn(device: str) -> Workload:
    """pFedFDA's CIFAR-10 setting: the client sizes of its Dir(0.5) partition, and its optimiser."""
    import numpy as np

    from fedbench import protocol
    from fedbench.partitions import schemes
    from fedbench.specs import DatasetSpec

    rules = protocol.load("pfedfda")
    spec = rules.partition_spec(DatasetSpec("cifar10", "random", ""), CLASSES, scheme="dirichlet", alpha=0.5)
    labels = np.tile(np.arange(CLASSES), 6000)
    images: Any = SimpleNamespace(labels=labels, partition_labels=labels)
    sizes = tuple(len(train) for (train,) in schemes.of(spec).draw(images, spec).train)
    optimiser = {"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4}
    return Workload("cifar_cnn", (32, 32, 3), sizes, 50, tail="drop", epochs=1, **optimiser)


def lenet(clients: int, images: int, epochs: int) -> Workload:
    """FLUX's optimiser (Sec. 3 of its protocol: SGD 0.005, momentum 0.9, batch 64, the tail kept)."""
    return Workload("lenet5", (28, 28, 1), (images,) * clients, 64, lr=0.005, momentum=0.9, epochs=epochs)


#: FedDRM's training: 60,000 images, 70 % for training, over 8 clients; SGD 0.01.
FEDDRM: dict[str, Any] = {
    "model": "resnet18_gn",
    "shape": (32, 32, 3),
    "batch": 128,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
}


def resnet(device: str) -> Workload:
    """FedDRM's round. On a CPU one step of its ten: they are all alike, and each takes a second or two."""
    cpu = device == "cpu"
    scale = "1 of 10 local steps" if cpu else "whole"
    return Workload(train=(5250,) * 8, steps=1 if cpu else 10, repeats=2 if cpu else 3, scale=scale, **FEDDRM)


def evaluation(device: str) -> Workload:
    """FedDRM's evaluation: eight personal models answer all test images."""
    cpu = device == "cpu"
    return Workload(
        train=(128,) * 8,
        test=56 if cpu else 2250,
        steps=1,
        answers=True,
        repeats=2 if cpu else 3,
        scale="448 of 18,000 images" if cpu else "whole",
        **FEDDRM,
    )


TITLES = {
    "a": "(a) CIFAR CNN, 100 clients, batch 50",
    "b10": "(b) LeNet-5, 10 clients, batch 64",
    "b1200": "(b) LeNet-5, 1,200 clients, 50 images each",
    "c": "(c) GN ResNet-18, 8 clients, batch 128",
    "d": "(d) 8 personal ResNets answer 18,000 images",
}
WORKLOADS: dict[str, Callable[[str], Workload]] = {
    "a": cifar_cnn,
    "b10": lambda _: lenet(10, 4800, 1),
    "b1200": lambda _: lenet(1200, 50, 2),
    "c": resnet,
    "d": evaluation,
}
