"""The fields of a manifest, and their types.

A checksum proves that a manifest is unaltered. Manifests of an older fedbench have none: the types of their fields
are checked instead, so that one edited manifest does not abort a list.
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
    """Which code made an artifact, and from which artifacts."""

    fingerprint: str = ""
    fingerprint_parts: list[str] = field(default_factory=list)
    made_from: Mapping[str, _Origin] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Origin(_Code):
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Provenance(_Code):
    """The fields of an artifact's provenance that commands read."""

    started: str
    wall_seconds: float
    host: str
    platform: str
    libraries: Mapping[str, str]
    git: str | None = None


@dataclass(frozen=True, kw_only=True)
class _RunProvenance(_Provenance):
    """The same for a run."""

    title: str
    overrides: Mapping[str, str | int | float | bool | None]
    defaults: Mapping[str, str | int | float | bool | None]
    deviations: list[str]
    train_seconds: float
    device: str
    executor: str
    together: int = 1


def readable(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest has all fields; without a checksum, also whether their types are right."""
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
