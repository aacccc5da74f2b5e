"""Training of one client on a network: minibatch steps, and the rules that change their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, Loss, Rule, Train, Trained, beside
from fedbench.core.hooks import loss_of
from fedbench.core.network import Network
from fedbench.core.optimizer import optimizer, recall, remember
from fedbench.core.state import State, matches, plain
from fedbench.errors import DivergedError

if TYPE_CHECKING:
    from fedbench.core.worker import Worker


def to_train(network: Network, prefixes: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters with these prefixes, which require gradients from now on; freezes the others."""
    for name, p in network.parameters.items():
        p.requires_grad_(matches(name, prefixes))
        p.grad = None  # may be left from an interrupted step
    return {name: p for name, p in network.parameters.items() if p.requires_grad}


def apply(
    rule: Rule,
    weights: Mapping[str, Tensor],
    besides: Mapping[str, State],
    again: Callable[[], Any],
    lift: Callable[[Callable[..., State]], Callable[..., State]] = lambda of_one: of_one,
) -> None:
    """Apply a rule to the gradients of the weights. `lift` converts the rule's functions of one client to those of a
    stack; `again` computes the gradients at the current weights."""
    touched = {n: w for n, w in weights.items() if w.grad is not None}
    with torch.no_grad():
        at = {n: w.detach() for n, w in touched.items()}
        gradient = {n: g.detach() for n, w in touched.items() if (g := w.grad) is not None}
        if rule.two_passes:
            gradient = gradients_at(lift(rule.elsewhere)(at, gradient, besides), touched, again)
        for n, g in lift(rule.direction)(at, gradient, besides).items():
            touched[n].grad = laid_as(touched[n], g)


def laid_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the strides of its weight, because torch's fused optimisers pair elements by address and on a
    CPU do not check the strides."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def gradients_at(place: State, weights: Mapping[str, Tensor], again: Callable[[], Any]) -> State:
    """The gradients at `place`, computed by `again`; restores the weights bitwise."""
    home = {n: w.detach().clone() for n, w in weights.items()}
    for n, w in weights.items():
        w.data.copy_(place[n])
        w.grad = None
    with torch.enable_grad():
        again()
    for n, w in weights.items():
        w.data.copy_(home[n])
    return {n: g if (g := w.grad) is not None else torch.zeros_like(w) for n, w in weights.items()}


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether all numbers are finite, as a tensor [] on the device."""
    if not tensors:
        return torch.ones((), dtype=torch.bool)
    sums = [t.detach().sum() for t in tensors]  # a sum is not finite if a summand is not
    return torch.stack(sums).isfinite().all()


def check_finite(client: Client, loss: float, finite: bool) -> None:
    """Raise DivergedError if training diverged, before the method uses the results."""
    if not (finite and math.isfinite(loss)):
        raise DivergedError(
            f"training diverged: client {client.index} in round {client.round} has a loss or weights not finite",
            "a smaller --lr may help",
        )


class LocalUpdate:
    """Training of one client on a network: `load` it, `take` each batch, `leave`.

    Tensors that a step uses in addition to the network's are attributes under the network's names: the optimiser's
    memory, the proximal centre, tensors for rules, the request's extras.
    """

    def __init__(self, worker: Worker, network: Network, request: Train) -> None:
        self.worker, self.network, self.request = worker, network, request
        self.optimizer = optimizer(worker.setting, request.momentum)
        self.total = torch.zeros((), dtype=torch.float64, device=worker.device)

    def load(self, client: Client, request: Train) -> None:
        """Start with a client and its request, which may differ from the previous request only in tensors."""
        self.client, self.request = client, request
        self.total.zero_()
        self.network.load(client.state).train()
        self.trained = to_train(self.network, request.trains)
        self.parameters = list(self.trained.values())
        received = {n: client.received[plain(n)].to(p.device).clone() for n, p in self.trained.items() if request.prox}
        self.centre = list(self.placed("centre", received).values())
        read = beside(request.rules, client.state, self.trained)
        self.besides = {model: self.placed(f"beside {model}", state) for model, state in read.items()}
        self.extras = self.placed("extras", request.extras)
        self.memory = self.placed("memory", self.optimizer.memory(self.trained, stacked=False))
        recall(client, request, self.memory)
        self.lr: float | Tensor = client.lr if request.lr is None else request.lr
        self.rows = client.work.rows
        self.images, self.steps, self.batches = 0, 0, 0
        self.collected: list[Tensor] = []
        self.positions: list[Tensor] = []

    def placed(self, kind: str, tensors: Mapping[str, Tensor]) -> State:
        """The client's tensors of this kind, at the addresses that the steps use."""
        return dict(tensors)

    def take(self, position: Tensor, windows: Tensor | None) -> None:
        """Take the steps on one batch: positions [B] in the client's training set, crop windows [B, 4] or None."""
        self.rest()
        if (collected := self.step(position, windows)) is not None:
            self.collected.append(collected)
        self.count(position)

    def rest(self) -> None:
        """With `momentum_restarts`, reset the optimiser at the start of a pass."""
        if self.worker.setting.momentum_restarts and self.batches % self.client.batches_a_pass == 0:
            for remembered in self.memory.values():
                remembered.zero_()

    def count(self, position: Tensor) -> None:
        self.batches += 1
        self.positions += [position] * self.request.repeat
        self.steps += self.request.repeat
        self.images += len(position) * self.request.repeat

    def step(self, position: Tensor, windows: Tensor | None) -> Tensor | None:
        """Compute the steps on one batch; returns the rows that the loss collects, or None."""
        worker, request = self.worker, self.request
        rows = self.rows[position]
        batch = Batch(worker.batch(rows, windows), worker.federation.labels[rows], position, self.extras)
        collected: list[Tensor] = []
        for _ in range(request.repeat):
            loss, objective = self.backward(batch)
            for change in request.rules:
                apply(change, self.trained, self.besides, lambda: self.backward(batch))
            self.optimizer.descend(self.trained, self.memory, self.lr)
            logged = objective if loss.logged is None else loss.logged
            self.total += logged.detach().double() * len(position)
            if loss.collected is not None:
                collected.append(loss.collected.detach().float())
        if request.follow:
            with torch.no_grad():
                for centre, p in zip(self.centre, self.parameters, strict=True):
                    centre.lerp_(p, request.follow)
        return torch.cat(collected) if collected else None

    def backward(self, batch: Batch) -> tuple[Loss, Tensor]:
        """The loss of a batch, and the objective that is minimised; adds gradients to the parameters'."""
        with self.worker.autocast():
            loss = self.loss(batch)
        objective = loss.total
        if self.centre:
            far = [(p - a).square().sum() for p, a in zip(self.parameters, self.centre, strict=True)]
            objective = objective + self.request.prox / 2 * sum(far)
        torch.autograd.backward(objective)
        return loss, objective

    def loss(self, batch: Batch) -> Loss:
        return loss_of(self.request.loss, self.network.module, batch)

    def leave(self) -> Callable[[], Trained]:
        """Write the trained tensors to `client.state`. Returns a function that waits for the device and gives the
        answer to the request, Trained."""
        client, request, images, steps = self.client, self.request, self.images, self.steps
        client.state = {
            **client.state,
            # In a fixed memory layout, so that a state from a checkpoint gives bitwise the same results.
            **{
                name: t.detach().clone(memory_format=torch.contiguous_format)
                for name, t in self.network.tensors.items()
                if name in self.trained or name in self.network.buffers
            },
        }
        remember(client, request, self.memory)
        total, finite = self.total.clone(), all_finite(self.parameters)
        visited = client.work.rows[torch.cat(self.positions)] if self.positions else client.work.rows[:0]
        collected, labels = self.collected, self.worker.federation.labels[visited]
        centre = {n: t.clone() for n, t in zip(self.trained, self.centre, strict=True)} if request.follow else {}

        def answer() -> Trained:
            mean = float(total) / max(images, 1)
            check_finite(client, mean, bool(finite))
            client.work.losses.append((mean, images))
            return Trained(
                loss=mean,
                collected=torch.cat(collected) if collected else None,
                labels=labels,
                images=images,
                pass_rows=client.work.plan.pass_rows(client.index) * request.repeat,
                centre=centre,
                steps=steps,
            )

        return answer
