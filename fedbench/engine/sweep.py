"""Find a table's missing runs, group those that can be trained in one stack, and train them.

`sweep` yields the outcome of each run as soon as it ends. Its argument `execute` trains a group of jobs; so the caller
decides where they are computed and how progress is shown.
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
from fedbench.results.frame import Frame
from fedbench.results.run import State
from fedbench.specs import Plain, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from fedbench.store.provenance import other_code
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.engine.engines import Engine
    from fedbench.planner.table.spec import Row, Table
    from fedbench.results.packs import Packs


# Several tasks at once, each in a thread that waits for a worker process, and their results as they arrive.


T = TypeVar("T")


def at_once(
    tasks: Sequence[Callable[[], Iterator[T]]], slots: int = 1, stop: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """Yield the items of all tasks: one task after another if `slots` is 1, else in `slots` threads.

    An exception of a task is raised here. After that, or if the caller closes the generator (an interrupt), no further
    task starts, `stop` is called to end the active ones, and the threads are joined.
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


#: (jobs, title) -> artifacts: trains jobs that differ only in their seeds, like `engine.run.execute_all`.
Execute = Callable[[Sequence[Job], str], Sequence[Artifact]]


@dataclass(frozen=True)
class Wanted:
    """A run to train, such as a missing one of a table."""

    spec: RunSpec
    method: str  #: as the row or the user names it: a name, or FILE.py:Class
    row: str = ""  #: the label of a row that uses it


@dataclass(frozen=True)
class Following:
    """A run of a tuned table that follows once its cell has chosen its values."""

    trial: Wanted  #: the cell's first trial, which costs about as much
    seed: int


@dataclass(frozen=True)
class MissingRuns:
    """The missing runs of a table."""

    runs: Sequence[Wanted]
    remarks: Sequence[str] = ()  #: about runs that are left out
    complete: bool = True  #: the data sets of all missing runs are available
    following: Sequence[Following] = ()  #: the runs that become necessary after these


class End(StrEnum):
    """How the attempt to train a run ended."""

    MADE = "made"
    MADE_BY_OTHERS = "made elsewhere"  #: another process trained it meanwhile
    HELD = "held"  #: another process has claimed it
    FAILED = "failed"
    APART = "apart"  #: could not be trained together with other seeds; its single outcome follows


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of a sweep, or of several seeds if `end` is APART."""

    title: str
    end: End
    artifact: Artifact | None = None
    error: Exception | None = None
    job: Job | None = None  #: None if the job could not be created


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
) -> MissingRuns:
    """The table's missing runs, or those of the methods `only` in the table's settings. `again` adds stale runs, runs
    made by other code, and runs that lack an extra in `keep`. Runs in `packs` are not missing. Raises FedbenchError if
    runs are missing and none of the table's data sets is available."""
    seeds = () if seed is None else (seed,)
    cells = find(table, budget, Frame(store, packs), roots, seeds=seeds, precision=precision)
    missing = _Missing(cells, store, again, keep)
    rows = {method: [] if params else _rows_of(cells, method) for method in only}
    every = rows.values() if only else [[row.label for row in table.rows]]
    absent = {name: why for labels in every for name, why in missing.without_images(labels).items()}
    if absent and not cells.settings:
        raise _without_images(absent)
    remarks = list(absent.values())
    if only:
        runs = [run for method in rows for run in _of_method(missing, method, rows[method], params or {}, budget)]
        remarks += [_extra(table, method) for method in rows if not rows[method] and not params]
    else:
        runs = [Wanted(spec, row.method, row.label) for spec, row in missing.runs().items()]
        unbuilt = dict.fromkeys(c.row.label for c in cells.all if c.state is State.NOT_BUILT)
        if unbuilt:
            remarks.append(f"not built yet, so left out: {', '.join(unbuilt)}")
    _check_values(runs, cells)
    if cells.counts[State.STALE] and not again:
        remarks.append(
            f"{cells.counts[State.STALE]} cells are stale (of another version of the code); --again makes them again"
        )
    rows_read = [label for labels in every for label in labels]
    remarks += _left_to_packs(cells, rows_read, {run.spec.id for run in runs})
    return MissingRuns(runs, remarks, not absent, _following(cells, rows_read))


def _following(cells: Cells, rows: Collection[str]) -> list[Following]:
    """The runs of these rows (labels) that follow once their cells have chosen their values: of each cell, those of
    the seeds by which it does not choose."""
    trials = {cell.specs[0]: cell.row for cell in cells.all if cell.tuning and cell.row.label in rows}
    return [
        Following(Wanted(spec, row.method, row.label), seed)
        for spec, row in trials.items()
        for seed in cells.seeds
        if seed != spec.setting.seed
    ]


@dataclass(frozen=True)
class _Missing:
    """Decides which runs of a table are missing."""

    cells: Cells
    store: Store
    again: bool
    keep: frozenset[str]

    @property
    def states(self) -> tuple[State, ...]:
        return (State.MISSING, State.FAILED, *((State.STALE,) if self.again else ()))

    def runs(self, rows: Collection[str] | None = None) -> dict[RunSpec, Row]:
        """Missing run -> a row that uses it; `rows`: only of the rows with these labels."""
        missing = self.cells.runs(*self.states, rows=rows)
        if not self.again:
            return missing
        stale = self.cells.runs(State.STALE, rows=rows, trials=True)
        done = self.cells.runs(State.DONE, State.UNEVALUATED, rows=rows, trials=True)
        return missing | stale | {spec: row for spec, row in done.items() if self.made_otherwise(spec)}

    def without_images(self, rows: Collection[str]) -> dict[str, str]:
        """Unavailable data set -> reason, for the missing runs of the rows with these labels; all unavailable ones if
        there are no rows (an extra row)."""
        states = (State.NO_DATA, *self.states)
        lacking = {c.column.dataset for c in self.cells.all if c.row.label in rows and c.state in states}
        return {name: why for name, why in self.cells.absent.items() if not rows or name in lacking}

    def run(self, spec: RunSpec) -> bool:
        """Whether a run of an extra row is missing."""
        record = self.cells.frame.find(spec)
        return record is None or record.state in self.states or (self.again and self.made_otherwise(spec))

    def made_otherwise(self, spec: RunSpec) -> bool:
        """Whether the store's run was made by other code, or lacks an extra in `keep`; a run that answered more stands
        for this one (`Frame.find`). Not of shipped runs."""
        record = self.cells.frame.find(spec)
        run = record.complete if record is not None and record.shipped is None else None
        return run is not None and (other_code(run.provenance) or not self.keep <= keeping.of(run))


def _left_to_packs(cells: Cells, rows: Collection[str], wanted: Collection[str]) -> list[str]:
    """A remark on the runs of these rows (labels) that result packs hold, and that are therefore not `wanted` (ids)."""
    records = (run for cell in cells.all if cell.row.label in rows for run in cell.records)
    shipped = len({run.id for run in records if run is not None and run.shipped} - {*wanted})
    them = "it" if shipped == 1 else "them"
    return [f"{counted(shipped, 'shipped run')} left out (--include-shipped trains {them})"] if shipped else []


def _without_images(absent: Mapping[str, str]) -> FedbenchError:
    """The error for unavailable data sets."""
    if len(absent) == 1:
        return FedbenchError(f"nothing can be run: {next(iter(absent.values()))}")
    return FedbenchError(
        f"nothing can be run: the images of {', '.join(absent)} are not available",
        "'fedbench data fetch NAME' for each, or name the folder that holds them with --data or FEDBENCH_DATA",
    )


def _rows_of(cells: Cells, method: str) -> list[str]:
    """The labels of the method's rows. User files with equal names and texts count as the same method."""
    own = declarations.of(method)
    declared = [(row.label, cells.declaration(row)) for row in cells.table.rows]
    return [label for label, one in declared if one and (one.name, one.source) == (own.name, own.source)]


def _extra(table: Table, method: str) -> str:
    """Remark that a method makes an extra row; it names a row with the same title, which the user may have meant."""
    title = declarations.of(method).title
    meant = next((f"; its row {row.label} is -m {row.method}" for row in table.rows if row.label == title), "")
    return f"no row of {table.id} is of {method}, so it makes one of yours, below the table{meant}"


def _of_method(
    missing: _Missing, method: str, rows: Collection[str], params: Mapping[str, Plain | str], budget: str
) -> list[Wanted]:
    """The missing runs of one method: those of its rows, or, without rows, one per setting of the table (an extra row).
    A method with `params` from the user is always an extra row."""
    cells = missing.cells
    own, rules = declarations.of(method), protocol.load(cells.table.protocol)
    if rows:
        return [Wanted(spec, row.method, row.label) for spec, row in missing.runs(rows).items()]
    if cells.table.tune:
        raise FedbenchError(
            f"table {cells.table.id} tunes its rows, and {method} with these values is none",
            "write a table of your own with such a row: copy its file",
        )
    runs = []
    for setting in {s.id: s for column in cells.settings.values() for s in column}.values():
        preset = rules.method_params(own.name, budget, setting.partition.dataset.name)
        spec = own.run(setting, {**preset, **params})
        if missing.run(spec):
            runs.append(Wanted(spec, method))
    return runs


def _check_values(runs: Sequence[Wanted], cells: Cells) -> None:
    """Raise FedbenchError for invalid hyper-parameters, naming their row, before any training. Errors in users' files
    are ignored here, and reported for each run later."""
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
    """Indices of runs, in groups that can share a stack: runs that differ only in their seeds, if the executor stacks
    clients. 'auto' counts as such an executor if the engine has one slot. All other runs are single."""
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
    """Train the runs (seeds in one stack if that is faster), and yield each outcome.

    `execute` is called from as many threads as the engine has slots. A failed run does not stop the others. A run that
    another process has claimed is tried once more at the end, and skipped if it is still claimed. `again` trains runs
    again that other code made or that lack an extra in `keep`. New runs store the extras in `keep`.
    """
    left: list[tuple[str, Job]] = []
    lock, varied = Lock(), _varied(runs)

    def of_group(group: Sequence[int]) -> Iterator[Outcome]:
        jobs: dict[str, Job] = {}
        for k in group:
            seed = f", seed {runs[k].spec.setting.seed}" if "seed" in varied else ""
            title = f"({k + 1}/{len(runs)}) {_name(runs[k], varied)}{seed}"
            try:
                with lock:  # loading users' files is not thread-safe
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
    """Train a single run; exceptions become its outcome."""
    try:
        (artifact,) = execute([job], title)
    except HeldError as error:
        return Outcome(title, End.HELD, error=error, job=job)
    except Exception as error:
        return Outcome(title, End.FAILED, error=error, job=job)
    return _ended(title, job, artifact, engine)


def _ended(title: str, job: Job, artifact: Artifact, engine: Engine) -> Outcome:
    return Outcome(title, End.MADE if engine.ours(artifact) else End.MADE_BY_OTHERS, artifact, job=job)


def _varied(runs: Sequence[Wanted]) -> list[str]:
    """The names of setting fields that differ between runs on the same data set, such as the learning rate."""
    settings = by_key((run.spec.setting.partition.dataset.id, run.spec.setting) for run in runs)
    names = [field.name for field in fields(Setting) if field.name != "partition"]
    return [n for n in names if any(len({getattr(s, n) for s in those}) > 1 for those in settings.values())]


def _name(run: Wanted, varied: Sequence[str]) -> str:
    """The title of a run: row (else method and hyper-parameters), varied fields except the seed, data set and
    partition."""
    setting = run.spec.setting
    own = {} if run.row else declarations.of(run.method).differing(run.spec.params)
    values = {**own, **{n: getattr(setting, n) for n in varied if n != "seed"}}
    options = "".join(f" {k}={v}" for k, v in values.items() if v is not None)
    return (
        f"{run.row or shown(run.method)}{options} {setting.partition.dataset.name} {schemes.label(setting.partition)}"
    )
