"""A block of clients' requests, answered at once: tensors with a leading client axis, the loss under vmap.

The clients of a block advance in lockstep. Where their boxes ask for the same, one stack answers; a client that
asks for something of its own is answered by the reference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import (
    Answer,
    Batch,
    Box,
    Client,
    Collect,
    Collected,
    Differentiated,
    Gradient,
    Loss,
    LossFunction,
    Request,
    Train,
    Trained,
)
from fedbench.core.convolution import as_products
from fedbench.core.federation import Federation
from fedbench.core.grouped import with_clients_among_channels
from fedbench.core.optimizer import optimizer
from fedbench.core.plan import Ints
from fedbench.core.stack import Record, Stack, Step, Tick, padded, stacked, ticks
from fedbench.core.state import State, fetched, matches
from fedbench.core.worker import CHUNK, Piece, Worker, check_finite, on_host, pieces
from fedbench.spec import Setting

#: How a stack's convolutions are computed.
CONVOLUTIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "vmap": lambda model: model,
    "grouped": with_clients_among_channels,
    "unfold": as_products,
}


class Scope(nn.Module):
    """Calls a function with the model, so that `functional_call` can lay other tensors under all of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module, Batch], Any], batch: Batch) -> Any:
        return function(self.model, batch)

    def call(self, state: Mapping[str, Tensor], function: Callable[[nn.Module, Batch], Any], batch: Batch) -> Any:
        """function(model, batch) with this state in the model. Running statistics move in `state`'s tensors."""
        return torch.func.functional_call(self, {f"model.{n}": t for n, t in state.items()}, (function, batch))


class StackedWorker(Worker):
    """Answers requests of a block of clients at once.

    convolution: "vmap" leaves it to torch's own rule; "grouped" makes one grouped convolution of a layer's C
    convolutions, channels-last; "unfold" computes them as batched matrix products. compiled: through torch.compile
    (slow to start).
    """

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cancel: threading.Event,
        convolution: str = "grouped",
        compiled: bool = False,
    ) -> None:
        super().__init__(model, federation, setting, cancel)
        self.compiled = compiled
        self.functions: dict[LossFunction, Callable[..., dict[str, Tensor]]] = {}  #: those compiled
        self.scope = Scope(CONVOLUTIONS[convolution](self.model))

    # -- lockstep ----------------------------------------------------------------------------------------

    def serve(self, clients: Sequence[Client], box: Callable[[Client], Box | None]) -> None:
        started = time.perf_counter()
        self.fetch(clients)
        waiting: list[tuple[Client, Box, Answer | None]] = [
            (client, generator, None) for client in clients if (generator := box(client)) is not None
        ]
        while waiting:
            asked: dict[Hashable, list[tuple[Client, Box, Request]]] = {}
            for client, generator, answer in waiting:
                try:
                    request = generator.send(answer)
                except StopIteration:
                    continue
                client.counted(request)
                asked.setdefault(kind(request), []).append((client, generator, request))
            waiting = []
            for group in asked.values():
                began = time.perf_counter()
                answers = self.answer([c for c, _, _ in group], [r for _, _, r in group])
                for client, _, _ in group:
                    client.count("network", (time.perf_counter() - began) / len(group))
                waiting += [(c, g, a) for (c, g, _), a in zip(group, answers, strict=True)]
        self.put_by(clients)
        for client in clients:
            client.seconds += (time.perf_counter() - started) / len(clients)

    def answer(self, clients: Sequence[Client], requests: Sequence[Any]) -> Sequence[Answer]:
        """Answers to requests that differ in nothing but the client's own tensors."""
        client, request = clients[0], requests[0]
        if isinstance(request, Train) and self.stacks(clients):
            return self.train_stack(clients, requests)
        if len(clients) == 1:
            return [self.answer_one(client, request)]
        if isinstance(request, Gradient):
            if request.split != "train":  # rare, and a stack's ticks are of training rows
                return [self.gradient(c, r) for c, r in zip(clients, requests, strict=True)]
            return self.gradient_stack(clients, requests)
        return self.collect_stack(clients, requests)

    def stacks(self, clients: Sequence[Client]) -> bool:
        """Whether these clients' training is worth a stack."""
        return len(clients) > 1

    # -- training ----------------------------------------------------------------------------------------

    def train_stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> list[Trained]:
        """Minibatch training of all clients as the requests say; updates each `client.state`."""
        schedules = [self.batches(c, r) for c, r in zip(clients, requests, strict=True)]
        if not any(schedules):  # no steps, nothing to stack
            return [self.train(c, r) for c, r in zip(clients, requests, strict=True)]
        order = sorted(range(len(clients)), key=lambda i: -len(schedules[i]))  # who still trains comes first
        answers = self._train_in_order(
            [clients[i] for i in order], [requests[i] for i in order], [schedules[i] for i in order]
        )
        return [answers[order.index(i)] for i in range(len(order))]

    def _train_in_order(
        self, clients: Sequence[Client], requests: Sequence[Train], schedules: Sequence[Sequence[Ints]]
    ) -> list[Trained]:
        self.scope.train()  # with the model in it: as products, that is a twin
        request, stack, record = requests[0], self.stack(clients, requests), Record(len(clients))
        total = torch.zeros(len(clients), dtype=torch.float64, device=self.device)
        for tick in ticks(clients, schedules):
            self.stop_if_cancelled()
            if self.setting.momentum_restarts and tick.begins:
                for remembered in stack.memory.values():
                    remembered[tick.begins] = 0.0
            for _ in range(request.repeat):
                step = self.step(stack, tick)
                total[tick.members] += step.shown.double() * tick.rows.shape[1]
                record.add(tick.members, step)
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
            check_finite(client, means[i], ok)
            client.losses.append((means[i], images[i]))
        kept, labels = record.by_client()
        # In new memory: the next block's anchors may come to the same places.
        anchors = {n: t.clone().unbind() for n, t in stack.anchor.items()} if request.follow else {}
        return [
            Trained(
                loss=means[i],
                kept=kept[i],
                labels=labels[i],
                images=images[i],
                pass_rows=c.plan.pass_rows(c.index) * request.repeat,
                anchor={n: parts[i] for n, parts in anchors.items()},
            )
            for i, c in enumerate(clients)
        ]

    def follow(self, stack: Stack, tick: Tick) -> None:
        """Move the anchors of the tick's clients towards their weights."""
        who = tick.members
        for name, anchor in stack.anchor.items():
            anchor[who] = torch.lerp(anchor[who], stack.trained[name][who], stack.request.follow)

    def gradient_stack(self, clients: Sequence[Client], requests: Sequence[Gradient]) -> list[Differentiated]:
        """Each client's gradient on one batch; clients whose batches differ in size come one size after another."""
        self.scope.train()
        # A gradient is a step that is not taken: nothing is remembered of it.
        steps = [Train(r.loss, r.trains, momentum=0.0, extras=r.extras) for r in requests]
        stack = StackedWorker.stack(self, clients, steps)  # in new memory, not at the places of a captured step
        found: dict[int, Differentiated] = {}
        for tick in ticks(clients, [[self.batch_of(c, r)] for c, r in zip(clients, requests, strict=True)]):
            self.stop_if_cancelled()
            leaves, buffers, step = self.backward(stack, tick)
            gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
            finite = torch.stack([g.flatten(1).sum(1) for g in gradient.values()]).isfinite().all(0).tolist()
            who = range(len(clients))[tick.members] if isinstance(tick.members, slice) else tick.members.tolist()
            for k, (i, shown) in enumerate(zip(who, step.shown.tolist(), strict=True)):
                clients[i].state = {**clients[i].state, **{n: t[k] for n, t in buffers.items()}}
                check_finite(clients[i], shown, finite[k])
                clients[i].losses.append((shown, tick.rows.shape[1]))
                found[i] = Differentiated(shown, {n: g[k] for n, g in gradient.items()}, tick.rows.shape[1])
        return [found[i] for i in range(len(clients))]

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """The clients' tensors in a stack of new memory."""
        request, first = requests[0], clients[0]
        rule = optimizer(self.setting, request.momentum)
        fixed = [n for n in self.parameters if not matches(n, request.trains)]
        common = {n: first.state[n] for n in fixed if all(c.state[n] is first.state[n] for c in clients)}
        own = {n: stacked([c.state[n] for c in clients]) for n in self.tensors if n not in common}
        trained = {n: own[n] for n in self.parameters if n not in fixed}
        return Stack(
            request=request,
            optimizer=rule,
            lr=first.lr if request.lr is None else request.lr,
            trained=trained,
            buffers={n: t for n, t in own.items() if n not in self.parameters},
            frozen={n: own[n] for n in fixed if n not in common},
            common=common,
            anchor={n: stacked([c.received[n] for c in clients]) for n in trained} if request.anchor else {},
            memory=rule.memory(trained, stacked=True),
            extras={n: stacked([r.extras[n] for r in requests]) for n in request.extras},
        )

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        """What training changed: name -> one tensor a client (a view of the stack)."""
        return {name: t.unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        """One step of the tick's clients; updates the stack."""
        leaves, buffers, step = self.backward(stack, tick)
        memory = {n: t[tick.members] for n, t in stack.memory.items()}
        stack.optimizer.descend(leaves, memory, stack.lr)
        if isinstance(tick.members, Tensor):  # these were copies
            for whole, part in ((stack.trained, leaves), (stack.buffers, buffers), (stack.memory, memory)):
                for name, value in part.items():
                    whole[name][tick.members] = value.detach()
        return step

    def backward(self, stack: Stack, tick: Tick) -> tuple[State, State, Step]:
        """(leaves that hold their gradients, running statistics moved on, the step) of the tick's clients.

        Where the members are the first of the stack, leaves and statistics lie in its memory.
        """
        trained, buffers, frozen, extras = (
            {n: t[tick.members] for n, t in s.items()}
            for s in (stack.trained, stack.buffers, stack.frozen, stack.extras)
        )
        leaves = {n: t.detach().requires_grad_() for n, t in trained.items()}
        total, step = self.losses(stack, {**leaves, **buffers, **frozen}, self.stacked_batch(tick, extras))
        if stack.anchor:
            far = [(p - stack.anchor[n][tick.members]).square().flatten(1).sum(1) for n, p in leaves.items()]
            total = total + stack.request.anchor / 2 * torch.stack(far).sum(0)
        # Each client's loss depends on its own leaves alone, so the sum's gradient holds every client's gradient.
        torch.autograd.backward(total.sum())
        return leaves, buffers, step._replace(shown=total.detach()) if step.shown is None else step

    def stacked_batch(self, tick: Tick, extras: State) -> Batch:
        """The tick's batch, all of it [k, B, ...]."""
        x = self.batch(tick.rows.flatten(), None if tick.windows is None else tick.windows.flatten(0, 1))
        return Batch(x.view(*tick.rows.shape, *x.shape[1:]), self.federation.labels[tick.rows], tick.positions, extras)

    def losses(self, stack: Stack, state: State, batch: Batch) -> tuple[Tensor, Step]:
        """Each client's loss [k] (what the method minimises), and what is shown and kept of it."""
        with self.autocast():
            out = self.vmapped(stack.request.loss)(stack.common, state, batch)
        kept, shown = out.get("kept"), out.get("shown")
        return out["total"], Step(
            shown=None if shown is None else shown.detach(),  # type: ignore[arg-type]
            kept=None if kept is None else kept.detach().float(),
            labels=batch.y,
        )

    def vmapped(self, loss: LossFunction) -> Callable[[State, State, Batch], dict[str, Tensor]]:
        """The loss of all clients at once: (common, state [k, ...], batch [k, B, ...]) -> parts of Loss [k, ...]."""

        def one(common: State, state: State, batch: Batch) -> dict[str, Tensor]:
            parts: Loss = self.scope.call({**common, **state}, loss, batch)
            return {key: value for key, value in parts._asdict().items() if value is not None}

        together: Callable[..., dict[str, Tensor]] = torch.func.vmap(one, in_dims=(None, 0, 0))
        if not self.compiled:
            return together
        if loss not in self.functions:
            self.functions[loss] = torch.compile(together)
        return self.functions[loss]

    # -- answering ---------------------------------------------------------------------------------------

    def collect_stack(self, clients: Sequence[Client], requests: Sequence[Collect]) -> list[Collected]:
        """Each request's output for every image of a side of its client's data, or of a part of it."""
        request = requests[0]
        crops = [c.plan.crops("collect", c.round, c.index, c.looks) for c in clients]
        rows = [c.side(request.split, request.part) for c in clients]
        images = [Piece.joined(pieces(r, crop)) for r, crop in zip(rows, crops, strict=True)]
        first = request.part[0] if request.part else 0
        if self.hold_the_same(clients, requests):
            outputs = self.sweep_shared(clients[0], images, request, first)
        else:
            extras = {n: stacked([r.extras[n] for r in requests]) for n in request.extras}
            outputs = self.sweep(clients, images, request.output, extras, request.split, first)
        return [Collected(o.float(), self.labels(r, request.split)) for o, r in zip(outputs, rows, strict=True)]

    def hold_the_same(self, clients: Sequence[Client], requests: Sequence[Collect]) -> bool:
        """Whether all clients hold one model and send the same tensors along (the same objects)."""
        state, extras = clients[0].state, requests[0].extras
        return all(c.state[n] is state[n] for c in clients for n in self.tensors) and all(
            r.extras[n] is extras[n] for r in requests for n in extras
        )

    @torch.no_grad()
    def sweep_shared(self, client: Client, images: Sequence[Piece], request: Collect, first: int) -> list[Tensor]:
        """The output of one model for the images of several clients, one pass over all of them: [n, ...] a client."""
        model = self.load(client.state).eval()
        counts = [len(piece.rows) for piece in images]
        places = torch.cat([torch.arange(first, first + n, device=self.device) for n in counts])
        positions, parts = torch.split(places, CHUNK), []
        for piece, position in zip(Piece.joined(images).split(CHUNK), positions, strict=True):
            self.stop_if_cancelled()
            batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
            with self.autocast():
                parts.append(request.output(model, batch))
        return list(torch.split(torch.cat(parts), counts))

    def answers(self, clients: Sequence[Client], pieces: Sequence[Sequence[Piece]]) -> list[np.ndarray]:
        images = [Piece.joined(own) for own in pieces]
        # A model with a whole chunk of images of its own fills the device by itself.
        if len(clients) == 1 or all(len(piece.rows) >= CHUNK for piece in images):
            return super().answers(clients, pieces)
        return [on_host([self.answer_to(logits)]) for logits in self.sweep(clients, images, lambda m, b: m(b.x), {})]

    @torch.no_grad()
    def sweep(
        self,
        clients: Sequence[Client],
        images: Sequence[Piece],
        output: Callable[[Any, Batch], Tensor],
        extras: State,
        split: str = "test",
        first: int = 0,
    ) -> list[Tensor]:
        """output(model, batch) of each client's model for its own images, without gradients: [n, ...] a client.

        The images are those from position `first` on of a side of the clients' data.
        """
        self.scope.eval()
        order = sorted(range(len(clients)), key=lambda i: -len(images[i].rows))
        clients, images = [clients[i] for i in order], [images[i] for i in order]
        state = {n: stacked([fetched(c.state[n], self.device) for c in clients]) for n in self.tensors}
        extras = {n: t[order] for n, t in extras.items()}
        counts = [len(piece.rows) for piece in images]
        rows = padded([piece.rows for piece in images])
        drawn = [piece.windows for piece in images if piece.windows is not None]
        windows = padded(drawn) if drawn else None
        parts: list[list[Tensor]] = [[] for _ in clients]
        done = 0
        while active := sum(n > done for n in counts):
            self.stop_if_cancelled()
            who, cut = slice(0, active), slice(done, min(done + max(1, CHUNK // active), counts[0]))
            position = torch.arange(cut.start, cut.stop, device=self.device).expand(active, -1)
            tick = Tick(who, rows[who, cut], position, None if windows is None else windows[who, cut])
            batch = self.stacked_batch(tick, {n: t[who] for n, t in extras.items()})
            batch = batch._replace(y=self.labels(tick.rows, split), position=position + first)
            with self.autocast():
                out = torch.func.vmap(lambda s, b: self.scope.call(s, output, b))(
                    {n: t[who] for n, t in state.items()}, batch
                )
            for i in range(active):
                parts[i].append(out[i, : counts[i] - done])
            done = cut.stop
        whole = [torch.cat(p) for p in parts]
        return [whole[order.index(i)] for i in range(len(order))]


def kind(request: Request) -> Hashable:
    """Requests of one kind can be stacked: equal, with extra tensors of the same names and shapes."""
    return request, tuple(sorted((n, t.shape, t.dtype) for n, t in request.extras.items()))
