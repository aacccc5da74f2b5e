"""A table's missing runs: which they are, which can be trained in one stack, and the outcome of each.

`sweep` is handed what executes a group of jobs, and yields an outcome a run as they come: where they are computed, and
how that is shown, is the caller's.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from fedbench import methods, protocol
from fedbench.engine import keep as keeping
from fedbench.engine.job import Job
from fedbench.engine.run import STACKING
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.partitions import schemes
from fedbench.planner.cells import Cells, find
from fedbench.plugins import PluginError, reported, shown
from fedbench.results.frame import Frame, State
from fedbench.specs import Plain, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from fedbench.store.provenance import other_code

if TYPE_CHECKING:
    from fedbench.engine.engines import Engine
    from fedbench.planner.table.spec import Row, Table
    from fedbench.results.packs import Packs


# -- at once ---------------------------------------------------------------------------------------------------
# Several tasks at once, each in a thread that waits for somebody else's work, and what they yield as it comes.


T = TypeVar("T")


def at_once(
    tasks: Sequence[Callable[[], Iterator[T]]], slots: int = 1, stop: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """What the tasks yield: one task after another here if there is one slot, else so many at a time in threads.

    What a task raises is raised. At that, and where the caller leaves (an interrupt), no further task begins, `stop` is
    to end those under way, and they are waited for.
    """
    if slots == 1:
        for task in tasks:
            yield from task()
        return
    waiting = deque(tasks)
    results: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()

    def following() -> Callable[[], Iterator[T]] | None:
        with contextlib.suppress(IndexError):
            return waiting.popleft()
        return None

    def serve() -> None:
        try:
            while (task := following()) is not None:
                for item in task():
                    results.put((item,))
        except BaseException as error:
            results.put(error)
        finally:
            results.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(slots, len(tasks)))]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                left -= 1
            else:
                yield result[0]
    finally:
        if left:
            waiting.clear()
            stop()
            for thread in threads:
                thread.join()


# -- sweep -----------------------------------------------------------------------------------------------------


#: Makes jobs that differ in nothing but their seeds, shown under a title, as `engine.run.execute_all` does.
Execute = Callable[[Sequence[Job], str], Sequence[Artifact]]


class OutOfTime(Exception):
    """There is no time left for a run; what was done of it is saved."""


@dataclass(frozen=True)
class Wanted:
    """A run that a table lacks."""

    spec: RunSpec
    method: str  #: as a row names it, or as it was asked for: a name, or FILE.py:Class
    row: str = ""  #: the label of a row that reads it


@dataclass(frozen=True)
class Plan:
    """What a table lacks."""

    runs: Sequence[Wanted]
    remarks: Sequence[str] = ()  #: about what is left out
    complete: bool = True  #: all data sets that it lacks runs on are at hand


class End(StrEnum):
    """What became of a run."""

    MADE = "made"
    MADE_BY_OTHERS = "made elsewhere"  #: by another process meanwhile
    HELD = "held"  #: another process is at it
    FAILED = "failed"
    LATE = "late"  #: there was no time for it
    APART = "apart"  #: could not be made together with others; an outcome of its own follows


@dataclass(frozen=True)
class Outcome:
    """What became of one run of a sweep (of several seeds if they were APART)."""

    title: str
    end: End
    artifact: Artifact | None = None
    error: Exception | None = None
    job: Job | None = None  #: none if there can be no such run


def plan(
    table: Table,
    store: Store,
    roots: Sequence[Path],
    *,
    only: Sequence[str] = (),
    params: Mapping[str, Plain | str] | None = None,
    budget: str = "small",
    precision: str | None = None,
    seed: int | None = None,
    again: bool = False,
    keep: frozenset[str] = frozenset(),
    packs: Packs | None = None,
) -> Plan:
    """The runs that the table lacks, or those that each of the methods `only` lacks in its settings; with `again` also
    stale ones, those that other code made, and those without what `keep` says. What `packs` hold is not lacking. Raises
    FedbenchError if runs are lacking and none of its data sets is at hand."""
    seeds = () if seed is None else (seed,)
    cells = find(table, budget, Frame(store, packs), roots, seeds=seeds, precision=precision)
    lacks = _Lacks(cells, store, again, keep)
    rows = {method: [] if params else _rows_of(cells, method) for method in only}
    every = rows.values() if only else [[row.label for row in table.rows]]
    absent = {name: why for labels in every for name, why in lacks.without_images(labels).items()}
    if absent and not cells.settings:
        raise _without_images(absent)
    remarks = list(absent.values())
    if only:
        runs = [run for method in rows for run in _of_method(lacks, method, rows[method], params or {}, budget)]
        remarks += [_extra(table, method) for method in rows if not rows[method] and not params]
    else:
        runs = [Wanted(spec, row.method, row.label) for spec, row in lacks.runs().items()]
        unbuilt = dict.fromkeys(c.row.label for c in cells.all if c.state is State.NOT_BUILT)
        if unbuilt:
            remarks.append(f"not built yet, so left out: {', '.join(unbuilt)}")
    _check_values(runs, cells)
    if cells.counts[State.STALE] and not again:
        remarks.append(
            f"{cells.counts[State.STALE]} cells are stale (of another version of the code); --again makes them anew"
        )
    return Plan(runs, remarks, not absent)


@dataclass(frozen=True)
class _Lacks:
    """Which runs a table lacks."""

    cells: Cells
    store: Store
    again: bool
    keep: frozenset[str]

    @property
    def states(self) -> tuple[State, ...]:
        return (State.MISSING, State.FAILED, *((State.STALE,) if self.again else ()))

    def runs(self, rows: Collection[str] | None = None) -> dict[RunSpec, Row]:
        """Those of its cells (of the rows of these labels) -> a row that reads it."""
        done = self.cells.runs(State.DONE, State.UNEVALUATED, rows=rows) if self.again else {}
        other = {spec: row for spec, row in done.items() if self.made_otherwise(spec)}
        return self.cells.runs(*self.states, rows=rows) | other

    def without_images(self, rows: Collection[str]) -> dict[str, str]:
        """Data sets that are not at hand, and that cells of the rows of these labels (none: an extra row) lack runs
        on -> why."""
        states = (State.NO_DATA, *self.states)
        lacking = {c.column.dataset for c in self.cells.all if c.row.label in rows and c.state in states}
        return {name: why for name, why in self.cells.absent.items() if not rows or name in lacking}

    def run(self, spec: RunSpec) -> bool:
        """Whether it lacks a run that none of its rows asks for."""
        record = self.cells.frame.find(spec)
        return record is None or record.state in self.states or (self.again and self.made_otherwise(spec))

    def made_otherwise(self, spec: RunSpec) -> bool:
        """Whether a run that is there was made by other code, or lacks what it is to keep."""
        run = self.store.whole(spec)
        return run is not None and (other_code(run.provenance) or not self.keep <= keeping.of(run))


def _without_images(absent: Mapping[str, str]) -> FedbenchError:
    """The error for data sets that are not at hand; of several it says what to do once."""
    if len(absent) == 1:
        return FedbenchError(f"nothing can be run: {next(iter(absent.values()))}")
    return FedbenchError(
        f"nothing can be run: the images of {', '.join(absent)} are not at hand",
        "'fedbench data fetch NAME' for each, or name the folder that holds them with --data or FEDBENCH_DATA",
    )


def _rows_of(cells: Cells, method: str) -> list[str]:
    """The labels of the method's rows. A user's file is a row's wherever a file of the same text lies."""
    own = declarations.of(method)
    declared = [(row.label, cells.declaration(row)) for row in cells.table.rows]
    return [label for label, one in declared if one and (one.name, one.source) == (own.name, own.source)]


def _extra(table: Table, method: str) -> str:
    """That a method makes an extra row, and which row the user may have meant: papers give several methods one name."""
    title = declarations.of(method).title
    meant = next((f"; its row {row.label} is -m {row.method}" for row in table.rows if row.label == title), "")
    return f"no row of {table.id} is of {method}, so it makes an extra one{meant}; report --extra prints it"


def _of_method(
    lacks: _Lacks, method: str, rows: Collection[str], params: Mapping[str, Plain | str], budget: str
) -> list[Wanted]:
    """The runs of one method that the table lacks: its rows', or one in every setting if it is an extra row, as one
    with hyper-parameters of its own is."""
    cells = lacks.cells
    own, rules = declarations.of(method), protocol.load(cells.table.protocol)
    if rows:
        return [Wanted(spec, row.method, row.label) for spec, row in lacks.runs(rows).items()]
    if cells.table.tune:
        raise FedbenchError(
            f"table {cells.table.id} tunes its rows, and {method} with these values is none",
            "write a table of your own with such a row: copy its file",
        )
    runs = []
    for setting in {s.id: s for column in cells.settings.values() for s in column}.values():
        preset = rules.method_params(own.name, budget, setting.partition.dataset.name)
        spec = own.run(setting, {**preset, **params})
        if lacks.run(spec):
            runs.append(Wanted(spec, method))
    return runs


def _check_values(runs: Sequence[Wanted], cells: Cells) -> None:
    """Raise FedbenchError for hyper-parameters that a method refuses, with the row that has them, before anything is
    trained. An error in a user's file is reported for each of its runs."""
    labels = {spec.id: cell.row.label for cell in cells.all for spec in cell.specs}
    distinct = {(run.method, tuple(sorted(run.spec.params.items()))): run for run in reversed(runs)}
    for run in distinct.values():
        try:
            kind, _ = methods.load(run.method)
        except FedbenchError:
            continue
        try:
            with reported():
                kind.create(run.spec.params)
        except PluginError:
            continue
        except FedbenchError as error:
            label = labels.get(run.spec.id)
            raise error if label is None else error.at(f"{cells.table.path}, row {label}") from error


def groups(runs: Sequence[Wanted], executor: str, slots: int = 1) -> list[list[int]]:
    """The indices of runs that can share a stack: those that differ in nothing but their seeds, where the executor
    (or, of an engine with one slot, the one that may be chosen) stacks clients; else each run by itself."""
    stacking = STACKING if slots > 1 else ("auto", *STACKING)
    specs = enumerate(run.spec for run in runs)
    keys = ((s.but_for_seeds if (s.setting.executor or executor) in stacking else k, k) for k, s in specs)
    return list(by_key(keys).values())


def sweep(
    runs: Sequence[Wanted],
    engine: Engine,
    execute: Execute,
    *,
    executor: str = "auto",
    again: bool = False,
    keep: frozenset[str] = frozenset(),
) -> Iterator[Outcome]:
    """Train the runs, seeds of one run in one stack where that is faster, and yield each outcome.

    `execute` is called in as many threads at a time as the engine has slots. A failed run does not stop the others. One
    that another process holds is left until the end, and then to that process if it still is at it. With `again` those
    that other code made are made anew; those that are made keep what `keep` says.
    """
    left: list[tuple[str, Job]] = []
    lock, varied = Lock(), _varied(runs)

    def of_group(group: Sequence[int]) -> Iterator[Outcome]:
        jobs: dict[str, Job] = {}
        for k in group:
            seed = f", seed {runs[k].spec.setting.seed}" if "seed" in varied else ""
            title = f"({k + 1}/{len(runs)}) {_name(runs[k], varied)}{seed}"
            try:
                with lock:  # users' files are loaded by one thread at a time
                    job = replace(Job.of(runs[k].spec.setting, runs[k].method, runs[k].spec.params), keep=keep)
                jobs[title] = job.again(engine.store, only_changed=True) if again else job
            except Exception as error:
                yield Outcome(title, End.FAILED, error=error)
        stacked: dict[str, Artifact] = {}
        if len(jobs) > 1:
            seeds = ", ".join(str(job.spec.setting.seed) for job in jobs.values())
            title = f"({group[0] + 1}/{len(runs)}) {_name(runs[group[0]], varied)}, seeds {seeds}"
            try:
                stacked = {artifact.id: artifact for artifact in execute(list(jobs.values()), title)}
            except OutOfTime:
                yield from (Outcome(title, End.LATE, job=job) for title, job in jobs.items())
                return
            except Exception as error:
                yield Outcome(title, End.APART, error=error)
        for title, job in jobs.items():
            if job.spec.id in stacked:
                yield _ended(title, job, stacked[job.spec.id], engine)
                continue
            outcome = _attempt(title, job, execute, engine)
            if outcome.end is End.HELD:
                left.append((title, job))
            else:
                yield outcome

    def of_one(title: str, job: Job) -> Iterator[Outcome]:
        yield _attempt(title, job, execute, engine)

    each = [partial(of_group, group) for group in groups(runs, executor, engine.slots)]
    yield from at_once(each, engine.slots, engine.stop)
    yield from at_once([partial(of_one, *one) for one in left], engine.slots, engine.stop)


def _attempt(title: str, job: Job, execute: Execute, engine: Engine) -> Outcome:
    """One run by itself."""
    try:
        (artifact,) = execute([job], title)
    except HeldError as error:
        return Outcome(title, End.HELD, error=error, job=job)
    except OutOfTime:
        return Outcome(title, End.LATE, job=job)
    except Exception as error:
        return Outcome(title, End.FAILED, error=error, job=job)
    return _ended(title, job, artifact, engine)


def _ended(title: str, job: Job, artifact: Artifact, engine: Engine) -> Outcome:
    return Outcome(title, End.MADE if engine.ours(artifact) else End.MADE_BY_OTHERS, artifact, job=job)


def _varied(runs: Sequence[Wanted]) -> list[str]:
    """The fields of settings in which runs on one data set differ, such as the learning rate of a sweep."""
    settings = by_key((run.spec.setting.partition.dataset.id, run.spec.setting) for run in runs)
    names = [field.name for field in fields(Setting) if field.name != "partition"]
    return [n for n in names if any(len({getattr(s, n) for s in those}) > 1 for those in settings.values())]


def _name(run: Wanted, varied: Sequence[str]) -> str:
    """A table's row, or the method and its hyper-parameters; what is varied of the setting but its seed; data set and
    partition."""
    setting = run.spec.setting
    own = {} if run.row else declarations.of(run.method).differing(run.spec.params)
    values = {**own, **{n: getattr(setting, n) for n in varied if n != "seed"}}
    options = "".join(f" {k}={v}" for k, v in values.items() if v is not None)
    return (
        f"{run.row or shown(run.method)}{options} {setting.partition.dataset.name} {schemes.label(setting.partition)}"
    )
