"""The cells of a table at a budget: which runs each needs, and which of them exist."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fedbench import methods, protocol
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError, check_known
from fedbench.methods import declarations
from fedbench.metrics.definitions import TEST_PHASE
from fedbench.planner import table as tables
from fedbench.planner.settings import Settings, dataset, nominal, shipped_dataset
from fedbench.planner.table.spec import Column, Row, Table
from fedbench.plugins.load import is_file
from fedbench.results.frame import Frame, Run, State
from fedbench.specs import PRECISIONS, DatasetSpec, RunSpec, Setting
from fedbench.store import DamagedError

# -- tuning ----------------------------------------------------------------------------------------------------
# Values that a table's cells choose for themselves, such as the learning rate: every combination is trained under the
# first seed, and what does best on images that clients hold back is taken for all seeds. Test images choose nothing.


#: What the values are chosen by.
METRIC = "validation_accuracy"


def points(tune: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values."""
    return [dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values())]


def best(trials: Sequence[Run | None]) -> int | None:
    """The place of the run with the highest validation accuracy after its last round, of equal ones the first; the
    first one that is there, if its method answers without scores, so that nothing can be chosen.

    None while one is neither done nor failed, as one that diverges does, and where all have failed.
    """
    scores: dict[int, float] = {}
    for place, record in enumerate(trials):
        if record is None or (record.complete is None and record.state is not State.FAILED):
            return None
        if record.complete is not None:
            by_round = record.metrics.series(METRIC)
            scores[place] = by_round[max(by_round)] if by_round else -1.0
    return max(scores, key=scores.__getitem__, default=None)


# -- cells -----------------------------------------------------------------------------------------------------


#: Without --budget, a table is about this one.
DEFAULT_BUDGET = "small"

#: The precision that is said of runs only where it is another.
DEFAULT_PRECISION = Setting.precision

#: What a method declares that serves clients without labels.
UNLABELLED = "unlabelled"

#: A cell that needs several runs (seeds) stands as the one of them that comes first here.
_WORST = (State.UNDEFINED, State.NOT_BUILT, State.NO_DATA, State.FAILED, State.DAMAGED, State.MISSING, State.RUNNING,
          State.NOT_PACKED, State.UNEVALUATED, State.STALE, State.DONE)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One number of a table: a row in a column, from one run a seed, or from other cells (`Column.of`)."""

    row: Row
    column: Column
    state: State
    records: tuple[Run | None, ...] = ()  #: of each of its runs, what the store has
    reason: str = ""
    make: Callable[[Row, Column], Iterable[RunSpec]] | None = None  #: its runs, which cost more than to know of none
    #: Of a tuned table: what the store has of the runs that the cell's values are chosen by, and the values, if they
    #: are; until then the cell needs the former runs.
    trials: tuple[Run | None, ...] = ()
    tuned: Mapping[str, Any] | None = None

    @property
    def tuning(self) -> bool:
        """Whether its runs only tell which values it will take."""
        return bool(self.trials) and self.tuned is None

    @property
    def shipped(self) -> bool:
        """Whether its number has come out of a result pack, if only in part."""
        full = self.state in (State.DONE, State.STALE)
        return full and any(record is not None and record.shipped is not None for record in self.records)

    @cached_property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs that it needs; none if the data set is not at hand."""
        return tuple(self.make(self.row, self.column)) if self.make else ()


@dataclass(frozen=True)
class Cells:
    """A table at one budget and one precision (and, if asked, on another data set and under other seeds)."""

    table: Table
    budget: str  #: empty for counted tables, like the precision
    precision: str
    absent: dict[str, str]  #: data set that is not at hand -> why
    grid: list[list[Cell]]  #: [row][column]
    frame: Frame
    made: Settings
    sources: Mapping[str, Declaration]  #: row label -> the user's own method that it names

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs that go into a cell."""
        return self.made.seeds

    @cached_property
    def settings(self) -> dict[str, tuple[Setting, ...]]:
        """Column key -> one setting a seed (rows with overrides of their own stand in others), where the data are at
        hand."""
        return {c.key: settings for c in self.table.measured if (settings := self.made.of(c))}

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

    @property
    def shipped(self) -> int:
        """How many of those cells are shipped."""
        return sum(c.shipped for c in self.all)

    def declaration(self, row: Row) -> Declaration | None:
        """What a row's method declares; None if it is not built yet."""
        built_in = declarations.of(row.method) if row.method in methods.names() else None
        return self.sources.get(row.label, built_in)

    def runs(self, *states: State, rows: Collection[str] | None = None) -> dict[RunSpec, Row]:
        """The runs in these states that cells (of the rows of these labels) need -> their row, one of several that read
        the run."""
        return {
            spec: cell.row
            for cell in self.all
            if rows is None or cell.row.label in rows
            for spec, record in zip(cell.specs, cell.records, strict=True)
            if (record.state if record else State.MISSING) in states
        }


def find(
    table: Table,
    budget: str,
    frame: Frame,
    roots: Sequence[Path],
    *,
    precision: str | None = None,
    seeds: Iterable[int] = (),
    sketched: bool = False,
) -> Cells:
    """The cells of a table at a budget and a precision (default: that of the budget). `sketched`: cells whose images
    are not at hand have runs, too, so that these can be counted; ids of those that no pack holds mean nothing.

    Reads manifests only; raises FedbenchError for an unknown budget or precision.
    """
    check_known("precision", precision, PRECISIONS)
    if table.counted:
        grid = [
            [Cell(r, c, State.UNDEFINED if (r.label, c.key) in table.no_numbers else State.DONE) for c in table.columns]
            for r in table.rows
        ]
        return Cells(table, "", "", {}, grid, frame, Settings(table, "", "", (), {}, {}), {})
    rules = protocol.load(table.protocol)
    usual = rules.seeds(budget)  # an unknown budget is the first thing to say
    precision = precision or rules.precision(budget)
    absent: dict[str, str] = {}
    at_hand: dict[str, tuple[DatasetSpec, int]] = {}
    packed: dict[str, tuple[DatasetSpec, int]] = {}
    for name in dict.fromkeys(c.dataset for c in table.measured):
        try:
            at_hand[name] = dataset(name, frame.store, roots)
        except FedbenchError as error:
            absent[name] = str(error)
        if (shipped := shipped_dataset(name, frame.packs)) and shipped != at_hand.get(name):
            packed[name] = shipped
        if sketched and name not in at_hand and (stand_in := shipped or nominal(name)):
            at_hand[name] = stand_in
    seeds = tuple(seeds) or tuple(table.seeds) or usual
    settings = Settings(table, budget, precision, seeds, at_hand, frame.settings)
    theirs = Settings(table, budget, precision, seeds, packed, frame.settings)
    sources = {row.label: declarations.of(row.method) for row in table.rows if is_file(row.method)}
    built = {row.label for row in table.rows if row.method in methods.names()} | sources.keys()
    every = [*at_hand.items(), *packed.items()]
    known = {name for name, (spec, _) in every if frame.knows(spec.name, budget, precision)}

    def runs(
        row: Row,
        column: Column,
        of: Settings = settings,
        tuned: Mapping[str, Any] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Iterator[RunSpec]:
        method = sources.get(row.label) or declarations.of(row.method)
        overrides = {**rules.method_params(method.name, budget, column.dataset), **row.params}
        at = of.of(column, row, tuned, seeds)
        try:
            yield from frame.specs(method, at, overrides)
        except FedbenchError as error:
            raise error.at(f"{table.path}, row {row.label}") from error

    grid_of_values, tuned_by = points(table.tune), tuple(table.seeds or usual)[:1]

    def trials(row: Row, column: Column, of: Settings) -> Iterator[RunSpec]:
        for values in grid_of_values:
            yield from runs(row, column, of, values, tuned_by)

    def trained(of: Settings) -> set[str]:
        """The columns in whose partitions there are runs: of the others no row needs a look."""
        parts = {
            c.key: {setting.partition for setting in of.of(c, seeds=(*seeds, *tuned_by))}
            for c in table.measured
            if c.dataset in known
        }
        return {key for key, own in parts.items() if any(map(frame.trained_in, own))}

    in_store, in_packs = trained(settings), trained(theirs)

    def from_store(row: Row, column: Column, of: Settings, columns: Collection[str]) -> Cell:
        """The cell with what the store has of its runs: of a tuned table those of the grid, then those of its best."""
        empty = Cell(row, column, State.MISSING, (None,) * len(seeds), "", partial(runs, of=of))
        if table.tune:
            nothing = (None,) * len(grid_of_values)
            grid = Cell(row, column, State.MISSING, nothing, "", partial(trials, of=of), nothing)
            grid = _looked_up(grid, frame) if column.key in columns else grid
            grid = replace(grid, trials=grid.records)
            if (chosen := best(grid.trials)) is None:
                return grid
            values = grid_of_values[chosen]
            empty = replace(empty, make=partial(runs, of=of, tuned=values), trials=grid.trials, tuned=values)
        return _looked_up(empty, frame) if column.key in columns else empty

    def printable(found: Cell) -> Cell:
        """The cell, but that a number which its runs cannot have, or of which their pack has too little, is not done:
        what stands as done prints."""
        method = sources.get(found.row.label) or declarations.of(found.row.method)
        if found.row.reads(found.column).metric in TEST_PHASE and UNLABELLED not in method.serves:
            return replace(found, state=State.UNDEFINED)
        if found.column.statistic == "pairs" and found.shipped:  # snapshots are in no pack
            return replace(found, state=State.NOT_PACKED)
        return found

    def cell(row: Row, column: Column) -> Cell:
        if (row.label, column.key) in table.no_numbers:
            return Cell(row, column, State.UNDEFINED)
        if column.of:  # needs no run of its own
            rows = (row.label, column.relative_to) if column.relative_to else (row.label,)
            return Cell(row, column, worst(cells[label, key].state for label in rows for key in column.of))
        if row.label not in built:
            return Cell(row, column, State.NOT_BUILT)
        if column.dataset not in at_hand:
            own = Cell(row, column, State.NO_DATA, reason=absent[column.dataset])
        else:
            own = from_store(row, column, settings, in_store)
        if column.key in in_packs and not any(own.records):
            # Shipped runs may be of a copy of the images that is not here.
            shipped = from_store(row, column, theirs, in_packs)
            return printable(shipped if any(shipped.records) else own)
        return printable(own)

    cells: dict[tuple[str, str], Cell] = {}
    for column in table.columns:  # parts stand before their means
        for row in table.rows:
            cells[row.label, column.key] = cell(row, column)
    grid = [[cells[r.label, c.key] for c in table.columns] for r in table.rows]
    return Cells(table, budget, precision, absent, grid, frame, settings, sources)


def _looked_up(cell: Cell, frame: Frame) -> Cell:
    """The cell with what the store has of its runs."""
    records = tuple(map(frame.find, cell.specs))
    states = [(_state(record), record.reason if record else "") for record in records]
    state, reason = min(states, key=lambda x: _WORST.index(x[0]))
    return replace(cell, state=state, records=records, reason=reason)


def worst(states: Iterable[State]) -> State:
    """The state of a number that is computed from several runs or cells."""
    return min(states, key=_WORST.index)


def scope(budget: str, precision: str) -> str:
    """Which runs count, in print: the budget, and the precision where it is not the usual one ("" if none count)."""
    return f"budget {budget}" + (f" in {precision}" if precision != DEFAULT_PRECISION else "") if budget else ""


def _state(record: Run | None) -> State:
    if record is None:
        return State.MISSING
    try:
        missing = record.complete is not None and not record.evaluated
    except DamagedError:
        return State.DAMAGED
    return State.UNEVALUATED if missing else record.state


# -- runs of tables --------------------------------------------------------------------------------------------
# The runs of a store that tables need, at every budget and under every seed that the store has.


def of_tables(names: Sequence[str], frame: Frame, roots: Sequence[Path]) -> dict[str, str]:
    """The complete and the failed runs that cells of these tables read, or of all tables of these papers: id -> the
    label of the row ("A or B" where rows of two labels read it).

    Where a table chooses values, the trials that decide may lie in packs, and the runs with what they chose in the
    store. Raises FedbenchError for an unknown table.
    """
    settings = [runs[0].spec.setting for runs in frame.records.values()]
    rows: dict[str, dict[str, None]] = {}  # id -> an ordered set
    for table in map(tables.load, tables.of_names(names)):
        if table.counted:
            continue
        for budget in protocol.load(table.protocol).budgets:
            seeds = {s.seed for s in settings if s.budget == budget}
            precisions = {s.precision for s in settings if s.budget == budget}
            precisions |= {precision for _, of, precision in frame.packs.scopes if of == budget}
            for precision in precisions:
                for chosen in ((), *((seed,) for seed in sorted(seeds))):
                    cells = find(table, budget, frame, roots, precision=precision, seeds=chosen)
                    for cell in cells.all:
                        for r in (*cell.records, *cell.trials):
                            if r is not None and (r.complete or r.state is State.FAILED):
                                rows.setdefault(r.id, {})[cell.row.label] = None
    return {id: " or ".join(labels) for id, labels in rows.items()}
