"""Specs: frozen, validated plain values. A spec's canonical JSON hashes to the id that names its artifact.

Specs are nested: a `RunSpec` holds its `Setting`, which holds its `PartitionSpec`, which holds its `DatasetSpec`. So
one manifest records the whole history of an artifact, and equal specs have equal ids.

The canonical form omits fields whose value is None: a field added later with the default None keeps every older id.
"""

from __future__ import annotations

from fedbench.specs.base import SCHEMA, Plain, Spec, check_seed, require
from fedbench.specs.partition import MODIFIERS, DatasetSpec, PartitionSpec
from fedbench.specs.run import PRECISIONS, MetricsSpec, RunSpec, Setting

SPECS: dict[str, type[Spec]] = {c.kind: c for c in (DatasetSpec, PartitionSpec, RunSpec, MetricsSpec)}

__all__ = [
    "MODIFIERS",
    "PRECISIONS",
    "SCHEMA",
    "SPECS",
    "DatasetSpec",
    "MetricsSpec",
    "PartitionSpec",
    "Plain",
    "RunSpec",
    "Setting",
    "Spec",
    "check_seed",
    "require",
]
