"""Execute runs that differ in nothing but their seeds at the same time, with the clients of all in one stack."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.local import Job, announce, check_place, choose_device, clear, tidy
from fedbench.engine.training import prepared, write
from fedbench.errors import FedbenchError
from fedbench.plugins.mistakes import reported
from fedbench.specs import Setting
from fedbench.store import Artifact, Store
from fedbench.store.claim import Claim, HeldError

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress, Trainer

#: Executors that gain from more clients at once; with another, one run after another is as fast.
EXECUTORS = ("stacked", "graphed")


def but_for_seeds(setting: Setting) -> Hashable:
    """The same for settings that differ in nothing but the seeds of the run and of the partition."""
    return replace(setting, seed=0, partition=replace(setting.partition, seed=0))


def execute_together(
    jobs: Sequence[Job],
    store: Store,
    roots: list[Path],
    *,
    device: str = "auto",
    executor: str = "auto",
    observe: Callable[[Progress], None] = lambda _: None,
) -> list[Artifact]:
    """Make runs that differ in nothing but their seeds, and return the artifacts of those that were made.

    Runs that are done or that another process holds are left out; if fewer than two remain, or the executor ('auto':
    the one measured to be fastest) is none of EXECUTORS, nothing is made. Raises
    core.trainer.Interrupted on Ctrl-C. Any other error is not held against a run: what is done of each is saved, so
    that engine.local.execute can go on with one after another and tell whose error it is.
    """
    setting = jobs[0].spec.setting
    check_place(device, executor, setting.precision)
    from fedbench.core.precision import arithmetic
    from fedbench.core.trainer import Interrupted, train_together

    with contextlib.ExitStack() as held:
        ours = _claimed(jobs, store, held)
        if len(ours) < 2:
            return []
        jobs, claims = [job for job, _ in ours], [claim for _, claim in ours]

        def heard(progress: Progress) -> None:
            for claim in claims:
                claim.beat()
            observe(progress)

        trainers: list[Trainer] = []
        try:
            for job in jobs:
                announce(job, store)
            place = choose_device(device)
            with (
                reported(),
                arithmetic(setting.precision, place),
                prepared(jobs, claims, store, roots, place, executor) as ready,
            ):
                if ready.how["executor"] not in EXECUTORS:
                    for job in jobs:
                        tidy(job, store)
                    return []
                trainers = ready.trainers
                train_together(trainers, heard)
                artifacts = [write(j, store, t, ready.how) for j, t in zip(jobs, trainers, strict=True)]
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, Interrupted):
                _save(trainers, claims)
            for job, claim in ours:
                if claim.held():
                    leave = tidy if job.done(store) is None else clear
                    leave(job, store)
            raise
        for job, claim in ours:
            if claim.held():
                clear(job, store)
    return artifacts


def _claimed(jobs: Sequence[Job], store: Store, held: contextlib.ExitStack) -> list[tuple[Job, Claim]]:
    """The jobs that are to be made and that nobody else is at, with their claims, which `held` lets go of."""
    ours = []
    for job in jobs:
        if job.done(store) is None:
            with contextlib.suppress(HeldError):
                ours.append((job, held.enter_context(store.claim(job.spec.id))))
    return [(job, claim) for job, claim in ours if job.done(store) is None]  # or finished by another one just now


def _save(trainers: Sequence[Trainer], claims: Sequence[Claim]) -> None:
    """Save the last completed rounds of the runs that are still ours, as far as the disk lets us."""
    for trainer, claim in zip(trainers, claims, strict=False):  # no trainers yet if their inputs could not be loaded
        if claim.held() and trainer.server.round > trainer.checkpoint.round:
            with contextlib.suppress(FedbenchError):
                trainer.save()
