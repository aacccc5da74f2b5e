"""A run that shows how it goes: a bar of its rounds, and in a sweep one of all runs; both with the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedbench.cli import context

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress as RoundProgress
    from fedbench.engine.job import Job
    from fedbench.store import Artifact, Store

#: Where standard error is no terminal, a line at most every so many seconds.
QUIET_SECONDS = 30.0
#: The time left is told by the speed of the last hour.
SPEED_SECONDS = 3600.0

Observer = Callable[["RoundProgress"], None]


def run(
    jobs: Sequence[Job],
    store: Store,
    device: str,
    executor: str,
    title: str = "",
    bars: Bars | None = None,
    cost: float = 0.0,
) -> list[Artifact]:
    """Make a run, or find it made, or make at the same time what can be of runs that differ in nothing but their seeds
    (`engine.run.execute_all`); and evaluate them. At an interrupt: say how to go on, and exit with 130.

    `bars` are those of a sweep, of which the runs cost so much.
    """
    from fedbench.engine.run import execute_all
    from fedbench.metrics.evaluate import evaluate

    observe: Observer = lambda _: None  # noqa: E731
    with contextlib.ExitStack() as stack:
        stack.enter_context(_stoppable(jobs, store))
        if not all(job.done(store) for job in jobs):
            bars = bars or stack.enter_context(Bars(context.err()))
            title = title or jobs[0].method.title
            observe = stack.enter_context(bars.watch(title, jobs[0].spec.setting.rounds, cost))
        artifacts = execute_all(jobs, store, context.roots(), device=device, executor=executor, observe=observe)
    for artifact in artifacts:
        if remark := artifact.provenance.get("remark"):
            context.err().print(str(remark), markup=False)
        evaluate(artifact, store)
    return artifacts


@contextlib.contextmanager
def _stoppable(jobs: Sequence[Job], store: Store) -> Iterator[None]:
    """At an interrupt inside the block, say from which round the runs will go on, and exit with 130."""
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.work import saved_round

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


class Bars:
    """What is under way: on a terminal a bar of the run's rounds, and of a sweep's runs; elsewhere plain lines.

    `costs` are those of the sweep's runs, in any unit: its bar grows by them. A line fits 80 columns; titles are cut.
    """

    def __init__(self, console: Console, costs: Sequence[float] = ()) -> None:
        self.console, self.costs = console, costs
        self.ended, self.spent = 0, 0.0
        title = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False, table_column=title),
            BarColumn(bar_width=12),
            *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "loss", "accuracy")),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.sweep: TaskID | None = None

    def __enter__(self) -> Bars:
        if self.console.is_terminal:
            if len(self.costs) > 1:
                self.sweep = self._bar(f"all {len(self.costs)} runs", sum(self.costs), len(self.costs))
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def _bar(self, title: str, total: float, count: int) -> TaskID:
        return self.progress.add_task(title, total=total, count=f"0/{count}", loss="", accuracy="")

    def end(self, cost: float) -> None:
        """A run of the sweep, which cost so much, has ended this way or that."""
        self.ended, self.spent = self.ended + 1, self.spent + cost
        if self.sweep is not None:
            self.progress.update(self.sweep, completed=self.spent, count=f"{self.ended}/{len(self.costs)}")

    @contextlib.contextmanager
    def watch(self, title: str, rounds: int, cost: float = 0.0) -> Iterator[Observer]:
        """An observer of the training of one or several of the sweep's runs, which cost so much."""
        if not self.console.is_terminal:
            yield _lines(self.console, title)
            return
        run = self._bar(title, rounds, rounds)

        def observe(now: RoundProgress) -> None:
            if now.doing:
                self.progress.update(run, description=f"{title}, {now.doing}")
                return
            texts = {"count": f"{now.round}/{now.rounds}", "loss": f"loss {now.loss:.3f}"}
            if now.accuracy is not None:
                texts["accuracy"] = f"{now.accuracy:.1%}"
            self.progress.update(run, description=title, completed=now.round, **texts)
            if self.sweep is not None:
                self.progress.update(self.sweep, completed=self.spent + cost * now.round / now.rounds)

        try:
            yield observe
            texts = self.progress.tasks[self.progress.task_ids.index(run)].fields
            if self.sweep is not None:  # or else the run's bar stays as it is
                self.console.print(f"{title}: {texts['count']} rounds, {texts['loss']}, accuracy {texts['accuracy']}")
        finally:
            if self.sweep is not None:
                self.progress.remove_task(run)


def _lines(console: Console, title: str) -> Observer:
    last = time.perf_counter()
    accuracy = ""

    def observe(now: RoundProgress) -> None:
        nonlocal last, accuracy
        if now.doing:
            console.print(f"{title}: {now.doing}")
            return
        if now.accuracy is not None:
            accuracy = f", accuracy {now.accuracy:.1%}"
        if now.round == now.rounds or time.perf_counter() - last > QUIET_SECONDS:
            last = time.perf_counter()
            console.print(f"{title}: round {now.round} of {now.rounds}, loss {now.loss:.3f}{accuracy}")

    return observe
