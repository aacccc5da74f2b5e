"""Execute one run here, or several that differ in nothing but their seeds at the same time: load their inputs, train
them under their claims, write their artifacts."""

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
from fedbench.store.claim import Claim, HeldError
from fedbench.store.folder import PROGRESS

if TYPE_CHECKING:
    import torch

    from fedbench.core.trainer import Progress, Trainer


# -- place -----------------------------------------------------------------------------------------------------
# Where a run computes: the device, and what it must be able to do.


DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """'auto' (a GPU if there is one), 'cpu' or 'cuda'."""
    check_known("device", name, DEVICES)
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise FedbenchError("no CUDA device here", "use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_place(device: str, executor: str, precision: str) -> torch.device:
    """The device of that name. Raises FedbenchError unless this machine has it, it can compute so, and there is such
    an executor."""
    place = choose_device(device)
    from fedbench.core import precision as precisions
    from fedbench.core.executors import EXECUTORS

    precisions.check(precision, place)
    check_known("executor", executor, ("auto", *EXECUTORS))
    return place


# -- progress --------------------------------------------------------------------------------------------------
# How far runs under way have come, noted for who looks from outside (`fedbench status`).


#: A note is written when the last one is older than this.
SECONDS = 1.0


class Notes:
    """The notes of runs that are made together, in their work folders.

    They are a courtesy: nothing waits for the disk, and a note that cannot be written is left out. Loss and accuracy
    are means over the runs, as their observer hears them.
    """

    def __init__(self, folders: Sequence[Path], how: Mapping[str, Any]) -> None:
        self.folders = folders
        self.about = {"device": how.get("device"), "executor": how.get("executor"), "accuracy": None}
        self.first: tuple[int, float] | None = None  #: the first round heard of, and when it ended
        self.began, self.last = time.time(), 0.0

    def hear(self, now: Progress) -> None:
        """Note what an observer hears, at most once in SECONDS; and the last round."""
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
        """The mean of the rounds after the first, which pays for allocations and compilation; or of that one."""
        if self.first is None:
            return None
        first, ended = self.first
        return (at - ended) / (round - first) if round > first else ended - self.began


def _gpu(device: Any) -> dict[str, int] | None:
    """Bytes of its GPU that this process has reserved, and that there are; None on a CPU, and elsewhere (no device)."""
    if device in ("cpu", None):
        return None
    torch = sys.modules["torch"]
    own = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"reserved": torch.cuda.memory_reserved(), "bytes": own.total_memory}


# -- run -------------------------------------------------------------------------------------------------------


#: Executors that gain from more clients at once; with another, one run after another is as fast.
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
    """Make a run, or several that differ in nothing but their seeds at the same time, and return their artifacts; what
    is there already is returned as it is.

    Of several, those that another process holds are left out, and nothing is made if fewer than two remain or the
    executor ('auto': by the rule of core/executors.py) is none of STACKING. An error is then not held against a run:
    what is done of each is saved, so that they can go on one after another, which shows whose error it is. Partitions
    and images are those of `data` by the partitions' ids, if there are any, else the store's.

    Raises FedbenchError on bad input, store.claim.HeldError if another process holds the only run,
    core.trainer.Interrupted on Ctrl-C. A failure of the only run is recorded with its reason and log.
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
                notes = Notes([store.work(job.spec.id) for job, _ in ours], ready.how)

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


def claimed(jobs: Sequence[Job], store: Store, claims: contextlib.ExitStack) -> list[tuple[Job, Claim]]:
    """The jobs that are to be made, with their claims; of several those that nobody else is at."""
    ours = []
    for job in jobs:
        if job.done(store) is None:
            try:
                ours.append((job, claims.enter_context(store.claim(job.spec.id))))
            except HeldError:
                if len(jobs) == 1:
                    raise
    return [(job, claim) for job, claim in ours if job.done(store) is None]  # or finished by another one just now


@contextlib.contextmanager
def under_way(ours: Sequence[tuple[Job, Claim]], store: Store) -> Iterator[None]:
    """Announce the runs, and at the end leave of their work folders what is of further use."""
    try:
        for job, _ in ours:
            work.announce(job, store)
        yield
    finally:
        for job, claim in ours:
            if claim.held():  # or else another process works there now
                work.leave(job, store)


def _save(trainers: Sequence[Trainer], claims: Sequence[Claim]) -> None:
    """Save the last completed rounds of the runs that are still ours, as far as the disk lets us."""
    for trainer, claim in zip(trainers, claims, strict=False):  # no trainers yet if their inputs could not be loaded
        if claim.held() and trainer.server.round > trainer.checkpoint.round:
            with contextlib.suppress(FedbenchError):
                trainer.save()
