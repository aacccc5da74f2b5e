"""A model's state as a flat dictionary of tensors, and the averages a server takes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

#: Parameters, buffers and a method's own variables by name, such as 'trunk.0.weight' or 'gaussian.mean'.
State = dict[str, Tensor]


def matches(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a tensor's name starts with one of the prefixes ('' matches all)."""
    return any(name.startswith(p) for p in prefixes)


def state_of(module: nn.Module) -> State:
    """A copy of the module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def size_in_bytes(state: State) -> int:
    """Bytes that sending the state takes, uncompressed."""
    return sum(t.numel() * t.element_size() for t in state.values())


def weighted_mean(states: Sequence[State], weights: Sequence[float], names: Iterable[str]) -> State:
    """Weighted mean of the named tensors over clients, accumulated in float64 in the given order.

    Integer tensors (counters of a norm layer) take the first client's value. The weights need not sum to one.
    """
    total = float(sum(weights))
    out: State = {}
    for name in names:
        first = states[0][name]
        if not first.is_floating_point():
            out[name] = first.clone()
            continue
        mean = torch.zeros_like(first, dtype=torch.float64)
        for state, weight in zip(states, weights, strict=True):
            mean.add_(state[name].double(), alpha=weight / total)
        out[name] = mean.to(first.dtype)
    return out
