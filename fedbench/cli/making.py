"""Runs made one after another or together, as a table or a sweep lacks them, and what became of each."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedbench import protocol
from fedbench.cli import context
from fedbench.cli.live import Limit, run, stoppable
from fedbench.errors import FedbenchError
from fedbench.plugins.mistakes import PluginError
from fedbench.store.claim import HeldError
from fedbench.words import counted, duration

if TYPE_CHECKING:
    from pathlib import Path

    from fedbench.engine.engines import Engine, Where
    from fedbench.engine.job import Job
    from fedbench.engine.sweep import End, Outcome, Wanted
    from fedbench.observers import Observer
    from fedbench.planner.table.spec import Table
    from fedbench.store import Artifact


# -- cost ------------------------------------------------------------------------------------------------------
# What runs cost here, before they are made.


def of(runs: Sequence[Wanted], device: str) -> dict[str, float]:
    """Run's id -> its seconds here; empty if that cannot be told of one of them."""
    from fedbench import methods
    from fedbench.engine.cost import seconds
    from fedbench.plugins.mistakes import reported

    costs: dict[str, float] = {}
    try:
        for one in runs:
            with reported():
                method = methods.load(one.method)[0].create(one.spec.params)
            costs[one.spec.id] = seconds(one.spec.setting, method, context.store(), context.roots(), device)
    except FedbenchError:
        return {}
    return costs


def show(runs: Sequence[Wanted], scope: str, nothing: str, device: str, as_json: bool) -> None:
    """List the runs that a table lacks: a line for each row on each data set; in JSON each run. `scope` says
    which runs these are, `nothing` why there may be none."""
    from rich.table import Table

    if as_json:
        show_json(runs, device)
        return
    costs = of(runs, device)
    groups: dict[tuple[str, str], list[Wanted]] = defaultdict(list)
    for one in runs:
        groups[one.row or one.method, one.spec.setting.partition.dataset.name].append(one)
    table = Table("row", "data set", box=None, header_style="bold", pad_edge=False)
    table.add_column("to make", justify="right")
    table.add_column("time here", justify="right")
    for (row, dataset), those in groups.items():
        seconds = duration(sum(costs[one.spec.id] for one in those)) if costs else "–"
        table.add_row(row, dataset, str(len(those)), seconds)
    if runs:
        context.out().print(table)
    about = f", about {duration(sum(costs.values()))} of training here when idle" if costs else ""
    total = f"{counted(len(runs), 'run')} to make, {scope}{about}"
    context.out().print(total if runs else f"nothing to run: {nothing}")


def show_json(runs: Sequence[Wanted], device: str) -> None:
    """Each run in JSON, its `seconds` null where they cannot be told."""
    costs = of(runs, device)
    context.print_json([_facts(one) | {"seconds": costs.get(one.spec.id)} for one in runs])


def _facts(one: Wanted) -> dict[str, str | int]:
    setting = one.spec.setting
    return {
        "run": one.spec.id, "row": one.row, "method": one.method, "dataset": setting.partition.dataset.name,
        "partition": setting.partition.id, "seed": setting.seed,
    }  # fmt: skip


# -- making ----------------------------------------------------------------------------------------------------


#: Runs that are listed of those for which there was no time.
LISTED = 5


@dataclass(frozen=True)
class How:
    """How runs are made, and how much is said of it."""

    where: Where
    again: bool = False
    keep: frozenset[str] = frozenset()
    quiet: bool = False  #: without the lines that count the runs, where all went well
    as_json: bool = False
    observers: Sequence[Observer] = ()
    limit: Limit | None = None  #: nothing is under way when its minutes are over


def train_table(
    name: str,
    how: How,
    *,
    methods: Sequence[str],
    params: Mapping[str, str],
    dataset: str | None,
    columns: Sequence[str],
    budget: str,
    precision: str | None,
    seed: int | None,
    unshipped: bool,
    dry: bool,
    minutes: float | None,
    export: Path | None,
) -> None:
    """Run what a table lacks (or each of `methods` in all of its settings, with these hyper-parameters), or only list
    it (`dry`); `unshipped`: what result packs hold is not lacking.

    Any number of processes can do this on one store and share the runs out. One failed run does not stop the others;
    it is listed at the end, and the exit code is then 1. Nothing is under way when so many `minutes` are over. What the
    store then has of the table's runs goes into the pack `export`.
    """
    from fedbench.data import called
    from fedbench.engine.sweep import Plan, plan
    from fedbench.metrics.definitions import METRICS
    from fedbench.planner import table as tables
    from fedbench.planner.cells import scope
    from fedbench.specs import Setting

    console, store = context.err(), context.store()
    table = tables.load(name)
    if precision is None and not table.counted:
        precision = protocol.load(table.protocol).precision(budget)
    if table.counted:
        counted = f"table {table.id} is counted by formula: 'fedbench report --table {name}' prints it as it is"
        lacking = Plan((), [counted])
    else:
        table = table if dataset is None else tables.on_dataset(table, called(dataset))
        table = table.only(columns) if columns else table
        needed = {METRICS[c.metric].needs for c in table.columns if c.metric in METRICS} - {""}
        how = replace(how, keep=how.keep | needed)
        roots = context.roots()
        missing = partial(
            plan, table, store, roots, only=methods, params=params, budget=budget, precision=precision, seed=seed,
            again=how.again, keep=how.keep, packs=context.shelf() if unshipped else None,
        )  # fmt: skip
        lacking = missing()
    where, limit = how.where, None if minutes is None else Limit(minutes)
    engine = where.engine_for(store, context.roots(), precision or Setting.precision)
    runs, remarks = lacking.runs, [*lacking.remarks]
    own = sorted({one.spec.setting.executor for one in runs if one.spec.setting.executor} - {where.executor})
    if own and where.executor != "auto":
        remarks.append(
            f"--executor {where.executor} is not taken where the table measures times with {' and '.join(own)}"
        )
    for remark in remarks:
        console.print(remark, style="dim")
    nothing = "no cell of the table is missing" if lacking.complete else "all that can be had is there"
    planned = {one.spec.id for one in runs}

    def more() -> list[Wanted]:
        """What the values that have been chosen meanwhile ask for."""
        rest = [one for one in missing().runs if one.spec.id not in planned]
        planned.update(one.spec.id for one in rest)
        return rest

    tuned = bool(table.tune) and not table.counted
    if tuned:
        first = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in table.tune.items())
        console.print(f"each cell chooses on validation images: {first}; the other seeds follow with its best")
    if dry:
        show(runs, scope(budget, precision or ""), nothing, where.kind, how.as_json)
        return
    with engine, limit.over(engine) if limit else contextlib.nullcontext():
        whole = make(
            runs, scope(budget, precision or ""), nothing, engine, replace(how, limit=limit), more if tuned else tuple
        )
    if export is not None:
        whole = _exported(export, table, runs, budget, precision, seed) and whole
    if not whole:
        sys.exit(1)


def _exported(
    pack: Path, table: Table, made: Sequence[Wanted], budget: str, precision: str | None, seed: int | None
) -> bool:
    """Put the table's runs that the store has, and those of extra rows that were to be made, into a pack. False if that
    cannot be done, which undoes nothing of what was trained."""
    from fedbench.cli.results import into_pack
    from fedbench.planner.cells import find

    store, seeds = context.store(), () if seed is None else (seed,)
    cells = [] if table.counted else find(table, budget, store, context.roots(), precision=precision, seeds=seeds).all
    specs = {spec for cell in cells for spec in cell.specs} | {one.spec for one in made}
    there = sorted(spec.id for spec in specs if store.has(spec))
    try:
        if not there:
            raise FedbenchError("no run of the table is complete")
        into_pack(pack, filters=there)
    except FedbenchError as error:
        context.err().print(f"nothing is exported: {error}", markup=False)
        return not there
    return True


def make(
    runs: Sequence[Wanted],
    scope: str,
    nothing: str,
    engine: Engine,
    how: How,
    more: Callable[[], Sequence[Wanted]] = tuple,
) -> bool:
    """Make runs and say what became of each; `scope` says which these are, `nothing` why there may be none, `more`
    which ones these have led to.

    One failed run does not stop the others; it is listed at the end. False if there is one.
    """
    from fedbench.engine.sweep import End

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
        left = [one.title for one in (*outcomes[End.HELD], *outcomes[End.LATE])]
        context.print_json({"made": ids, "failed": failures, "left": left})
    if not how.quiet or failures:
        elsewhere = f", {len(others):,} by other processes" if (others := outcomes[End.MADE_ELSEWHERE]) else ""
        console.print(f"{len(ids):,} of {len(runs):,} runs made{elsewhere}" if runs else f"nothing to run: {nothing}")
    if how.limit is not None and (late := outcomes[End.LATE]):
        console.print(f"left for another time, as {counted(how.limit.minutes, 'minute')} are over or too few are left:")
        for one in late[:LISTED]:
            console.print(f"  {one.title}{_from_round(one)}", markup=False)
        more_late = f"  and {len(late) - LISTED:,} more\n" if len(late) > LISTED else ""
        console.print(f"{more_late}The same command goes on from there.")
    for one in outcomes[End.HELD]:
        assert isinstance(one.error, HeldError)
        console.print(f"left to {one.error.who}: {one.title}")
    for failure in failures:
        log = f" (log: {failure['log']})" if "log" in failure else ""
        console.print(f"failed: {failure['run']}: {failure['reason']}{log}")
    return not failures


def _made(runs: Sequence[Wanted], scope: str, engine: Engine, how: How) -> dict[End, list[Outcome]]:
    """What became of the runs, which are made under bars."""
    from fedbench.engine.sweep import End, sweep
    from fedbench.observers.bars import Bars

    console, limit = context.err(), how.limit
    engine.get_ready([(one.method, one.spec) for one in runs])
    costs = of(runs, how.where.kind)
    shares = {one.spec.id: costs.get(one.spec.id, 1.0) for one in runs}
    if runs and not how.quiet:
        about = f", about {duration(sum(shares.values()))} of training here when idle" if costs else ""
        console.print(f"{counted(len(runs), 'run')} to make, {scope}{about}")
    outcomes: dict[End, list[Outcome]] = {end: [] for end in End}
    with Bars(console, shares) as bars:

        def execute(jobs: Sequence[Job], title: str) -> list[Artifact]:
            if limit is None:
                return run(jobs, engine, title, bars, how.observers)
            with limit.timed(sum(shares[job.spec.id] * _undone(job) for job in jobs if costs)):
                return run(jobs, engine, title, bars, how.observers, limit)

        chosen: dict[str, Any] = {"executor": how.where.executor, "again": how.again, "keep": how.keep}
        for outcome in sweep(runs, engine.store, execute, engine=engine, **chosen):
            if context.debug() and outcome.error and not isinstance(outcome.error, HeldError):
                raise outcome.error
            outcomes[outcome.end].append(outcome)
            if outcome.end is End.APART:
                console.print(f"not together: {_reason(outcome)}; one run after another instead")
            else:
                bars.end(shares.get(outcome.job.spec.id, 1.0) if outcome.job else 1.0)
    return outcomes


def _undone(job: Job) -> float:
    """The share of a run's rounds that no checkpoint holds."""
    from fedbench.engine.job import saved_round

    return 1 - saved_round(job, context.store()) / job.spec.setting.rounds


def _from_round(outcome: Outcome) -> str:
    """Where a run goes on, if it has begun."""
    from fedbench.engine.job import saved_round

    saved = saved_round(outcome.job, context.store()) if outcome.job else 0
    return f": round {saved} of {outcome.job.spec.setting.rounds} is saved" if outcome.job and saved else ""


def _failure(outcome: Outcome) -> dict[str, str]:
    """A failed run as it is listed; with its log where the reason alone does not show whose mistake it is."""
    failure = {"run": outcome.title, "reason": _reason(outcome)}
    if outcome.job and (isinstance(outcome.error, PluginError) or not isinstance(outcome.error, FedbenchError)):
        failure["log"] = str(context.store().home / "failed" / f"{outcome.job.spec.id}.json")
    return failure


def _reason(outcome: Outcome) -> str:
    error = outcome.error
    return str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"
