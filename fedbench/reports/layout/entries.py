"""Where a cell's number comes from: metrics of its runs, their snapshots, other cells (means), or no run (counted).

`build` adds to the entries what depends on other rows or on the paper: ranks, ratios, differences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.definitions import METRICS, TEST_PHASE
from fedbench.metrics.evaluate import MEASURES
from fedbench.planner.cells import Cell, Cells, worst
from fedbench.planner.others import Hits
from fedbench.planner.rounds import AFTER_LAST
from fedbench.planner.table import statistic
from fedbench.planner.table.spec import UNITS, Column, Table
from fedbench.reports.layout.grid import Entry, filled, never
from fedbench.reports.numbers.counted import counted, derived
from fedbench.reports.numbers.measured import Value, measure, over_seeds
from fedbench.reports.numbers.pairs import Array, over_pairs, xi
from fedbench.results import beside_local
from fedbench.results.reached import goal
from fedbench.results.run import Run, State, title_of
from fedbench.specs import Setting

if TYPE_CHECKING:
    from fedbench.metrics.read import Metrics
    from fedbench.results.packs import Shipped

#: Row label -> column key -> entry. The labels of extra rows differ from those of the table's rows.
Rows = dict[str, dict[str, Entry]]

#: Metrics that only methods with a router have.
ROUTING = ("routing_accuracy", "system_accuracy_probability", "system_accuracy_density_ratio")


class Entries:
    """Makes the entries of a table's cells from their runs, and remembers what notes below the table say about these.

    Evaluates runs without metrics. `view` is that of the test images, "crop" or "plain".
    """

    def __init__(self, cells: Cells, view: str) -> None:
        self.cells, self.table, self.view = cells, cells.table, view
        #: An ordered set of messages, first on damaged runs, whose cells are unknown.
        self.problems = {str(error): None for error in cells.frame.damaged}
        self.views: set[tuple[str, bool]] = set()  #: (view of test images, whether it was evaluated once, so without ±)
        self.unmeasured: list[tuple[tuple[str, str], str]] = []  #: ((metric, why it is missing), method)
        #: Run's id -> (run, the same run from packs with other numbers)
        self.others: dict[str, tuple[Run, list[Shipped]]] = {}
        self._metrics: dict[str, Metrics | None] = {}
        self._xi: dict[tuple[str, ...], Array | None] = {}

    def of_table(self) -> Rows:
        """The entries of the table's rows; those of means over columns are empty (`with_means` fills them)."""
        rows = zip(self.table.rows, self.cells.grid, strict=True)
        return {row.label: {cell.column.key: self._of_cell(cell) for cell in line} for row, line in rows}

    def of_extra(self, hits: Hits) -> dict[str, Entry]:
        """The entries of an extra row by column key."""
        return {column.key: self._of_hits(column, hits) for column in self.table.columns}

    def unmeasured_notes(self) -> list[str]:
        """A line per metric that methods of the rows read so far do not measure."""
        methods = by_key(self.unmeasured, once=True)
        return [f"No {metric}: {', '.join(who)} {why}." for (metric, why), who in methods.items()]

    def _of_cell(self, cell: Cell) -> Entry:
        if cell.column.of or cell.state is State.UNDEFINED:
            return Entry(cell.state)
        if self.table.counted:
            return filled(State.DONE, counted(self.table, cell.row, cell.column), cell.column)
        # With the settings that the cell asks for, as a run that answered more may stand in for one of them.
        asked = zip(cell.specs, cell.records, strict=True) if any(cell.records) and not cell.tuning else ()
        runs = [(spec.setting, run) for spec, run in asked if run is not None]
        entry = self._of_runs(cell.row.reads(cell.column), runs, cell.state)
        if cell.state is State.FAILED and cell.reason:
            self.problems[f"{cell.row.label}, {cell.column.key}: {cell.reason}"] = None
        return entry

    def _of_hits(self, column: Column, hits: Hits) -> Entry:
        if column.of or self.table.undefines("", column.key):
            return Entry(State.MISSING)
        runs = [run for hit, run in hits if hit is column]
        some = State.PARTIAL if runs else State.MISSING
        state = _state_of(runs) if len(runs) == len(self.cells.seeds) else some
        return self._of_runs(column, [(run.spec.setting, run) for run in runs], state)

    def _of_runs(self, column: Column, runs: Sequence[tuple[Setting, Run]], state: State) -> Entry:
        """The entry of the runs that exist, each with the setting that is asked for; `state`, that of the cell, tells
        whether some are missing."""
        if column.statistic == "pairs":
            return self._over_pairs(column, [run for _, run in runs], state)
        values: dict[int, Value] = {}  # by seed
        used: list[Run] = []
        for setting, run in runs:
            number = self._number(column, setting, run, state)
            if isinstance(number, State):
                state = number
            else:
                values[setting.seed] = number
                used.append(run)
        if not values:
            return Entry(state)
        if missed := sum(math.isinf(value.mean) for value in values.values()):
            return never(missed, len(values), tuple(run.id for run in used))
        if state is State.UNEVALUATED:  # `_number` has just evaluated it
            state = _state_of([run for _, run in runs])
        value = over_seeds([*values.items()], statistic.find(str(column.statistic)).ddof)
        return dataclasses.replace(
            filled(state, value, column, tuple(run.id for run in used)),
            shipped=any(run.shipped for run in used),
            contradicted=any(self.others[run.id][1] for run in used),
        )

    def _number(self, column: Column, setting: Setting, run: Run, state: State) -> Value | State:
        """The column's number in a run; without one, the state of the cell, which was `state` before."""
        metrics, metric = self._read(run), str(column.metric)
        if metrics is None:
            return State.DAMAGED if run.complete and state is not State.UNEVALUATED else state
        if metric in TEST_PHASE and not metrics.series(metric, "plain"):
            return State.UNDEFINED  # the method serves no clients without labels
        if metric in ROUTING and metric not in metrics.names:
            return State.UNDEFINED  # the method does not route
        if metric in beside_local.NUMBERS:
            return self._beside_local(column, setting, run, metrics)
        if metric not in METRICS and metric not in metrics.names and goal(metric) is None:
            return self._not_measured(metric, run)
        try:
            value, seen = measure(metrics, setting, column, self.view)
        except FedbenchError as error:
            if run.shipped:
                return State.NOT_PACKED
            self.problems[str(error)] = None
            return State.DAMAGED
        if seen:
            once = column.statistic == "last_rounds" and value.count < min(setting.window, setting.rounds)
            self.views.add((seen, once))
        return value

    def _not_measured(self, metric: str, run: Run) -> State:
        """The state of a cell whose run's method does not measure the metric, or did not when the run was made."""
        declares = MEASURES in run.provenance
        again = "was made before methods declared what they measure; 'fedbench train --again' makes it again"
        title = title_of(run.spec.method, run.provenance)
        self.unmeasured.append(((metric, "does not measure it" if declares else again), title))
        return State.UNDEFINED if declares else State.MISSING

    def _beside_local(self, column: Column, setting: Setting, run: Run, metrics: Metrics) -> Value | State:
        """What the run's clients lose against those of Local's run; without it, the state of the cell."""
        title, (_, number) = title_of(run.spec.method, run.provenance), beside_local.NUMBERS[str(column.metric)]
        if run.spec.method == beside_local.LOCAL:
            self.unmeasured.append(((str(column.metric), "is what the others are compared with"), title))
            return State.UNDEFINED
        local = self._local(column, setting)
        theirs = self._read(local) if local else None
        if local is None or theirs is None:
            why = f"has not {beside_local.OF_LOCAL} beside it: a row with method local makes it"
            self.unmeasured.append(((str(column.metric), why), title))
            return State.MISSING
        seen = self.view if self.view in metrics.views else "plain"
        rule = statistic.find(str(column.statistic)).rule or AFTER_LAST
        metric = beside_local.compared(metrics)
        both = [
            beside_local.clients(of, at, seen, rule.chosen(of, at, f"run {one.id}"), metric)
            for one, at, of in ((run, setting, metrics), (local, local.spec.setting, theirs))
        ]
        if (lost := beside_local.lost(*both)) is None:
            return State.UNDEFINED
        self.views.add((seen, False))
        return Value(number(lost) * UNITS[str(column.unit)][0])

    def _local(self, column: Column, setting: Setting) -> Run | None:
        """Local's complete run on the setting's partition, with its seed: that of a row of the table, or the one that
        the protocol asks for."""
        cells = (cell for line in self.cells.grid for cell in line if cell.column is column)
        of_rows = [spec for cell in cells if cell.row.method == beside_local.LOCAL for spec in cell.specs]
        rules, local = protocol.load(self.table.protocol), declarations.built_in()[beside_local.LOCAL]
        params = rules.method_params(local.name, self.cells.budget, column.dataset)
        specs = [*of_rows, *(local.run(at, params) for at in (setting, *self.cells.settings[column.key]))]
        same = (spec for spec in specs if spec.setting.partition == setting.partition)
        runs = (self.cells.frame.find(spec) for spec in same if spec.setting.seed == setting.seed)
        return next((found for found in runs if found is not None and found.complete), None)

    def _over_pairs(self, column: Column, runs: Sequence[Run], state: State) -> Entry:
        """The entry of a number over all pairs of snapshots of the runs that exist."""
        kept = [run.artifact for run in runs if run.complete and not run.shipped]
        if not kept:
            return Entry(State.NOT_PACKED if any(run.shipped for run in runs) else state)
        ids = tuple(run.id for run in kept)
        if ids not in self._xi:
            try:
                self._xi[ids] = xi(kept)
            except FedbenchError as error:
                self._xi[ids] = None
                self.problems[str(error)] = None
        if (found := self._xi[ids]) is None:
            return Entry(State.DAMAGED)
        if state is State.UNEVALUATED:  # needs no metrics
            state = _state_of(runs)
        return filled(state, over_pairs(found, column, len(kept)), column, ids)

    def _read(self, run: Run) -> Metrics | None:
        """A run's metrics; None if it is not complete, or they cannot be read."""
        if not run.complete:
            return None
        if run.id not in self._metrics:
            try:
                self._metrics[run.id] = metrics = run.metrics
                self.others[run.id] = run, self.cells.frame.packs.others(run.id, metrics)
            except FedbenchError as error:
                self._metrics[run.id] = None
                self.problems[str(error)] = None
        return self._metrics[run.id]


def _state_of(runs: Sequence[Run]) -> State:
    """The state of a number of all these runs."""
    return State.STALE if any(run.state is State.STALE for run in runs) else State.DONE


def with_means(table: Table, rows: Rows) -> Rows:
    """The rows with the entries of columns that are means over others."""
    every = {label: dict(line) for label, line in rows.items()}
    for column in (c for c in table.columns if c.of):  # a column's parts stand before it
        base = every[column.relative_to] if column.relative_to else None
        for line in every.values():
            if line[column.key].state is not State.UNDEFINED:
                line[column.key] = _mean(column, line, base)
        if base:
            base[column.key] = Entry(State.DONE)  # a row is not compared with itself
    return every


def _mean(column: Column, line: Mapping[str, Entry], base: Mapping[str, Entry] | None) -> Entry:
    """The entry of a mean over others; without a number, and with their worst state, if one of them has none."""
    parts = [line[key] for key in column.of]
    compared = [base[key] for key in column.of] if base else []
    every = (*parts, *compared)
    state = worst(e.state for e in every)
    values, base_values = ([e.value for e in of if e.value] for of in (parts, compared))
    if len(values) + len(base_values) < len(every):
        return Entry(state)
    value = derived(column, values, base_values)
    runs = dict.fromkeys(run for e in every for run in e.runs)
    entry = filled(state, value, column, tuple(runs)) if value else Entry(state)
    return dataclasses.replace(entry, shipped=any(e.shipped for e in every))
