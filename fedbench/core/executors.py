"""Executors: how the clients of a round are run. One signature; all of them agree.

`sequential` runs client after client and is the reference. `cores` runs one client a core (on a GPU: a stream);
on a CPU it computes the very same bits, with one intra-op thread a client. `stacked` runs blocks of clients at
once; `graphed` replays a captured step of such a block. These two agree with the reference to float rounding.
`streams` replays captured steps of single clients, several of them side by side; on a CPU with the reference's bits.
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

from fedbench.core.captured import GraphedWorker, StreamedWorker
from fedbench.core.client import Client, ClientUpdate
from fedbench.core.federation import Federation
from fedbench.core.optimizer import optimizer
from fedbench.core.plan import Plan
from fedbench.core.precision import CPU_BLOCK, clients_that_fit, flop_of_step, keep_freed_pages, lanes_that_fit
from fedbench.core.stacked import StackedWorker
from fedbench.core.worker import Worker
from fedbench.errors import check_known
from fedbench.machine import CORES
from fedbench.specs import Setting

T = TypeVar("T")
R = TypeVar("R")

#: On a CPU a run's clients form a multiple of this many stacks. Not the number of cores: a stack's last bits depend on
#: who is in it, and must not depend on where a run is computed.
CPU_STACKS = 2


#: Clients at once by `streams` on a GPU: beyond four it is busy all the time.
LANES = 4


class Rule(NamedTuple):
    """What 'auto' means on a kind of device."""

    stacking: str  #: the executor of small steps of many clients
    flop: float  #: of one client's training step at most
    clients: int  #: a round, at least
    single: str  #: the executor of all others


#: On a CPU (processor seconds of 4 to 16 clients, stacked and not) stacks are 1.1 to 2.7 times as fast for LeNet-5 up
#: to batches of 64 (0.11e9), 0.8 to 1.0 times for the next larger steps (emnist_cnn, batches of 16: 0.16e9). On an
#: H100 (core/README.md) they are 9 to 20 times as fast up to the CIFAR CNN with batches of 50 (1.1e9), and 0.7 times
#: for ResNet-18 with batches of 128 (430e9).
RULES = {"cpu": Rule("stacked", 0.12e9, 8, "cores"), "cuda": Rule("graphed", 10e9, 2, "streams")}

#: A run with more floating-point operations of training than this is compiled: on an H100 that saves a third of the
#: time of a ResNet-18's steps, and takes a minute by itself.
COMPILED_FLOP = 1e16


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


class Executor:
    """Runs clients' updates, and other jobs that need a model, on the device."""

    name: ClassVar[str]
    kind: ClassVar[type[Worker]] = Worker
    width = 1  #: clients that it is busy with at a time

    def __init__(self, model: nn.Module, federation: Federation, setting: Setting, **options: Any) -> None:
        keep_freed_pages()
        self.model = model  #: the network that the workers copy
        self.federation, self.setting, self.options = federation, setting, options  #: of its workers
        self.device = federation.images.device
        self.cancel = threading.Event()

    def run(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        """Run `update` for every client; each client's `state`, `losses` and `metrics` are updated."""
        self.map(lambda worker, block: worker.serve(block, update), self.blocks(clients))

    def blocks(self, clients: Sequence[Client]) -> list[list[Client]]:
        """The clients as a worker takes them at a time."""
        return [[client] for client in clients]

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        """job(worker, item) for every item, results in the order of the items."""
        raise NotImplementedError

    def new_worker(self) -> Worker:
        return self.kind(self.model, self.federation, self.setting, self.cancel, **self.options)

    def close(self) -> None:
        """Stop the workers."""


class Sequential(Executor):
    """Client after client, in the calling thread."""

    name = "sequential"

    def __init__(self, model: nn.Module, federation: Federation, setting: Setting) -> None:
        super().__init__(model, federation, setting)
        self.worker = self.new_worker()

    def map(self, job: Callable[[Worker, T], R], items: Iterable[T]) -> list[R]:
        with one_thread():
            return [job(self.worker, item) for item in items]


class Cores(Executor):
    """One client a core: threads with one worker each (the heavy operators release the interpreter lock).

    On a GPU each thread has a stream of its own.
    """

    name = "cores"
    streams = 4  #: workers on a GPU
    captures = False  #: then a GPU has one, whatever `cores` says: nobody else may use the device at a capture

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

    @contextlib.contextmanager
    def _stream(self, worker: Worker) -> Iterator[None]:
        """On a GPU with several workers: the worker's stream, in order with the others' work before and after."""
        if self.device.type == "cpu" or self.count == 1:
            yield
            return
        # The same one each time: the allocator keeps what is freed apart by streams, of which torch has 32.
        if (stream := self.stream_of.get(worker)) is None:
            stream = self.stream_of[worker] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()  # what was computed may be freed on another stream from here on


class Stacked(Cores):
    """Blocks of clients at once: one worker on a GPU, one a core on a CPU.

    `block` clients at most form a stack (default: as many as a fixed allowance of memory holds). On a CPU the clients
    of several runs form stacks of their own, so that each run has the bits that it has alone.
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
    """Blocks of clients whose steps are captured once and replayed, without the cost of launching each operator.

    Where there is nothing to capture (on a CPU) the same step is called.
    """

    name = "graphed"
    captures = True
    kind = GraphedWorker


class Streams(Cores):
    """Clients by captured steps of their own, side by side: on a GPU for networks that are too large to be stacked.

    There is one worker on a GPU, with `lanes` clients at once (default: LANES, or as many as its memory holds four
    times); on a CPU one a core with one lane. The bits of a client do not depend on who is beside it.
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
        if self.compiled:  # torch counts what it has compiled of one function, and after eight compiles no more
            torch._dynamo.reset()


def _single() -> None:
    """Give the calling thread one intra-op thread. That is a property of each thread; but one that has not worked yet
    takes what the process was last set to when it first does, unless it is asked for it before."""
    torch.set_num_threads(1)
    torch.get_num_threads()


def _largest_first(clients: Sequence[Client]) -> list[Client]:
    """The round ends when the last worker does."""
    return sorted(clients, key=lambda c: (-c.n_train, c.index))


def even_blocks(clients: Sequence[Client], block: int, count: int) -> list[list[Client]]:
    """The clients in blocks of at most so many for so many workers: clients of like size together, all blocks of like
    length, and as many for each worker."""
    ordered = _largest_first(clients)
    n = len(ordered)
    rounds = -(-n // (block * count))
    blocks = min(rounds * count, n)
    return [ordered[i * n // blocks : (i + 1) * n // blocks] for i in range(blocks)]


def available_cores() -> int:
    """Processors this process may use: at most FEDBENCH_CORES, where several processes share the machine."""
    # Only Linux says which of them are this process's.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(cores, int(share)) if share.isdecimal() and int(share) else cores


EXECUTORS: dict[str, Callable[..., Executor]] = {e.name: e for e in (Sequential, Cores, Stacked, Graphed, Streams)}


def suited(model: nn.Module, federation: Federation, setting: Setting, trainees: int) -> str:
    """The executor that 'auto' means: by network, shape of the images, batch size, clients a round (of `trainees`),
    precision and kind of device alone, so that one command gives the same bits however busy the machine is."""
    device = federation.images.device.type
    rule, a_round = RULES[device], setting.cohort or round(setting.participation * trainees)
    # Under vmap a CPU's autocast leaves convolutions in float32.
    if a_round < rule.clients or (device == "cpu" and setting.precision != "fp32"):
        return rule.single
    flop = setting.batch_size * flop_of_step(model, _batch(1, federation))
    return rule.stacking if flop <= rule.flop else rule.single


def training_flop(model: nn.Module, federation: Federation, setting: Setting) -> float:
    """Floating-point operations of a run's training steps, by what its setting says."""
    height, width, _ = federation.shape
    plan = Plan(setting, federation.n_train, (height, width))
    return plan.training_images() * flop_of_step(model, _batch(1, federation))


def _batch(n: int, federation: Federation) -> torch.Tensor:
    """So many blank images [n, C, H, W] on the device."""
    height, width, channels = federation.shape
    return torch.zeros(n, channels, height, width, device=federation.images.device)


def make(name: str, model: nn.Module, federation: Federation, setting: Setting, **options: Any) -> Executor:
    """The executor of that name; `options` are its own, such as `block` of stacked."""
    check_known("executor", name, EXECUTORS)
    return EXECUTORS[name](model, federation, setting, **options)
