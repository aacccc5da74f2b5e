"""What all specs share: types that hold, one canonical form, and the id that is its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from fedbench.errors import FedbenchError

#: Version of the layout of specs, manifests and Parquet columns. A store written by a newer one is refused.
SCHEMA = 1

#: A value that a spec may hold besides other specs.
Plain = str | int | float | bool | None


@dataclass(frozen=True)
class Spec:
    """Base of all specs: canonical form, identity, and (de)serialisation."""

    kind: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary under the keys that are stored; fields that are None are left out."""
        out: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, Spec):
                value = value.to_dict()
            elif isinstance(value, Mapping):
                value = dict(sorted(value.items()))
            out[_key(f)] = thawed(value)
        return out

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises FedbenchError on unknown fields, missing fields and wrong types."""
        hints = type_hints(cls)
        names = {_key(f): f.name for f in dataclasses.fields(cls)}
        extra = sorted(set(raw) - set(names))
        if extra:
            raise FedbenchError(f"{cls.__name__} has no field '{extra[0]}'")
        try:
            return cls(**{names[key]: _decode(hints[names[key]], value) for key, value in raw.items()})
        except TypeError as error:
            raise FedbenchError(f"{cls.__name__}: {error}") from error

    def canonical(self) -> str:
        """The canonical JSON: sorted keys, no spaces, no NaN, with kind and schema version."""
        body = {"kind": self.kind, "schema": SCHEMA, "spec": self.to_dict()}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    def _check_types(self) -> None:
        """Integers given for float fields become floats (1 and 1.0 are one id); other mismatches are errors."""
        hints = type_hints(type(self))
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            object.__setattr__(self, f.name, coerce(f"{type(self).__name__}.{f.name}", hints[f.name], value))


type_hints: Callable[[type], dict[str, Any]] = cache(typing.get_type_hints)


def _key(field: dataclasses.Field[Any]) -> str:
    """The key of a field in stored specs."""
    return field.metadata.get("stored") or field.name


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _decode(hint: Any, value: Any) -> Any:
    for option in _alternatives(hint):
        if isinstance(option, type) and issubclass(option, Spec) and isinstance(value, Mapping):
            return option.from_dict(value)
    return value


def coerce(where: str, hint: Any, value: Any) -> Any:
    options = _alternatives(hint)
    if float in options and int not in options and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.copysign(math.inf, value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FedbenchError(f"{where} must be a finite number, not {value}")
        value += 0.0  # -0.0 and 0.0 are equal, so they must be one id
    if isinstance(value, int) and abs(value) >= 2**63:
        raise FedbenchError(f"{where} cannot be a whole number of more than 64 bits")
    for option in options:
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(coerce(where, typing.get_args(option)[0], v) for v in value)
    for option in options:
        origin = typing.get_origin(option) or option
        if option is None or origin is types.NoneType:
            if value is None:
                return value
        elif isinstance(value, bool) and origin is not bool:
            continue
        elif isinstance(value, origin):
            return value
    raise FedbenchError(f"{where} cannot be {value!r}")


def frozen(value: Any) -> Any:
    """Nested lists as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """Nested tuples as lists, as they come back from JSON."""
    return [thawed(v) for v in value] if isinstance(value, tuple) else value


def require(condition: bool, message: str, hint: str = "") -> None:
    """Raise FedbenchError(message) unless the condition holds."""
    if not condition:
        raise FedbenchError(message, hint)


def check_seed(seed: int, what: str = "the seed") -> None:
    """Raise FedbenchError unless NumPy's legacy generator, which draws partitions, takes the seed."""
    require(0 <= seed < 2**32, f"{what} must be in 0..2^32-1, not {seed}")
