"""One gradient per client and round, and one Adam step of the server: the training loop of FTW-ERM's paper.

The paper's "FedAvg" is this loop, synchronous FedSGD with a server Adam, not local SGD (protocol, Sec. 1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.core.client import Batch, Client, ClientUpdate, Gradient, Loss
from fedbench.core.server import Server
from fedbench.core.state import State, weighted_mean
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts.clustered import sample_losses
from fedbench.methods.parts.steps import check_sgd, from_vector, vector
from fedbench.specs import Setting

#: Adam's settings (torch's defaults; the paper's code does not set them).
BETAS, EPS = (0.9, 0.999), 1e-8


def mean_loss(model: Any, batch: Batch) -> Loss:
    """Return the batch's mean cross-entropy."""
    return Loss(sample_losses(model, batch).mean())


def weighted_loss(model: Any, batch: Batch) -> Loss:
    """Return the batch's mean of weight times cross-entropy; `extras["weight"]` [>= n] are the weights of all images.

    The weights are not normalised within the batch. The plain cross-entropy is logged.
    """
    each = sample_losses(model, batch)
    return Loss((batch.extras["weight"][batch.position] * each).mean(), logged=each.mean())


def server_step(server: Server, cohort: Sequence[Client], scale: str = "mean") -> None:
    """Take one Adam step on the mean (or, with scale "sum", the sum) of the clients' gradients.

    Clients have equal weight: each gradient is a batch mean. Running statistics of norms become the plain mean of the
    participants' (paper, App. O). Learning rate and weight decay (L2, added to the gradient) are the setting's.
    """
    uploads = [c.upload.gradient for c in cohort if c.upload]
    if not uploads:
        return
    equal, setting = [1.0] * len(cohort), server.context.setting
    gradient = weighted_mean(uploads, equal, uploads[0])
    if scale == "sum":
        gradient = {name: len(cohort) * g for name, g in gradient.items()}
    parameters = {name: server.shared[name] for name in gradient}
    moved, server.memory = adam(parameters, gradient, server.memory, cohort[0].lr, setting.weight_decay)
    statistics = weighted_mean([c.state for c in cohort], equal, server.shared.keys() - gradient.keys())
    server.shared = {name: {**moved, **statistics}[name] for name in server.shared}


@dataclass(frozen=True)
class Slope:
    """Message from a client: the gradient of its batch, by parameter."""

    gradient: State


@dataclass(frozen=True)
class AdamMemory:
    """Adam's memory for P parameters in the order of the gradient's names: the number of steps [] float64, and the
    running means of gradients and of their squares, [P] each; None before the first step."""

    step: Tensor | None = None
    mean: Tensor | None = None
    square: Tensor | None = None


def adam(
    parameters: State, gradient: State, before: AdamMemory, lr: float, weight_decay: float
) -> tuple[State, AdamMemory]:
    """Return the parameters after one Adam step and the updated moments; changes nothing in place.

    Follows torch.optim.Adam with coupled weight decay.
    """
    names = list(gradient)
    w, g = vector(parameters, names), vector(gradient, names)
    if weight_decay:
        g = g + weight_decay * w
    step = (torch.zeros((), dtype=torch.float64, device=w.device) if before.step is None else before.step) + 1
    mean, square = (torch.zeros_like(w) if t is None else t for t in (before.mean, before.square))
    mean, square = mean.lerp(g, 1 - BETAS[0]), BETAS[1] * square + (1 - BETAS[1]) * g * g
    root = (square / (1 - BETAS[1] ** step)).sqrt() + EPS
    w = w - lr / (1 - BETAS[0] ** step) * mean / root
    return from_vector(w, parameters, names), AdamMemory(step, mean, square)


def scale_hyperparameter(help: str = "of the clients' gradients") -> Any:
    """Return the hyper-parameter `scale`: the server steps on the mean of the gradients or on their sum."""
    return hyperparameter("mean", help, source="code: mean; paper: sum", choices=("mean", "sum"))


@dataclass(frozen=True)
class OneStep(Method):
    """A method with this loop: each client of the cohort sends the gradient of one batch."""

    one_step = True

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)
        if setting.steps != 1:
            raise FedbenchError(
                f"{self.name} sends one gradient a round, so it needs one local step",
                "--steps 1, or a partition under '--protocol ftw_erm'",
            )
        if setting.momentum:
            raise FedbenchError(
                f"{self.name} steps by a server Adam, which takes no momentum",
                "--momentum 0, or a partition under '--protocol ftw_erm'",
            )

    def start(self, server: Server) -> None:
        server.memory = AdamMemory()

    def request(self, client: Client) -> Gradient:
        """Return the request for the gradient that a client sends."""
        return Gradient(mean_loss)

    def local(self, client: Client) -> ClientUpdate:
        client.upload = Slope((yield self.request(client)).gradient)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server_step(server, cohort, getattr(self, "scale", "mean"))
