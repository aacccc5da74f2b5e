"""A run out of a result pack: all that an artifact is to a table, but its files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.results.pack import Pack, Row, name_of
from fedbench.specs import RunSpec
from fedbench.store import Artifact


@dataclass(frozen=True)
class Shipped(Artifact):
    """A run whose metrics and origin are at hand, and whose predictions are not: `predictions` is their SHA-256."""

    row: Row | None = None

    @classmethod
    def of(cls, pack: Pack, number: int, expected: RunSpec | None = None) -> Shipped:
        """The run in a row of a pack, whose spec may be known. Raises FedbenchError for a damaged one."""
        row = pack.row(number, expected)
        origin: dict[str, Any] = {"started": row.started, "train_seconds": row.seconds, "platform": row.machine}
        manifest = {
            "id": row.id, "kind": row.spec.kind, "spec": row.spec.to_dict(), "inputs": {}, "files": {},
            "provenance": {**row.about, **origin},
        }  # fmt: skip
        return cls(pack.path, manifest, row.spec, row=row)

    @cached_property
    def origin(self) -> Row:
        """Who made it, when, on what."""
        assert self.row is not None
        return self.row

    @property
    def pack(self) -> str:
        """The name of its pack, in print."""
        return name_of(self.path)

    @property
    def metrics(self) -> Metrics:
        return self.origin.metrics

    def file(self, name: str) -> Path:
        """There is none. Raises FedbenchError."""
        table = name.partition(".")[0]
        raise NotPacked(
            f"run {self.id} is a shipped result, and its {table} are not in the pack",
            f"'fedbench results verify {self.id}' trains it here",
        )


class NotPacked(FedbenchError):
    """What is asked of a run is more than its pack holds."""
