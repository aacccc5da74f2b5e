"""A model's state as a flat dictionary of tensors, its file, and the averages a server takes of it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.errors import FedbenchError

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


#: Bytes, in float64, of each tensor's copies that a mean takes at once; it shapes float rounding.
PIECE = 64 << 20
#: Numbers of each copy that stand in float64 at a time: all would take twice the copies' memory, and no cache has them.
COLUMNS = 4096


class Mean:
    """The weighted mean of the named tensors of states that come one after another, in float64 and in that order.

    Integer tensors (counters of a norm layer) take the first state's value. The weights, one a state, need not sum to
    one.
    """

    def __init__(self, names: Iterable[str], weights: Sequence[float]) -> None:
        self.share = torch.tensor(weights, dtype=torch.float64) / float(sum(weights))
        self.names, self.count = tuple(names), 0  #: states so far
        self.sums: dict[str, _Sum] = {}
        self.counters: State = {}

    def add(self, state: State) -> None:
        """Take the next state, whose tensors nobody may write to any more; some are held alive for a while."""
        for name in self.names:
            tensor = state[name]
            if not tensor.is_floating_point():
                if name not in self.counters:
                    self.counters[name] = tensor.clone()
                continue
            if name not in self.sums:
                self.sums[name] = _Sum(tensor, self.share)
            self.sums[name].add(tensor)
        self.count += 1

    def result(self) -> State:
        """The mean, after as many states as there are weights."""
        assert self.count == len(self.share), f"{self.count} of {len(self.share)} states"
        return {n: self.counters[n] if n in self.counters else self.sums[n].result() for n in self.names}


class _Sum:
    """Of one tensor. No more of its copies are alive than PIECE has room for: many in few operations, since with a
    thousand clients a launch for each would take longer than the sums. Large ones are the states' own; small ones stand
    in one tensor, as each by itself takes more for being one than for its numbers."""

    def __init__(self, first: Tensor, share: Tensor) -> None:
        self.shape, self.dtype, self.share, self.at = first.shape, first.dtype, share.to(first.device), 0
        self.size = min(max(1, PIECE // (8 * first.numel())), len(share))
        self.total = torch.zeros(first.numel(), dtype=torch.float64, device=first.device)
        self.small = first.new_empty(self.size, first.numel()) if first.numel() <= COLUMNS else None
        self.large: list[Tensor] = []
        # A GPU has no use for columns: each would be a launch, of which a ResNet-18 had twelve thousand a round.
        self.weights = share.tolist() if first.is_cuda and self.small is None else None

    def add(self, tensor: Tensor) -> None:
        n, flat = self.at % self.size + 1, tensor.detach().reshape(-1)
        if self.weights is not None:
            self.total.add_(flat, alpha=self.weights[self.at])
            self.at += 1
            return
        if self.small is not None:
            self.small[n - 1] = flat
        else:
            self.large.append(flat)
        self.at += 1
        if n == self.size or self.at == len(self.share):
            share = self.share[self.at - n : self.at]
            for first, total in zip(range(0, flat.numel(), COLUMNS), torch.split(self.total, COLUMNS), strict=True):
                columns = slice(first, first + COLUMNS)
                part = torch.stack([copy[columns] for copy in self.large]) if self.small is None else self.small[:n]
                total += share @ part.double()
            self.large = []

    def result(self) -> Tensor:
        return self.total.to(self.dtype).view(self.shape)


def weighted_mean(states: Sequence[State], weights: Sequence[float], names: Iterable[str]) -> State:
    """`Mean` of states that are all there, in this order."""
    out: State = {}
    for name in names:  # one after another: only one tensor's copies at a time
        mean = Mean([name], weights)
        for state in states:
            mean.add(state)
        out |= mean.result()
    return out


def check_state(state: Any, like: Mapping[str, Tensor], what: str) -> None:
    """Raise FedbenchError unless this is a state that has all tensors of another, of their shapes and types. It may
    have more. `what` names it, such as "mine: aggregate leaves server.shared"."""
    if not isinstance(state, Mapping):
        raise FedbenchError(f"{what} as {reprlib.repr(state)}, not a dictionary of tensors")
    for name, tensor in state.items():
        before = like.get(name, tensor)
        if not isinstance(tensor, Tensor):
            raise FedbenchError(f"{what}['{name}'] as {reprlib.repr(tensor)}, not a tensor")
        if tensor is not before and (tensor.shape != before.shape or tensor.dtype != before.dtype):
            raise FedbenchError(f"{what}['{name}'] as {_form(tensor)}, not {_form(before)}", "keep its shape and type")
    if missing := [name for name in like if name not in state]:
        raise FedbenchError(
            f"{what} without {missing[0]}", "change some in a copy of the dictionary, and leave the rest"
        )


def _form(tensor: Tensor) -> str:
    """Such as "float32 [3, 2]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


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


#: The entry of a file that has the order of its tensors: safetensors itself sorts them.
_ORDER = "order"


def write(path: Path, tensors: State) -> None:
    """Write tensors as a file of safetensors from which they come back in their order."""
    from safetensors.torch import save_file

    save_file(separate(tensors), path, metadata={_ORDER: json.dumps(list(tensors))})


def names_of(file: Any) -> list[str]:
    """The tensors of an open file of `write`, in their order. Raises KeyError for another file."""
    return list(json.loads((file.metadata() or {})[_ORDER]))
