"""The form of a manifest: what every artifact tells of itself, and in which types.

A seal says that a manifest is as it was written. An older fedbench sealed none: what is read of such a one is held to
its types, so that no command ends in the middle of a list for the sake of one edited line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedbench import reader
from fedbench.errors import FedbenchError
from fedbench.files import SEAL


@dataclass(frozen=True)
class _Entry:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    schema: int
    kind: str
    id: str
    spec: Mapping[str, Any]
    inputs: Mapping[str, str]
    files: Mapping[str, _Entry]
    provenance: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Code:
    """Which code made an artifact, and what it was made from."""

    fingerprint: str = ""
    fingerprint_parts: list[str] = field(default_factory=list)
    made_from: Mapping[str, _Origin] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Origin(_Code):
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Provenance(_Code):
    """What commands read of any artifact's provenance."""

    started: str
    wall_seconds: float
    host: str
    platform: str
    libraries: Mapping[str, str]
    git: str | None = None


@dataclass(frozen=True, kw_only=True)
class _RunProvenance(_Provenance):
    """... and of a run's."""

    title: str
    overrides: Mapping[str, str | int | float | bool | None]
    defaults: Mapping[str, str | int | float | bool | None]
    deviations: list[str]
    train_seconds: float
    device: str
    executor: str
    together: int = 1


def readable(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest has the form of one. What is sealed has the types that it was written with."""
    if SEAL in manifest:
        return manifest.keys() - {SEAL} == {f.name for f in fields(_Manifest)}
    try:
        form = reader.read(_Manifest, manifest, "the manifest")
        kind: type = _RunProvenance if form.kind == "run" else _Provenance
        names = {f.name for f in fields(kind)}
        reader.read(kind, {k: v for k, v in form.provenance.items() if k in names}, "the provenance")
    except FedbenchError:
        return False
    return True
