"""Running statistics of batch norms as if they were parameters: their way to those of a batch, and a loss's gradient
by them. For networks in evaluation mode; without batch norms there is nothing of either."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.client import Batch, Client, Collect
from fedbench.core.state import State

MEAN, VARIANCE = ".running_mean", ".running_var"
#: torch's own, which all networks here keep.
EPS = 1e-5


def layers(state: State) -> list[str]:
    """The batch norms of a network, by the names that its tensors begin with, as they come in its state."""
    return [name.removesuffix(MEAN) for name in state if name.endswith(MEAN)]


def moments(model: Any, batch: Batch) -> Tensor:
    """[B, 3, C] of what every batch norm reads, the channels of all layers one after another: mean and variance over
    an image's places, and how many places there are."""
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
    """Running minus batch statistics of each batch norm, where the batch goes through the network that the client holds
    in evaluation mode (the variance is the unbiased one, as torch keeps it)."""
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
    """The gradient by the running statistics, from that by the norms' weights and biases.

    In evaluation mode a norm gives y = w (x - m) / s + b with s^2 = v + eps. So dL/dm = -(w / s) dL/db, and
    dL/dv = -(w / 2 s^2) dL/dw.
    """
    of_statistics: State = {}
    for name in layers(state):
        weight, square = state[f"{name}.weight"], state[name + VARIANCE] + EPS
        of_statistics[name + MEAN] = -weight / square.sqrt() * gradient[f"{name}.bias"]
        of_statistics[name + VARIANCE] = -weight / (2 * square) * gradient[f"{name}.weight"]
    return of_statistics
