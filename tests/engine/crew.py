"""Workers in threads of this process, to which nothing goes but bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from fedbench.core import executors
from fedbench.core.trainer import Trainer
from fedbench.engine.workers.host import Host
from fedbench.engine.workers.post import Parcel
from fedbench.engine.workers.spread import LostError, Workers


class Threads:
    """A Crew of hosts. Worker `lost` is gone as it is to answer for the `after`-th time."""

    def __init__(self, hosts: Sequence[Host], lost: Sequence[int] = (), after: int = 2) -> None:
        self.hosts, self.count, self.width = hosts, len(hosts), hosts[0].executor.width
        self.lost, self.after = {*lost}, after
        self.sent: list[tuple[int, int]] = []  #: (worker, bytes) of each parcel
        self.answered = [0] * self.count
        self.of: dict[Future[bytes], int] = {}
        self.puts = 0
        self.pools = [ThreadPoolExecutor(1) for _ in hosts]

    def send(self, worker: int, parcel: Parcel) -> Future[bytes]:
        data = pickle.dumps(parcel)
        self.sent.append((worker, len(data)))
        ticket = self.pools[worker].submit(lambda: pickle.dumps(self.hosts[worker].work(pickle.loads(data))))
        self.of[ticket] = worker
        return ticket

    def first(self, tickets: Sequence[Future[bytes]]) -> Future[bytes]:
        return next(iter(wait(tickets, return_when=FIRST_COMPLETED).done))

    def answer(self, ticket: Future[bytes]) -> Parcel:
        worker = self.of[ticket]
        self.answered[worker] += 1
        if worker in self.lost and self.answered[worker] >= self.after:
            raise LostError(f"worker {worker} died")
        parcel: Parcel = pickle.loads(ticket.result())
        return parcel

    def put(self, array: np.ndarray) -> Any:
        self.puts += 1
        return array.copy()

    def end(self) -> None:
        for pool in self.pools:
            pool.shutdown()


def over_workers(it: Trainer, count: int = 2, inside: str = "sequential", **crew: Any) -> Threads:
    """Have a trainer's work done by workers; their crew."""
    same = {"method": it.method, "federation": it.federation, "plan": it.plan, "context": it.context}
    model, options = it.executor.model, {} if inside == "sequential" else {"cores": 1}
    hosts = [Host(executors.make(inside, model, it.federation, it.setting, **options), same) for _ in range(count)]
    workers = Threads(hosts, **crew)
    it.executor.close()
    it.executor = Workers(workers, model, same)
    return workers
