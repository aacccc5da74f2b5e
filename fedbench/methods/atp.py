"""ATP: FedAvg, then learned rates for adapting each tensor to images without labels.

The first functions treat running statistics of batch norms as parameters: their difference from a batch's statistics,
and the gradient of a loss with respect to them. For networks in evaluation mode; networks without batch norms give
empty results.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Gradient, Loss, Request, logits
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, cross_entropy, hyperparameter
from fedbench.specs import Setting

MEAN, VARIANCE = ".running_mean", ".running_var"
#: torch's default, which all networks here use.
EPS = 1e-5


def layers(state: State) -> list[str]:
    """Return the name prefixes of a network's batch norms, in the order of its state."""
    return [name.removesuffix(MEAN) for name in state if name.endswith(MEAN)]


def moments(model: Any, batch: Batch) -> Tensor:
    """[B, 3, C] statistics of every batch norm's input, with the channels of all layers concatenated: mean and variance
    over an image's positions, and the number of positions."""
    layer_moments: dict[str, Tensor] = {}

    def record(name: str, x: Tensor) -> None:
        places = x.detach().reshape(*x.shape[:2], -1).float()
        variance, mean = torch.var_mean(places, 2, correction=0)
        layer_moments[name] = torch.stack([mean, variance, torch.full_like(mean, places.shape[2])], 1)

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: record(name, inputs[0]))
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
    ]
    try:
        model(batch.x)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(
        [layer_moments[name.removesuffix(MEAN)] for name, _ in model.named_buffers() if name.endswith(MEAN)], 2
    )


def ways(client: Client, split: str, part: tuple[int, int]) -> Generator[Collect, Any, State]:
    """Return running minus batch statistics of each batch norm for a batch that passes through the client's network in
    evaluation mode (the variance is unbiased, as in torch)."""
    names = layers(client.state)
    if not names:
        return {}
    answer = yield Collect(moments, split=split, part=part)
    means, variances, places = answer.rows.unbind(1)
    mean = means.mean(0)
    squares = (places * (variances + (means - mean).square())).sum(0)
    variance = squares / (places.sum(0) - 1).clamp_min(1)
    sizes = [len(client.state[name + MEAN]) for name in names]
    steps: State = {}
    for name, m, v in zip(names, mean.split(sizes), variance.split(sizes), strict=True):
        steps[name + MEAN] = client.state[name + MEAN] - m
        steps[name + VARIANCE] = client.state[name + VARIANCE] - v
    return steps


def gradients(state: State, gradient: State) -> State:
    """Return the gradient by the running statistics, computed from that by the norms' weights and biases.

    In evaluation mode a norm gives y = w (x - m) / s + b with s^2 = v + eps. So dL/dm = -(w / s) dL/db, and
    dL/dv = -(w / 2 s^2) dL/dw.
    """
    of_statistics: State = {}
    for name in layers(state):
        weight, square = state[f"{name}.weight"], state[name + VARIANCE] + EPS
        of_statistics[name + MEAN] = -weight / square.sqrt() * gradient[f"{name}.bias"]
        of_statistics[name + VARIANCE] = -weight / (2 * square) * gradient[f"{name}.weight"]
    return of_statistics


@dataclass(frozen=True)
class Rates:
    """Message in both directions: the rates [L], one for each of `adapted`'s tensors."""

    rates: Tensor


def adapted(state: State) -> list[str]:
    """Return the names of the L tensors that adapt: parameters, and running statistics of batch norms."""
    return [name for name, t in state.items() if t.is_floating_point()]


def entropy(model: Any, batch: Batch) -> Loss:
    """Return the mean entropy of the class probabilities, which needs no labels."""
    model.eval()  # running statistics adapt, so the network must use them
    log_p = torch.log_softmax(model(batch.x).float(), 1)
    return Loss(-(log_p.exp() * log_p).sum(1).mean())


def settled_cross_entropy(model: Any, batch: Batch) -> Loss:
    """Return the cross-entropy of the network with running statistics."""
    model.eval()
    return cross_entropy(model, batch)


def stepped(state: State, rates: Tensor, ways: State) -> State:
    """Move each tensor p of the network along its direction g to p - rate g; variances are at least 0."""
    moved = {name: state[name] - rate * ways[name] for name, rate in zip(adapted(state), rates, strict=True)}
    return {**state, **{n: t.clamp_min(0) if n.endswith(VARIANCE) else t for n, t in moved.items()}}


@dataclass(frozen=True)
class ATP(Method):
    """Adaptive test-time personalization (Bao et al., NeurIPS 2023) as FLUX compares with it.

    FedAvg trains the model theta. After that, in the same number of rounds, the clients of the last round learn rates
    alpha, one per tensor, which start at 0. On each batch of its validation images, a client takes one step
    theta - alpha_l g_l, where g_l is the gradient of the predictions' mean entropy (for a batch norm's running
    statistics: their difference from the batch's statistics). Then alpha_l <- alpha_l + eta <grad CE, g_l> /
    sqrt(numel), with the gradient of the labelled loss after that step. The server takes the plain mean of the clients'
    rates. To predict, each batch of test images is evaluated by theta after one such step on this batch. This needs no
    labels, so a client predicts the same whether it is known or not.

    deviates: in a federation without validation images rates are learned on training images.

    deviates: batches are those of the stored order in every round, not drawn anew; with partial participation, the
    clients of the last round learn the rates, not new ones each time.
    """

    name = "atp"
    title = "ATP"
    personalised = True
    takes_votes = False
    takes_multi_label = False

    eta: float = hyperparameter(0.1, "learning rate of the adaptation rates", "η", "Bao et al., code", least=0)
    rate_rounds: int = hyperparameter(
        0, "rounds that learn the rates; 0: as many as before", source="not given by FLUX", least=0
    )

    def start(self, server: Server) -> None:
        server.memory = Rates(torch.zeros(len(adapted(server.initial)), device=server.context.device))

    def ask(self, server: Server, t: int, k: int) -> Rates | None:
        rounds = server.context.setting.rounds
        return server.memory if t == rounds and k < (self.rate_rounds or rounds) else None

    def reply(self, client: Client) -> ClientUpdate:
        split = client.validates_on
        theta, rates = client.state, client.inbox.rates
        for part in self.batches(client, split):
            ways = yield from self.ways(client, split, part)
            client.state = stepped(theta, rates, ways)
            answer = yield Gradient(settled_cross_entropy, split=split, part=part)
            gradient = answer.gradient | gradients(client.state, answer.gradient)
            gains = [(gradient[n] * ways[n]).sum() / ways[n].numel() ** 0.5 for n in adapted(theta)]
            rates = rates + self.eta * torch.stack(gains)
            client.state = theta
        client.upload = Rates(rates)

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        mean = torch.stack([c.upload.rates for c in cohort]).double().mean(0)
        server.memory = Rates(mean.float())

    def batches(self, client: Client, split: str) -> list[tuple[int, int]]:
        """Return the first image of each batch of a split, and the one after its last."""
        n, size = client.count(split), client.setting.batch_size
        return [(at, min(at + size, n)) for at in range(0, n, size)]

    def ways(self, client: Client, split: str, part: tuple[int, int]) -> Generator[Request, Any, State]:
        """Return the direction g of a step on a batch, by tensor."""
        answer = yield Gradient(entropy, split=split, part=part)
        statistics = yield from ways(client, split, part)
        return {**answer.gradient, **statistics}

    def serve(self, server: Server, client: Client) -> None:
        client.inbox = server.memory

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return float(n_test) if final else 0.0

    def personalise(self, client: Client) -> ClientUpdate:
        if not client.final:  # the rates are still 0
            return
        theta, answers = client.state, []
        for part in self.batches(client, "test"):
            ways = yield from self.ways(client, "test", part)
            client.state = stepped(theta, client.inbox.rates, ways)
            scores = yield Collect(logits, split="test", part=part)
            answers.append(client.context.task.probabilities(scores.rows))
            client.state = theta
        client.answer = torch.cat(answers)
