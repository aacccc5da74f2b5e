"""The executor `workers`: clients' work, and all else that is asked for, in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.executors import even_blocks
from fedbench.core.federation import Federation
from fedbench.core.state import size_in_bytes
from fedbench.core.worker import Worker
from fedbench.engine.workers.message import Done, clients_in
from fedbench.engine.workers.post import Flat, Parcel, Post
from fedbench.errors import FedbenchError

T = TypeVar("T")
R = TypeVar("R")

#: A message takes this part of a worker's share of what is still to do: the first are long, the last are single items.
PART = 4
#: ... and no more than so many bytes of models.
MESSAGE_BYTES = 32 << 20
#: Bytes of a tensor that is sent once for all workers.
LARGE = 1 << 20
#: Messages that a worker has at a time: the next is there when one is done.
AHEAD = 2


class LostError(Exception):
    """A worker is gone."""


class Crew(Protocol):
    """Workers that are ready for a run, by their numbers, and how they are reached."""

    count: int
    width: int  #: clients that each is busy with at a time

    def send(self, worker: int, parcel: Parcel) -> Any:
        """Hand a worker a parcel; it does one after another. A ticket for what comes back."""

    def first(self, tickets: Sequence[Any]) -> Any:
        """The ticket of these whose answer is there first."""

    def answer(self, ticket: Any) -> Parcel:
        """What has come back. Raises LostError."""

    def put(self, array: np.ndarray) -> Any:
        """What all workers can fetch the array by: it is sent once."""

    def end(self) -> None:
        """The run is over, and its workers need do nothing more."""


class Workers:
    """Whoever is free is sent the next ones, rather clients that it has had before: it still has their states. What a
    worker that is lost had is sent to another. The driver's model computes nothing."""

    name = "workers"

    def __init__(self, crew: Crew, model: nn.Module, same: Mapping[str, Any]) -> None:
        self.crew, self.model, self.width = crew, model, crew.width * crew.count
        self.federation: Federation = same["federation"]
        self.posts = {worker: Post(same, lasts=False) for worker in range(crew.count)}
        self.homes: dict[int, int] = {}  #: client -> the worker that it was at last
        self.limit = max(1, MESSAGE_BYTES // size_in_bytes(dict(model.state_dict())))

    def run(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        self.map(lambda worker, block: worker.serve(block, update), self.blocks(clients))

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        return even_blocks(clients, self.crew.width, self.crew.count)

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        every = list(items)
        results: list[Any] = [None] * len(every)
        waiting = list(range(len(every)))
        at_work: dict[Any, tuple[int, list[int]]] = {}  #: ticket -> the worker and the numbers of its items
        common: dict[int, tuple[Tensor, Flat]] = {}

        def share(tensor: Tensor, flat: Flat) -> Flat:
            if flat.bytes.nbytes < LARGE:
                return flat
            if id(tensor) not in common:
                common[id(tensor)] = tensor, flat._replace(bytes=self.crew.put(flat.bytes))
            return common[id(tensor)][1]

        try:
            while waiting or at_work:
                while (worker := self._free(at_work, len(waiting))) is not None:
                    some = self._next(worker, waiting, every)
                    parcel = self.posts[worker].pack((job, [every[i] for i in some]), share)
                    at_work[self.crew.send(worker, parcel)] = worker, some
                    waiting = sorted({*waiting} - {*some})
                ticket = self.crew.first(list(at_work))
                worker, some = at_work.pop(ticket)
                try:
                    answer = self.crew.answer(ticket)
                except LostError as error:
                    at_work, again = self._without(worker, at_work, error)
                    waiting = sorted([*waiting, *some, *again])
                    continue
                done = self.posts[worker].open(answer)
                if isinstance(done, BaseException):
                    raise done
                assert isinstance(done, Done)
                clients = list(clients_in([every[i] for i in some]))
                for client, now in zip(clients, done.clients, strict=True):
                    now.into(client)
                self.homes.update({client.index: worker for client in clients})
                for i, result in zip(some, done.results, strict=True):
                    results[i] = result
        except Exception:  # what is under way is for nothing, and over soon; at an interrupt the workers are ended
            for ticket in list(at_work):
                self.crew.first([ticket])
            raise
        return results

    def close(self) -> None:
        self.crew.end()

    def _free(self, at_work: Mapping[Any, tuple[int, Any]], waiting: int) -> int | None:
        """A worker that can be sent more, if there is one and any item is waiting: who has least."""
        busy = [worker for worker, _ in at_work.values()]
        worker = min(self.posts, key=busy.count)
        # Ahead of time only while all are sure to get some more.
        return worker if waiting and busy.count(worker) < (AHEAD if waiting > len(self.posts) else 1) else None

    def _next(self, worker: int, waiting: Sequence[int], items: Sequence[Any]) -> list[int]:
        """The numbers of the items that a worker is sent next: its own clients first, then those at home nowhere."""

        def strangeness(i: int) -> int:
            homes = {self.homes.get(client.index, -1) for client in clients_in([items[i]])}
            return 0 if homes <= {worker} else 1 if homes <= {worker, -1} else 2

        size = max(1, min(len(waiting) // (PART * len(self.posts)), self.limit))
        return sorted(waiting, key=lambda i: (strangeness(i), i))[:size]

    def _without(
        self, worker: int, at_work: Mapping[Any, tuple[int, list[int]]], error: LostError
    ) -> tuple[dict[Any, tuple[int, list[int]]], list[int]]:
        """What the others are at, and what the lost one was. Raises FedbenchError if there are no others."""
        del self.posts[worker]
        self.homes = {client: at for client, at in self.homes.items() if at != worker}
        if not self.posts:
            raise FedbenchError(
                f"all workers were lost ({error})", "memory may be short; the same command goes on from the last save"
            ) from error
        rest = {ticket: one for ticket, one in at_work.items() if one[0] != worker}
        return rest, [i for at, some in at_work.values() if at == worker for i in some]
