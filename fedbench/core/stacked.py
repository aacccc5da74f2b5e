"""A block of clients' requests, answered at once: tensors with a leading client axis, the loss under vmap.

The clients of a block advance in lockstep. Where their updates ask for the same, one stack answers; a client that
asks for something of its own is answered by the reference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.client import (
    Answer,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Differentiated,
    Gradient,
    Loss,
    Request,
    Train,
    Trained,
)
from fedbench.core.convolution import twin
from fedbench.core.federation import Federation
from fedbench.core.gradients import check_finite, gradients, gradients_at, laid_as
from fedbench.core.grouped import with_clients_among_channels
from fedbench.core.momentum import remember
from fedbench.core.norms import with_norms_for_vmap
from fedbench.core.plan import Ints
from fedbench.core.rules import Rule
from fedbench.core.stack import Record, Stack, Step, Tick, by_model, stack_of, ticks
from fedbench.core.stacked_collect import StackedCollector, kind
from fedbench.core.state import State
from fedbench.core.update import following, loss_of, opened
from fedbench.core.waiting import fetch, put_by
from fedbench.specs import Setting

#: How a stack's convolutions are computed.
CONVOLUTIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "vmap": twin,
    "grouped": with_clients_among_channels,
}
#: The fastest on each kind of device.
FASTEST = {"cpu": "grouped", "cuda": "vmap"}


class StackedWorker(StackedCollector):
    """Answers requests of a block of clients at once.

    convolution: "vmap" leaves it to torch's own rule; "grouped" makes one grouped convolution of a layer's C
    convolutions, channels-last; "" is the device's FASTEST.
    """

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cancel: threading.Event,
        convolution: str = "",
    ) -> None:
        which = convolution or FASTEST[federation.images.device.type]
        lay = CONVOLUTIONS[which]
        super().__init__(model, federation, setting, cancel, lambda model: with_norms_for_vmap(lay(model)))

    # -- lockstep ----------------------------------------------------------------------------------------

    def serve(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        started = time.perf_counter()
        fetch(clients, self.device)
        waiting: list[tuple[Client, ClientUpdate, Answer | None]] = [
            (client, generator, None) for client in clients if (generator := opened(update, client)) is not None
        ]
        while waiting:
            groups: dict[Hashable, list[tuple[Client, ClientUpdate, Request]]] = {}
            for client, generator, answer in waiting:
                request = following(update, generator, answer, client)
                if request is None:
                    continue
                client.work.counted(draws=not isinstance(request, Collect))
                groups.setdefault(kind(request), []).append((client, generator, request))
            waiting = []
            for group in groups.values():
                began = time.perf_counter()
                answers = self.answer([c for c, _, _ in group], [r for _, _, r in group])
                for client, _, _ in group:
                    client.work.count("network", (time.perf_counter() - began) / len(group))
                waiting += [(c, g, a) for (c, g, _), a in zip(group, answers, strict=True)]
        put_by(clients)
        for client in clients:
            client.work.seconds += (time.perf_counter() - started) / len(clients)

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
        request = requests[0]
        self.networks.of(request.model).scope.train()  # with the model in it: as products, that is a twin
        stack, record = self.stack(clients, requests), Record(len(clients))
        total = torch.zeros(len(clients), dtype=torch.float64, device=self.device)
        for tick in ticks(clients, schedules):
            self.stop_if_cancelled()
            if self.setting.momentum_restarts and tick.begins:
                for remembered in stack.memory.values():
                    remembered[tick.begins] = 0.0
            for _ in range(request.repeat):
                step = self.step(stack, tick)
                total[tick.members] += step.logged.double() * tick.rows.shape[1]
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
            remember(client, requests[i], {n: t[i] for n, t in stack.memory.items()})
            check_finite(client, means[i], ok)
            client.work.losses.append((means[i], images[i]))
        collected, labels = record.by_client()
        # In new memory: the next block's centres may come to the same places.
        centres = {n: t.clone().unbind() for n, t in stack.centre.items()} if request.follow else {}
        return [
            Trained(
                loss=means[i],
                collected=collected[i],
                labels=labels[i],
                images=images[i],
                pass_rows=c.work.plan.pass_rows(c.index) * request.repeat,
                centre={n: parts[i] for n, parts in centres.items()},
                steps=request.repeat * len(schedules[i]),
            )
            for i, c in enumerate(clients)
        ]

    def follow(self, stack: Stack, tick: Tick) -> None:
        """Move the centres of the tick's clients towards their weights."""
        who = tick.members
        for name, centre in stack.centre.items():
            centre[who] = torch.lerp(centre[who], stack.trained[name][who], stack.request.follow)

    def gradient_stack(self, clients: Sequence[Client], requests: Sequence[Gradient]) -> list[Differentiated]:
        """Each client's gradient on one batch; clients whose batches differ in size come one size after another."""
        self.networks.of(requests[0].model).scope.train()
        # A gradient is a step that is not taken: nothing is remembered of it.
        steps = [Train(r.loss, r.trains, model=r.model, momentum=0.0, extras=r.extras) for r in requests]
        stack = StackedWorker.stack(self, clients, steps)  # in new memory, not at the places of a captured step
        gradient_of: dict[int, Differentiated] = {}
        for tick in ticks(clients, [[self.batch_of(c, r)] for c, r in zip(clients, requests, strict=True)]):
            self.stop_if_cancelled()
            leaves, buffers, step = self.backward(stack, tick)
            gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
            finite = torch.stack([g.flatten(1).sum(1) for g in gradient.values()]).isfinite().all(0).tolist()
            who = range(len(clients))[tick.members] if isinstance(tick.members, slice) else tick.members.tolist()
            for k, (i, logged) in enumerate(zip(who, step.logged.tolist(), strict=True)):
                clients[i].state = {**clients[i].state, **{n: t[k] for n, t in buffers.items()}}
                check_finite(clients[i], logged, finite[k])
                clients[i].work.losses.append((logged, tick.rows.shape[1]))
                gradient_of[i] = Differentiated(logged, {n: g[k] for n, g in gradient.items()}, tick.rows.shape[1])
        return [gradient_of[i] for i in range(len(clients))]

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """The clients' tensors in a stack of new memory."""
        return stack_of(clients, requests, self.networks.of(requests[0].model), self.setting)

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        """What training changed: name -> one tensor a client (a view of the stack)."""
        return {name: t.unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        """One step of the tick's clients; updates the stack."""
        leaves, buffers, step = self.directed(stack, tick)
        memory = {n: t[tick.members] for n, t in stack.memory.items()}
        stack.optimizer.descend(leaves, memory, stack.lr)
        if isinstance(tick.members, Tensor):  # these were copies
            for whole, part in ((stack.trained, leaves), (stack.buffers, buffers), (stack.memory, memory)):
                for name, value in part.items():
                    whole[name][tick.members] = value.detach()
        return step

    def directed(self, stack: Stack, tick: Tick) -> tuple[State, State, Step]:
        """As `backward`, the gradients changed by the request's rules."""
        leaves, buffers, step = self.backward(stack, tick)
        besides = by_model({n: t[tick.members] for n, t in stack.beside.items()})
        for rule in stack.request.rules:
            self.apply(rule, stack, tick, leaves, buffers, besides)
        return leaves, buffers, step

    def apply(
        self, rule: Rule, stack: Stack, tick: Tick, leaves: State, buffers: State, besides: Mapping[str, State]
    ) -> None:
        """Change the leaves' gradients by a rule, which is written for one client."""
        touched = {n: p for n, p in leaves.items() if p.grad is not None}
        at, gradient = {n: p.detach() for n, p in touched.items()}, gradients(touched)

        def again() -> None:
            self.differentiate(stack, tick, leaves, buffers)

        with torch.no_grad():
            if rule.two_passes:
                gradient = gradients_at(torch.func.vmap(rule.elsewhere)(at, gradient, besides), touched, again)
            for n, g in torch.func.vmap(rule.direction)(at, gradient, besides).items():
                touched[n].grad = laid_as(touched[n], g)

    def backward(self, stack: Stack, tick: Tick) -> tuple[State, State, Step]:
        """(leaves that hold their gradients, running statistics moved on, the step) of the tick's clients.

        Where the members are the first of the stack, leaves and statistics lie in its memory.
        """
        trained, buffers = ({n: t[tick.members] for n, t in s.items()} for s in (stack.trained, stack.buffers))
        leaves = {n: t.detach().requires_grad_() for n, t in trained.items()}
        total, step = self.differentiate(stack, tick, leaves, buffers)
        return leaves, buffers, step._replace(logged=total.detach()) if step.logged is None else step

    def differentiate(self, stack: Stack, tick: Tick, leaves: State, buffers: State) -> tuple[Tensor, Step]:
        """(each client's objective [k], the step); adds its gradient to the leaves' and moves running statistics."""
        frozen, extras = ({n: t[tick.members] for n, t in s.items()} for s in (stack.frozen, stack.extras))
        total, step = self.losses(stack, {**leaves, **buffers, **frozen}, self.stacked_batch(tick, extras))
        if stack.centre:
            far = [(p - stack.centre[n][tick.members]).square().flatten(1).sum(1) for n, p in leaves.items()]
            total = total + stack.request.prox / 2 * torch.stack(far).sum(0)
        # Each client's loss depends on its own leaves alone, so the sum's gradient holds every client's gradient.
        torch.autograd.backward(total.sum())
        return total, step

    def losses(self, stack: Stack, state: State, batch: Batch) -> tuple[Tensor, Step]:
        """Each client's loss [k] (what the method minimises), and what is logged and collected of it."""
        with self.autocast():
            out = self.vmapped(stack.request)(stack.common, state, batch)
        collected, logged = out.get("collected"), out.get("logged")
        return out["total"], Step(
            logged=None if logged is None else logged.detach(),  # type: ignore[arg-type]
            collected=None if collected is None else collected.detach().float(),
            labels=batch.y,
        )

    def vmapped(self, request: Train) -> Callable[[State, State, Batch], dict[str, Tensor]]:
        """The loss of all clients at once: (common, state [k, ...], batch [k, B, ...]) -> parts of Loss [k, ...]."""
        network = self.networks.of(request.model)

        def one(common: State, state: State, batch: Batch) -> dict[str, Tensor]:
            parts: Loss = network.call({**common, **state}, partial(loss_of, request.loss), batch)
            return {key: value for key, value in parts._asdict().items() if value is not None}

        together: Callable[..., dict[str, Tensor]] = torch.func.vmap(one, in_dims=(None, 0, 0))
        return together
