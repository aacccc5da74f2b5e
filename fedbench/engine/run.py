"""Execute one run in this process, or several at the same time that differ only in their seeds: claim them, load their
inputs, train them, write their artifacts."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.engine import job as work
from fedbench.engine.job import Job
from fedbench.engine.training import Data, prepared, write
from fedbench.errors import FedbenchError, check_known
from fedbench.files import scratch
from fedbench.plugins import reported
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError, Hold
from fedbench.store.folder import PROGRESS

if TYPE_CHECKING:
    import torch

    from fedbench.core.trainer import Progress, Trainer


# The device of a run, and whether it supports the run.


DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """The torch device for 'auto' (a GPU if there is one), 'cpu' or 'cuda'."""
    check_known("device", name, DEVICES)
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise FedbenchError("no CUDA device here", "use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_place(device: str, executor: str, precision: str) -> torch.device:
    """Return the device of this name. Raises FedbenchError if this machine lacks the device, if the device does not
    support the precision, or if the executor is unknown."""
    place = choose_device(device)
    from fedbench.core import precision as precisions
    from fedbench.core.executors import EXECUTORS

    precisions.check(precision, place)
    check_known("executor", executor, ("auto", *EXECUTORS))
    return place


# The progress of unfinished runs, written to files for `fedbench status`.


#: Seconds between two writes of the progress file.
SECONDS = 1.0


class ProgressFiles:
    """Writes the progress of runs that are trained together into their work folders.

    Nothing is flushed to disk, and a file that cannot be written is skipped. Loss and accuracy are means over the runs,
    the same values that observers receive.
    """

    def __init__(self, folders: Sequence[Path], how: Mapping[str, Any]) -> None:
        self.folders = folders
        self.about = {"device": how.get("device"), "executor": how.get("executor"), "accuracy": None}
        self.first: tuple[int, float] | None = None  #: the first round observed, and when it ended
        self.began, self.last = time.time(), 0.0

    def hear(self, now: Progress) -> None:
        """Write this progress if the last write is at least SECONDS ago or if it is of the last round."""
        if now.accuracy is not None:
            self.about["accuracy"] = now.accuracy
        at = time.time()
        if not now.doing:
            self.first = self.first or (now.round, at)
        if abs(at - self.last) < SECONDS and now.round < now.rounds:
            return
        self.last = at
        note = {**self.about, "round": now.round, "rounds": now.rounds, "loss": now.loss, "doing": now.doing}
        note |= {"time": at, "round_seconds": self._round_seconds(now.round, at), "gpu": _gpu(self.about["device"])}
        for folder in self.folders:
            path = folder / PROGRESS
            with contextlib.suppress(OSError):
                part = scratch(path)
                part.write_text(json.dumps(note))
                part.replace(path)

    def _round_seconds(self, round: int, at: float) -> float | None:
        """Mean seconds per round without the first, which includes compilation; at first the first round's seconds."""
        if self.first is None:
            return None
        first, ended = self.first
        return (at - ended) / (round - first) if round > first else ended - self.began


def _gpu(device: Any) -> dict[str, int] | None:
    """Bytes of GPU memory that this process has reserved, and the GPU's total; None for a CPU or an unknown device."""
    if device in ("cpu", None):
        return None
    torch = sys.modules["torch"]
    own = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"reserved": torch.cuda.memory_reserved(), "bytes": own.total_memory}


#: Executors that are faster with more clients at once. With the others, training seeds together saves no time.
STACKING = ("stacked", "graphed")

Observer = Callable[["Progress"], None]


def execute_all(
    jobs: Sequence[Job],
    store: Store,
    roots: list[Path],
    *,
    device: str = "auto",
    executor: str = "auto",
    observe: Observer = lambda _: None,
    data: Mapping[str, Data] | None = None,
) -> list[Artifact]:
    """Train one run, or several at the same time that differ only in their seeds, and return their artifacts. Runs that
    are complete in the store are not trained again.

    Several runs: those that another process has claimed are skipped. Nothing is trained if fewer than two remain, or if
    the executor ('auto': by the rule of core/executors.py) is not in STACKING. After an error the completed rounds of
    each run are saved and no run is recorded as failed: the caller then trains them one by one, which shows which of
    them fails. `data` maps partition ids to loaded partitions and images; by default they are from the store.

    Raises FedbenchError on bad input, store.claim.HeldError if another process has claimed the only run, and
    core.trainer.Interrupted on Ctrl-C. A failure of a single run is recorded with its reason and log.
    """
    for job in jobs:
        job.check_kept(store)
    place = check_place(device, executor, jobs[0].spec.setting.precision)
    from fedbench.core.precision import arithmetic
    from fedbench.core.trainer import Interrupted, train_together

    several = len(jobs) > 1
    with contextlib.ExitStack() as stack:
        ours = claimed(jobs, store, stack)
        done = [artifact for job in jobs if (artifact := job.done(store))]
        if len(ours) < (2 if several else 1):
            return done
        stack.enter_context(under_way(ours, store))

        trainers: list[Trainer] = []
        try:
            with (
                reported(),
                arithmetic(jobs[0].spec.setting.precision, place),
                prepared(ours, store, roots, place, executor, data) as ready,
            ):
                if several and ready.how["executor"] not in STACKING:
                    return []
                trainers = ready.trainers
                notes = ProgressFiles([store.work(job.spec.id) for job, _ in ours], ready.how)

                def beat(progress: Progress) -> None:
                    for _, claim in ours:
                        claim.beat()
                    notes.hear(progress)
                    observe(progress)

                train_together(trainers, beat)
                return [write(job, store, t, ready.how) for (job, _), t in zip(ours, trainers, strict=True)]
        except Interrupted:
            raise
        except Exception as error:
            if several:
                _save(trainers, [claim for _, claim in ours])
            elif ours[0][1].held():
                work.record_failure(ours[0][0], store, error)
            raise


def claimed(jobs: Sequence[Job], store: Store, claims: contextlib.ExitStack) -> list[tuple[Job, Hold]]:
    """The jobs that must be trained, with their claims. If several, without those claimed by another process."""
    ours = []
    for job in jobs:
        if job.done(store) is None:
            try:
                ours.append((job, claims.enter_context(store.claim(job.spec.id))))
            except HeldError:
                if len(jobs) == 1:
                    raise
    return [(job, claim) for job, claim in ours if job.done(store) is None]  # another process may just have finished it


@contextlib.contextmanager
def under_way(ours: Sequence[tuple[Job, Hold]], store: Store) -> Iterator[None]:
    """Context in which the runs are announced in their work folders; it cleans the folders up at its end."""
    try:
        for job, _ in ours:
            work.announce(job, store)
        yield
    finally:
        for job, claim in ours:
            if claim.held():  # else another process now uses the folder
                work.leave(job, store)


def _save(trainers: Sequence[Trainer], claims: Sequence[Hold]) -> None:
    """Save the last completed round of each run whose claim we still hold; errors are ignored."""
    for trainer, claim in zip(trainers, claims, strict=False):  # no trainers if loading the inputs failed
        if claim.held() and trainer.server.round > trainer.checkpoint.round:
            with contextlib.suppress(FedbenchError):
                trainer.save()
