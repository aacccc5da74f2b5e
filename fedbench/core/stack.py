"""What a stack of clients is, how it is put together, and the order of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import Client, Train
from fedbench.core.momentum import recall
from fedbench.core.network import Network
from fedbench.core.optimizer import Optimizer, optimizer
from fedbench.core.pieces import on_device
from fedbench.core.plan import Ints
from fedbench.core.rules import beside
from fedbench.core.state import State, matches, plain
from fedbench.specs import Setting

#: A few clients of a stack: the first so many (a view of its tensors), or any (a copy).
Members = slice | Tensor


@dataclass
class Stack:
    """C clients that train together. All tensors [C, ...], but `common` ones that all clients share."""

    request: Train
    optimizer: Optimizer
    lr: float
    trained: State
    buffers: State  #: running statistics
    frozen: State  #: parameters that do not train, a copy a client
    common: State  #: parameters that do not train, the same for all
    centre: State  #: of a proximal term, if there is one: at first what the clients received of `trained`
    memory: State  #: what the optimiser remembers
    extras: State
    beside: State  #: what the request's rules read, as "model:name"


class Tick(NamedTuple):
    """One step of some clients: rows [k, B] of the federation, positions [k, B] in the clients' training sets, crop
    windows [k, B, 4] or None, and which of the stack's clients begin a pass over their data with it."""

    members: Members
    rows: Tensor
    positions: Tensor
    windows: Tensor | None
    begins: Sequence[int] = ()


class Step(NamedTuple):
    """What a step gives: logged loss [k], collected rows [k, B, ...] or None, labels [k, B]."""

    logged: Tensor
    collected: Tensor | None
    labels: Tensor


def ticks(clients: Sequence[Client], schedules: Sequence[Sequence[Ints]]) -> Iterator[Tick]:
    """The clients' steps side by side, those with most steps first; the schedules hold the positions of each batch.

    Whole steps are left out for who has done all of its own, nothing is padded. Clients whose batches differ in size
    (a short last one) step one size after another.
    """
    crops = [c.work.plan.crops("train", c.round, c.index, c.work.phase) for c in clients]
    passes = [c.work.plan.batches_a_pass(c.index) for c in clients]
    members: list[list[int]] = []
    begins: list[list[int]] = []
    positions: list[np.ndarray] = []
    windows: list[np.ndarray] = []
    for t in range(len(schedules[0])):
        sizes: dict[int, list[int]] = {}
        for i, schedule in enumerate(schedules):
            if t < len(schedule):
                sizes.setdefault(len(schedule[t]), []).append(i)
        for size, who in sizes.items():
            members.append(who)
            begins.append([i for i in who if t % passes[i] == 0])
            positions.append(np.stack([schedules[i][t] for i in who]))
            crops_of_step = [stream.draw(size) for i in who if (stream := crops[i]) is not None]
            if crops_of_step:
                windows.append(np.stack(crops_of_step))
    rows = padded([c.work.rows for c in clients])
    together = on_device(positions, rows.device)
    cropped = on_device(windows, rows.device) if windows else [None] * len(together)
    for who, position, window, begin in zip(members, together, cropped, begins, strict=True):
        first = who == list(range(len(who)))
        these = slice(0, len(who)) if first else torch.tensor(who, device=rows.device)
        yield Tick(these, rows[these].gather(1, position), position, window, begin)


class Record:
    """Kept rows and labels of a stack's steps, brought together by client."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.steps: list[tuple[Members, Step]] = []

    def add(self, members: Members, step: Step) -> None:
        self.steps.append((members, step))

    def by_client(self) -> tuple[list[Tensor | None], list[Tensor]]:
        """(collected rows [R, ...] or None, labels [R]) of each client, in the order of its steps."""
        collected: list[list[Tensor]] = [[] for _ in range(self.clients)]
        labels: list[list[Tensor]] = [[] for _ in range(self.clients)]
        for members, run in self._runs():
            who = range(members.stop) if isinstance(members, slice) else members.tolist()
            _deal(torch.stack([step.labels for step in run], 1), who, labels)
            rows = [step.collected for step in run if step.collected is not None]
            if rows:
                _deal(torch.stack(rows, 1), who, collected)
        return [torch.cat(k) if k else None for k in collected], [torch.cat(y) for y in labels]

    def _runs(self) -> Iterator[tuple[Members, list[Step]]]:
        """Consecutive steps of the same clients with batches of one size: few large copies, not many small ones."""
        at = 0
        while at < len(self.steps):
            members, first = self.steps[at]
            run = [first]
            for others, step in self.steps[at + 1 :]:
                if not (isinstance(others, slice) and others == members and step.labels.shape == first.labels.shape):
                    break
                run.append(step)
            at += len(run)
            yield members, run


def _deal(rows: Tensor, who: Sequence[int], parts: list[list[Tensor]]) -> None:
    """rows [k, T, B, ...] to the lists of their k clients, as [T B, ...]."""
    for i, mine in zip(who, rows.flatten(1, 2).unbind(), strict=True):
        parts[i].append(mine)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """[C, ...] in new memory."""
    first = tensors[0]
    if all(t is first for t in tensors):
        return first.detach().expand(len(tensors), *first.shape).clone(memory_format=torch.contiguous_format)
    return torch.stack([t.detach() for t in tensors])


def padded(tensors: Sequence[Tensor]) -> Tensor:
    """[C, longest, ...], each filled up with its own first row."""
    longest = max(len(t) for t in tensors)
    return torch.stack([torch.cat([t, t[:1].expand(longest - len(t), *t.shape[1:])]) for t in tensors])


def stack_of(clients: Sequence[Client], requests: Sequence[Train], network: Network, setting: Setting) -> Stack:
    """The clients' tensors in a stack of new memory."""
    request, first = requests[0], clients[0]
    rule = optimizer(setting, request.momentum)
    fixed = [n for n in network.parameters if not matches(n, request.trains)]
    common = {n: first.state[n] for n in fixed if all(c.state[n] is first.state[n] for c in clients)}
    own = {n: stacked([c.state[n] for c in clients]) for n in network.tensors if n not in common}
    trained = {n: own[n] for n in network.parameters if n not in fixed}
    memory = rule.memory(trained, stacked=True)
    for i, (client, its) in enumerate(zip(clients, requests, strict=True)):
        recall(client, its, {n: t[i] for n, t in memory.items()})
    besides = [_flat(beside(request.rules, c.state, trained)) for c in clients] if request.rules else [{}]
    return Stack(
        request=request,
        optimizer=rule,
        lr=first.lr if request.lr is None else request.lr,
        trained=trained,
        buffers={n: t for n, t in own.items() if n not in network.parameters},
        frozen={n: own[n] for n in fixed if n not in common},
        common=common,
        centre={n: stacked([c.received[plain(n)] for c in clients]) for n in trained} if request.prox else {},
        memory=memory,
        extras={n: stacked([r.extras[n] for r in requests]) for n in request.extras},
        beside={n: stacked([b[n] for b in besides]) for n in besides[0]},
    )


def _flat(besides: Mapping[str, State]) -> State:
    """model -> name -> tensor, as "model:name" -> tensor."""
    return {f"{model}:{name}": t for model, state in besides.items() for name, t in state.items()}


def by_model(flat: State) -> dict[str, State]:
    """Inverse of `_flat`."""
    besides: dict[str, State] = {}
    for key, t in flat.items():
        model, name = key.split(":", 1)
        besides.setdefault(model, {})[name] = t
    return besides
