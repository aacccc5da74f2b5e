"""A model's state as a flat dictionary of tensors, and the averages a server takes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

#: Parameters, buffers and a method's own variables by name, such as 'backbone.0.weight' or 'gaussian.mean'; those of a
#: further model that goes by the name 'own' are 'own/backbone.0.weight' and so on.
State = dict[str, Tensor]

#: Ends of the names of what a network holds beside its parameters: what its norm layers count and do not train.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def name_in(model: str, name: str) -> str:
    """The name, in a client's state, of a tensor of one of its models: "own/head.weight"; of "" the network's own."""
    return f"{model}/{name}" if model else name


def plain(name: str) -> str:
    """The network's name of a tensor of any of a client's models."""
    return name.rsplit("/", 1)[-1]


def model_in(state: State, model: str) -> State:
    """The tensors of that named model in a state, under the network's names."""
    prefix = f"{model}/"
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def as_model(state: State, model: str) -> State:
    """A network's tensors (other named models and what belongs to them left out), under the names of that model."""
    return {name_in(model, name): t for name, t in state.items() if "/" not in name}


def matches(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a tensor's name starts with one of the prefixes ('' matches all)."""
    return any(name.startswith(p) for p in prefixes)


def state_of(module: nn.Module) -> State:
    """A copy of the module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def size_in_bytes(state: State) -> int:
    """Bytes that sending the state takes, uncompressed."""
    return sum(t.numel() * t.element_size() for t in state.values())


#: Bytes of clients' tensors that a mean takes at once.
PIECE = 64 << 20


def weighted_mean(states: Sequence[State], weights: Sequence[float], names: Iterable[str]) -> State:
    """Weighted mean of the named tensors over clients, accumulated in float64 in the given order.

    Integer tensors (counters of a norm layer) take the first client's value. The weights need not sum to one.
    """
    share = torch.tensor(weights, dtype=torch.float64) / float(sum(weights))
    out: State = {}
    for name in names:
        first = states[0][name]
        if not first.is_floating_point():
            out[name] = first.clone()
            continue
        mean = torch.zeros(first.numel(), dtype=torch.float64, device=first.device)
        size = max(1, PIECE // (8 * first.numel()))
        # Many clients in few operations: with a thousand of them a launch for each would take longer than the sums.
        for at in range(0, len(states), size):
            tensors = torch.stack([state[name].reshape(-1) for state in states[at : at + size]])
            mean += share[at : at + size].to(first.device) @ tensors.double()
        out[name] = mean.to(first.dtype).view(first.shape)
    return out


def compact(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: a slice of a stack would keep the whole stack alive."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() else tensor


def separate(tensors: State) -> State:
    """The tensors, contiguous, each with memory of its own: safetensors refuses two names for one tensor."""
    places: set[int] = set()
    out: State = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        out[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    return out
