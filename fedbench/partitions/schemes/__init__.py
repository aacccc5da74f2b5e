"""The partitioners: one file per built-in one, named after it, and users' partitioners as FILE.py:Class."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.groups import by_key
from fedbench.options import check_fields
from fedbench.partitions import modifiers
from fedbench.partitions.scheme import Scheme
from fedbench.plugins import reported
from fedbench.plugins.load import is_file, pick
from fedbench.plugins.named import Known, Named
from fedbench.specs import MODIFIERS, DatasetSpec, PartitionSpec, require
from fedbench.specs.base import thawed
from fedbench.specs.fields import type_hints

_HERE = Path(__file__).parent
_FIELDS = (*(name for name in MODIFIERS if name != "train_fraction"), "version")
_COMMON = ("scheme", "clients", "seed", "train_fraction", "shift")
_own = Named("partitioner", "--scheme")
#: Return the name in specs of a partitioner that is given by its name or as FILE.py:Class.
named = _own.name


#: Options of `fedbench partition` that are not of the partition.
_COMMAND = frozenset({"data", "debug", "help", "home", "json", "protocol"})


@cache
def names() -> list[str]:
    """List the built-in partitioners by their files, without importing them."""
    return sorted(path.stem for path in _HERE.glob("*.py") if path.stem != "__init__")


def load(name: str) -> type[Scheme]:
    """Return the class of a partitioner by its name in specs. Raises FedbenchError for an unknown one."""
    if _own.is_plugin(name):
        return _users(name)
    return _built_in(name)


@cache
def _built_in(name: str) -> type[Scheme]:
    check_known("partitioner", name, names())
    cls = pick(importlib.import_module(f"fedbench.partitions.schemes.{name}"), Scheme, None, name, "partitioner")
    cls.name = name
    return cls


def _users(name: str) -> type[Scheme]:
    """Return a user's class. Raises FedbenchError unless it is a dataclass with valid option names and types."""
    cls, at = _own.load(name, Scheme)
    cls.name = name
    where = at.reference
    check_fields(cls, where, "option")
    taken = {f.metadata.get("stored") or f.name for f in dataclasses.fields(PartitionSpec)}
    with reported(f"cannot take the options of {where}"):
        for key, option in cls.stored().items():
            require(key not in taken, f"{where} cannot call an option {option}: any partition has one", "rename it")
            wrong = f"{where} cannot call an option {option}: 'fedbench partition' has one"
            require(option not in _COMMAND, wrong, "rename it")
            require(cls.kind(option) is not None, f"{option} of {where} must be a bool, int, float or str, or None")
    return cls


def all_options() -> dict[str, list[str]]:
    """Map each option to the built-in partitioners that have it."""
    return by_key((option, scheme) for scheme in names() for option in load(scheme).options())


@cache
def hints() -> Mapping[str, Any]:
    """Map each option of the built-in partitioners to its type, to check TOML files."""
    types: dict[str, Any] = {}
    for cls in map(load, names()):
        for option, field in cls.options().items():
            hint = type_hints(cls)[field.name]
            types[option] = hint if option not in types else types[option] | hint
    return types


def spec(
    dataset: DatasetSpec,
    scheme: str,
    clients: int,
    seed: int,
    train_fraction: float | None = None,
    shift: str = "none",
    **values: Any,
) -> PartitionSpec:
    """Build and check a partition's spec from fields of PartitionSpec and the partitioner's options; None: not set.

    Raises FedbenchError for an invalid value, and for an option or modifier that the partitioner does not have.
    """
    name = named(scheme)
    cls = load(name)
    values = {key: value for key, value in values.items() if value is not None}
    common: dict[str, Any] = {"seed": seed, "train_fraction": train_fraction, "shift": shift, "version": cls.version}
    common |= {key: value for key, value in values.items() if key in _FIELDS}
    own = {key: value for key, value in values.items() if key not in _FIELDS}
    for option in own:
        if option not in cls.options():
            raise not_of(cls, option)
    with reported():
        partitioner = cls.create(own)
        partition = PartitionSpec(dataset, name, clients, **common, options=partitioner.values)
        check(partitioner, partition)
    return partition


def not_of(cls: type[Scheme], option: str) -> FedbenchError:
    """Return the error for an option that a partitioner does not have; it names those that have it."""
    having = all_options().get(option)
    called = option.replace("_", " ")
    if having is None:
        return unknown(f"option of partitioner {cls.title()}", option, {*cls.options(), *_FIELDS, *_COMMON})
    return FedbenchError(
        f"partitioner {cls.title()} has no {called}: only {' and '.join(having)} can have it", "leave it out"
    )


def check(scheme: Scheme, spec: PartitionSpec) -> None:
    """Raise FedbenchError unless the partitioner accepts the spec's shift and modifiers, and all values fit."""
    if spec.shift not in scheme.shifts:
        with_it = [name for name in names() if spec.shift in load(name).shifts]
        if not with_it:
            raise unknown("shift", spec.shift, {one for name in names() for one in load(name).shifts})
        raise FedbenchError(
            f"{scheme.called()} has no shift {spec.shift}: {', '.join(with_it)} can have it",
            f"its shifts: {', '.join(scheme.shifts)}",
        )
    for modifier in MODIFIERS:
        if getattr(spec, modifier) is not None:
            require(
                modifier in scheme.modifiers,
                f"{scheme.called()} has no {_called(modifier)}",
                f"beside its own options it takes {', '.join(map(_called, scheme.modifiers)) or 'none'}",
            )
    require(
        "train_fraction" not in scheme.modifiers or spec.train_fraction is not None,
        f"{scheme.called()} needs a training share",
        "0.7 gives 70 % training and 30 % test images",
    )
    modifiers.check(spec)
    scheme.check(spec)


def _called(modifier: str) -> str:
    return {"train_fraction": "training share", "unseen": "unseen clients"}.get(modifier, modifier.replace("_", " "))


def of(spec: PartitionSpec) -> Scheme:
    """Return the partitioner of a spec, with its options. Raises FedbenchError if the user's file is not loaded."""
    cls = load(spec.scheme)
    stored = cls.stored()
    extra = sorted(set(spec.options) - set(stored))
    if extra:
        raise not_of(cls, extra[0])
    return cls.create({stored[key]: value for key, value in spec.options.items()})


def at_hand(spec: PartitionSpec) -> bool:
    """Whether the partitioner of a spec is available: a user's partitioner only if its file was given."""
    return spec.scheme in _own if _own.is_plugin(spec.scheme) else spec.scheme in names()


def label(spec: PartitionSpec) -> str:
    """Return the usual short name of a partition, such as Dir-0.3, 5-SPC, IID, or the shift with its level."""
    if _own.is_plugin(spec.scheme):
        return of(spec).label(spec) if at_hand(spec) else spec.scheme.partition("@")[0]
    return _label(spec) if at_hand(spec) else spec.scheme


@lru_cache(maxsize=2**12)  # much larger than the number of partitions in a store
def _label(spec: PartitionSpec) -> str:
    return of(spec).label(spec)


def details(spec: PartitionSpec) -> list[str]:
    """Describe a partition in a few words each, beyond its label, shift and numbers."""
    if at_hand(spec):
        own = of(spec).details(spec)
    else:
        own = [f"{name.replace('_', ' ')} {thawed(value)}" for name, value in spec.options.items()]
    return own + modifiers.details(spec)


def facts(spec: PartitionSpec) -> Mapping[str, Any]:
    """Map the name of every field and option of a partition to its value."""
    stored = load(spec.scheme).stored() if at_hand(spec) else {}
    own = {stored.get(key, key): value for key, value in spec.options.items()}
    return {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name != "options"} | own


def code_of(scheme: str) -> tuple[str, ...]:
    """Return the file of fedbench that defines the partitioner; none for a user's, which is part of the spec."""
    return () if _own.is_plugin(scheme) else (f"partitions/schemes/{scheme}.py",)


def file_of(scheme: str) -> Known | None:
    """Return the location of a user's partitioner if this process was given its file; None for all others."""
    return _own.known(scheme) if scheme in _own else None


def is_users(scheme: str) -> bool:
    """Whether a partitioner's name, as given or in a spec, refers to a user's file."""
    return is_file(scheme) or _own.is_plugin(scheme)
