"""Captured training steps, and the worker that replays those of stacks of small networks (core/streams.py: of single
clients)."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbench.core.client import Client, Train
from fedbench.core.stacked import Stack, StackedWorker, Step, Tick, kind
from fedbench.core.state import State
from fedbench.core.worker import Worker

T = TypeVar("T")

#: Capacity of a cache of captures (steps, updates or outputs) per worker or lane; the oldest is removed first.
KEPT = 8
#: Calls before a capture, in which libraries select algorithms and torch.compile compiles.
WARM_UP = 3


def captured(
    run: Callable[[], T], stream: torch.cuda.Stream | None, pool: Any, warm: Callable[[], None]
) -> Callable[[], T]:
    """Capture `run` in a CUDA graph and return a function that replays it on the same tensors. On a CPU return `run`.

    stream: stream of the replays (None: any); pool: memory shared by graphs that never run at the same time.
    """
    if pool is None:
        return run
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        answer = run()
    torch.cuda.current_stream().wait_stream(side)

    def replay() -> T:
        graph.replay()
        return answer

    return replay


def warm_up(run: Callable[[], Any]) -> None:
    for _ in range(WARM_UP):
        run()


@contextlib.contextmanager
def best_algorithms() -> Iterator[None]:
    """Let cuDNN benchmark its algorithms for each shape, which pays off if a step is captured and replayed often."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def pool_of(device: torch.device) -> Any:
    """Memory pool for graphs of which only one runs at a time; None on a CPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def cached(cache: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """Get the key's value from an LRU cache of KEPT entries, or make it."""
    value = cache[key] = cache.pop(key, None) or make()
    while len(cache) > KEPT:
        cache.popitem(last=False)
    return value


def whole_images(worker: Worker, *lengths: int) -> Tensor:
    """Crop windows [*lengths, 4] of whole images."""
    window = torch.tensor([0, 0, *worker.federation.shape[:2]], device=worker.device)
    return window.expand(*lengths, 4).contiguous()


#: A replay takes as long for few clients as for all, so below this share of active clients the step is not replayed.
LEAST_SHARE = 0.5


@dataclass
class CapturedStep:
    """One captured step of a whole stack. Its tensors have fixed addresses: copy inputs to them, replay, read outputs.

    The step takes effect for the clients of `active` [C] only; it leaves the other clients' tensors unchanged.
    """

    stack: Stack
    tick: Tick
    active: Tensor
    lr: Tensor
    replay: Callable[[], Step]

    def load(self, stack: Stack) -> None:
        """Copy the tensors of a stack, which must not have more clients than this one."""
        for field in fields(Stack):
            ours, theirs = getattr(self.stack, field.name), getattr(stack, field.name)
            for name, value in theirs.items() if isinstance(theirs, dict) else ():
                (ours[name] if field.name == "common" else ours[name][: len(value)]).copy_(value)
        self.stack.lr = stack.lr  # for steps that are not replayed
        self.lr.fill_(stack.lr)

    def __call__(self, tick: Tick) -> Step:
        self.active.zero_()
        self.active[tick.members] = True
        for place, value in ((self.tick.rows, tick.rows), (self.tick.positions, tick.positions)):
            place[tick.members] = value
        if tick.windows is not None and self.tick.windows is not None:
            self.tick.windows[tick.members] = tick.windows
        logged, collected = self.replay()
        # Indexing copies, because the next replay overwrites the output.
        who = torch.arange(len(self.active), device=self.active.device)[tick.members]
        return Step(logged[who], None if collected is None else collected[who])


class GraphedWorker(StackedWorker):
    """Runs training requests with captured steps; on a CPU it calls the same step without capturing it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.captured: OrderedDict[Hashable, CapturedStep] = OrderedDict()
        self.current: CapturedStep | None = None

    least = 1

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """Copy the clients' tensors into the stack of a captured step and return that stack."""
        stack = super().stack(clients, requests)
        size = min(self.setting.batch_size, max(c.n_train for c in clients))
        room = capacity(len(clients))
        key = (kind(requests[0]), tuple(stack.common), room, size)
        step = cached(self.captured, key, lambda: self.capture(stack, room, size))
        step.load(stack)
        self.current = step
        return step.stack

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        # Clones, not views: the next block of clients overwrites these tensors.
        return {name: t.clone().unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        step = self.current
        assert step is not None
        count, size = tick.positions.shape
        if size != step.tick.positions.shape[1] or count < LEAST_SHARE * len(step.active):
            return super().step(stack, tick)
        return step(tick)

    def capture(self, like: Stack, room: int, size: int) -> CapturedStep:
        """Capture a step for stacks like `like`, with `room` clients and batches of `size`."""
        states = {f.name: value for f in fields(Stack) if isinstance(value := getattr(like, f.name), dict)}
        places: dict[str, Any] = {name: _places(value, name, room) for name, value in states.items()}
        stack = replace(like, **places)
        zeros = torch.zeros(room, size, dtype=torch.long, device=self.device)
        windows = None if self.setting.augment == "none" else whole_images(self, room, size)
        tick = Tick(slice(0, room), zeros, zeros.clone(), windows)
        active = torch.zeros(room, dtype=torch.bool, device=self.device)
        lr = torch.tensor(like.lr, device=self.device)

        def run() -> Step:
            return self.masked_step(stack, tick, active, lr)

        return CapturedStep(stack, tick, active, lr, captured(run, None, pool_of(self.device), lambda: warm_up(run)))

    def masked_step(self, stack: Stack, tick: Tick, active: Tensor, lr: Tensor) -> Step:
        """Step all clients, then restore the inactive ones. Reads no value on the host, so it can be captured."""
        moving = [*stack.trained.values(), *stack.buffers.values(), *stack.memory.values()]
        before = [t.clone() for t in moving]
        step = super().step(replace(stack, lr=lr, optimizer=stack.optimizer.apart()), tick)
        for place, value in zip(moving, before, strict=True):
            place.copy_(torch.where(active.view(-1, *[1] * (place.dim() - 1)), place, value))
        return step


def capacity(clients: int) -> int:
    """The stack size that is captured for so many clients, rounded up to 2^k or 3/4 of it, so that cohorts of similar
    size share a graph."""
    power = 1 << max(clients - 1, 0).bit_length()
    return 3 * power // 4 if power >= 4 and 3 * power // 4 >= clients else power


def _places(value: State, field: str, room: int) -> State:
    if field == "common":
        return {name: t.detach().clone() for name, t in value.items()}
    return {name: torch.zeros(room, *t.shape[1:], dtype=t.dtype, device=t.device) for name, t in value.items()}
