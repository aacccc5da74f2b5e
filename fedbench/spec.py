"""Specs: frozen, validated plain values. A spec's canonical JSON hashes to the id that names its artifact.

The chain is nested: a `RunSpec` holds its `Setting`, that holds its `PartitionSpec`, that holds its
`DatasetSpec`. So one manifest tells the whole history of an artifact, and equal specs have equal ids.

A field whose value is None is left out of the canonical form: a field added later with the default None
leaves every older id as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from fedbench.errors import FedbenchError, unknown

#: Version of the layout of specs, manifests and Parquet columns. A store written by a newer one is refused.
SCHEMA = 1

#: A value that a spec may hold besides other specs.
Plain = str | int | float | bool | None


@dataclass(frozen=True)
class Spec:
    """Base of all specs: canonical form, identity, and (de)serialisation."""

    kind: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary; fields that are None are left out."""
        out: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, Spec):
                value = value.to_dict()
            elif isinstance(value, Mapping):
                value = dict(sorted(value.items()))
            out[f.name] = value
        return out

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises FedbenchError on unknown fields, missing fields and wrong types."""
        hints = _hints(cls)
        names = {f.name for f in dataclasses.fields(cls)}
        extra = sorted(set(raw) - names)
        if extra:
            raise FedbenchError(f"{cls.__name__} has no field '{extra[0]}'")
        try:
            return cls(**{name: _decode(hints[name], value) for name, value in raw.items()})
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
        hints = _hints(type(self))
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            object.__setattr__(self, f.name, _coerce(f"{type(self).__name__}.{f.name}", hints[f.name], value))


_hints: Callable[[type], dict[str, Any]] = cache(typing.get_type_hints)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _decode(hint: Any, value: Any) -> Any:
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, Spec) and isinstance(value, Mapping):
            return option.from_dict(value)
    return value


def _coerce(where: str, hint: Any, value: Any) -> Any:
    options = _options(hint)
    if float in options and int not in options and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FedbenchError(f"{where} must be a finite number, not {value}")
        value += 0.0  # -0.0 and 0.0 are equal, so they must be one id
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


def require(condition: bool, message: str, hint: str = "") -> None:
    """Raise FedbenchError(message) unless the condition holds."""
    if not condition:
        raise FedbenchError(message, hint)


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """Which images: the recipe's name, which of its sources, and what those files hold."""

    kind: ClassVar[str] = "dataset"
    name: str
    source: str  #: name of the recipe's source; the same data set may exist in exact and in re-encoded form
    content: str  #: digest of the source's checksums and of how the recipe reads them
    version: int = 1  #: of the readers

    def __post_init__(self) -> None:
        self._check_types()


SCHEMES = ("dirichlet", "shards", "iid", "natural")
SHIFTS = ("none", "low", "mid", "high", "pool")


@dataclass(frozen=True)
class PartitionSpec(Spec):
    """Who holds which sample, in which split, seen through which shift."""

    kind: ClassVar[str] = "partition"
    dataset: DatasetSpec
    scheme: str  #: one of SCHEMES
    clients: int
    seed: int
    train_fraction: float  #: of each client's samples; the rest is its test set
    shift: str = "none"  #: one of SHIFTS: the covariate shift each client sees its images through
    alpha: float | None = None  #: Dirichlet concentration (scheme dirichlet)
    min_size: int | None = None  #: redraw until every client holds as many samples (scheme dirichlet)
    shards: int | None = None  #: shards a client, S of S-SPC (scheme shards)
    by: str | None = None  #: column of the natural groups (scheme natural)
    version: int = 1

    def __post_init__(self) -> None:
        self._check_types()
        for what, value, known in (("partition scheme", self.scheme, SCHEMES), ("shift", self.shift, SHIFTS)):
            if value not in known:
                raise unknown(what, value, known)
        require(self.clients >= 1, f"the number of clients must be at least 1, not {self.clients}")
        require(0 <= self.seed < 2**32, f"the seed must be in 0..2^32-1, not {self.seed}")
        require(
            0 < self.train_fraction < 1,
            f"the training share must lie between 0 and 1, not {self.train_fraction}",
            "0.7 gives 70 % training and 30 % test images",
        )
        if self.scheme == "dirichlet":
            require(self.alpha is not None and self.alpha > 0, f"Dirichlet alpha must be above 0, not {self.alpha}")
            require(
                self.min_size is None or self.min_size >= 1, f"the minimum size must be at least 1, not {self.min_size}"
            )
        if self.scheme == "shards":
            require(
                self.shards is not None and self.shards >= 1, f"shards per client must be at least 1, not {self.shards}"
            )
        if self.scheme == "natural":
            require(bool(self.by), "a natural partition needs the column to part by", "for example --by writer")

    @property
    def label(self) -> str:
        """The field's short name of the scheme, such as Dir-0.3, 5-SPC, IID."""
        if self.scheme == "dirichlet":
            return f"Dir-{self.alpha:g}"
        if self.scheme == "shards":
            return f"{self.shards}-SPC"
        return "IID" if self.scheme == "iid" else f"by {self.by}"


TAILS = ("drop", "keep")
SCHEDULES = ("constant", "cosine")
AUGMENTS = ("none", "crop")
PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Setting(Spec):
    """Everything of a run but its method: runs of one setting can stand in one column of a table."""

    kind: ClassVar[str] = "setting"
    partition: PartitionSpec
    budget: str  #: name of the budget these values come from, or "custom"
    model: str
    rounds: int
    batch_size: int
    lr: float
    seed: int
    epochs: int | None = None  #: local epochs a round; exactly one of epochs and steps
    steps: int | None = None  #: local SGD steps a round
    tail: str = "keep"  #: what becomes of a pass's last short batch: one of TAILS
    schedule: str = "constant"  #: of the learning rate over rounds: one of SCHEDULES
    momentum: float = 0.0
    weight_decay: float = 0.0
    participation: float = 1.0  #: probability that a client takes part in a round
    full_last_round: bool = False  #: every client takes part in the last round
    augment: str = "none"  #: one of AUGMENTS, applied to training and test images
    window: int = 1  #: evaluate after each of the last `window` rounds
    every: int = 0  #: and after every so many rounds (0: not)
    votes: bool = True  #: every client's model answers every test image (else only its own client's)
    precision: str = "fp32"  #: of the arithmetic: one of PRECISIONS
    version: int = 1  #: of the trainer core

    def __post_init__(self) -> None:
        self._check_types()
        require((self.epochs is None) != (self.steps is None), "give either local epochs or local steps, not both")
        for name in ("rounds", "batch_size", "epochs", "steps", "window"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name.replace('_', ' ')} must be at least 1, not {value}")
        require(self.every >= 0, f"every must be at least 0, not {self.every}")
        require(self.lr > 0, f"the learning rate must be above 0, not {self.lr}")
        require(self.momentum >= 0 and self.weight_decay >= 0, "momentum and weight decay cannot be negative")
        require(0 < self.participation <= 1, f"participation must lie in (0, 1], not {self.participation}")
        require(0 <= self.seed < 2**32, f"the seed must be in 0..2^32-1, not {self.seed}")
        for name, known in (("tail", TAILS), ("schedule", SCHEDULES), ("augment", AUGMENTS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)

    def evaluated_rounds(self) -> list[int]:
        """Rounds (1-based) after which the models are asked for predictions."""
        last = range(max(1, self.rounds - self.window + 1), self.rounds + 1)
        sparse = range(self.every, self.rounds + 1, self.every) if self.every else range(0)
        return sorted({*last, *sparse})


@dataclass(frozen=True)
class RunSpec(Spec):
    """One training run: a method with its hyper-parameters in a setting."""

    kind: ClassVar[str] = "run"
    setting: Setting
    method: str
    params: Mapping[str, Plain] = field(default_factory=dict)  #: every hyper-parameter, defaults included
    method_version: int = 1
    source: str | None = None  #: SHA-256 of the file of a method that is not fedbench's own

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.params:
            require(isinstance(name, str), f"RunSpec.params: a hyper-parameter's name cannot be {name!r}")
        params = {name: _coerce(f"hyper-parameter {name}", Plain, value) for name, value in self.params.items()}
        object.__setattr__(self, "params", params)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class MetricsSpec(Spec):
    """The accuracies of one run, computed from its predictions."""

    kind: ClassVar[str] = "metrics"
    run: RunSpec
    version: int = 1

    def __post_init__(self) -> None:
        self._check_types()


SPECS: dict[str, type[Spec]] = {c.kind: c for c in (DatasetSpec, PartitionSpec, RunSpec, MetricsSpec)}
