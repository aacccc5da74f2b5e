"""Executors: how the clients of a round are run. One signature; all of them agree.

`sequential` runs client after client and is the reference. `cores` (CPU) runs one client a core. Both compute
with one intra-op thread a client, so their results are the same bits. Stacked and graph-captured execution
belong beside them, behind the same signature.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol, TypeVar

import torch
from torch import nn

from fedbench.core.client import Box, Client
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.worker import Worker
from fedbench.errors import unknown

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread inside the block: the same float order everywhere, and no waiting at barriers for cores
    that are busy otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Executor(Protocol):
    """Runs clients' boxes, and other jobs that need a model, on the device."""

    name: str
    federation: Federation
    model: nn.Module  #: the network that the workers copy

    def run(self, clients: Sequence[Client], box: Callable[[Client], Box | None]) -> None:
        """Run `box` for every client; each client's `state`, `losses` and `notes` are updated."""

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        """job(worker, item) for every item, results in the order of the items."""

    def close(self) -> None:
        """Stop the workers."""


class Sequential:
    """Client after client, in the calling thread."""

    name = "sequential"

    def __init__(self, model: nn.Module, federation: Federation, plan: Plan) -> None:
        self.federation, self.model = federation, model
        self.worker = Worker(model, federation, plan, threading.Event())

    def run(self, clients: Sequence[Client], box: Callable[[Client], Box | None]) -> None:
        self.map(lambda worker, client: worker.serve(client, box), clients)

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        with one_thread():
            return [job(self.worker, item) for item in items]

    def close(self) -> None:
        return


class Cores:
    """One client a core: threads with one worker each (the heavy operators release the interpreter lock)."""

    name = "cores"

    def __init__(self, model: nn.Module, federation: Federation, plan: Plan, cores: int | None = None) -> None:
        self.federation, self.model = federation, model
        self.cancel = threading.Event()
        count = cores or available_cores()
        self.workers: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(count):
            self.workers.put(Worker(model, federation, plan, self.cancel))
        # The number of intra-op threads is a property of each thread.
        self.pool = ThreadPoolExecutor(count, "core", initializer=torch.set_num_threads, initargs=(1,))

    def run(self, clients: Sequence[Client], box: Callable[[Client], Box | None]) -> None:
        # The largest clients first: the round ends when the last core does.
        order = sorted(clients, key=lambda c: (-c.n_train, c.index))
        self.map(lambda worker, client: worker.serve(client, box), order)

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        def with_worker(item: T) -> R:
            worker = self.workers.get()
            try:
                return job(worker, item)
            finally:
                self.workers.put(worker)

        futures: list[Future[R]] = [self.pool.submit(with_worker, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:  # an interrupt too: nobody may be left working on half a round
            self.cancel.set()
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
            self.cancel.clear()
            raise

    def close(self) -> None:
        self.cancel.set()
        self.pool.shutdown(cancel_futures=True)


def available_cores() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


EXECUTORS: dict[str, Callable[[nn.Module, Federation, Plan], Executor]] = {"sequential": Sequential, "cores": Cores}


def make(name: str, model: nn.Module, federation: Federation, plan: Plan) -> Executor:
    """The executor of that name; 'auto' takes `cores` on a CPU and `sequential` on a GPU."""
    if name == "auto":
        name = "cores" if federation.images.device.type == "cpu" else "sequential"
    if name not in EXECUTORS:
        raise unknown("executor", name, ["auto", *EXECUTORS])
    return EXECUTORS[name](model, federation, plan)
