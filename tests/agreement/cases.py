"""The federations on which other projects' code and fedbench run with the same tensors, and fedbench's runs on them."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench import methods
from fedbench.conformance.lab import digits, finish, setting, trainer
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.plan import Plan
from fedbench.core.state import State
from fedbench.models.base import FLModel, seeded
from fedbench.specs import Setting

BATCH = 16
EPOCHS = 2
ROUNDS = 4
#: Plain SGD, which every project has; the sizes of all clients are multiples of the batch, since projects treat a
#: smaller last batch in their own ways.
PLAIN: dict[str, Any] = {
    "rounds": ROUNDS,
    "window": 1,
    "epochs": EPOCHS,
    "batch_size": BATCH,
    "tail": "drop",
    "lr": 0.05,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "seed": 3,
}


#: Images [B, C, H, W] as the network gets them, and labels [B]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """Clients with these numbers of training images [M]; `cohort` of them in each round, or all."""

    name: str
    sizes: tuple[int, ...]
    cohort: int | None = None

    @property
    def data(self) -> Federation:
        return federation(self.sizes)

    def setting(self, **changes: Any) -> Setting:
        return setting(**{**PLAIN, "cohort": self.cohort, **changes})


EQUAL = Case("equal clients", (64, 64, 64, 64, 64))
UNEQUAL = Case("unequal clients", (112, 48, 96, 32, 64))
JOIN = Case("60 % join", (112, 48, 96, 32, 64), cohort=3)
ONE_BATCH = Case("a client of one batch", (80, 16, 64, 48, 32))
CASES = (EQUAL, UNEQUAL, JOIN, ONE_BATCH)


@cache
def federation(sizes: Sequence[int], tests: int = 20) -> Federation:
    """Clients with so many digits to train on, of few classes each, and `tests` to test on."""
    images, labels = digits()
    rng = np.random.default_rng(5)
    each = [n + tests for n in sizes]
    rows = rng.permutation(len(labels))[: sum(each)]
    rows = rows[np.argsort(labels[rows] + 4 * rng.random(len(rows)), kind="stable")]
    client = np.repeat(np.arange(len(each)), each)
    rows = np.concatenate([rng.permutation(rows[client == i]) for i in range(len(each))])
    is_test = np.concatenate([np.arange(n) >= n - tests for n in each])
    return Federation.of(images[rows], labels[rows], client, rows, is_test, 10)


class Passes:
    """Batches as a DataLoader hands them out: a further pass at each iteration."""

    def __init__(self, batches: Sequence[Batch], each: int) -> None:
        self.batches, self.each, self.passed = batches, each, 0

    def __len__(self) -> int:
        return self.each

    def __iter__(self) -> Iterator[Batch]:
        at = self.passed * self.each
        self.passed += 1
        return iter(self.batches[at : at + self.each])


@dataclass(frozen=True)
class Snapshot:
    """A federation after a round: what is shared, and the tensors that each client holds [M]."""

    shared: State
    clients: list[State]
    models: list[State]  #: one a cluster
    assigned: dict[int, int]  #: client -> cluster


@dataclass
class Ours:
    """A run of fedbench on a case, by the reference executor: one client after another."""

    case: Case
    setting: Setting
    plan: Plan
    rounds: list[Snapshot]
    server: Any  #: after the last round

    def cohort(self, t: int) -> list[int]:
        """Clients of round t, from 1."""
        return self.plan.cohort(t)

    def positions(self, client: int, t: int, request: int = 1, **length: int) -> Iterator[np.ndarray]:
        """Positions within the client's training set of the batches of its k-th request of a round."""
        s = self.setting
        lengths = (length.get("epochs", s.epochs), length.get("steps", s.steps))
        return self.plan.batches(client, t, request, *lengths)

    def batches(self, client: int, t: int, request: int = 1, **length: int) -> list[Batch]:
        """The same batches."""
        return [self.rows(client, at) for at in self.positions(client, t, request, **length)]

    def rows(self, client: int, at: np.ndarray | slice = slice(None)) -> Batch:
        """Training images and labels of a client, at these positions."""
        data = self.case.data
        rows = data.train[client][at if isinstance(at, slice) else torch.from_numpy(at)]
        return to_input(data.images[rows]), data.labels[rows]

    def tests(self, client: int) -> Batch:
        """Test images and labels of a client."""
        data = self.case.data
        return to_input(data.images[data.test[client]]), data.labels[data.test[client]]


def ours(
    case: Case,
    method: str,
    parameters: Mapping[str, Any],
    data: Federation | None = None,
    norm: bool = False,
    **changes: Any,
) -> Ours:
    """Train a method with these hyper-parameters on a case, or other `data` of its sizes; `changes` are of the
    setting, and `norm` gives the network a batch norm."""
    s = case.setting(**changes)
    how = methods.load(method)[0].create(dict(parameters))
    rounds: list[Snapshot] = []
    with tempfile.TemporaryDirectory() as folder:
        it = trainer(how, data or case.data, Path(folder), s, network=partial(network, norm))

        def keep(_: Any) -> None:
            views = [copied(it.server.view(i)) for i in range(case.data.clients)]
            models = [copied(model) for model in it.server.models]
            rounds.append(Snapshot(copied(it.server.shared), views, models, dict(it.server.assigned)))

        finish(it, keep)
    return Ours(case, it.plan.setting, it.plan, rounds, it.server)


def copied(state: Mapping[str, Tensor]) -> State:
    return {name: t.detach().clone() for name, t in state.items()}


class Smooth(FLModel):
    """One convolution, a batch norm if asked for, and one hidden layer with 16 features. It has neither ReLU nor
    max-pool: at their kinks, rounding grows into differences of 1e-4."""

    def __init__(self, norm: bool = False) -> None:
        layers = {
            "conv": nn.Conv2d(1, 6, 3, padding=1),
            **({"norm": nn.BatchNorm2d(6)} if norm else {}),
            "pool": nn.AvgPool2d(2),
            "act": nn.Tanh(),
            "flat": nn.Flatten(),
            "hidden": nn.Linear(6 * 16, 16),
            "last": nn.Tanh(),
        }
        super().__init__(nn.Sequential(OrderedDict(layers)), nn.Identity(), nn.Linear(16, 10), backbone_size=16)


def network(norm: bool = False) -> Smooth:
    """The network of all cases, before the first round."""
    with seeded(0, "model"):
        model = Smooth(norm)
        model.initialise(model)
    return model.train()


def parameters(values: Sequence[Tensor], chosen: str = "") -> State:
    """Parameters in the network's order by fedbench's names for them; `chosen`: only head or backbone."""
    names = [name for name, _ in network().named_parameters() if name.startswith(chosen)]
    return dict(zip(names, (p.detach().clone() for p in values), strict=True))
