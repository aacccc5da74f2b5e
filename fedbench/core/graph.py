"""A stacked training step, captured once as a CUDA graph and replayed with other clients and images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedbench.core.client import Client, Train
from fedbench.core.stack import Stack, Step, Tick
from fedbench.core.stacked import StackedWorker
from fedbench.core.stacked_collect import kind
from fedbench.core.state import State

#: Graphs that one worker keeps; each holds its own memory.
GRAPHS = 8
#: A replay costs as much with few clients as with all: with fewer than this share of them the step runs plainly.
LEAST_SHARE = 0.5
#: Runs before the capture, in which libraries choose their algorithms.
WARM_UP = 2


@dataclass
class CapturedStep:
    """One step of a whole stack at fixed places in memory: fill the places, replay, read the answer.

    The step counts for the clients of `active` [C]; the others' tensors stay as they are.
    """

    stack: Stack
    tick: Tick
    active: Tensor
    lr: Tensor
    replay: Callable[[], Step]

    def load(self, stack: Stack) -> None:
        """Take the values of a stack of no more clients."""
        for field in fields(Stack):
            ours, theirs = getattr(self.stack, field.name), getattr(stack, field.name)
            for name, value in theirs.items() if isinstance(theirs, dict) else ():
                (ours[name] if field.name == "common" else ours[name][: len(value)]).copy_(value)
        self.stack.lr = stack.lr  # for steps that run plainly
        self.lr.fill_(stack.lr)

    def __call__(self, tick: Tick) -> Step:
        """The step of the tick's clients."""
        self.active.zero_()
        self.active[tick.members] = True
        for place, value in ((self.tick.rows, tick.rows), (self.tick.positions, tick.positions)):
            place[tick.members] = value
        if tick.windows is not None and self.tick.windows is not None:
            self.tick.windows[tick.members] = tick.windows
        logged, collected, labels = self.replay()
        # In new memory: the next replay writes over this answer.
        who = torch.arange(len(self.active), device=self.active.device)[tick.members]
        return Step(logged[who], None if collected is None else collected[who], labels[who])


class GraphedWorker(StackedWorker):
    """Answers training requests with captured steps; on a CPU, where nothing is captured, by calling the step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.captured: OrderedDict[Hashable, CapturedStep] = OrderedDict()
        self.current: CapturedStep | None = None

    def stacks(self, clients: Sequence[Client]) -> bool:
        return True

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """The clients' tensors at the places of a captured step."""
        stack = super().stack(clients, requests)
        size = min(self.setting.batch_size, max(c.n_train for c in clients))
        room = capacity(len(clients))
        key = (kind(requests[0]), tuple(stack.common), room, size)
        step = self.captured.pop(key, None) or self.capture(stack, room, size)
        self.captured[key] = step
        while len(self.captured) > GRAPHS:
            self.captured.popitem(last=False)
        step.load(stack)
        self.current = step
        return step.stack

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        # Not views: the next block is loaded into the same places.
        return {name: t.clone().unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        step = self.current
        assert step is not None
        count, size = tick.positions.shape
        if size != step.tick.positions.shape[1] or count < LEAST_SHARE * len(step.active):
            return super().step(stack, tick)
        return step(tick)

    def capture(self, like: Stack, room: int, size: int) -> CapturedStep:
        """A step of `room` clients with batches of `size`, for stacks of the same make as `like`."""
        states = {f.name: value for f in fields(Stack) if isinstance(value := getattr(like, f.name), dict)}
        places: dict[str, Any] = {name: _places(value, name, room) for name, value in states.items()}
        stack = replace(like, **places)
        zeros = torch.zeros(room, size, dtype=torch.long, device=self.device)
        whole = torch.tensor([0, 0, *self.federation.shape[:2]], device=self.device)
        windows = None if self.setting.augment == "none" else whole.expand(room, size, 4).clone()
        tick = Tick(slice(0, room), zeros, zeros.clone(), windows)
        active = torch.zeros(room, dtype=torch.bool, device=self.device)
        lr = torch.tensor(like.lr, device=self.device)

        def run() -> Step:
            return self.masked_step(stack, tick, active, lr)

        return CapturedStep(stack, tick, active, lr, _captured(run) if self.device.type == "cuda" else run)

    def masked_step(self, stack: Stack, tick: Tick, active: Tensor, lr: Tensor) -> Step:
        """One step of all, which counts for the active clients only; no value is looked at on the host."""
        before = {name: t.clone() for name, t in stack.buffers.items()}
        leaves, statistics, step = self.directed(stack, tick)
        with torch.no_grad():
            for name, p in leaves.items():
                if p.grad is None:
                    continue
                after, memory = stack.optimizer.moved(name, p, stack.memory, lr)
                _put(p, after, active)
                for key, value in memory.items():
                    _put(stack.memory[key], value, active)
            for name, value in statistics.items():
                _put(before[name], value, active)
                stack.buffers[name].copy_(before[name])
        return step


def capacity(clients: int) -> int:
    """Places for so many clients: a power of two, or one and a half times one, so that cohorts of like size share a
    graph."""
    power = 1 << max(clients - 1, 0).bit_length()
    return 3 * power // 4 if power >= 4 and 3 * power // 4 >= clients else power


def _places(value: State, field: str, room: int) -> State:
    if field == "common":
        return {name: t.detach().clone() for name, t in value.items()}
    return {name: torch.zeros(room, *t.shape[1:], dtype=t.dtype, device=t.device) for name, t in value.items()}


def _put(place: Tensor, value: Tensor, active: Tensor) -> None:
    """place[i] = value[i] for the active clients."""
    place.copy_(torch.where(active.view(-1, *[1] * (place.dim() - 1)), value, place))


def _captured(run: Callable[[], Step]) -> Callable[[], Step]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = run()

    def replay() -> Step:
        graph.replay()
        return answer

    return replay
