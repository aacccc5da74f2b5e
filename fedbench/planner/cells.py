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
from fedbench.planner.settings import Settings, dataset, scopes, shipped_dataset
from fedbench.planner.table.spec import Column, Row, Table
from fedbench.plugins.load import is_file
from fedbench.results.frame import Frame, scope_of
from fedbench.results.run import Run, State
from fedbench.specs import PRECISIONS, DatasetSpec, RunSpec, Setting
from fedbench.store import DamagedError

#: The metric by which a tuned table selects each cell's values, such as the learning rate: it trains every combination
#: with the first seed, and uses the best one on the clients' validation images for all seeds. It uses no test images.
METRIC = "validation_accuracy"


def points(tune: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values."""
    return [dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values())]


def best(trials: Sequence[Run | None]) -> int | None:
    """Index of the run with the highest validation accuracy after its last round; the first of equal ones. A method
    without scores has no validation accuracy: then the first complete run.

    None while a run is neither complete nor failed (a diverged run has failed), and if all have failed.
    """
    scores: dict[int, float] = {}
    for index, run in enumerate(trials):
        if run is None or (run.complete is None and run.state is not State.FAILED):
            return None
        if run.complete is not None:
            by_round = run.metrics.series(METRIC)
            scores[index] = by_round[max(by_round)] if by_round else -1.0
    return max(scores, key=scores.__getitem__, default=None)


#: The budget of runs, and of a table that has no number at any budget, without --budget.
DEFAULT_BUDGET = "small"
#: The budget for trying things out; its numbers count only if the user names it.
SMOKE = "smoke"

#: Labels of runs name the precision only if it differs from this one.
DEFAULT_PRECISION = Setting.precision

#: In a method's `serves`: it serves clients without labels.
UNLABELLED = "unlabelled"

#: The worst state first: a cell that needs many runs (one per seed) has the worst state among them.
_WORST = (
    State.UNDEFINED,
    State.NOT_BUILT,
    State.NO_DATA,
    State.FAILED,
    State.DAMAGED,
    State.MISSING,
    State.RUNNING,
    State.PARTIAL,
    State.NOT_PACKED,
    State.NEVER,
    State.UNEVALUATED,
    State.STALE,
    State.DONE,
)


@dataclass(frozen=True)
class Cell:
    """One number of a table, at a row and a column: from one run per seed, or from other cells (`Column.of`)."""

    row: Row
    column: Column
    state: State
    records: tuple[Run | None, ...] = ()  #: one per spec: the run, or None if it does not exist
    reason: str = ""
    make: Callable[[Row, Column], Iterable[RunSpec]] | None = None  #: makes `specs`; slow, so called on demand
    #: Of a tuned table: the trials (runs that select the cell's values), and the selected values; until these are
    #: known, the cell needs the trials.
    trials: tuple[Run | None, ...] = ()
    tuned: Mapping[str, Any] | None = None
    make_trials: Callable[[Row, Column], Iterable[RunSpec]] | None = None  #: makes the specs of the trials

    @property
    def tuning(self) -> bool:
        """Whether its runs are trials, which select the values."""
        return bool(self.trials) and self.tuned is None

    @property
    def shipped(self) -> bool:
        """Whether at least one of the runs behind its number comes from a result pack."""
        full = self.state in (State.DONE, State.STALE, State.PARTIAL)
        return full and any(record is not None and record.shipped is not None for record in self.records)

    @cached_property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs that it needs; none if the data set is missing."""
        return tuple(self.make(self.row, self.column)) if self.make else ()

    @property
    def chosen_by(self) -> Iterator[tuple[RunSpec, Run | None]]:
        """The trials that have selected its values, each with its run; none of a cell that is `tuning`."""
        if self.tuned is not None and self.make_trials:
            yield from zip(self.make_trials(self.row, self.column), self.trials, strict=True)


@dataclass(frozen=True)
class Cells:
    """A table at one budget and one precision, for some seeds."""

    table: Table
    budget: str  #: empty for counted tables, like the precision
    precision: str
    absent: dict[str, str]  #: missing data set -> reason
    grid: list[list[Cell]]  #: [row][column]
    frame: Frame
    made: Settings
    sources: Mapping[str, Declaration]  #: row label -> declaration, for rows whose method is a user's file

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of a cell's runs."""
        return self.made.seeds

    @cached_property
    def settings(self) -> dict[str, tuple[Setting, ...]]:
        """Column key -> one setting per seed, for columns whose data set exists. Rows with overrides have other
        settings."""
        return {c.key: settings for c in self.table.measured if (settings := self.made.of(c))}

    @property
    def all(self) -> list[Cell]:
        return [cell for line in self.grid for cell in line]

    @property
    def scope(self) -> str:
        """Budget and precision as text."""
        return scope(self.budget, self.precision)

    @cached_property
    def counts(self) -> Counter[State]:
        """State -> number of cells, without cells that are computed from others and cells without a number."""
        return Counter(c.state for c in self.all if not c.column.of and c.state is not State.UNDEFINED)

    @property
    def shipped(self) -> int:
        """Number of shipped cells."""
        return sum(c.shipped for c in self.all)

    def declaration(self, row: Row) -> Declaration | None:
        """The declaration of a row's method; None if the method does not exist yet."""
        built_in = declarations.of(row.method) if row.method in methods.names() else None
        return self.sources.get(row.label, built_in)

    def runs(self, *states: State, rows: Collection[str] | None = None, trials: bool = False) -> dict[RunSpec, Row]:
        """Run -> row, for the runs in these states that the cells need. `rows`: labels; only their cells. If many rows
        need a run, the last one. `trials`: also those by which cells have chosen their values."""
        return {
            spec: cell.row
            for cell in self.all
            if rows is None or cell.row.label in rows
            for spec, record in (*zip(cell.specs, cell.records, strict=True), *(cell.chosen_by if trials else ()))
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
) -> Cells:
    """The cells of a table at a budget and a precision (default: that of the budget).

    Reads manifests only. Raises FedbenchError for an unknown budget or precision.
    """
    check_known("precision", precision, PRECISIONS)
    if table.counted:
        return _counted(table, frame)
    rules = protocol.load(table.protocol)
    usual = rules.seeds(budget, table.seeds)  # first, because it raises for an unknown budget
    precision, seeds = precision or rules.precision(budget), tuple(seeds) or usual
    datasets = _datasets(table, frame, roots)
    settings = Settings(table, budget, precision, seeds, datasets.at_hand, frame.settings)
    sources = {row.label: declarations.of(row.method) for row in table.rows if is_file(row.method)}
    tuned_by = usual[:1]
    ours = _Search(rules, settings, frame, sources, tuned_by, _trained(settings, frame, tuned_by))
    of_packs = replace(settings, datasets=datasets.packed)
    shipped = _Search(rules, of_packs, frame, sources, tuned_by, _trained(of_packs, frame, tuned_by))
    built = {row.label for row in table.rows if row.method in methods.names()} | sources.keys()

    cells: dict[tuple[str, str], Cell] = {}
    for column in table.columns:  # parts stand before their means
        for row in table.rows:
            if (row.label, column.key) in table.no_numbers:
                cell = Cell(row, column, State.UNDEFINED)
            elif column.of:
                rows = (row.label, column.relative_to) if column.relative_to else (row.label,)
                cell = Cell(row, column, worst(cells[label, key].state for label in rows for key in column.of))
            elif row.label not in built:
                cell = Cell(row, column, State.NOT_BUILT)
            else:
                cell = _measured(row, column, ours, shipped, datasets.absent)
            cells[row.label, column.key] = cell
    grid = [[cells[r.label, c.key] for c in table.columns] for r in table.rows]
    return Cells(table, budget, precision, datasets.absent, grid, frame, settings, sources)


def _counted(table: Table, frame: Frame) -> Cells:
    """The cells of a table that needs no runs."""
    grid = [
        [Cell(r, c, State.UNDEFINED if (r.label, c.key) in table.no_numbers else State.DONE) for c in table.columns]
        for r in table.rows
    ]
    return Cells(table, "", "", {}, grid, frame, Settings(table, "", "", (), {}, {}), {})


@dataclass(frozen=True)
class _Datasets:
    """The data sets of a table by name: spec and number of classes to partition by."""

    at_hand: dict[str, tuple[DatasetSpec, int]]
    packed: dict[str, tuple[DatasetSpec, int]]  #: that of most shipped runs, if it differs from the one at hand
    absent: dict[str, str]  #: why it is not available


def _datasets(table: Table, frame: Frame, roots: Sequence[Path]) -> _Datasets:
    """The table's data sets."""
    found = _Datasets({}, {}, {})
    for name in dict.fromkeys(c.dataset for c in table.measured):
        try:
            found.at_hand[name] = dataset(name, frame.store, roots)
        except FedbenchError as error:
            found.absent[name] = str(error)
        if (shipped := shipped_dataset(name, frame.packs)) and shipped != found.at_hand.get(name):
            found.packed[name] = shipped
    return found


def _trained(settings: Settings, frame: Frame, tuned_by: tuple[int, ...]) -> set[str]:
    """Keys of the columns whose partitions have runs: cells of other columns need no look-up."""
    table, budget, precision = settings.table, settings.budget, settings.precision
    parts = {
        c.key: {setting.partition for setting in settings.of(c, seeds=(*settings.seeds, *tuned_by))}
        for c in table.measured
        if c.dataset in settings.datasets and scopes(table, c, budget, precision) & frame.scopes
    }
    return {key for key, partitions in parts.items() if any(map(frame.trained_in, partitions))}


@dataclass(frozen=True)
class _Search:
    """Looks up the runs of cells in settings with one copy of the images: this machine's, or that of packs."""

    rules: protocol.Protocol
    settings: Settings
    frame: Frame
    sources: Mapping[str, Declaration]
    tuned_by: tuple[int, ...]  #: the seed of trials
    trained: Collection[str]  #: keys of the columns that can have runs

    def specs(
        self, row: Row, column: Column, tuned: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None
    ) -> Iterator[RunSpec]:
        """The runs of a cell, one per seed, with the `tuned` values."""
        method = self.method(row)
        preset = self.rules.method_params(method.name, self.settings.budget, column.dataset)
        settings = self.settings.of(column, row, tuned, seeds)
        try:
            yield from self.frame.specs(method, settings, {**preset, **row.params})
        except FedbenchError as error:
            raise error.at(f"{self.settings.table.path}, row {row.label}") from error

    def trials(self, row: Row, column: Column) -> Iterator[RunSpec]:
        """The runs that select the values of a tuned table's cell: one per point."""
        for values in points(self.settings.table.tune):
            yield from self.specs(row, column, values, self.tuned_by)

    def method(self, row: Row) -> Declaration:
        """The declaration of a row's method, which exists."""
        return self.sources.get(row.label) or declarations.of(row.method)

    def cell(self, row: Row, column: Column) -> Cell:
        """The cell with its runs that exist; in a tuned table the trials, or, once the best is known, its runs."""
        unknown = Cell(row, column, State.MISSING, (None,) * len(self.settings.seeds), make=self.specs)
        if not self.settings.table.tune:
            return self._looked_up(unknown)
        every = points(self.settings.table.tune)
        tuning = self._looked_up(Cell(row, column, State.MISSING, (None,) * len(every), make=self.trials))
        tuning = replace(tuning, trials=tuning.records)
        if (index := best(tuning.trials)) is None:
            return tuning
        make = partial(self.specs, tuned=every[index])
        chosen = replace(unknown, make=make, trials=tuning.trials, tuned=every[index], make_trials=self.trials)
        return self._looked_up(chosen)

    def _looked_up(self, cell: Cell) -> Cell:
        """The cell with its runs that exist, and their worst state."""
        if cell.column.key not in self.trained:
            return cell
        records = tuple(map(self.frame.find, cell.specs))
        states = [(_state(record), record.reason if record else "") for record in records]
        state, reason = min(states, key=lambda x: _WORST.index(x[0]))
        if state is State.MISSING and any(record and record.complete for record in records):
            state = State.PARTIAL
        return replace(cell, state=state, records=records, reason=reason)


def _measured(row: Row, column: Column, ours: _Search, shipped: _Search, absent: Mapping[str, str]) -> Cell:
    """The cell of a number that needs runs: from this machine's images, or, as shipped runs may use another copy of
    them, from that one. Not done if its runs cannot have the number, or their pack lacks it."""
    if column.dataset in ours.settings.datasets:
        cell = ours.cell(row, column)
    else:
        cell = Cell(row, column, State.NO_DATA, reason=absent[column.dataset])
    if column.key in shipped.trained and not any(cell.records):
        other = shipped.cell(row, column)
        cell = other if any(other.records) else cell
    if row.reads(column).metric in TEST_PHASE and UNLABELLED not in ours.method(row).serves:
        return replace(cell, state=State.UNDEFINED)
    if column.statistic == "pairs" and cell.shipped:  # snapshots are in no pack
        return replace(cell, state=State.NOT_PACKED)
    return cell


def worst(states: Iterable[State]) -> State:
    """The state of a number that is computed from runs or cells in these states."""
    return min(states, key=_WORST.index)


def scope(budget: str, precision: str) -> str:
    """Budget, and precision unless it is the default, as text; "" without a budget (counted tables)."""
    return f"budget {budget}" + (f" in {precision}" if precision != DEFAULT_PRECISION else "") if budget else ""


def _state(record: Run | None) -> State:
    if record is None:
        return State.MISSING
    try:
        missing = record.complete is not None and not record.evaluated
    except DamagedError:
        return State.DAMAGED
    return State.UNEVALUATED if missing else record.state


def of_tables(names: Sequence[str], frame: Frame, roots: Sequence[Path], *, trials: bool = True) -> dict[str, str]:
    """Run's id -> label of its row ("A or B" if two rows need it), in the order of rows, for the complete and failed
    runs that tables need at every budget and for every seed of the store's runs.

    `names` are tables or papers (all tables of each). Without `trials`, only runs that cells read: in a tuned table not
    those that its values were chosen by, unless they are the chosen ones. The trials may come from packs while its
    other runs come from the store. Raises FedbenchError for an unknown table.
    """
    settings = [runs[0].spec.setting for runs in frame.records.values()]
    rows: dict[str, dict[str, None]] = {}  # id -> an ordered set
    place: dict[str, int] = {}  # label -> its place
    for table in map(tables.load, tables.of_names(names)):
        for row in table.rows:
            place.setdefault(row.label, len(place))
        if table.counted:
            continue
        for budget in protocol.load(table.protocol).budgets:
            for precision in PRECISIONS:
                here = set().union(*(scopes(table, column, budget, precision) for column in table.measured))
                if not here & frame.scopes:
                    continue
                seeds = {setting.seed for setting in settings if scope_of(setting) in here}
                for chosen in ((), *((seed,) for seed in sorted(seeds))):
                    cells = find(table, budget, frame, roots, precision=precision, seeds=chosen)
                    for cell in cells.all:
                        read = () if cell.tuning else cell.records
                        for r in (*read, *(cell.trials if trials else ())):
                            if r is not None and (r.complete or r.state is State.FAILED):
                                rows.setdefault(r.id, {})[cell.row.label] = None
    ordered = sorted(rows.items(), key=lambda item: place[next(iter(item[1]))])
    return {id: " or ".join(labels) for id, labels in ordered}
