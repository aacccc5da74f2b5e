"""A run that shows how it goes, and what is said where it is stopped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedbench.cli import context

if TYPE_CHECKING:
    from fedbench.engine.engines import Engine
    from fedbench.engine.job import Job
    from fedbench.observers import Observer
    from fedbench.observers.bars import Bars
    from fedbench.store import Artifact, Store


def run(
    jobs: Sequence[Job],
    engine: Engine,
    title: str = "",
    bars: Bars | None = None,
    observers: Sequence[Observer] = (),
    limit: Limit | None = None,
) -> list[Artifact]:
    """Make and evaluate runs (`observers.watch.make`) under bars, a sweep's if there are such. At an interrupt: say how
    to go on, and exit with 130; but of an engine that makes several at a time that is its caller's (`stoppable`).
    Raises OutOfTime where the limit ends them."""
    from fedbench.observers.bars import Bars
    from fedbench.observers.watch import make

    with contextlib.ExitStack() as stack:
        if engine.slots == 1:
            stack.enter_context(_stoppable(jobs, engine.store))
        if limit is not None:
            stack.enter_context(limit.reached())
        watching = [bars or stack.enter_context(Bars(context.err())), *observers]
        if engine.slots > 1:
            watching = [one.twin() for one in watching]
        return make(
            jobs, engine, title=title, observers=watching,
            warn=lambda line: context.err().print(line, markup=False),
        )  # fmt: skip


class Limit:
    """The minutes that a command may take: what would not end in them is not begun, and what is under way at their end
    is saved."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.end = time.monotonic() + 60 * minutes
        self.taken, self.estimated = 0.0, 0.0  #: seconds of the runs made so far

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self.end - time.monotonic())

    @contextlib.contextmanager
    def timed(self, estimate: float) -> Iterator[None]:
        """Around work of so many seconds by its estimate. Raises OutOfTime if it, at the pace of the runs before, would
        not end in time."""
        from fedbench.engine.sweep import OutOfTime

        pace = self.taken / self.estimated if self.estimated else 1.0
        if estimate * pace > self.left or not self.left:
            raise OutOfTime
        started = time.monotonic()
        yield
        self.taken, self.estimated = self.taken + time.monotonic() - started, self.estimated + estimate

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """An interrupt inside the block, at the end of the time, is that end."""
        from fedbench.core.trainer import Interrupted
        from fedbench.engine.sweep import OutOfTime

        try:
            yield
        except Interrupted:
            if self.left:
                raise
            raise OutOfTime from None

    @contextlib.contextmanager
    def over(self, engine: Engine) -> Iterator[None]:
        """Stop, at the end of the time, what the engine has under way."""
        timer = threading.Timer(self.left, engine.stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextlib.contextmanager
def stoppable(engine: Engine) -> Iterator[None]:
    """Around runs that are made several at a time: at an interrupt say how to go on, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        if engine.slots == 1:
            raise
        context.err().print(f"stopped. {engine.goes_on}")
        sys.exit(130)


@contextlib.contextmanager
def stoppable_aside() -> Iterator[None]:
    """Around a run that is kept nowhere: what stops it is an interrupt of the command."""
    from fedbench.core.trainer import Interrupted

    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _stoppable(jobs: Sequence[Job], store: Store) -> Iterator[None]:
    """At an interrupt inside the block, say from which round the runs will go on, and exit with 130."""
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.job import saved_round

    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        console, rounds = context.err(), jobs[0].spec.setting.rounds
        left = [saved_round(job, store) for job in jobs if not job.done(store)]
        if not left:
            console.print("stopped; what was to be trained is complete.")
        elif saved := min(left):
            console.print(f"stopped; round {saved} of {rounds} is saved. The same command goes on from there.")
        else:
            console.print("stopped before the end of the first round; nothing was saved.")
        sys.exit(130)
