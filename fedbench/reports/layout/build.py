"""Build the grid of a table's cells, step by step: entries (see `entries`) with means over others, ranks, ratios, the
paper's numbers beside them, notes (see `notes`), lines, verdicts on claims."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fedbench.data import called
from fedbench.groups import by_key
from fedbench.planner.cells import Cells
from fedbench.planner.others import Hits, others, records
from fedbench.planner.table.spec import UNITS, Column, Row, Table
from fedbench.reports.layout import times, verdicts
from fedbench.reports.layout.appendix import sections
from fedbench.reports.layout.entries import Entries, Rows, with_means
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line, filled, ranked
from fedbench.reports.layout.notes import Notes, command
from fedbench.reports.layout.references import with_references
from fedbench.reports.layout.shipped import contradicted, makers
from fedbench.reports.numbers.agreement import Tally, offset
from fedbench.reports.numbers.measured import Value
from fedbench.results.making import machine
from fedbench.results.run import Run, State


def grid_of(
    cells: Cells,
    *,
    view: str | None = None,
    seeds: Iterable[int] = (),
    compare: bool = False,
    yours: bool = False,
    appendix: bool = False,
    elsewhere: Sequence[str] = (),
) -> Grid:
    """The grid of a table's cells, which were found for these seeds; `elsewhere` says which other budgets have numbers.

    `view` ("crop" or "plain") overrides the table's; `compare` adds the paper's numbers below ours, `yours` rows of the
    store's other runs in the table's settings, `appendix` the sections of a paper's appendix. Evaluates runs without
    metrics; trains nothing.
    """
    table, view, seeds = cells.table, view or cells.table.view, tuple(seeds)
    entries = Entries(cells, view)
    rows = entries.of_table()
    unmeasured = entries.unmeasured_notes()  # without extra rows: those without numbers are omitted

    # Pairs have no extra rows: other methods keep no snapshots.
    found = {} if table.counted or table.statistic == "pairs" else others(cells)
    hits = found if yours else {}
    rows = with_means(table, rows | {label: entries.of_extra(of) for label, of in hits.items()})
    hits = {label: of for label, of in hits.items() if _has_number(table, rows[label])}

    timed = times.timed(cells, hits)
    incomparable = times.incomparable(table.columns, timed)
    rows = _with_ranks(table, rows, hits, incomparable)
    rows = _with_ratios(table, rows, incomparable)
    rows = _with_reported(table, rows)

    counts = _states(table, rows)
    numbered = [row.label for row in table.rows if _has_number(table, rows[row.label])]
    filled_columns = [c for c in table.measured if any(line[c.key].text for line in rows.values())]
    spread = any(line[column.key].spread for line in rows.values() for column in table.printed)
    notes = Notes(cells, hits, counts, entries.views, view, numbered, timed, incomparable, spread, filled_columns)
    marks, footnotes = notes.deviations()
    tally = _tally(table, rows) if compare and table.trusted else None
    disagreeing = tuple(contradicted({id: pair for id, pair in entries.others.items() if pair[1]}))
    left_out = [] if yours else _left_out(len(found))
    missing = counts.keys() & {state.value for state in (State.MISSING, State.PARTIAL, State.FAILED)}
    grid = Grid(
        id=table.id,
        title=table.title,
        stub=table.stub or ("Network" if table.statistic == "count" else "Method"),
        budget=cells.budget,
        precision=cells.precision,
        scope=cells.scope,
        heads=tuple(Heading(c.group, c.label, str(c.metric), UNITS[str(c.unit)][1]) for c in table.printed),
        lines=(*_lines_of_table(cells, rows, marks, compare), *_lines_of_extra(table, rows, marks, hits)),
        basis=notes.basis(elsewhere),
        about=(*notes.brief(), *([f"{tally}."] if tally and tally.measured else [])),
        command=command(cells, seeds) if missing else "",
        notes=(*disagreeing, *notes.full(compare), *unmeasured, *left_out),
        cautions=(*(["packs that disagree"] if disagreeing else []), *notes.cautions(), *map(_in_passing, left_out)),
        reader=tuple(notes.for_reader()),
        absent=tuple(_absent(table, rows)),
        one_machine=len({_machine_of(run) for run in records(cells, hits) if run.complete}) == 1,
        footnotes=tuple(footnotes),
        verdicts=tuple(verdicts.of_table(cells, rows, view)) if compare else (),
        problems=tuple(dict.fromkeys([*map(str, cells.frame.packs.problems), *entries.problems])),
        counts=counts,
        tally=tally,
        makers=tuple(makers(run.shipped for run in records(cells, {}) if run.shipped)),
        of_paper=table.of_paper,
        spread=str(table.look.spread),
        exchanged=table.look.methods == "columns",
        appendix=sections(notes, seeds) if appendix else (),
    )
    datasets = {called(column.dataset) for column in table.measured if not table.counted}
    return with_references(grid, datasets, [table.id.partition("/")[0]] if table.of_paper else ())


def _has_number(table: Table, line: Mapping[str, Entry]) -> bool:
    """Whether a row has a number in a printed column (it may have some in hidden ones)."""
    return any(line[column.key].text for column in table.printed)


def _with_ranks(table: Table, rows: Rows, extra: Collection[str], incomparable: Collection[Column]) -> Rows:
    """The rows of the table and the `extra` ones, with the best (bold) and the second best of each column marked by the
    rule of `noise.ranks`. Columns of `incomparable` times are not ranked, nor extra rows with fewer seeds than others.
    """
    marked = {row.label: dict(rows[row.label]) for row in table.rows} | {label: dict(rows[label]) for label in extra}
    for column in table.columns:
        if column.best == "none" or column in incomparable:
            continue
        values = {label: line[column.key].value for label, line in marked.items()}
        seeds = max((value.seeds for label, value in values.items() if value and label not in extra), default=1)
        enough = [label for label, value in values.items() if label not in extra or (value and value.seeds >= seeds)]
        of_column = ranked([marked[label][column.key] for label in enough], str(column.best), column.decimals)
        for label, entry in zip(enough, of_column, strict=True):
            marked[label][column.key] = entry
    return marked


def _with_ratios(table: Table, rows: Rows, incomparable: Collection[Column]) -> Rows:
    """The rows with the ratios of their numbers to those of the row `ratio_to`, if the table has one."""
    if not table.ratio_to:
        return rows
    compared = {label: dict(line) for label, line in rows.items()}
    for column in (c for c in table.columns if c not in incomparable):
        base = rows[table.ratio_to][column.key].value
        for label, line in rows.items():
            if base and base.mean and (value := line[column.key].value):
                compared[label][column.key] = dataclasses.replace(line[column.key], ratio=value.mean / base.mean)
    return compared


def _with_reported(table: Table, rows: Rows) -> Rows:
    """The rows, those of the table with the paper's numbers and the differences to them."""
    own = {
        row.label: {c.key: _against(table, row, c, rows[row.label][c.key]) for c in table.columns} for row in table.rows
    }
    return rows | own


def _against(table: Table, row: Row, column: Column, entry: Entry) -> Entry:
    """The entry with the paper's number and, unless that is doubtful, the difference to it."""
    reported = table.reported.get((row.label, column.key))
    if reported is None or entry.value is None or table.doubts(row.label, column.key):
        return dataclasses.replace(entry, reported=reported)
    off = offset(table, column, entry.value, entry.ratio, reported)
    return dataclasses.replace(entry, reported=reported, offset=off)


def _states(table: Table, rows: Rows) -> dict[str, int]:
    """State -> number of the table's cells; means over other cells and cells without a number need no runs."""
    entries = (rows[row.label][column.key] for row in table.rows for column in table.measured)
    return dict(Counter(entry.state.value for entry in entries if entry.state is not State.UNDEFINED))


def _tally(table: Table, rows: Rows) -> Tally:
    """How many of the reported numbers are measured, and how they agree."""
    entries = [entry for row in table.rows for entry in rows[row.label].values() if entry.offset]
    whole = sum(entry.state in (State.DONE, State.STALE) for entry in entries)
    return Tally.of(len(table.trusted), (entry.offset for entry in entries if entry.offset)) + Tally(whole=whole)


def _left_out(rows: int) -> list[str]:
    return (
        [f"Left out: {rows} row{'s' * (rows > 1)} of your other runs in these settings (--no-yours)."] if rows else []
    )


def _in_passing(sentence: str) -> str:
    """A sentence as a part of another one."""
    return f"{sentence[0].lower()}{sentence[1:].removesuffix('.')}"


def _absent(table: Table, rows: Rows) -> Iterator[str]:
    """Per row, the printed cells without a number that should have one."""
    for row in table.rows:
        entries = [(column, rows[row.label][column.key]) for column in table.printed]
        wanted = [(column, entry) for column, entry in entries if entry.state is not State.UNDEFINED]
        by_state = by_key((entry.state.value, column.key) for column, entry in wanted if not entry.text)
        for state, keys in by_state.items():
            yield f"{row.label}: {'all' if len(keys) == len(wanted) else ', '.join(keys)} ({state})"


def _machine_of(run: Run) -> str:
    """The kind of machine that made a run."""
    return run.shipped.origin.machine if run.shipped else machine(run.provenance)


def _lines_of_table(cells: Cells, rows: Rows, marks: Mapping[str, str], compare: bool) -> Iterator[Line]:
    """A line per row of the table, if `compare` with one of the paper's numbers below it. `marks`: letters of
    footnotes."""
    table = cells.table
    for row in table.rows:
        declaration = cells.sources.get(row.label)
        line = rows[row.label]
        yield Line(
            row.label,
            "added" if row.added else "paper",
            tuple(line[column.key] for column in table.printed),
            marks.get(row.label, ""),
            declaration.name if declaration else row.method,
            (declaration.source if declaration else "") or "",
        )
        if compare and any(entry.reported for entry in line.values()):
            reported = (_reported(table, row, column, line[column.key]) for column in table.printed)
            yield Line("reported", "reported", tuple(reported))


def _lines_of_extra(table: Table, rows: Rows, marks: Mapping[str, str], extra: Mapping[str, Hits]) -> Iterator[Line]:
    """A line per extra row."""
    for label, hits in extra.items():
        spec = hits[0][1].spec
        entries = tuple(rows[label][column.key] for column in table.printed)
        yield Line(label, "yours", entries, marks.get(label, ""), spec.method, spec.source or "")


def _reported(table: Table, row: Row, column: Column, entry: Entry) -> Entry:
    """The entry of the "reported" line: the paper's number, and our difference to it."""
    if entry.reported is None:
        return Entry(State.MISSING)
    value, std = entry.reported
    base = table.reported.get((table.ratio_to, column.key))
    printed, doubtful = filled(State.DONE, Value(value, std), column), table.doubts(row.label, column.key)
    return dataclasses.replace(
        printed,
        text=printed.text + "?" * doubtful,
        doubtful=doubtful,
        ratio=value / base[0] if base else None,
        offset=entry.offset,
    )
