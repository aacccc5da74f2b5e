"""What goes between the driver of a run and a worker: clients on their way, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from fedbench.core.client import Client, Collect
from fedbench.core.context import Context
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.start import new_client, without_labels
from fedbench.core.state import State
from fedbench.core.who import UNLABELLED


@dataclass(frozen=True)
class Doings:
    """The counts of a client's work (core/work.py)."""

    losses: list[tuple[float, int]]
    phase: int
    collects: int
    seconds: float
    parts: dict[str, float]
    momenta: State | None


@dataclass(frozen=True)
class Traveller:
    """A client on its way to a worker or back: all that is its own. Its images, the plan of its batches and what it may
    know of the federation are there already."""

    index: int
    round: int
    kind: str
    lr: float
    state: State
    received: State
    inbox: Any
    upload: Any
    answers_by: Collect | None
    answer: Tensor | None
    metrics: dict[str, float]
    logged: float | None
    work: Doings

    @classmethod
    def of(cls, client: Client) -> Traveller:
        """The client as it is now."""
        own = {name: getattr(client, name) for name in _OWN}
        return cls(**own, work=Doings(**{f.name: getattr(client.work, f.name) for f in fields(Doings)}))

    def arrive(self, context: Context, federation: Federation, plan: Plan) -> Client:
        """The client at the worker."""
        client = new_client(self.index, self.round, self.state, context, federation, plan)
        if self.kind == UNLABELLED:
            without_labels(client)
        self.into(client)
        return client

    def into(self, client: Client) -> None:
        """Make of a client what this one is."""
        for name in _OWN[2:]:  # which client in which round it is stays
            setattr(client, name, getattr(self, name))
        for f in fields(Doings):
            setattr(client.work, f.name, getattr(self.work, f.name))


_OWN = tuple(f.name for f in fields(Traveller) if f.name != "work")


@dataclass(frozen=True)
class Done:
    """What a worker has done of some items: a result each, and the clients among them as they are now."""

    results: list[Any]
    clients: list[Traveller]


def clients_in(items: Sequence[Any]) -> Iterator[Client]:
    """The clients among items, which may stand in lists."""
    for item in items:
        for one in item if isinstance(item, list) else (item,):
            if isinstance(one, Client):
                yield one
