"""Messages between server and clients, and the server's memory: small dataclasses, measured and saved by their fields.

A field is a tensor, a number, a dictionary or sequence of these, another dataclass, or None if it is empty.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.core.state import State, name_in
from fedbench.errors import FedbenchError

#: Bytes per number.
NUMBER = 8


@dataclass(frozen=True)
class Question:
    """A server's question without arguments; the method knows what it means."""


def size(message: Any) -> int:
    """Bytes for sending a message, uncompressed; a tensor that occurs twice counts once."""
    leaves = [leaf for _, leaf in _leaves(message, "message")]
    unique = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    numbers = sum(not isinstance(leaf, Tensor) for leaf in leaves)
    return sum(t.numel() * t.element_size() for t in unique.values()) + NUMBER * numbers


def check(message: Any, what: str) -> None:
    """Raise FedbenchError unless `message` is None or a valid message; `what` is its name in the error."""
    for _ in _leaves(message, what):
        pass
    if message is not None and not _is_dataclass(message):
        raise FedbenchError(f"{what} is a {type(message).__name__}", "make it a dataclass, with that as a field")


def check_lasting(memory: Any, kind: type, what: str) -> None:
    """Raise FedbenchError unless `memory` is a message of this type that a checkpoint restores unchanged."""
    check(memory, what)
    if type(memory) is not kind:
        first, now = (_words(k) for k in (kind, type(memory)))
        raise FedbenchError(
            f"{what} is {now} after a round and was {first} after `start`, so that it would not survive a resume",
            "let `start` make the first one, of the same dataclass",
        )
    if memory is None:
        return
    try:
        path = _difference(memory, restored(kind, tensors(memory, what), what), what)
        why = f"{path} would not come back from a checkpoint as it is"
    except (TypeError, ValueError, NameError, RuntimeError, OverflowError) as error:
        path, why = what, f"{what} would not come back from a checkpoint: {error}"
    if path:
        raise FedbenchError(why, "annotate each field with its type: tensors, numbers, dict, list, tuple, dataclasses")


def tensors(message: Any, place: str = "") -> State:
    """All values of a message as tensors by path, such as 'memory/m'; numbers become 64-bit tensors []."""
    return {path: leaf if isinstance(leaf, Tensor) else _as_tensor(leaf) for path, leaf in _leaves(message, place)}


def restored(kind: Any, saved: Mapping[str, Tensor], place: str = "") -> Any:
    """Inverse of `tensors`, guided by the annotations of `kind`; dictionaries keep their order, and an optional field
    without saved values becomes None.

    Raises TypeError for a type that a checkpoint cannot hold.
    """
    parts: dict[str, State] = {}  #: first part of a path -> the tensors below it
    if place:
        saved = {path[len(place) + 1 :]: t for path, t in saved.items() if f"{path}/".startswith(f"{place}/")}
    for path, tensor in saved.items():
        if path:
            first, _, rest = path.partition("/")
            parts.setdefault(first, {})[rest] = tensor
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        some = [a for a in arguments if a is not type(None)]
        if len(some) != 1:
            raise TypeError(f"{kind} may be several things")
        return restored(some[0], saved) if saved else None
    if kind is Tensor:
        return saved.get("")
    if isinstance(kind, type) and issubclass(kind, int | float):  # also bool and IntEnum
        return kind(saved[""].item()) if "" in saved else None
    if dataclasses.is_dataclass(kind):
        hints, make = typing.get_type_hints(kind), typing.cast(Any, kind)
        return make(**{f.name: restored(hints[f.name], parts.get(f.name, {})) for f in dataclasses.fields(kind)})
    if origin is dict:
        key_kind, value_kind = arguments
        if value_kind is Tensor:  # names of tensors may contain slashes
            return {key_kind(name): tensor for name, tensor in saved.items() if name}
        return {key_kind(key): restored(value_kind, below) for key, below in parts.items()}
    if origin in (list, tuple):
        count = 1 + max(map(int, parts), default=-1)
        kinds = list(arguments) if origin is tuple and ... not in arguments else [arguments[0]] * count
        return origin(restored(one, parts.get(str(k), {})) for k, one in enumerate(kinds))
    raise TypeError(f"{kind} is none of the types that a checkpoint holds")


def _difference(a: Any, b: Any, path: str) -> str:
    """Path of the first difference between two values, or ""; tensors must be the same objects."""
    if _is_dataclass(a) and type(a) is type(b):
        pairs = ((f.name, getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
        return next((at for name, x, y in pairs if (at := _difference(x, y, f"{path}/{name}"))), "")
    if isinstance(a, Mapping) and isinstance(b, Mapping) and list(a) == list(b):
        return next((at for key in a if (at := _difference(a[key], b[key], f"{path}/{key}"))), "")
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        both = enumerate(zip(a, b, strict=True))
        return next((at for k, (x, y) in both if (at := _difference(x, y, f"{path}/{k}"))), "")
    if isinstance(a, bool | int | float) and isinstance(b, bool | int | float):
        return "" if a == b or (a != a and b != b) else path  # NaN counts as equal to NaN
    return "" if a is b else path


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _words(kind: type) -> str:
    return "nothing" if kind is type(None) else f"a {kind.__name__}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Tensor | float]]:
    """(path, tensor or number) for each value in a message."""
    if isinstance(value, Tensor | bool | int | float):
        yield path, value
    elif _is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _leaves(getattr(value, f.name), name_in(path, f.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, name_in(path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for k, item in enumerate(value):
            yield from _leaves(item, f"{path}/{k}")
    elif value is not None:
        raise FedbenchError(
            f"{path} is {value!r}, which no message can hold",
            "use a dataclass of tensors, numbers, and dictionaries or lists of them",
        )


def _as_tensor(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
