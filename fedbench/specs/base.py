"""The base of all specs: checked types, one canonical form, and the id, which is its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Self

from fedbench.errors import FedbenchError, check_known
from fedbench.reader import shown
from fedbench.specs.fields import alternatives, described, out_of_bounds, type_hints

#: Version of the layout of specs, manifests and Parquet columns. A store with a newer one is refused, one with an older
#: one is brought up to it (`store.upgrade`).
SCHEMA = 2

#: Fields that hold a version of the code.
VERSIONS = ("version", "method_version", "model_version")

#: A value that a spec may hold besides other specs.
Plain = str | int | float | bool | None


@dataclass(frozen=True)
class Spec:
    """Base of all specs: canonical form, identity, and (de)serialisation."""

    kind: ClassVar[str] = ""
    schema: ClassVar[int] = 1  #: the last schema that changed ids of this kind

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionary of plain values, by stored keys, without fields that are None."""
        return {key: value.to_dict() if isinstance(value, Spec) else value for key, value in self._stored().items()}

    def _stored(self) -> dict[str, Any]:
        """`to_dict`, but nested specs stay specs."""
        out: dict[str, Any] = {}
        for name, key in _keys(type(self)):
            value = getattr(self, name)
            if value is not None:
                out[key] = dict(sorted(value.items())) if isinstance(value, Mapping) else thawed(value)
        return out

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises FedbenchError on unknown fields, missing fields and wrong types."""
        hints = type_hints(cls)
        names = {key: name for name, key in _keys(cls)}
        extra = sorted(set(raw) - set(names))
        if extra:
            raise FedbenchError(f"{cls.__name__} has no field '{extra[0]}'")
        fields = zip(names, dataclasses.fields(cls), strict=True)
        # The two are the same where there is neither.
        if missing := [key for key, f in fields if f.default is f.default_factory and key not in raw]:
            raise FedbenchError(f"{cls.__name__} lacks {', '.join(missing)}")
        return cls(**{names[key]: _decode(hints[names[key]], value) for key, value in raw.items()})

    @classmethod
    def shared(cls, raw: Mapping[str, Any]) -> Self:
        """As `from_dict`, from JSON values; equal values give the same object, since a store's runs share most settings
        and partitions."""
        spec: Self = _shared(cls, json.dumps(raw, sort_keys=True))
        return spec

    @cached_property
    def text(self) -> str:
        """`to_dict` as JSON: sorted keys, no spaces, no NaN."""
        fields = sorted(self._stored().items())
        texts = (f"{to_json(key)}:{v.text if isinstance(v, Spec) else to_json(v)}" for key, v in fields)
        return f"{{{','.join(texts)}}}"

    def canonical(self) -> str:
        """The canonical JSON: `text` with kind and schema version of the kind."""
        return f'{{"kind":{to_json(self.kind)},"schema":{self.schema},"spec":{self.text}}}'

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    @cached_property
    def stem(self) -> str:
        """The id without versions of the code: specs that differ only in versions have the same stem."""
        return hashlib.sha256(f"{self.kind} {self._unversioned}".encode()).hexdigest()[:12]

    @cached_property
    def _unversioned(self) -> str:
        fields = ((key, value) for key, value in sorted(self._stored().items()) if key not in VERSIONS)
        return ",".join(
            f"{key}:{{{v._unversioned}}}" if isinstance(v, Spec) else f"{key}:{to_json(v)}" for key, v in fields
        )

    def _check_types(self) -> None:
        """Integers given for float fields become floats (1 and 1.0 are one id); other mismatches are errors."""
        cls, hints = type(self), type_hints(type(self))
        for name, _ in _keys(cls):
            object.__setattr__(self, name, coerce(f"{cls.__name__}.{name}", hints[name], getattr(self, name)))

    def _check_values(self) -> None:
        """Raise FedbenchError for a value outside its field's bounds or choices."""
        cls: Any = type(self)
        check_values(cls, {name: getattr(self, name) for name in described(cls)})


def check_values(cls: Any, values: Mapping[str, Any]) -> None:
    """Raise FedbenchError for a value outside the bounds or choices of the spec's field of its name, if it has one."""
    for name, field in described(cls).items():
        if (value := values.get(name)) is None:
            continue
        if wanted := out_of_bounds(field, value):
            called = field.metadata["called"] or name.replace("_", " ")
            raise FedbenchError(f"{called} must be {wanted}, not {value}", field.metadata["hint"])
        if choices := field.metadata["choices"]:
            check_known(name, value, choices)


def _fields(cls: Any) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, f.metadata.get("stored") or f.name) for f in dataclasses.fields(cls))


#: (name, stored key) of each field of a spec.
_keys: Callable[[type], tuple[tuple[str, str], ...]] = cache(_fields)

#: Canonical JSON of a value.
to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode

#: (class, JSON) -> spec, cached. A store of a thousand runs has fewer.
_shared: Callable[[type, str], Any] = lru_cache(2**14)(lambda cls, text: cls.from_dict(json.loads(text)))


def _is_spec(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, Spec)


def _decode(hint: Any, value: Any) -> Any:
    for option in alternatives(hint):
        if _is_spec(option) and isinstance(value, Mapping):
            return option.shared(value)
    return value


@cache
def _as_they_are(hint: Any) -> frozenset[type]:
    """The types whose values need no conversion or check."""
    return frozenset(
        option for option in alternatives(hint) if option in (str, bool, types.NoneType) or _is_spec(option)
    )


def native(value: Any) -> Any:
    """A NumPy scalar, or an array without dimensions, as a Python value; other values unchanged. A float of fewer than
    64 bits becomes its shortest decimal: float32(0.3) becomes 0.3, not 0.30000001192..."""
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    plain = value.item()
    return float(str(value)) if isinstance(plain, float) and value.dtype.itemsize < 8 else plain


def coerce(where: str, hint: Any, value: Any) -> Any:
    if type(value) in _as_they_are(hint):
        return value
    options, value = alternatives(hint), native(value)
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
    raise FedbenchError(f"{where} cannot be {shown(value)}")


def frozen(value: Any) -> Any:
    """Nested lists as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """Nested tuples as lists, as JSON returns them."""
    return [thawed(v) for v in value] if isinstance(value, tuple) else value


def require(condition: bool, message: str, hint: str = "") -> None:
    """Raise FedbenchError(message) unless the condition holds."""
    if not condition:
        raise FedbenchError(message, hint)


def check_seed(seed: int, what: str = "the seed") -> None:
    """Raise FedbenchError unless NumPy's legacy generator, which draws partitions, accepts the seed."""
    require(0 <= seed < 2**32, f"{what} must be in 0..2^32-1, not {seed}")
