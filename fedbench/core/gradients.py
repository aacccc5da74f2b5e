"""The gradients of local steps: which parameters have one, and how a request's rules change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.client import Client
from fedbench.core.network import Network
from fedbench.core.rules import Rule
from fedbench.core.state import State, matches
from fedbench.errors import DivergedError


def to_train(network: Network, prefixes: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that these prefixes name, made ready for gradients; the others are frozen."""
    for name, p in network.parameters.items():
        p.requires_grad_(matches(name, prefixes))
        p.grad = None  # of a step that was interrupted
    return {name: p for name, p in network.parameters.items() if p.requires_grad}


def apply(rule: Rule, weights: Mapping[str, Tensor], besides: Mapping[str, State], again: Callable[[], Any]) -> None:
    """Change the gradients that the weights hold by a rule of one client; `again` takes them where the weights are."""
    touched = {n: w for n, w in weights.items() if w.grad is not None}
    with torch.no_grad():
        at, gradient = ({n: t.detach() for n, t in s.items()} for s in (touched, gradients(touched)))
        if rule.two_passes:
            gradient = gradients_at(rule.elsewhere(at, gradient, besides), touched, again)
        for n, g in rule.direction(at, gradient, besides).items():
            touched[n].grad = laid_as(touched[n], g)


def laid_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, in memory in the order of its weight: torch's fused steps go by addresses, and on a CPU do not
    say when these differ."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def gradients(weights: Mapping[str, Tensor]) -> State:
    """The gradients that the weights hold."""
    return {n: g for n, w in weights.items() if (g := w.grad) is not None}


def gradients_at(place: State, weights: Mapping[str, Tensor], again: Callable[[], Any]) -> State:
    """The gradients elsewhere; the weights come back to the bit."""
    home = {n: w.detach().clone() for n, w in weights.items()}
    for n, w in weights.items():
        w.data.copy_(place[n])
        w.grad = None
    with torch.enable_grad():
        again()
    for n, w in weights.items():
        w.data.copy_(home[n])
    return {n: g if (g := w.grad) is not None else torch.zeros_like(w) for n, w in weights.items()}


@torch.no_grad()
def follow(centres: Sequence[Tensor], parameters: Sequence[Tensor], share: float) -> None:
    """Move centres that share of their way to the parameters, in place."""
    for centre, p in zip(centres, parameters, strict=True):
        centre.lerp_(p, share)


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether all numbers are finite, as one [] on the device."""
    if not tensors:
        return torch.ones((), dtype=torch.bool)
    sums = [t.detach().sum() for t in tensors]  # of what is not finite neither is the sum
    return torch.stack(sums).isfinite().all()


def check_finite(client: Client, loss: float, finite: bool) -> None:
    """Stop a run that has diverged, before a method works with what came out."""
    if not (finite and math.isfinite(loss)):
        raise DivergedError(
            f"training diverged: client {client.index} in round {client.round} has a loss or weights not finite",
            "a smaller --lr may help",
        )
