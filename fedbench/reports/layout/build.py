"""Build the grid of a table's cells: values, ranks, the paper's numbers, and notes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import stdev
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.definitions import METRICS, TEST_PHASE
from fedbench.metrics.evaluate import MEASURES
from fedbench.planner.cells import Cell, Cells, worst
from fedbench.planner.others import others, records
from fedbench.planner.table.claims import Noise, Noises, Numbers, Verdict, judge, of_part, pooled
from fedbench.planner.table.spec import OVER_SEEDS, UNITS, Column, Row, Table
from fedbench.reports.layout import times
from fedbench.reports.layout.appendix import sections
from fedbench.reports.layout.grid import Entry, Grid, Head, Line, filled, ranked
from fedbench.reports.layout.notes import Notes, command
from fedbench.reports.layout.shipped import contradicted, makers
from fedbench.reports.numbers.agreement import Tally, offset
from fedbench.reports.numbers.counted import counted, derived
from fedbench.reports.numbers.measured import Value, measure, over_seeds
from fedbench.reports.numbers.pairs import Array, over_pairs, xi
from fedbench.results.frame import Run, State, title_of
from fedbench.specs import Setting

if TYPE_CHECKING:
    from fedbench.metrics.read import Metrics
    from fedbench.results.packs import Shipped


def grid_of(
    cells: Cells,
    *,
    view: str | None = None,
    seeds: Iterable[int] = (),
    compare: bool = False,
    extra: bool = False,
    appendix: bool = False,
) -> Grid:
    """The grid of a table's cells, which were found for these seeds.

    `view` ("crop" or "plain") overrides the table's; `compare` adds the paper's numbers below ours, `extra` rows of the
    store's other runs in the table's settings, `appendix` the sections of a paper's appendix. Evaluates runs without
    metrics; trains nothing.
    """
    return _Builder(cells, view or cells.table.view, compare, extra).grid(tuple(seeds), appendix)


#: Metrics that only methods with a router have.
ROUTING = ("routing_accuracy", "system_accuracy_probability", "system_accuracy_density_ratio")


class _Builder:
    def __init__(self, cells: Cells, view: str, compare: bool, extra: bool) -> None:
        self.cells, self.table, self.view, self.compare, self.extra = cells, cells.table, view, compare, extra
        #: An ordered set of messages, first on damaged runs, whose cells are unknown.
        self.problems = {str(error): None for error in cells.frame.damaged}
        self.views: set[tuple[str, bool]] = set()  #: (view of test images, whether it was evaluated once, so without ±)
        self.without: list[tuple[tuple[str, str], str]] = []  #: ((metric, why it is missing), method)
        self._metrics: dict[str, Metrics | None] = {}
        #: Run's id -> (run, the same run from packs with other numbers)
        self._others: dict[str, tuple[Run, list[Shipped]]] = {}
        self._xi: dict[tuple[str, ...], Array | None] = {}

    def grid(self, seeds: tuple[int, ...], appendix: bool) -> Grid:
        table, columns = self.table, self.table.columns
        paper = [[self._paper(cell) for cell in line] for line in self.cells.grid]
        # For the table's rows only: extra rows without numbers are omitted.
        absent = by_key(self.without, once=True)
        empty = [f"No {metric}: {', '.join(who)} {why}." for (metric, why), who in absent.items()]
        # Pairs have no extra rows: other methods keep no snapshots.
        found = {} if table.counted or table.statistic == "pairs" else others(self.cells)
        extra = found if self.extra else {}
        rows = len(found) - len(extra)
        omitted = (
            [f"Left out: {rows} row{'s' * (rows > 1)} of your other runs in these settings (--extra)."] if rows else []
        )
        more = [[self._extra(column, hits) for column in columns] for hits in extra.values()]
        self._derive(paper, more)
        # Omit extra rows without a number in a printed column (they may have numbers in hidden ones).
        shown = [k for k, column in enumerate(columns) if not column.hidden]
        filled_rows = {label: line for label, line in zip(extra, more, strict=True) if any(line[k].text for k in shown)}
        extra, more = {label: extra[label] for label in filled_rows}, list(filled_rows.values())
        timed = times.timed(self.cells, extra)
        incomparable = times.incomparable(columns, timed)
        self._rank(incomparable, paper, more)
        if table.ratio_to:
            self._ratios(incomparable, paper, more)
        paper = [
            [self._against(row, c, e) for c, e in zip(columns, line, strict=True)]
            for row, line in zip(table.rows, paper, strict=True)
        ]
        counts: dict[str, int] = {}
        for column, entry in (pair for line in paper for pair in zip(columns, line, strict=True)):
            # Means over other cells and cells without a number need no runs.
            if not column.of and entry.state is not State.UNDEFINED:
                counts[entry.state.value] = counts.get(entry.state.value, 0) + 1
        numbered = {row.label for row, line in zip(table.rows, paper, strict=True) if any(line[k].text for k in shown)}
        notes = Notes(self.cells, extra, counts, self.views, self.view, numbered, timed, incomparable)
        marks, footnotes = notes.deviations()
        lines = []
        for row, entries in zip(table.rows, paper, strict=True):
            label = row.label
            declaration = self.cells.sources.get(label)
            method, source = (declaration.name, declaration.source) if declaration else (row.method, "")
            kind = "added" if row.added else "paper"
            lines.append(Line(label, kind, tuple(entries), marks.get(label, ""), method, source or ""))
            if self.compare and any(e.reported for e in entries):
                lines.append(
                    Line(
                        "reported",
                        "reported",
                        tuple(self._reported(label, c, e) for c, e in zip(columns, entries, strict=True)),
                    )
                )
        for (label, hits), entries in zip(extra.items(), more, strict=True):
            spec = hits[0][1].spec
            lines.append(Line(label, "extra", tuple(entries), marks.get(label, ""), spec.method, spec.source or ""))
        tally = None
        if self.compare and table.trusted:
            tally = Tally.of(len(table.trusted), (e.offset for line in paper for e in line if e.offset))
        comparison = [f"{tally}."] if tally and tally.measured else []
        comparison += contradicted({id: found for id, found in self._others.items() if found[1]})
        return Grid(
            id=table.id,
            title=table.title,
            stub=table.stub or ("Network" if table.statistic == "count" else "Method"),
            budget=self.cells.budget,
            precision=self.cells.precision,
            scope=self.cells.scope,
            heads=tuple(Head(c.group, c.label, str(c.metric), UNITS[str(c.unit)][1]) for c in table.printed),
            lines=tuple(dataclasses.replace(line, entries=tuple(line.entries[k] for k in shown)) for line in lines),
            about=(*notes.brief(), *comparison, *omitted),
            command=command(self.cells, seeds) if counts.keys() & {State.MISSING.value, State.FAILED.value} else "",
            notes=(*notes.full(self.compare), *empty),
            footnotes=tuple(footnotes),
            verdicts=tuple(self._verdicts(incomparable, paper)) if self.compare else (),
            problems=tuple(dict.fromkeys([*map(str, self.cells.frame.packs.problems), *self.problems])),
            counts=counts,
            tally=tally,
            makers=tuple(makers(r.shipped for r in records(self.cells, {}) if r.shipped)),
            of_paper=table.of_paper,
            appendix=sections(notes, seeds) if appendix else (),
        )

    # -- entries -----------------------------------------------------------------------------------------

    def _paper(self, cell: Cell) -> Entry:
        if cell.column.of or cell.state is State.UNDEFINED:
            return Entry(cell.state)  # `_derive` computes means later
        if self.table.counted:
            return filled(State.DONE, counted(self.table, cell.row, cell.column), cell.column)
        pairs = [(r.spec.setting, r) for r in cell.records if r is not None and not cell.tuning]
        entry = self._measured(cell.row.reads(cell.column), pairs, cell.state)
        if cell.state is State.FAILED and cell.reason:
            self.problems[f"{cell.row.label}, {cell.column.key}: {cell.reason}"] = None
        return entry

    def _extra(self, column: Column, hits: list[tuple[Column, Run]]) -> Entry:
        if column.of or self.table.undefines("", column.key):
            return Entry(State.MISSING)
        pairs = [(r.spec.setting, r) for c, r in hits if c is column]
        older = any(r.state is State.STALE for _, r in pairs)
        whole = len(pairs) == len(self.cells.seeds)
        state = State.MISSING if not pairs or not whole else State.STALE if older else State.DONE
        return self._measured(column, pairs, state)

    def _measured(self, column: Column, pairs: list[tuple[Setting, Run]], state: State) -> Entry:
        """The value over the existing runs; the state shows whether some are missing."""
        if column.statistic == "pairs":
            return self._over_pairs(column, [r for _, r in pairs], state)
        values: dict[int, Value] = {}  # by seed
        runs: list[str] = []
        for setting, record in pairs:
            metrics = self._read(record)
            if metrics is None:
                if record.complete and state is not State.UNEVALUATED:
                    state = State.DAMAGED
                continue
            if column.metric in TEST_PHASE and not metrics.series(str(column.metric), "plain"):
                state = State.UNDEFINED  # the method serves no clients without labels
                continue
            if column.metric in ROUTING and column.metric not in metrics.names:
                state = State.UNDEFINED  # the method does not route
                continue
            if (without := self._without(column, record, metrics)) is not None:
                state = without
                continue
            try:
                value, seen = measure(metrics, setting, column, self.view)
            except FedbenchError as error:
                if record.shipped:
                    state = State.NOT_PACKED
                    continue
                self.problems[str(error)] = None
                state = State.DAMAGED
                continue
            if seen:
                once = column.statistic == "last_rounds" and value.count < min(setting.window, setting.rounds)
                self.views.add((seen, once))
            values[setting.seed] = value
            runs.append(record.id)
        if not values:
            return Entry(state)
        if state is State.UNEVALUATED:  # `_read` has just evaluated it
            state = State.STALE if any(r.state is State.STALE for _, r in pairs) else State.DONE
        shipped = any(record.shipped and record.id in runs for _, record in pairs)
        others = any(self._others[id][1] for id in runs)
        value = over_seeds([*values.items()], OVER_SEEDS.get(str(column.statistic)))
        return dataclasses.replace(filled(state, value, column, tuple(runs)), shipped=shipped, contradicted=others)

    def _without(self, column: Column, record: Run, metrics: Metrics) -> State | None:
        """The state of a cell if the run's method does not measure the metric; None if it does."""
        metric = str(column.metric)
        if metric in METRICS or metric in metrics.names:
            return None
        declares = MEASURES in record.provenance
        again = "was made before methods declared what they measure; 'fedbench train --again' makes it again"
        title = title_of(record.spec.method, record.provenance)
        self.without.append(((metric, "does not measure it" if declares else again), title))
        return State.UNDEFINED if declares else State.MISSING

    def _over_pairs(self, column: Column, records: list[Run], state: State) -> Entry:
        """The value over all pairs of snapshots of the existing runs."""
        runs = [r.artifact for r in records if r.complete and not r.shipped]
        if not runs:
            return Entry(State.NOT_PACKED if any(r.shipped for r in records) else state)
        ids = tuple(run.id for run in runs)
        if ids not in self._xi:
            try:
                self._xi[ids] = xi(runs)
            except FedbenchError as error:
                self._xi[ids] = None
                self.problems[str(error)] = None
        if (found := self._xi[ids]) is None:
            return Entry(State.DAMAGED)
        if state is State.UNEVALUATED:  # needs no metrics
            state = State.STALE if any(r.state is State.STALE for r in records) else State.DONE
        return filled(state, over_pairs(found, column, len(runs)), column, ids)

    def _read(self, record: Run) -> Metrics | None:
        if not record.complete:
            return None
        if record.id not in self._metrics:
            try:
                self._metrics[record.id] = metrics = record.metrics
                self._others[record.id] = record, self.cells.frame.packs.others(record.id, metrics)
            except FedbenchError as error:
                self._metrics[record.id] = None
                self.problems[str(error)] = None
        return self._metrics[record.id]

    # -- relations between entries -----------------------------------------------------------------------

    def _derive(self, paper: list[list[Entry]], more: list[list[Entry]]) -> None:
        """Fill the columns that are means over others."""
        places = {c.key: j for j, c in enumerate(self.table.columns)}
        rows = [r.label for r in self.table.rows]
        for j, column in enumerate(self.table.columns):
            if not column.of:
                continue
            parts = [places[key] for key in column.of]
            base = paper[rows.index(column.relative_to)] if column.relative_to else None
            for line in (line for line in (*paper, *more) if line[j].state is not State.UNDEFINED):
                line[j] = _mean(column, [line[k] for k in parts], [base[k] for k in parts] if base else [])
            if base:
                base[j] = Entry(State.DONE)  # a row is not compared with itself

    def _rank(self, incomparable: Collection[Column], rows: list[list[Entry]], more: list[list[Entry]]) -> None:
        """Mark best and second best of each column, except `incomparable` times; extra rows (`more`) with fewer seeds
        than the table's rows do not take part."""
        for j, column in enumerate(self.table.columns):
            if column.best == "none" or column in incomparable:
                continue
            seeds = max((value.seeds for line in rows if (value := line[j].value)), default=1)
            lines = [*rows, *(line for line in more if (value := line[j].value) and value.seeds >= seeds)]
            entries = ranked([line[j] for line in lines], str(column.best), column.decimals)
            for line, entry in zip(lines, entries, strict=True):
                line[j] = entry

    def _ratios(self, incomparable: Collection[Column], *blocks: list[list[Entry]]) -> None:
        base = blocks[0][[r.label for r in self.table.rows].index(self.table.ratio_to)]
        for line in (line for block in blocks for line in block):
            for j, (column, entry) in enumerate(zip(self.table.columns, line, strict=True)):
                if column not in incomparable and entry.value and (reference := base[j].value) and reference.mean:
                    line[j] = dataclasses.replace(entry, ratio=entry.value.mean / reference.mean)

    def _against(self, row: Row, column: Column, entry: Entry) -> Entry:
        """The entry with the paper's number and the difference to it."""
        reported = self.table.reported.get((row.label, column.key))
        if reported is None or entry.value is None or self.table.doubts(row.label, column.key):
            return dataclasses.replace(entry, reported=reported)
        off = offset(self.table, row, column, entry.value, entry.ratio, reported)
        return dataclasses.replace(entry, reported=reported, offset=off)

    def _reported(self, label: str, column: Column, entry: Entry) -> Entry:
        """The entry of the "reported" line: the paper's number, and our difference to it."""
        if entry.reported is None:
            return Entry(State.MISSING)
        value, std = entry.reported
        base = self.table.reported.get((self.table.ratio_to, column.key))
        printed, doubtful = filled(State.DONE, Value(value, std), column), self.table.doubts(label, column.key)
        return dataclasses.replace(
            printed,
            text=printed.text + "?" * doubtful,
            doubtful=doubtful,
            ratio=value / base[0] if base else None,
            offset=entry.offset,
        )

    def _verdicts(
        self, incomparable: Collection[Column], paper: list[list[Entry]]
    ) -> Iterator[tuple[Verdict, Verdict]]:
        ours = {
            (row.label, column.key): e.value.mean
            for row, line in zip(self.table.rows, paper, strict=True)
            for column, e in zip(self.table.columns, line, strict=True)
            if e.value is not None and column not in incomparable
        }
        return verdicts(self.table, ours, None if self.table.counted else self._noises(paper))

    def _noises(self, paper: list[list[Entry]]) -> dict[tuple[str, str], Noise]:
        """(row label, column key) -> noise, where known."""
        found: dict[tuple[str, str], Noise] = {}
        for j, column in enumerate(self.table.columns if self.table.claim else ()):
            cells = [(line[j], entries[j].value) for line, entries in zip(self.cells.grid, paper, strict=True)]
            noise_of = {
                cell.row.label: value.noise or self._noise_of_other_seeds(cell) for cell, value in cells if value
            }
            noises = zip(noise_of, pooled(noise_of.values()), strict=True)
            found |= {(label, column.key): noise for label, noise in noises if noise}
        return found

    def _noise_of_other_seeds(self, cell: Cell) -> Noise | None:
        """The noise of a cell with one run, from runs that differ from it only in seeds; None if unknown."""
        if len(cell.records) != 1 or cell.records[0] is None or cell.column.statistic == "pairs":
            return None
        values = []
        for record in self.cells.frame.but_for_seeds(cell.records[0].spec):
            with contextlib.suppress(FedbenchError):  # it lacks the number
                column = cell.row.reads(cell.column)
                values.append(measure(record.metrics, record.spec.setting, column, self.view)[0].mean)
        return Noise(stdev(values), 1) if len(values) > 1 else None


def verdicts(table: Table, ours: Numbers, noises: Noises = None) -> Iterator[tuple[Verdict, Verdict]]:
    """The verdicts on each claim of a table: on our numbers (with their noises), and on the paper's."""
    best = {c.key: str(c.best) for c in table.columns}
    theirs = {place: value for place, (value, _) in table.trusted.items()}
    fixed = [r.label for r in table.rows if not r.added], [c.key for c in table.printed], best, table.no_numbers
    for claim in table.claim:
        both = judge(claim, ours, *fixed, noises), judge(claim, theirs, *fixed)
        yield (of_part(both[0]), of_part(both[1])) if table.part and not claim.columns else both


def _mean(column: Column, entries: Sequence[Entry], base: Sequence[Entry]) -> Entry:
    """The entry of a mean over others; without a number, and with their worst state, if one of them has none."""
    every = (*entries, *base)
    state, values = worst(e.state for e in every), [e.value for e in every if e.value]
    if len(values) < len(every):
        return Entry(state)
    value = derived(column, values[: len(entries)], values[len(entries) :])
    runs = dict.fromkeys(run for e in every for run in e.runs)
    entry = filled(state, value, column, tuple(runs)) if value else Entry(state)
    return dataclasses.replace(entry, shipped=any(e.shipped for e in every))
