"""A run that shows how it goes: a bar with accuracy, loss, rounds a second and the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedbench.cli import context

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress as RoundProgress
    from fedbench.engine.local import Job
    from fedbench.store import Artifact, Store

#: Where standard error is no terminal, a line at most every so many seconds.
QUIET_SECONDS = 30.0


def run(job: Job, store: Store, device: str, executor: str, title: str = "") -> Artifact:
    """Make the run under a live display, or find it made, and evaluate it. At an interrupt: say how to go on, and exit
    with 130."""
    from fedbench.engine.local import execute
    from fedbench.metrics.evaluate import evaluate

    rounds = job.spec.setting.rounds
    shown = (
        contextlib.nullcontext(lambda _: None)
        if job.done(store)
        else watch(context.err(), title or job.method.title, rounds)
    )
    with _stoppable([job], store), shown as observe:
        artifact = execute(job, store, context.roots(), device=device, executor=executor, observe=observe)
    if remark := artifact.provenance.get("remark"):
        context.err().print(str(remark), markup=False)
    evaluate(artifact, store)
    return artifact


def run_together(jobs: Sequence[Job], store: Store, device: str, executor: str, title: str) -> None:
    """Make what can be made at the same time of runs that differ in nothing but their seeds, under one display.

    Raises as engine.together.execute_together does, but at an interrupt says how to go on and exits with 130.
    """
    from fedbench.engine.together import execute_together

    with _stoppable(jobs, store), watch(context.err(), title, jobs[0].spec.setting.rounds) as observe:
        execute_together(jobs, store, context.roots(), device=device, executor=executor, observe=observe)


@contextlib.contextmanager
def _stoppable(jobs: Sequence[Job], store: Store) -> Iterator[None]:
    """At an interrupt inside the block, say from which round the runs will go on, and exit with 130."""
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.local import saved_round

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


@contextlib.contextmanager
def watch(console: Console, title: str, rounds: int) -> Iterator[Callable[[RoundProgress], None]]:
    """An observer for the trainer: a live bar on a terminal, an occasional plain line elsewhere."""
    if console.is_terminal:
        with _bar(console, title, rounds) as observe:
            yield observe
    else:
        yield _lines(console, title)


@contextlib.contextmanager
def _bar(console: Console, title: str, rounds: int) -> Iterator[Callable[[RoundProgress], None]]:
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("accuracy [green]{task.fields[accuracy]}[/]  loss {task.fields[loss]}  {task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=rounds, accuracy="-", loss="-", speed="")
        began: list[tuple[float, int]] = []

        def observe(now: RoundProgress) -> None:
            if now.doing:
                progress.update(task, description=f"{title}, {now.doing}")
                return
            began.append((time.perf_counter(), now.round))
            fields = {"loss": f"{now.loss:.3f}", "speed": _speed(began)}
            if now.accuracy is not None:
                fields["accuracy"] = f"{now.accuracy:.1%}"
            progress.update(task, description=title, completed=now.round, **fields)

        yield observe


def _speed(marks: list[tuple[float, int]]) -> str:
    (t0, r0), (t1, r1) = marks[max(0, len(marks) - 20)], marks[-1]
    if r1 == r0 or t1 == t0:
        return ""
    a_second = (r1 - r0) / (t1 - t0)
    return f"{a_second:.1f} rounds/s" if a_second >= 0.5 else f"{1 / a_second:.1f} s/round"


def _lines(console: Console, title: str) -> Callable[[RoundProgress], None]:
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


def duration(seconds: float) -> str:
    """Seconds in words, roughly and at least one: 45 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
