"""Runs that are no artifacts: under way, interrupted, or failed; told from the small files that they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import erase, read_json
from fedbench.specs import RunSpec
from fedbench.store.artifact import MANIFEST
from fedbench.store.claim import FILE as CLAIM
from fedbench.store.claim import hold, holder
from fedbench.store.folder import CHECKPOINT, PROGRESS, SPEC, Store


class End(StrEnum):
    """How it stands with a run that is no artifact."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Unfinished:
    """A run under way, interrupted or failed."""

    spec: RunSpec
    state: End
    round: int  #: the last that is complete; of a run that is not under way, the last that is saved
    progress: Mapping[str, Any]  #: what the process at work last noted (engine/run.py); empty if nothing yet
    holder: Mapping[str, Any] | None  #: the process at work: host, pid
    reason: str  #: why it failed
    diverged: bool  #: it failed so as it would anywhere
    time: float  #: Unix seconds of the last sign of it
    bytes: int  #: on disk
    keep: frozenset[str]  #: what it was to keep beyond its predictions

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def accuracy(self) -> float | None:
        """Average accuracy of the last evaluated round so far."""
        return _number(self.progress.get("accuracy"))

    @property
    def seconds_left(self) -> float | None:
        """Of a run under way, by the speed of its rounds so far."""
        each, noted = _number(self.progress.get("round_seconds")), _number(self.progress.get("time"))
        if self.state is not End.RUNNING or each is None or noted is None:
            return None
        return max((self.spec.setting.rounds - self.round) * each - max(time.time() - noted, 0.0), 0.0)


def unfinished(store: Store) -> list[Unfinished]:
    """The runs of a store that are under way, interrupted or failed, oldest first. What is no legible trace of a run is
    left out, and so is one that has been completed since."""
    runs = (run for id in sorted(set(ids(store))) if (run := _read(store, id)))
    return sorted(runs, key=lambda run: run.time)


def _read(store: Store, id: str) -> Unfinished | None:
    work, failure = store.work(id), store.home / "failed" / f"{id}.json"
    failed, progress, checkpoint = _json(failure), _json(work / PROGRESS), _json(work / CHECKPOINT)
    begun = _json(work / SPEC)
    raw, keep = begun.get("run") or failed.get("spec"), begun.get("keep") or failed.get("keep")
    try:
        spec = RunSpec.shared(raw) if isinstance(raw, dict) else None
    except FedbenchError:
        return None
    if spec is None or spec.id != id:
        return None
    claim = holder(work)
    made, failed_at, saved = (_stat(one)[0] for one in (store.path("run", id) / MANIFEST, failure, work / CHECKPOINT))
    if claim is None and made > max(failed_at, saved):
        return None
    state = End.RUNNING if claim else End.FAILED if failed else End.INTERRUPTED
    round = progress.get("round") if claim else checkpoint.get("round")
    times, sizes = zip(*map(_stat, [failure, *(work.iterdir() if work.is_dir() else ())]), strict=True)
    return Unfinished(
        spec=spec, state=state, round=round if isinstance(round, int) else 0, progress=progress, holder=claim,
        reason=str(failed.get("reason", "")) if state is End.FAILED else "",
        diverged=state is End.FAILED and failed.get("diverged") is True,
        time=max(times), bytes=sum(sizes),
        keep=frozenset(map(str, keep)) if isinstance(keep, list) else frozenset(),
    )  # fmt: skip


def discard(store: Store, id: str) -> None:
    """Delete what is left of a run that was interrupted or failed. Raises HeldError if somebody is at it."""
    folder = store.work(id)
    with hold(folder, f"run {id}"):
        for path in folder.iterdir():
            if path.name != CLAIM:
                erase(path)
        store.forget_failure(id)


def ids(store: Store) -> Iterator[str]:
    """Of all work folders and records of failures, legible or not."""
    for folder in ("work", "failed"):
        for path in store.home.glob(f"{folder}/*"):
            if not path.name.startswith("."):
                yield path.name.removesuffix(".json")


def _json(path: Path) -> dict[str, Any]:
    """A JSON file; empty if it is not there, damaged or not ours to read."""
    try:
        return read_json(path)
    except (FedbenchError, OSError):
        return {}


def _stat(path: Path) -> tuple[float, int]:
    """When a file was changed (Unix seconds) and its bytes; 0 where there is none."""
    try:
        about = os.stat(path)
        return about.st_mtime, about.st_size
    except OSError:
        return 0.0, 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
