"""Runs in progress, interrupted or failed, read from the small files that they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import erase, json_at_hand
from fedbench.specs import RunSpec
from fedbench.store.artifact import MANIFEST
from fedbench.store.claim import FILE as CLAIM
from fedbench.store.claim import hold, holder
from fedbench.store.folder import CHECKPOINT, PROGRESS, SPEC, Store


class UnfinishedState(StrEnum):
    """The state of a run that is not complete."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Unfinished:
    """A run in progress, interrupted or failed."""

    spec: RunSpec
    state: UnfinishedState
    round: int  #: the last complete round; of a run that is not in progress, the last one in a checkpoint
    progress: Mapping[str, Any]  #: last progress that its process recorded (engine/run.py); empty if none yet
    holder: Mapping[str, Any] | None  #: the process that trains it: host, pid
    reason: str  #: why it failed
    diverged: bool  #: it failed because it diverged, which it would do on any machine
    time: float  #: Unix seconds of the last change of its files
    bytes: int  #: on disk
    keep: frozenset[str]  #: what to keep besides its predictions (train --keep)

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def accuracy(self) -> float | None:
        """Average accuracy of the last evaluated round so far."""
        return _number(self.progress.get("accuracy"))

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the speed of its rounds so far; None unless it is in progress."""
        each, noted = _number(self.progress.get("round_seconds")), _number(self.progress.get("time"))
        if self.state is not UnfinishedState.RUNNING or each is None or noted is None:
            return None
        return max((self.spec.setting.rounds - self.round) * each - max(time.time() - noted, 0.0), 0.0)


def unfinished(store: Store) -> list[Unfinished]:
    """The runs of a store that are in progress, interrupted or failed, oldest first. Skips unreadable files, and runs
    that have been completed since."""
    runs = (run for id in sorted(set(ids(store))) if (run := _read(store, id)))
    return sorted(runs, key=lambda run: run.time)


def _read(store: Store, id: str) -> Unfinished | None:
    work, failure = store.work(id), store.home / "failed" / f"{id}.json"
    failed, progress, checkpoint = json_at_hand(failure), json_at_hand(work / PROGRESS), json_at_hand(work / CHECKPOINT)
    begun = json_at_hand(work / SPEC)
    raw, keep = begun.get("run") or failed.get("spec"), begun.get("keep") or failed.get("keep")
    try:
        spec = RunSpec.shared(raw) if isinstance(raw, dict) else None
    except FedbenchError:
        return None
    if spec is None or spec.id != id:
        return None
    claim = holder(work)
    made, failed_at, saved = (_stat(path)[0] for path in (store.path("run", id) / MANIFEST, failure, work / CHECKPOINT))
    if claim is None and made > max(failed_at, saved):
        return None
    state = UnfinishedState.RUNNING if claim else UnfinishedState.FAILED if failed else UnfinishedState.INTERRUPTED
    round = progress.get("round") if claim else checkpoint.get("round")
    times, sizes = zip(
        *map(_stat, [failure, store.failed_step(id), *(work.iterdir() if work.is_dir() else ())]), strict=True
    )
    return Unfinished(
        spec=spec,
        state=state,
        round=round if isinstance(round, int) else 0,
        progress=progress,
        holder=claim,
        reason=str(failed.get("reason", "")) if state is UnfinishedState.FAILED else "",
        diverged=state is UnfinishedState.FAILED and failed.get("diverged") is True,
        time=max(times),
        bytes=sum(sizes),
        keep=frozenset(map(str, keep)) if isinstance(keep, list) else frozenset(),
    )


def discard(store: Store, id: str) -> None:
    """Delete the files of an interrupted or failed run. Raises HeldError if a process trains it."""
    folder = store.work(id)
    with hold(folder, f"run {id}"):
        for path in folder.iterdir():
            if path.name != CLAIM:
                erase(path)
        store.forget_failure(id)


def ids(store: Store) -> Iterator[str]:
    """Ids of all work folders and records of failures, readable or not."""
    for folder in ("work", "failed"):
        for path in store.home.glob(f"{folder}/*"):
            if not path.name.startswith("."):
                yield path.name.removesuffix(".json").removesuffix(".pt")


def _stat(path: Path) -> tuple[float, int]:
    """A file's modification time (Unix seconds) and size in bytes; zeros if it does not exist."""
    try:
        about = os.stat(path)
        return about.st_mtime, about.st_size
    except OSError:
        return 0.0, 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
