"""What the store knows about runs: done, under way, failed; found by setting, method and hyper-parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.specs import Plain, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.provenance import is_stale


class State(StrEnum):
    """How it stands with a cell, or with the run that it needs."""

    DONE = "done"
    OLDER = "older code"  #: done, by code that has changed since under the same version number
    UNEVALUATED = "not evaluated"  #: the run is there, its metrics are not
    DAMAGED = "damaged"
    RUNNING = "running"
    FAILED = "failed"
    MISSING = "missing"
    NO_DATA = "no data"  #: the images are not at hand, so the run cannot be named yet
    NOT_BUILT = "not built"  #: the method does not exist yet
    UNDEFINED = "not defined"  #: there is no such number, so nothing is to be made


@dataclass(frozen=True)
class Job:
    """A run that a cell needs: a method in a setting, with the hyper-parameters that are not left at default."""

    setting: Setting
    method: str
    overrides: Mapping[str, Plain]
    source: str | None = None  #: SHA-256 of the method's file, if it is not fedbench's own
    called: str = ""  #: what its runs then call the method


@dataclass(frozen=True)
class Record:
    """One run the store knows of."""

    id: str
    spec: RunSpec
    setting: str  #: id
    state: State
    provenance: Mapping[str, Any]
    artifact: Artifact | None = None
    reason: str = ""

    def chosen(self, overrides: Mapping[str, Plain]) -> dict[str, Plain]:
        """`overrides` without those that repeat the method's defaults, where the run tells its defaults."""
        defaults = self.provenance.get("defaults", {})
        return {k: v for k, v in overrides.items() if k not in defaults or defaults[k] != v}

    @property
    def overrides(self) -> dict[str, Plain]:
        """Hyper-parameters chosen for this run."""
        return self.chosen(self.provenance.get("overrides", {}))

    def makes(self, job: Job) -> bool:
        """Whether this run is the job's method with its hyper-parameters.

        A user's file may name its method as it likes: its runs stand in rows that name the file, or of their own.
        """
        same = (self.spec.method, self.spec.source) == (job.called or job.method, job.source)
        return same and self.overrides == self.chosen(job.overrides)


class Index:
    """All runs of a store, read once. Looking up is then free of disk access but for the metrics themselves."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settings: dict[str, Setting] = {}  #: what tables have asked for, many of them the same
        #: Runs that cannot be read, so that nobody knows which cells they belong to; known after `records`.
        self.damaged: list[FedbenchError] = []

    @cached_property
    def records(self) -> dict[str, list[Record]]:
        """Setting id -> its runs: failed and running ones first, then complete ones, oldest first."""
        found: dict[str, list[Record]] = {}
        for record in (*self._failed(), *self._running(), *self._complete()):
            found.setdefault(record.setting, []).append(record)
        return found

    def find(self, job: Job) -> Record | None:
        """The run that makes `job`: a complete one before others, present code before older, the latest."""
        hits = [r for r in self.records.get(job.setting.id, []) if r.makes(job)]
        order = (State.DONE, State.OLDER, State.RUNNING, State.FAILED)
        return min(reversed(hits), key=lambda r: order.index(r.state), default=None)

    def metrics(self, record: Record) -> Artifact | None:
        """The metrics of a complete run, if they have been computed."""
        from fedbench.metrics.read import metrics_of

        assert record.artifact is not None
        return metrics_of(record.artifact, self.store)

    def _complete(self) -> list[Record]:
        found = []
        for run in self.store.scan("run"):
            if isinstance(run, FedbenchError):
                self.damaged.append(run)
            elif isinstance(spec := run.spec, RunSpec):
                state = State.OLDER if is_stale(run.provenance) else State.DONE
                found.append(Record(run.id, spec, spec.setting.id, state, run.provenance, run))
        return found

    def _running(self) -> list[Record]:
        paths = (p for p in self.store.home.glob("work/*/spec.json") if self.store.claimed(p.parent.name))
        return _noted(paths, "run", State.RUNNING)

    def _failed(self) -> list[Record]:
        return _noted(self.store.home.glob("failed/*.json"), "spec", State.FAILED)


def _noted(paths: Iterable[Path], key: str, state: State) -> list[Record]:
    """The runs that files beside the artifacts tell of, under this key.

    A file that tells nothing legible is left out: no number comes from it.
    """
    found = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError, FedbenchError):  # finished this moment, or damaged
            raw = read_json(path)
            spec, overrides = raw.get(key), raw.get("overrides", {})
            if isinstance(spec, dict) and isinstance(overrides, dict):
                run = RunSpec.from_dict(spec)
                told, reason = {"overrides": overrides}, str(raw.get("reason", ""))
                found.append(Record(run.id, run, run.setting.id, state, told, reason=reason))
    return found


def evaluated(index: Index, record: Record) -> Artifact:
    """The metrics of a complete run, computed now if need be. Raises FedbenchError if they cannot be."""
    from fedbench.metrics.evaluate import evaluate

    assert record.artifact is not None
    return evaluate(record.artifact, index.store)
