"""Executors run the clients of a round. They have the same interface and give the same results.

`sequential`, the reference, runs one client after another. `cores` runs one client per core (on a GPU: per stream); on
a CPU its results equal the reference bitwise, with one intra-op thread per client. `stacked` runs blocks of clients in
one batch; `graphed` replays a captured step of such a block. Both agree with the reference up to rounding. `streams`
replays captured steps of single clients in parallel; on a CPU it equals the reference bitwise.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import nn

from fedbench.core.captured import GraphedWorker
from fedbench.core.client import Client, ClientUpdate
from fedbench.core.failed_step import Serving
from fedbench.core.federation import Federation
from fedbench.core.optimizer import optimizer
from fedbench.core.plan import Plan
from fedbench.core.stacked import StackedWorker
from fedbench.core.streams import StreamedWorker
from fedbench.core.usage import CPU_BLOCK, clients_that_fit, flop_of_step, keep_freed_pages, lanes_that_fit
from fedbench.core.worker import Worker
from fedbench.errors import check_known
from fedbench.machine import CORES
from fedbench.specs import Setting

T = TypeVar("T")
R = TypeVar("R")

#: On a CPU the number of stacks is a multiple of this. It must not depend on the number of cores, because the clients
#: in a stack determine the rounding, and results must not depend on the machine.
CPU_STACKS = 2


#: Parallel clients of `streams` on a GPU; four keep it fully busy.
LANES = 4


class ExecutorRule(NamedTuple):
    """How 'auto' selects an executor on a kind of device."""

    stacking: str  #: executor for small steps and many clients
    flop: float  #: at most, for one client's training step
    clients: int  #: at least, per round
    single: str  #: executor for everything else


#: Speed-up by stacking on a CPU (processor time of 4 to 16 clients): 1.1 to 2.7 for LeNet-5 up to batches of 64
#: (0.11e9), and 0.8 to 1.0 for the next larger steps (emnist_cnn, batches of 16: 0.16e9). On an H100 (core/README.md):
#: 9 to 20 up to the CIFAR CNN with batches of 50 (1.1e9), and 0.7 for ResNet-18 with batches of 128 (430e9).
RULES = {"cpu": ExecutorRule("stacked", 0.12e9, 8, "cores"), "cuda": ExecutorRule("graphed", 10e9, 2, "streams")}

#: Runs with more training operations than this are compiled. On an H100 that saves a third of the time of ResNet-18's
#: steps; compiling takes about a minute.
COMPILED_FLOP = 1e16


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one intra-op thread inside the block, so that sums have the same order on every machine, and no thread waits
    for a busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Executor:
    """Runs clients' updates, and other jobs that need a model, on the device."""

    name: ClassVar[str]
    kind: ClassVar[type[Worker]] = Worker
    width = 1  #: clients that it processes at a time

    def __init__(self, model: nn.Module, federation: Federation, setting: Setting, **options: Any) -> None:
        keep_freed_pages()
        self.model = model  #: the network that the workers copy
        self.federation, self.setting, self.options = federation, setting, options  #: passed to the workers
        self.device = federation.images.device
        self.cancel = threading.Event()

    def run(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        """Run `update` for every client; updates the clients in place, such as their `state`, `work` and `metrics`."""
        self.map(Serving(update).serve, self.blocks(clients))

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        """The clients grouped as a worker processes them."""
        return [[client] for client in clients]

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        """Return [job(worker, item) for all items], in the order of the items."""
        raise NotImplementedError

    def new_worker(self) -> Worker:
        return self.kind(self.model, self.federation, self.setting, self.cancel, **self.options)

    def close(self) -> None:
        """Stop the workers."""


class Sequential(Executor):
    """One client after another, in the calling thread."""

    name = "sequential"

    def __init__(self, model: nn.Module, federation: Federation, setting: Setting) -> None:
        super().__init__(model, federation, setting)
        self.worker = self.new_worker()

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        with one_thread():
            return [job(self.worker, item) for item in items]


class Cores(Executor):
    """One client per core: threads with one worker each (expensive operators release the interpreter lock).

    On a GPU each thread has its own stream.
    """

    name = "cores"
    streams = 4  #: workers on a GPU
    captures = False  #: if True, use one worker on a GPU whatever `cores` is: no other work may run during a capture

    def __init__(
        self, model: nn.Module, federation: Federation, setting: Setting, cores: int | None = None, **options: Any
    ) -> None:
        super().__init__(model, federation, setting, **options)
        on_gpu = self.device.type == "cuda"
        if on_gpu and self.captures:
            cores = 1
        self.count = cores or (self.streams if on_gpu else available_cores())
        self.width = self.count
        self.workers: SimpleQueue[Worker] = SimpleQueue()
        self.stream_of: dict[Worker, torch.cuda.Stream] = {}  #: on a GPU
        for _ in range(self.count):
            self.workers.put(self.new_worker())
        self.pool = ThreadPoolExecutor(self.count, "core", initializer=_single)

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        return [[client] for client in _largest_first(clients)]

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        def with_worker(item: T) -> R:
            worker = self.workers.get()
            try:
                with self._stream(worker):
                    return job(worker, item)
            finally:
                self.workers.put(worker)

        futures: list[Future[R]] = [self.pool.submit(with_worker, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:  # also an interrupt: stop all workers before the exception leaves
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

    @contextlib.contextmanager
    def _stream(self, worker: Worker) -> Iterator[None]:
        """On a GPU with several workers: run the block on the worker's stream, after the main stream's work."""
        if self.device.type == "cpu" or self.count == 1:
            yield
            return
        # Reuse the stream: the allocator caches freed memory per stream, and torch has 32 of them.
        if (stream := self.stream_of.get(worker)) is None:
            stream = self.stream_of[worker] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()  # another stream may free the results from here on


class Stacked(Cores):
    """Blocks of clients in one batch: one worker on a GPU, one per core on a CPU.

    A stack has at most `block` clients (default: as many as fit in a fixed amount of memory). On a CPU clients of
    different runs are not stacked, so that each run has the same results as it has alone.
    """

    name = "stacked"
    streams = 1
    kind = StackedWorker

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cores: int | None = None,
        block: int | None = None,
    ) -> None:
        super().__init__(model, federation, setting, cores)
        self.block = block or self._fit()
        on_cpu = self.device.type == "cpu"
        self.stacks, self.by_run = CPU_STACKS if on_cpu else 1, on_cpu
        self.width = self.block * self.stacks

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        parts: dict[Hashable, list[Client]] = {}
        for client in clients:
            parts.setdefault(id(client.work.plan) if self.by_run else None, []).append(client)
        return [block for part in parts.values() for block in even_blocks(part, self.block, self.stacks)]

    def _fit(self) -> int:
        images = _batch(self.setting.batch_size, self.federation)
        fit = clients_that_fit(self.model, images, optimizer(self.setting).moments)
        return min(fit, CPU_BLOCK) if self.device.type == "cpu" else fit


class Graphed(Stacked):
    """Blocks of clients whose steps are captured once and replayed, which saves launching each operator.

    On a CPU it calls the same step without capturing it.
    """

    name = "graphed"
    captures = True
    kind = GraphedWorker


class Streams(Cores):
    """Captured steps of single clients in parallel, for networks on a GPU that are too large to be stacked.

    On a GPU one worker has `lanes` clients at a time (default: LANES, or fewer if they need more than a quarter of the
    memory); on a CPU each core has a worker with one lane. A client's results do not depend on the other clients.
    """

    name = "streams"
    captures = True
    kind = StreamedWorker

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cores: int | None = None,
        lanes: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        on_gpu = federation.images.device.type == "cuda"
        if lanes is None:
            images = _batch(setting.batch_size, federation)
            lanes = min(LANES, lanes_that_fit(model, images, optimizer(setting).moments)) if on_gpu else 1
        if compiled is None:
            compiled = on_gpu and training_flop(model, federation, setting) > COMPILED_FLOP
        super().__init__(model, federation, setting, cores, lanes=lanes, compiled=compiled)
        self.lanes, self.compiled = lanes, compiled
        self.width = self.lanes * self.count

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        return even_blocks(clients, self.lanes, self.count)

    def close(self) -> None:
        super().close()
        if self.compiled:  # torch counts compilations per function and stops compiling after eight
            torch._dynamo.reset()


def _single() -> None:
    """Limit the calling thread to one intra-op thread. The limit is per thread, but without the call of get, a thread
    that has not computed yet would take the process's limit at its first operation."""
    torch.set_num_threads(1)
    torch.get_num_threads()


def _largest_first(clients: Sequence[Client]) -> list[Client]:
    """Sort clients by size, largest first, so that no large client starts last and delays the end of the round."""
    return sorted(clients, key=lambda c: (-c.n_train, c.index))


def even_blocks(clients: Sequence[Client], block: int, count: int) -> list[list[Client]]:
    """Split the clients into blocks of at most `block` for `count` workers: clients of similar size share a block,
    blocks have similar lengths, and each worker gets the same number of blocks."""
    ordered = _largest_first(clients)
    n = len(ordered)
    rounds = -(-n // (block * count))
    blocks = min(rounds * count, n)
    return [ordered[i * n // blocks : (i + 1) * n // blocks] for i in range(blocks)]


def available_cores() -> int:
    """Cores that this process may use: at most FEDBENCH_CORES, if several processes share the machine."""
    # Only Linux reports the cores of this process.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(cores, int(share)) if share.isdecimal() and int(share) else cores


EXECUTORS: dict[str, Callable[..., Executor]] = {e.name: e for e in (Sequential, Cores, Stacked, Graphed, Streams)}


def suited(model: nn.Module, federation: Federation, setting: Setting, trainees: int) -> str:
    """The executor that 'auto' selects. Depends only on the network, image shape, batch size, clients per round (of
    `trainees`), precision and kind of device, so that a command gives the same results on a busy machine."""
    device = federation.images.device.type
    rule, a_round = RULES[device], setting.cohort or round(setting.participation * trainees)
    # On a CPU, autocast under vmap leaves convolutions in float32.
    if a_round < rule.clients or (device == "cpu" and setting.precision != "fp32"):
        return rule.single
    flop = setting.batch_size * flop_of_step(model, _batch(1, federation))
    return rule.stacking if flop <= rule.flop else rule.single


def training_flop(model: nn.Module, federation: Federation, setting: Setting) -> float:
    """Floating-point operations of a run's training steps, from its setting."""
    height, width, _ = federation.shape
    plan = Plan(setting, federation.n_train, (height, width))
    return plan.training_images() * flop_of_step(model, _batch(1, federation))


def _batch(n: int, federation: Federation) -> torch.Tensor:
    """n black images [n, C, H, W] on the device."""
    height, width, channels = federation.shape
    return torch.zeros(n, channels, height, width, device=federation.images.device)


def make(name: str, model: nn.Module, federation: Federation, setting: Setting, **options: Any) -> Executor:
    """The executor of this name; `options` are specific to it, such as `block` of stacked."""
    check_known("executor", name, EXECUTORS)
    return EXECUTORS[name](model, federation, setting, **options)
