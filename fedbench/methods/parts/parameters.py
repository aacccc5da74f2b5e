"""What a method keeps or moves beside each parameter of the network, running statistics left out."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from fedbench.core.state import STATISTICS, State, name_in


def zeros(model: nn.Module, *names: str) -> State:
    """A tensor of zeros for each parameter of the network, under each of these names: "control/backbone.0.weight"."""
    return {name_in(name, n): torch.zeros_like(p.detach()) for name in names for n, p in model.named_parameters()}


def trainable(state: State) -> list[str]:
    """Names of what an optimiser may move: neither counters nor running statistics."""
    return [n for n, t in state.items() if t.is_floating_point() and not n.endswith(STATISTICS)]


def moved(before: State, after: State, share: float, names: Iterable[str]) -> State:
    """The named tensors on that share of their way from one state to another; beyond the end if it is above 1."""
    return {n: torch.lerp(before[n], after[n], share) for n in names}
