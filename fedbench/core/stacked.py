"""Requests of a block of clients in one batch: tensors with a leading client axis, and the loss under vmap.

The clients of a block run in lockstep. Equal requests form one stack; a client with a different request is handled as
in the reference (`Worker`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import (
    Answer,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Collected,
    Differentiated,
    Gradient,
    Loss,
    Request,
    Train,
    Trained,
    beside,
)
from fedbench.core.federation import Federation
from fedbench.core.hooks import following, loss_of, opened, output_of
from fedbench.core.images import CHUNK, Piece, pieces
from fedbench.core.local_update import apply, check_finite
from fedbench.core.optimizer import Optimizer, optimizer, recall, remember
from fedbench.core.plan import Ints
from fedbench.core.state import State, matches, plain
from fedbench.core.variants import twin, with_clients_among_channels, with_norms_for_vmap
from fedbench.core.worker import Worker, answering, load_to_device, offload, on, on_device
from fedbench.specs import Setting

#: Clients of a stack: a slice for the first few (indexing gives views), or indices (indexing copies).
Members = slice | Tensor


@dataclass
class Stack:
    """C clients that train in one batch. All tensors are [C, ...], except `common`, which all clients share."""

    request: Train
    optimizer: Optimizer
    lr: float | Tensor
    trained: State
    buffers: State  #: running statistics
    frozen: State  #: parameters that are not trained and differ between clients
    common: State  #: parameters that are not trained and the same for all
    centre: State  #: centre of the proximal term, if `prox` is set; initially what the clients received
    memory: State  #: the optimiser's
    extras: State
    beside: State  #: tensors for the request's rules, as "model:name"


class Tick(NamedTuple):
    """One step of some clients: rows [k, B] of the federation, positions [k, B] in the clients' training sets, crop
    windows [k, B, 4] or None, and the clients (indices in the stack) that start a pass with this step."""

    members: Members
    rows: Tensor
    positions: Tensor
    windows: Tensor | None
    begins: Sequence[int] = ()


class Step(NamedTuple):
    """Result of a step: logged loss [k], collected rows [k, B, ...] or None."""

    logged: Tensor
    collected: Tensor | None


def ticks(clients: Sequence[Client], schedules: Sequence[Sequence[Ints]]) -> Iterator[Tick]:
    """The steps of all clients, which are sorted by number of steps, largest first. `schedules`: positions per batch.

    A client that has finished takes part in no further step, so there is no padding. Clients whose batches have
    different sizes (a smaller last one) take separate steps.
    """
    crops = [Worker.crops(c) for c in clients]
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
    drawn = on_device(positions, rows.device)
    cropped = on_device(windows, rows.device) if windows else [None] * len(drawn)
    for who, position, window, begin in zip(members, drawn, cropped, begins, strict=True):
        first = who == list(range(len(who)))
        these = slice(0, len(who)) if first else torch.tensor(who, device=rows.device)
        yield Tick(these, rows[these].gather(1, position), position, window, begin)


def indices(members: Members) -> list[int]:
    """The members' indices in the stack."""
    return list(range(members.stop)) if isinstance(members, slice) else members.tolist()


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one new tensor [C, ...]."""
    first = tensors[0]
    if all(t is first for t in tensors):
        return first.detach().expand(len(tensors), *first.shape).clone(memory_format=torch.contiguous_format)
    return torch.stack([t.detach() for t in tensors])


def padded(tensors: Sequence[Tensor]) -> Tensor:
    """[C, longest, ...]: each tensor padded with copies of its first row."""
    longest = max(len(t) for t in tensors)
    return torch.stack([torch.cat([t, t[:1].expand(longest - len(t), *t.shape[1:])]) for t in tensors])


def _flat(besides: Mapping[str, State]) -> State:
    """Flatten model -> name -> tensor to "model:name" -> tensor."""
    return {f"{model}:{name}": t for model, state in besides.items() for name, t in state.items()}


def by_model(flat: State) -> dict[str, State]:
    """Inverse of `_flat`."""
    besides: dict[str, State] = {}
    for key, t in flat.items():
        model, name = key.split(":", 1)
        besides.setdefault(model, {})[name] = t
    return besides


def kind(request: Request) -> Hashable:
    """The key of requests that can be stacked: equal, and with extras of the same names, shapes and types."""
    return request, tuple(sorted((n, t.shape, t.dtype) for n, t in request.extras.items()))


#: The variant of a network that is fastest in a stack, by kind of device; on a GPU torch's own vmap rules are.
FASTEST: dict[str, Callable[[nn.Module], nn.Module]] = {"cpu": with_clients_among_channels, "cuda": twin}


class StackedWorker(Worker):
    """Answers the requests of a block of clients in batches."""

    least = 2  #: smallest number of clients for which a training stack pays off

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cancel: threading.Event,
    ) -> None:
        form = FASTEST[federation.images.device.type]
        super().__init__(model, federation, setting, cancel, lambda model: with_norms_for_vmap(form(model)))

    def serve(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        started = time.perf_counter()
        load_to_device(clients, self.device)
        waiting: list[tuple[Client, ClientUpdate, Answer | None]] = [
            (client, generator, None) for client in clients if (generator := opened(update, client)) is not None
        ]
        while waiting:
            groups: dict[Hashable, list[tuple[Client, ClientUpdate, Request]]] = {}
            for client, generator, answer in waiting:
                request = following(update, generator, answer, client)
                if request is None:
                    continue
                client.work.counted(request)
                groups.setdefault(kind(request), []).append((client, generator, request))
            waiting = []
            for group in groups.values():
                began = time.perf_counter()
                answers = self.answer([c for c, _, _ in group], [r for _, _, r in group])
                for client, _, _ in group:
                    client.work.count("network", (time.perf_counter() - began) / len(group))
                waiting += [(c, g, a) for (c, g, _), a in zip(group, answers, strict=True)]
        offload(clients)
        for client in clients:
            client.work.seconds += (time.perf_counter() - started) / len(clients)

    def answer(self, clients: Sequence[Client], requests: Sequence[Any]) -> Sequence[Answer]:
        """Answer requests that are equal except for the clients' tensors."""
        client, request = clients[0], requests[0]
        if isinstance(request, Train) and len(clients) >= self.least:
            return self.train_stack(clients, requests)
        if len(clients) == 1:
            return [self.answer_one(client, request)]
        if isinstance(request, Gradient):
            if request.split != "train":  # rare, and a tick has training rows only
                return [self.gradient(c, r) for c, r in zip(clients, requests, strict=True)]
            return self.gradient_stack(clients, requests)
        return self.collect_stack(clients, requests)

    def train_stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> list[Trained]:
        """Train all clients on minibatches; updates each `client.state`."""
        schedules = [self.batches(c, r) for c, r in zip(clients, requests, strict=True)]
        if not any(schedules):  # no steps, nothing to stack
            return [self.train(c, r) for c, r in zip(clients, requests, strict=True)]
        order = sorted(range(len(clients)), key=lambda i: -len(schedules[i]))  # so that active clients come first
        clients, requests = [clients[i] for i in order], [requests[i] for i in order]
        schedules, request = [schedules[i] for i in order], requests[0]
        self.networks.of(request.model).scope.train()  # sets the mode of the variant for stacks, which may be a twin
        stack, kept = self.stack(clients, requests), list[tuple[Members, Tensor]]()
        total = torch.zeros(len(clients), dtype=torch.float64, device=self.device)
        for tick in ticks(clients, schedules):
            self.stop_if_cancelled()
            if self.setting.momentum_restarts and tick.begins:
                for remembered in stack.memory.values():
                    remembered[tick.begins] = 0.0
            for _ in range(request.repeat):
                step = self.step(stack, tick)
                total[tick.members] += step.logged.double() * tick.rows.shape[1]
                if step.collected is not None:
                    kept.append((tick.members, step.collected))
            if request.follow:
                self.follow(stack, tick)
        finite = torch.ones(len(clients), dtype=torch.bool, device=self.device)
        for t in stack.trained.values():
            finite &= t[: len(clients)].isfinite().flatten(1).all(1)
        images = [request.repeat * sum(len(b) for b in schedule) for schedule in schedules]
        means = [t / max(n, 1) for t, n in zip(total.tolist(), images, strict=True)]
        moved = self.moved(stack)
        for i, (client, ok) in enumerate(zip(clients, finite.tolist(), strict=True)):
            client.state = {**client.state, **{name: parts[i] for name, parts in moved.items()}}
            remember(client, requests[i], {n: t[i] for n, t in stack.memory.items()})
            check_finite(client, means[i], ok)
            client.work.losses.append((means[i], images[i]))
        collected = [list[Tensor]() for _ in clients]
        for members, rows in kept:  # after the loop, because on a GPU this waits for the device
            for i, its in zip(indices(members), rows.unbind(), strict=True):
                collected[i].append(its)
        visited = [np.concatenate([batch for batch in own for _ in range(request.repeat)]) for own in schedules]
        positions = on_device(visited, self.device)
        # Clones, because the next block's centres may use the same memory.
        centres = {n: t.clone().unbind() for n, t in stack.centre.items()} if request.follow else {}
        answers = [
            Trained(
                loss=means[i],
                collected=torch.cat(collected[i]) if collected[i] else None,
                labels=self.federation.labels[c.work.rows[positions[i]]],
                images=images[i],
                pass_rows=c.work.plan.pass_rows(c.index) * request.repeat,
                centre={n: parts[i] for n, parts in centres.items()},
                steps=request.repeat * len(schedules[i]),
            )
            for i, c in enumerate(clients)
        ]
        return [answers[order.index(i)] for i in range(len(order))]

    def follow(self, stack: Stack, tick: Tick) -> None:
        """Move the proximal centres of the tick's clients towards their weights."""
        who = tick.members
        for name, centre in stack.centre.items():
            centre[who] = torch.lerp(centre[who], stack.trained[name][who], stack.request.follow)

    def gradient_stack(self, clients: Sequence[Client], requests: Sequence[Gradient]) -> list[Differentiated]:
        """Each client's gradient on one batch. Clients whose batches have different sizes are computed separately."""
        self.networks.of(requests[0].model).scope.train()
        # Momentum 0 selects SGD without state, since a gradient changes no optimiser state.
        steps = [Train(r.loss, r.trains, model=r.model, momentum=0.0, extras=r.extras) for r in requests]
        stack = StackedWorker.stack(self, clients, steps)  # in new memory, not that of a captured step
        gradient_of: dict[int, Differentiated] = {}
        for tick in ticks(clients, [[self.batch_of(c, r)] for c, r in zip(clients, requests, strict=True)]):
            self.stop_if_cancelled()
            leaves, buffers, step = self.backward(stack, tick)
            gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
            finite = torch.stack([g.flatten(1).sum(1) for g in gradient.values()]).isfinite().all(0).tolist()
            for k, (i, logged) in enumerate(zip(indices(tick.members), step.logged.tolist(), strict=True)):
                clients[i].state = {**clients[i].state, **{n: t[k] for n, t in buffers.items()}}
                check_finite(clients[i], logged, finite[k])
                clients[i].work.losses.append((logged, tick.rows.shape[1]))
                gradient_of[i] = Differentiated(logged, {n: g[k] for n, g in gradient.items()}, tick.rows.shape[1])
        return [gradient_of[i] for i in range(len(clients))]

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """Stack the clients' tensors in new memory."""
        request, first = requests[0], clients[0]
        network = self.networks.of(request.model)
        rule = optimizer(self.setting, request.momentum)
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

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        """The tensors that training changed: name -> one tensor per client (a view of the stack)."""
        return {name: t.unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        """Take one step for the tick's clients; updates the stack."""
        leaves, buffers, step = self.backward(stack, tick)
        besides = by_model({n: t[tick.members] for n, t in stack.beside.items()})
        for rule in stack.request.rules:  # written for one client, so under vmap
            again = partial(self.differentiate, stack, tick, leaves, buffers)
            apply(rule, leaves, besides, again, torch.func.vmap)
        memory = {n: t[tick.members] for n, t in stack.memory.items()}
        stack.optimizer.descend(leaves, memory, stack.lr)
        if isinstance(tick.members, Tensor):  # indexing has copied: write the results back
            for whole, part in ((stack.trained, leaves), (stack.buffers, buffers), (stack.memory, memory)):
                for name, value in part.items():
                    whole[name][tick.members] = value.detach()
        return step

    def backward(self, stack: Stack, tick: Tick) -> tuple[State, State, Step]:
        """(leaves with their gradients, updated running statistics, the step) for the tick's clients.

        If `tick.members` is a slice, leaves and statistics are views of the stack.
        """
        trained, buffers = ({n: t[tick.members] for n, t in s.items()} for s in (stack.trained, stack.buffers))
        leaves = {n: t.detach().requires_grad_() for n, t in trained.items()}
        total, step = self.differentiate(stack, tick, leaves, buffers)
        return leaves, buffers, step._replace(logged=total.detach()) if step.logged is None else step

    def differentiate(self, stack: Stack, tick: Tick, leaves: State, buffers: State) -> tuple[Tensor, Step]:
        """(each client's objective [k], the step). Adds gradients to the leaves' and updates running statistics."""
        frozen, extras = ({n: t[tick.members] for n, t in s.items()} for s in (stack.frozen, stack.extras))
        batch, network = self.stacked_batch(tick, extras), self.networks.of(stack.request.model)

        def loss(common: State, state: State, batch: Batch) -> dict[str, Tensor]:
            parts: Loss = network.call({**common, **state}, partial(loss_of, stack.request.loss), batch)
            return {key: value for key, value in parts._asdict().items() if value is not None}

        with self.autocast():
            out = torch.func.vmap(loss, in_dims=(None, 0, 0))(stack.common, {**leaves, **buffers, **frozen}, batch)
        total, collected, logged = out["total"], out.get("collected"), out.get("logged")
        step = Step(
            logged=None if logged is None else logged.detach(),  # type: ignore[arg-type]
            collected=None if collected is None else collected.detach().float(),
        )
        if stack.centre:
            far = [(p - stack.centre[n][tick.members]).square().flatten(1).sum(1) for n, p in leaves.items()]
            total = total + stack.request.prox / 2 * torch.stack(far).sum(0)
        # Each client's loss depends only on its leaves, so the gradient of the sum contains every client's gradient.
        torch.autograd.backward(total.sum())
        return total, step

    def collect_stack(self, clients: Sequence[Client], requests: Sequence[Collect]) -> list[Collected]:
        """Each request's output for all images of a split, or part of a split, of its client's data."""
        request = requests[0]
        crops = [c.work.plan.crops("collect", c.round, c.index, c.work.collects) for c in clients]
        rows = [c.work.rows_of(request.split, request.part) for c in clients]
        images = [Piece.joined(pieces(r, crop)) for r, crop in zip(rows, crops, strict=True)]
        first = request.part[0] if request.part else 0
        if self.hold_the_same(clients, requests):
            outputs = self.sweep_shared(clients[0], images, request, first)
        else:
            extras = {n: stacked([r.extras[n] for r in requests]) for n in request.extras}
            outputs = self.sweep(clients, images, request, extras, first)
        return [Collected(o.float(), self.labels(r, request.split)) for o, r in zip(outputs, rows, strict=True)]

    def hold_the_same(self, clients: Sequence[Client], requests: Sequence[Collect]) -> bool:
        """Whether all clients have the same model and the same extras (the same tensor objects)."""
        state, extras = clients[0].state, requests[0].extras
        names = self.networks.of(requests[0].model).tensors
        return all(c.state[n] is state[n] for c in clients for n in names) and all(
            r.extras[n] is extras[n] for r in requests for n in extras
        )

    @torch.no_grad()
    def sweep_shared(self, client: Client, images: Sequence[Piece], request: Collect, first: int) -> list[Tensor]:
        """Outputs of one model for the images of several clients, computed in one pass: [n, ...] per client."""
        self.load(client.state, request.model)
        counts = [len(piece.rows) for piece in images]
        places = torch.cat([torch.arange(first, first + n, device=self.device) for n in counts])
        positions, parts = torch.split(places, CHUNK), []
        for piece, position in zip(Piece.joined(images).split(CHUNK), positions, strict=True):
            parts.append(self.output(request, piece, position))
        return list(torch.split(torch.cat(parts), counts))

    def scores(self, clients: Sequence[Client], images: Sequence[Sequence[Piece]]) -> list[Tensor]:
        whole, requests = [Piece.joined(own) for own in images], [answering(c) for c in clients]
        one_kind = all(kind(r) == kind(requests[0]) for r in requests)
        # A model with a full chunk of images uses the device fully without stacking.
        if len(clients) == 1 or not one_kind or all(len(piece.rows) >= CHUNK for piece in whole):
            return super().scores(clients, images)
        extras = {n: stacked([r.extras[n] for r in requests]) for n in requests[0].extras}
        return self.sweep(clients, whole, requests[0], extras)

    @torch.no_grad()
    def sweep(
        self,
        clients: Sequence[Client],
        images: Sequence[Piece],
        request: Collect,
        extras: State,
        first: int = 0,
    ) -> list[Tensor]:
        """Outputs of each client's model for its images, without gradients: [n, ...] per client.

        The images are those from position `first` on in a split of the client's data; extras are [C, ...].
        """
        network = self.networks.of(request.model)
        network.scope.eval()
        order = sorted(range(len(clients)), key=lambda i: -len(images[i].rows))
        clients, images = [clients[i] for i in order], [images[i] for i in order]
        state = {n: stacked([on(c.state[n], self.device) for c in clients]) for n in network.tensors}
        extras = {n: t[order] for n, t in extras.items()}
        counts = [len(piece.rows) for piece in images]
        rows = padded([piece.rows for piece in images])
        crops = [piece.windows for piece in images if piece.windows is not None]
        windows = padded(crops) if crops else None
        parts: list[list[Tensor]] = [[] for _ in clients]
        done = 0
        while active := sum(n > done for n in counts):
            self.stop_if_cancelled()
            who, cut = slice(0, active), slice(done, min(done + max(1, CHUNK // active), counts[0]))
            position = torch.arange(cut.start, cut.stop, device=self.device).expand(active, -1)
            tick = Tick(who, rows[who, cut], position, None if windows is None else windows[who, cut])
            batch = self.stacked_batch(tick, {n: t[who] for n, t in extras.items()})
            batch = batch._replace(y=self.labels(tick.rows, request.split), position=position + first)
            with self.autocast():
                out = torch.func.vmap(lambda s, b: network.call(s, partial(output_of, request.output), b))(
                    {n: t[who] for n, t in state.items()}, batch
                )
            for i in range(active):
                parts[i].append(out[i, : counts[i] - done])
            done = cut.stop
        whole = [torch.cat(p) for p in parts]
        return [whole[order.index(i)] for i in range(len(order))]

    def stacked_batch(self, tick: Tick, extras: State) -> Batch:
        """The tick's batch; all tensors are [k, B, ...]."""
        x = self.batch(tick.rows.flatten(), None if tick.windows is None else tick.windows.flatten(0, 1))
        return Batch(x.view(*tick.rows.shape, *x.shape[1:]), self.federation.labels[tick.rows], tick.positions, extras)
