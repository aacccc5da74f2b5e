"""Train runs with progress bars, and print how they ended: one run, or all that a table or a sweep lacks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedbench.cli import context, printing
from fedbench.cli.costs import about, costs_of
from fedbench.cli.options import of_spec
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError, reason
from fedbench.plugins import PluginError
from fedbench.store.claim import HeldError
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.engine.engines import Engine
    from fedbench.engine.job import Job
    from fedbench.engine.sweep import End, Outcome, Wanted
    from fedbench.observers import Observer
    from fedbench.observers.bars import Bars
    from fedbench.store import Artifact, Store

#: Options that choose device, executor and engine.
WHERE = of_spec(Where, native=True)


def run(
    jobs: Sequence[Job],
    engine: Engine,
    title: str = "",
    bars: Bars | None = None,
    observers: Sequence[Observer] = (),
) -> list[Artifact]:
    """Train and evaluate runs (`observers.make`) with progress bars; a sweep passes its `bars`. At an interrupt,
    print how to continue and exit with 130; if the engine trains several runs at a time, `stoppable` does this for all.
    """
    from fedbench.core.trainer import Interrupted
    from fedbench.observers import make
    from fedbench.observers.bars import Bars

    console = context.err()
    try:
        with contextlib.nullcontext(bars) if bars else Bars(console) as shown:
            watching = [shown, *observers]
            if engine.slots > 1:
                watching = [one.twin() for one in watching]
            warn = partial(console.print, markup=False)
            return make(jobs, engine, title=title, observers=watching, warn=warn)
    except (KeyboardInterrupt, Interrupted):
        if engine.slots > 1:
            raise
        console.print(_saved(jobs, engine.store))
        sys.exit(130)


def _saved(jobs: Sequence[Job], store: Store) -> str:
    """A message that tells what is saved of stopped runs."""
    from fedbench.engine.job import saved_round

    rounds = [saved_round(job, store) for job in jobs if not job.done(store)]
    if not rounds:
        return "stopped; what was to be trained is complete."
    if not min(rounds):
        return "stopped before the end of the first round; nothing was saved."
    every = jobs[0].spec.setting.rounds
    return f"stopped; round {min(rounds)} of {every} is saved. The same command continues from there."


@contextlib.contextmanager
def stoppable(engine: Engine) -> Iterator[None]:
    """For runs that are trained in parallel: after an interrupt, print how to continue and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        if engine.slots == 1:
            raise
        context.err().print(f"stopped. {engine.goes_on}")
        sys.exit(130)


@dataclass(frozen=True)
class How:
    """How runs are trained, and what is printed about it."""

    where: Where
    again: bool = False
    keep: frozenset[str] = frozenset()
    as_json: bool = False
    observers: Sequence[Observer] = ()


def make(
    runs: Sequence[Wanted],
    scope: str,
    nothing: str,
    engine: Engine,
    how: How,
    more: Callable[[], Sequence[Wanted]] = tuple,
) -> bool:
    """Train runs and print the outcomes. `scope` describes the runs, `nothing` is the reason to print if there are
    none, and `more` returns the runs that the finished ones have made necessary.

    A failed run does not stop the others; it is listed at the end. False if any run failed.
    """
    from fedbench.engine.sweep import End
    from fedbench.results.learnt import not_learnt

    console = context.err()
    with stoppable(engine):
        outcomes = _made(runs, scope, engine, how)
        while batch := more():
            runs = [*runs, *batch]
            for end, those in _made(batch, scope, engine, how).items():
                outcomes[end] += those
    ids = [one.artifact.id for one in outcomes[End.MADE] if one.artifact]
    failures = [_failure(one) for one in outcomes[End.FAILED]]
    if how.as_json:
        left = [one.title for one in outcomes[End.HELD]]
        printing.print_json({"made": ids, "failed": failures, "left": left})
    for line in not_learnt(one.artifact for one in outcomes[End.MADE] if one.artifact):
        console.print(line, soft_wrap=True, markup=False)
    elsewhere = f", {len(others):,} by other processes" if (others := outcomes[End.MADE_BY_OTHERS]) else ""
    console.print(f"{len(ids):,} of {len(runs):,} runs made{elsewhere}" if runs else f"nothing to run: {nothing}")
    for one in outcomes[End.HELD]:
        assert isinstance(one.error, HeldError)
        console.print(f"left to {one.error.who}: {one.title}")
    for failure in failures:
        log = f" (log: {failure['log']})" if "log" in failure else ""
        console.print(f"failed: {failure['run']}: {failure['reason']}{log}")
    return not failures


def _made(runs: Sequence[Wanted], scope: str, engine: Engine, how: How) -> dict[End, list[Outcome]]:
    """Train the runs with progress bars, and return their outcomes."""
    from fedbench.engine.sweep import End, sweep
    from fedbench.observers.bars import Bars

    console = context.err()
    engine.get_ready(len(runs))
    costs = costs_of(runs, how.where.kind)
    shares = {one.spec.id: costs.get(one.spec.id, 1.0) for one in runs}
    if runs:
        console.print(f"{counted(len(runs), 'run')} to make, {scope}{about(costs.values())}")
    outcomes: dict[End, list[Outcome]] = {end: [] for end in End}
    with Bars(console, shares) as bars:

        def execute(jobs: Sequence[Job], title: str) -> list[Artifact]:
            return run(jobs, engine, title, bars, how.observers)

        for outcome in sweep(runs, engine, execute, executor=how.where.executor, again=how.again, keep=how.keep):
            if context.debug() and outcome.error and not isinstance(outcome.error, HeldError):
                raise outcome.error
            outcomes[outcome.end].append(outcome)
            if outcome.end is End.APART:
                console.print(f"not together: {reason(outcome.error)}; one run after another instead")
            else:
                bars.end(shares.get(outcome.job.spec.id, 1.0) if outcome.job else 1.0)
    return outcomes


def _failure(outcome: Outcome) -> dict[str, str]:
    """A failed run for the list; with its log unless the reason alone shows that the input was wrong."""
    failure = {"run": outcome.title, "reason": reason(outcome.error)}
    if outcome.job and (isinstance(outcome.error, PluginError) or not isinstance(outcome.error, FedbenchError)):
        failure["log"] = str(context.store().home / "failed" / f"{outcome.job.spec.id}.json")
    return failure
