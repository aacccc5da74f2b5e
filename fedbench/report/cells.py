"""The cells of a table at a budget: which runs each needs, and how it stands with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from fedbench import declared, methods, protocol
from fedbench.errors import FedbenchError, unknown
from fedbench.plugins.classes import is_file, place
from fedbench.plugins.source import read
from fedbench.report.index import Index, Job, Record, State
from fedbench.report.others import Hits, others
from fedbench.report.spec import Column, Row, Table
from fedbench.specs import PRECISIONS, DatasetSpec, Setting
from fedbench.store import DamagedError, Store

#: Without --budget, a table is about this one.
DEFAULT_BUDGET = "small"

#: Without --precision, a table is about runs of this one.
DEFAULT_PRECISION = Setting.precision

#: A cell that needs several runs (seeds) stands as the one of them that comes first here.
_WORST = (State.UNDEFINED, State.NOT_BUILT, State.NO_DATA, State.FAILED, State.DAMAGED, State.MISSING, State.RUNNING,
          State.UNEVALUATED, State.OLDER, State.DONE)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One number of a table: a row in a column, from one run a seed, or from other cells (`Column.of`)."""

    row: Row
    column: Column
    jobs: tuple[Job, ...]  #: none if the data set is not at hand
    records: tuple[Record | None, ...]  #: what the store has of them
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Cells:
    """A table at one budget and one precision (and, if asked, on another data set and under other seeds)."""

    table: Table
    budget: str  #: empty for counted tables, like the precision
    precision: str
    #: Column key -> one setting a seed (rows with overrides of their own stand in others); empty without the data
    settings: dict[str, tuple[Setting, ...]]
    absent: dict[str, str]  #: data set that is not at hand -> why
    grid: list[list[Cell]]  #: [row][column]
    index: Index
    seeds: tuple[int, ...] = ()  #: of the runs that go into a cell

    @property
    def all(self) -> list[Cell]:
        return [cell for line in self.grid for cell in line]

    @property
    def scope(self) -> str:
        """Budget and precision in print."""
        return scope(self.budget, self.precision)

    @cached_property
    def counts(self) -> Counter[State]:
        """How many cells that need runs of their own (or, counted, none at all) are in which state."""
        return Counter(c.state for c in self.all if not c.column.of and c.state is not State.UNDEFINED)

    def jobs(self, *states: State) -> list[Job]:
        """The runs that cells in these states need, each once (several cells can read one run)."""
        found: dict[tuple[str, str, tuple[tuple[str, object], ...]], Job] = {}
        for cell in self.all:
            for job, record in zip(cell.jobs, cell.records, strict=True):
                if cell.state is not State.NOT_BUILT and (record.state if record else State.MISSING) in states:
                    found[job.setting.id, job.method, tuple(sorted(job.overrides.items()))] = job
        return list(found.values())

    def others(self) -> dict[str, Hits]:
        """Runs in the table's settings that are none of its rows: label -> the columns they stand in."""
        return others(self)


def find(
    table: Table,
    budget: str,
    store: Store,
    roots: Sequence[Path],
    *,
    precision: str = DEFAULT_PRECISION,
    seeds: Iterable[int] = (),
    index: Index | None = None,
) -> Cells:
    """The cells of a table at a budget and a precision.

    Reads manifests only; raises FedbenchError for an unknown budget or precision.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    index = index or Index(store)
    if table.counted:
        grid = [[Cell(r, c, (), (), State.DONE) for c in table.columns] for r in table.rows]
        return Cells(table, "", "", {}, {}, grid, index)
    rules = protocol.load(table.protocol)
    wanted = tuple(seeds) or tuple(table.seeds) or rules.seeds(budget)
    own = [row for row in table.rows if row.own(budget)]
    settings: dict[str, tuple[Setting, ...]] = {}
    others: dict[tuple[str, str], tuple[Setting, ...]] = {}  # (row label, column key) -> the row's own settings
    absent: dict[str, str] = {}
    there = set(methods.names())
    named = {row.label: _named(row.method) for row in table.rows}
    at_hand: dict[str, tuple[DatasetSpec, int]] = {}
    for name in dict.fromkeys(c.dataset for c in table.measured):
        try:
            at_hand[name] = _dataset(name, store, roots)
        except FedbenchError as error:
            absent[name] = str(error)
    for column in (c for c in table.measured if c.dataset in at_hand):
        dataset, classes = at_hand[column.dataset]
        at = partial(_setting, table, column, budget, dataset, classes, precision=precision, known=index.settings)
        settings[column.key] = tuple(at(seed=seed) for seed in wanted)
        others.update({(row.label, column.key): tuple(at(row=row, seed=seed) for seed in wanted) for row in own})
    cells: dict[tuple[str, str], Cell] = {}
    for c in table.columns:  # parts stand before their means
        for row in table.rows:
            place = (row.label, c.key)
            if table.undefines(*place):
                cells[place] = Cell(row, c, (), (), State.UNDEFINED)
            elif c.of:
                cells[place] = _mean(row, c, cells)
            else:
                own_settings = others.get(place, settings.get(c.key, ()))
                name, source = named[row.label]
                overrides = {**rules.method_params(name, budget, c.dataset), **row.params}
                jobs = tuple(Job(s, row.method, overrides, source, name) for s in own_settings)
                built = source is not None or name in there
                cells[place] = _cell(row, c, jobs, absent, index, built)
    grid = [[cells[r.label, c.key] for c in table.columns] for r in table.rows]
    return Cells(table, budget, precision, settings, absent, grid, index, wanted)


def worst(states: Iterable[State]) -> State:
    """How it stands with a number that several runs or cells go into."""
    return min(states, key=_WORST.index)


def _mean(row: Row, column: Column, cells: Mapping[tuple[str, str], Cell]) -> Cell:
    """A cell that is a mean over other cells: it needs no run of its own."""
    rows = (row.label, column.relative_to) if column.relative_to else (row.label,)
    return Cell(row, column, (), (), worst(cells[label, key].state for label in rows for key in column.of))


def scope(budget: str, precision: str) -> str:
    """Which runs count, in print: the budget, and the precision where it is not the usual one ("" if none count)."""
    return f"budget {budget}" + (f" in {precision}" if precision != DEFAULT_PRECISION else "") if budget else ""


def sketch(table: Table, column: Column, budget: str, row: Row | None = None) -> Setting:
    """The setting of a column (of a row in it) as far as it can be told without the images: its ids mean nothing."""
    return _setting(table, column, budget, DatasetSpec(column.dataset, "", ""), 1, row=row)


def _setting(
    table: Table,
    column: Column,
    budget: str,
    dataset: DatasetSpec,
    classes: int,
    *,
    row: Row | None = None,
    seed: int | None = None,
    precision: str | None = None,
    known: dict[str, Setting] | None = None,
) -> Setting:
    """The setting of a column, or of a row in it; `known` holds those that have been told of before."""
    rules = protocol.load(table.protocol)
    chosen = dict(column.partition)
    if rules.redraws and seed is not None:
        chosen.setdefault("seed", seed)
    declared = {**table.budget.get(budget, {}), **column.own(budget), **(row.own(budget) if row else {})}
    asked = repr((table.protocol, dataset, classes, chosen, budget, declared, seed, precision))
    if known is not None and asked in known:
        return known[asked]
    partition = rules.partition_spec(dataset, classes, **chosen)
    setting = rules.setting(partition, budget, declared, seed=seed, precision=precision)
    if known is not None:
        known[asked] = setting
    return setting


def _dataset(name: str, store: Store, roots: Sequence[Path]) -> tuple[DatasetSpec, int]:
    """The data set and how many classes it is partitioned by. Raises FedbenchError if it is not at hand."""
    from fedbench.data import info, recipe, recipes, resolve

    try:
        recipe(name)
    except FedbenchError:
        if name in recipes():
            raise
        raise FedbenchError(f"there is no recipe for the data set {name} yet") from None
    return resolve(name, store, list(roots)), info(name).partition_classes


def _named(method: str) -> tuple[str, str | None]:
    """What a run calls the method of a row, and the digest of its source if that is 'FILE.py:Class'.

    Raises FedbenchError if there is no such file or class.
    """
    if not is_file(method):
        return method, None
    return declared.called(method), read(place(method, "method").file).digest


def _cell(
    row: Row,
    column: Column,
    jobs: tuple[Job, ...],
    absent: dict[str, str],
    index: Index,
    built: bool,
) -> Cell:
    records = tuple(index.find(job) for job in jobs)
    if any(r and r.artifact for r in records) or built:
        if not jobs:
            return Cell(row, column, jobs, records, State.NO_DATA, absent[column.dataset])
        stands = [(_state(index, r), r.reason if r else "") for r in records]
        state, reason = min(stands, key=lambda x: _WORST.index(x[0]))
        return Cell(row, column, jobs, records, state, reason)
    return Cell(row, column, jobs, records, State.NOT_BUILT)


def _state(index: Index, record: Record | None) -> State:
    if record is None:
        return State.MISSING
    try:
        missing = record.artifact is not None and index.metrics(record) is None
    except DamagedError:
        return State.DAMAGED
    return State.UNEVALUATED if missing else record.state
