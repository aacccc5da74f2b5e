"""A model's state as a flat dictionary of tensors; its file format; weighted means."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.errors import FedbenchError

#: Parameters, buffers and a method's variables by name, such as 'backbone.0.weight' or 'gaussian.mean'. A further model
#: with the name 'own' has the names 'own/backbone.0.weight' and so on.
State = dict[str, Tensor]

#: Suffixes of a network's buffers, which norm layers update without gradients.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def name_in(model: str, name: str) -> str:
    """A tensor's name in a client's state: "own/head.weight" in the model "own", "head.weight" in the model ""."""
    return f"{model}/{name}" if model else name


def plain(name: str) -> str:
    """A tensor's name in the network, without the prefix of a model."""
    return name.rsplit("/", 1)[-1]


def model_in(state: State, model: str) -> State:
    """The tensors of a named model in a state, under the network's names."""
    prefix = f"{model}/"
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def as_model(state: State, model: str) -> State:
    """The network's tensors in a state, without those of named models, renamed to those of the model `model`."""
    return {name_in(model, name): t for name, t in state.items() if "/" not in name}


def matches(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a tensor's name starts with one of the prefixes ('' matches every name)."""
    return any(name.startswith(p) for p in prefixes)


def state_of(module: nn.Module) -> State:
    """A copy of the module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def size_in_bytes(state: State) -> int:
    """Bytes that sending the state takes, uncompressed."""
    return sum(t.numel() * t.element_size() for t in state.values())


#: Bytes of float64 copies of one tensor that a mean sums at a time. Changing it changes the rounding.
PIECE = 64 << 20
#: Elements of each copy that are in float64 at a time; all of them would need twice the memory and miss the caches.
COLUMNS = 4096


class Mean:
    """Running weighted mean of the named tensors of states, summed in float64 in the order of arrival.

    Integer tensors (counters of norm layers) have the first state's value. `weights` has one entry per state and need
    not sum to one.
    """

    def __init__(self, names: Iterable[str], weights: Sequence[float]) -> None:
        self.share = torch.tensor(weights, dtype=torch.float64) / float(sum(weights))
        self.names, self.count = tuple(names), 0  #: states so far
        self.sums: dict[str, _Sum] = {}
        self.counters: State = {}

    def add(self, state: State) -> None:
        """Add the next state. Its tensors must not be modified afterwards, because some are read later."""
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
        """The mean, after one state per weight."""
        assert self.count == len(self.share), f"{self.count} of {len(self.share)} states"
        return {n: self.counters[n] if n in self.counters else self.sums[n].result() for n in self.names}


class _Sum:
    """Sum of one tensor. Buffers as many copies as fit into PIECE and sums them in few operations, since with a
    thousand clients one launch per copy would take longer than the sums. Buffers large tensors by reference, and copies
    small ones into one tensor, because many small tensors have more overhead than content."""

    def __init__(self, first: Tensor, share: Tensor) -> None:
        self.shape, self.dtype, self.share, self.at = first.shape, first.dtype, share.to(first.device), 0
        self.size = min(max(1, PIECE // (8 * first.numel())), len(share))
        self.total = torch.zeros(first.numel(), dtype=torch.float64, device=first.device)
        self.small = first.new_empty(self.size, first.numel()) if first.numel() <= COLUMNS else None
        self.large: list[Tensor] = []
        # Not by columns on a GPU: each would be a launch, twelve thousand per round for a ResNet-18.
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
    """`Mean` of a list of states, in this order."""
    out: State = {}
    for name in names:  # one by one, so that only one tensor's copies are in memory
        mean = Mean([name], weights)
        for state in states:
            mean.add(state)
        out |= mean.result()
    return out


def check_state(state: Any, like: Mapping[str, Tensor], what: str) -> None:
    """Raise FedbenchError unless `state` has all tensors of `like`, with their shapes and types. Further tensors are
    allowed. `what` starts the message, such as "mine: aggregate leaves server.shared"."""
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
    """Type and shape, such as "float32 [3, 2]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def compact(tensor: Tensor) -> Tensor:
    """A tensor with its own storage: a slice would keep the whole stack alive."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() else tensor


def separate(tensors: State) -> State:
    """The tensors, contiguous and without shared storage, because safetensors rejects two names for one storage."""
    places: set[int] = set()
    out: State = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        out[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    return out


#: Metadata key for the names in their order, because safetensors sorts them; each with the name that its tensor is
#: stored under, which differs where two names have one tensor.
_NAMES = "names"


def write(path: Path, tensors: State) -> None:
    """Write a safetensors file that preserves the order of the tensors, and which names have the same tensor."""
    from safetensors.torch import save_file

    first: dict[int, str] = {}
    names = {name: first.setdefault(id(t), name) for name, t in tensors.items()}
    stored = {name: t for name, t in tensors.items() if names[name] == name}
    save_file(separate(stored), path, metadata={_NAMES: json.dumps(names)})


def tensors_of(file: Any) -> State:
    """The tensors in an open file of `write`, in their order. Raises KeyError for other files."""
    names: dict[str, str] = json.loads((file.metadata() or {})[_NAMES])
    stored = {name: file.get_tensor(name) for name in dict.fromkeys(names.values())}
    return {name: stored[place] for name, place in names.items()}
