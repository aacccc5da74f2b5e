"""`fedbench train --table`: the runs that a table lacks, one after another, or several seeds of one together."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedbench import declared
from fedbench import protocol as protocols
from fedbench.cli import context
from fedbench.cli.live import duration, run, run_together
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.plugins.mistakes import PluginError, reported
from fedbench.store.claim import HeldError
from fedbench.store.provenance import is_stale

if TYPE_CHECKING:
    from fedbench.engine.local import Job
    from fedbench.report.cells import Cells
    from fedbench.specs import RunSpec
    from fedbench.store import Store

    #: A run, and its method as a row names it (or as it was asked for).
    Wanted = tuple[RunSpec, str]


def train_table(
    name: str,
    *,
    methods: Sequence[str] = (),
    dataset: str | None = None,
    columns: Sequence[str] = (),
    budget: str = "small",
    precision: str | None = None,
    seed: int | None = None,
    device: str = "auto",
    executor: str = "auto",
    again: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run what a table lacks (or each of `methods` in all of its settings).

    Any number of processes can do this on one store and share the runs out: one that another process holds is left
    until the end, and then to that process if it still is at it. One failed run does not stop the others; it is listed
    at the end, and the exit code is then 1. `quiet` leaves out the closing lines where all went well.
    """
    from fedbench.engine.local import Job, check_place
    from fedbench.report.cells import DEFAULT_PRECISION, scope

    console, store = context.err(), context.store()
    precision = precision or DEFAULT_PRECISION
    wanted, remarks, all_at_hand = _wanted(name, methods, dataset, columns, budget, precision, seed, again)
    check_place(device, executor, precision)
    own = sorted({spec.setting.executor for spec, _ in wanted if spec.setting.executor} - {executor})
    if own and executor != "auto":
        remarks.append(f"--executor {executor} is not taken where the table measures times with {' and '.join(own)}")
    for remark in remarks:
        console.print(remark, style="dim")
    if wanted and not quiet:
        console.print(f"{len(wanted)} runs to make, {scope(budget, precision)}{_cost(wanted, device)}")
    made: list[str] = []
    others = 0  # runs that other processes have made meanwhile
    left: dict[str, Job] = {}
    failures: list[dict[str, str]] = []

    def failed(title: str, error: Exception, job: Job | None = None) -> None:
        if context.debug():
            raise error
        failures.append({"run": title, "reason": _reason(error)})
        if job is not None and (isinstance(error, PluginError) or not isinstance(error, FedbenchError)):
            failures[-1]["log"] = str(store.home / "failed" / f"{job.spec.id}.json")

    def attempt(title: str, job: Job) -> str | None:
        """Make the run, or say who holds it."""
        nonlocal others
        try:
            artifact = run(job, store, device, executor, title)
        except HeldError as error:
            return error.who
        except Exception as error:
            failed(title, error, job)
            return None
        if artifact.provenance.get("process") == process():
            made.append(artifact.id)
        else:
            others += 1
        return None

    for group in _groups(wanted, executor):
        jobs: dict[str, Job] = {}
        for k in group:
            spec, method = wanted[k]
            part = spec.setting.partition
            differing = declared.of(method).differing(spec.params)
            knobs = "".join(f" {name}={value}" for name, value in differing.items())
            title = f"({k + 1}/{len(wanted)}) {method}{knobs} {part.dataset.name} {part.label}"
            try:
                jobs[title] = _replacing(Job.of(spec.setting, method, spec.params), store, again)
            except Exception as error:
                failed(title, error)
        if len(jobs) > 1:
            _together(jobs, store, device, executor)
        for title, job in jobs.items():
            if attempt(title, job) is not None:
                left[title] = job
    still: dict[str, str] = {}
    for title, job in left.items():
        if (who := attempt(title, job)) is not None:
            still[title] = who
    if as_json:
        context.print_json({"made": made, "failed": failures, "left": list(still)})
    if not quiet or failures:
        nothing = "no cell of the table is missing" if all_at_hand else "all that can be had is there"
        more = f", {others} by other processes" if others else ""
        console.print(f"{len(made)} of {len(wanted)} runs made{more}" if wanted else f"nothing to run: {nothing}")
    for title, who in still.items():
        console.print(f"left to {who}: {title}")
    for failure in failures:
        log = f" (log: {failure['log']})" if "log" in failure else ""
        console.print(f"failed: {failure['run']}: {failure['reason']}{log}")
    if failures:
        sys.exit(1)


def _replacing(job: Job, store: Store, again: bool) -> Job:
    """The job, which `again` lets take the place of what older code made."""
    if not again:
        return job
    old = store.get(job.spec)
    return replace(job, replaces=old.digest if old is not None and is_stale(old.provenance) else "")


def _groups(wanted: Sequence[Wanted], executor: str) -> list[list[int]]:
    """The numbers of the runs that can go together: those that differ in nothing but their seeds, where the executor
    (or the one that may be chosen) stacks clients; else each run by itself."""
    from fedbench.engine.together import EXECUTORS, but_for_seeds

    groups: dict[Hashable, list[int]] = {}
    for k, (spec, _) in enumerate(wanted):
        same = (but_for_seeds(spec.setting), spec.method, spec.source, tuple(sorted(spec.params.items())))
        stacks = (spec.setting.executor or executor) in ("auto", *EXECUTORS)
        groups.setdefault(same if stacks else k, []).append(k)
    return list(groups.values())


def _together(jobs: Mapping[str, Job], store: Store, device: str, executor: str) -> None:
    """Make these runs (by title) at the same time; whatever stops that but an interrupt, each can still be made by
    itself."""
    seeds = ", ".join(str(job.spec.setting.seed) for job in jobs.values())
    try:
        run_together(list(jobs.values()), store, device, executor, f"{next(iter(jobs))}, seeds {seeds}")
    except Exception as error:
        if context.debug():
            raise
        context.err().print(f"not together: {_reason(error)}; one run after another instead")


def _cost(wanted: Sequence[Wanted], device: str) -> str:
    """How long the runs would take here, unless that cannot be told of one of them."""
    from fedbench.engine.cost import seconds
    from fedbench.methods import load

    try:
        total = 0.0
        for spec, method in wanted:
            with reported():
                effort = load(method)[0].create(spec.params).effort(spec.setting)
            total += seconds(spec.setting, context.store(), context.roots(), device, effort)
    except FedbenchError:
        return ""
    return f", about {duration(total)} of training here"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"


def _wanted(
    name: str,
    methods: Sequence[str],
    dataset: str | None,
    columns: Sequence[str],
    budget: str,
    precision: str,
    seed: int | None,
    again: bool,
) -> tuple[list[Wanted], list[str], bool]:
    """The runs to make, what to say about the others, and whether all of the table's data sets are at hand."""
    from fedbench.data import recipe
    from fedbench.report import table as tables
    from fedbench.report.cells import find
    from fedbench.report.index import State

    table = tables.load(name)
    if table.counted:
        return (
            [],
            [f"table {table.id} is counted by formula: 'fedbench report --table {name}' prints it as it is"],
            True,
        )
    if dataset is not None:
        table = table.for_dataset(recipe(dataset).name)
    if columns:
        table = table.only(columns)
    seeds = () if seed is None else (seed,)
    cells = find(table, budget, context.store(), context.roots(), seeds=seeds, precision=precision)
    if cells.absent and not cells.settings:
        raise FedbenchError("nothing can be run: " + "; ".join(cells.absent.values()))
    states = (State.MISSING, State.FAILED, *((State.OLDER,) if again else ()))
    remarks = list(cells.absent.values())
    if methods:
        runs = [run for method in dict.fromkeys(methods) for run in _of_method(cells, method, budget, states)]
    else:
        runs = list(cells.runs(*states).items())
        absent = dict.fromkeys(c.row.label for c in cells.all if c.state is State.NOT_BUILT)
        if absent:
            remarks.append(f"not built yet, so left out: {', '.join(absent)}")
    if cells.counts[State.OLDER] and not again:
        remarks.append(f"{cells.counts[State.OLDER]} cells were made by older code; --again makes them anew")
    return runs, remarks, not cells.absent


def _of_method(cells: Cells, method: str, budget: str, states: tuple[Any, ...]) -> list[Wanted]:
    """The runs of one method that the table lacks: its row's, or one in every setting if it is an extra row."""
    if any(row.method == method for row in cells.table.rows):
        return [(spec, name) for spec, name in cells.runs(*states).items() if name == method]
    own = declared.of(method)
    rules = protocols.load(cells.table.protocol)
    settings = {s.id: s for column in cells.settings.values() for s in column}
    runs = []
    for setting in settings.values():
        spec = own.run(setting, rules.method_params(own.name, budget, setting.partition.dataset.name))
        record = cells.index.find(spec)
        if record is None or record.state in states:
            runs.append((spec, method))
    return runs
