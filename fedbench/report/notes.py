"""What a printed table must say of itself: budget, statistic, what is missing, how its methods deviate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.report.budgets import in_words, own_budgets
from fedbench.report.cells import DEFAULT_PRECISION, Cells, find
from fedbench.report.index import Record, State
from fedbench.report.others import Hits, records
from fedbench.report.spec import SPREADS, Table
from fedbench.report.taken import expected, statistics
from fedbench.specs import PRECISIONS


def about(
    cells: Cells,
    extra: Mapping[str, Hits],
    counts: Mapping[str, int],
    views: Collection[tuple[str, bool]],
    view: str,
    seeds: tuple[int, ...],
    compare: bool,
) -> list[str]:
    """The lines under a table, without its own notes.

    `extra` are its extra rows; `views` are the views that its numbers are of, and whether they were asked for once
    (without numbers: `view` as far as the runs will have it).
    """
    table = cells.table
    if table.counted:
        what = "Counted from layer shapes" if table.statistic == "count" else f"Follows from layout '{table.layout}'"
        return [f"{what}: needs no run, and no budget applies."]
    made = records(cells, extra)
    lines = [
        in_words(cells),
        *own_budgets(cells),
        *statistics(cells, extra, views or expected(cells, view)),
        *_spreads(table),
        *_executors(cells, extra),
        *_sources(cells),
        *_completeness(cells, counts, seeds),
    ]
    if compare:
        lines += _cost(made)
        lines += _tolerance(table)
    return lines


def _tolerance(table: Table) -> list[str]:
    """How far off still counts as reproduced."""
    told_of = {column for _, column in table.trusted}
    judged = [r for r in table.rows if any(row == r.label for row, _ in table.trusted)]
    bands = [f"{r.label} in {r.band[0]:g} to {r.band[1]:g}" for r in judged if r.band]
    by_size: dict[tuple[float, float, str], list[str]] = {}
    for column in (c for c in table.columns if c.key in told_of and any(not r.band for r in judged)):
        what = (
            "of the ratio to " + table.ratio_to if table.ratio_to else {"percent": "points"}.get(str(column.unit), "")
        )
        by_size.setdefault((column.tolerance or 0.0, column.tolerance_stds or 0.0, what), []).append(column.key)
    sizes = [_size(*size) for size in by_size]
    if len(sizes) > 1:
        sizes = [f"{size} ({', '.join(keys)})" for size, keys in zip(sizes, by_size.values(), strict=True)]
    told = "; ".join([*bands, *(sizes if any(size or stds for size, stds, _ in by_size) else [])])
    meant = ", meant for the paper's own budget" if table.shipped else ""
    return [f"Tolerance: {told}{meant}."] if told else []


def _size(size: float, stds: float, what: str) -> str:
    """A tolerance in words."""
    if math.isinf(size):
        return "any difference"
    plain = f"±{size:g} {what}".rstrip()
    return f"{plain}, or {stds:g} of the paper's ± where that is more" if stds else plain


def _spreads(table: Table) -> list[str]:
    """What the ± of printed means over other columns says."""
    columns = {c.spread: [d.key for d in table.printed if d.spread == c.spread] for c in table.printed if c.spread}
    alone = len(columns) == 1
    return [
        f"± of {'means over other cells' if alone else ', '.join(keys)}: {SPREADS[spread]}."
        for spread, keys in columns.items()
    ]


def _executors(cells: Cells, extra: Mapping[str, Hits]) -> list[str]:
    """Which executor the runs were made with whose times the table prints, and where, as the runs say."""
    found: dict[str, dict[str, None]] = {}  # executor and device -> where they are read
    places = [(cell.column, record) for cell in cells.all for record in cell.records]
    for column, record in (*places, *(hit for hits in extra.values() for hit in hits)):
        metric = str(column.metric)
        if metric not in METRICS:  # of pairs of runs' snapshots, or the method's own
            continue
        if column.of or not (METRICS[metric].unit == "seconds" or metric.endswith("_share")):
            continue
        if record and record.artifact and (executor := record.provenance.get("executor")):
            where = f"{executor} on {record.provenance.get('device', 'unknown')}"
            found.setdefault(where, {})[column.group or column.label] = None
    if len(found) < 2:
        return [f"Times are those of executor {where}." for where in found]
    told = (f"{', '.join(columns)}: {where}" for where, columns in found.items())
    return [f"Times are those of different executors. {'; '.join(told)}."]


def _sources(cells: Cells) -> list[str]:
    """Data sets whose images are not those of the recipe's first source, such as a copy or a part."""
    from fedbench.data import recipe

    lines = []
    for name, (spec, _) in cells.made.datasets.items():
        try:
            others = recipe(name).sources[1:]
        except FedbenchError:  # a recipe of the user's own that is not here now
            continue
        lines += [f"{name} images: {source.title}." for source in others if source.name == spec.source]
    return lines


def _completeness(cells: Cells, counts: Mapping[str, int], seeds: tuple[int, ...]) -> list[str]:
    done = sum(counts.get(s.value, 0) for s in (State.DONE, State.OLDER))
    open_states = [s.value for s in State if s not in (State.DONE, State.OLDER)]
    rest = [f"{counts[state]} {state}" for state in open_states if counts.get(state)]
    text = "; ".join([f"{done} of {sum(counts.values())} cells", *rest])
    if older := counts.get(State.OLDER.value, 0):
        text += f"; {older} by older code"
    lines = [f"{text}."]
    if counts.get(State.MISSING.value, 0) + counts.get(State.FAILED.value, 0):
        lines.append(f"To fill them: {command(cells, seeds)}")
    if cells.absent and counts.get(State.NO_DATA.value):
        why = (
            "; ".join(cells.absent.values()) if cells.table.part else f"'fedbench tables {_name(cells.table)}' says why"
        )
        lines.append(f"No images of {', '.join(cells.absent)} are at hand ({why}).")
    return lines


def _name(table: Table) -> str:
    """What the command line calls the table."""
    if "/" in table.id:
        return table.id
    return f"{table.path.as_posix()}:{table.number}" if table.number else table.path.as_posix()


def command(cells: Cells, seeds: tuple[int, ...] = ()) -> str:
    """What fills the table's missing cells."""
    table = cells.table
    replaced = f" --dataset {table.columns[0].dataset}" if table.replaced else ""
    precise = f" --precision {cells.precision}" if cells.precision != DEFAULT_PRECISION else ""
    columns = "".join(f" --column {_quoted(key)}" for key in table.chosen)
    return (
        f"fedbench train --table {shlex.quote(_name(table))} --budget {cells.budget}{precise}{replaced}{columns}"
        + "".join(f" --seed {s}" for s in seeds)
    )


def _quoted(key: str) -> str:
    """A column's key as a shell takes it."""
    return shlex.quote(key) if set(key) & set('"$`\\!') else f'"{key}"'


def elsewhere(cells: Cells, roots: list[Path]) -> str:
    """A hint when nothing is done at this budget and precision but something is at others; else empty."""
    if cells.table.counted or _done(cells):
        return ""
    budgets = protocol.load(cells.table.protocol).budgets
    # Of several, another budget at the same precision comes first.
    for precision in sorted(PRECISIONS, key=lambda p: p != cells.precision):
        for budget in sorted(budgets, key=lambda b: b != cells.budget):
            other = find(cells.table, budget, cells.index.store, roots, precision=precision, index=cells.index)
            if done := _done(other):
                named = (("budget", budget, cells.budget), ("precision", precision, cells.precision))
                differ = {name: value for name, value, ours in named if value != ours}
                options = " ".join(f"--{name} {value}" for name, value in differ.items())
                return f"{done} cells are done at another {' and '.join(differ)}: {options}"
    return ""


def _done(cells: Cells) -> int:
    return sum(cells.counts[s] for s in (State.DONE, State.OLDER, State.UNEVALUATED))


def _cost(made: Sequence[Record]) -> list[str]:
    done = [r for r in made if r.artifact is not None]
    seconds = sum(float(r.provenance.get("train_seconds", 0.0)) for r in done)
    return [f"Cost: {duration(seconds)} of training in {len(done)} run{'s' * (len(done) > 1)}."] if done else []


def duration(seconds: float) -> str:
    """Seconds in words: 48 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def deviations(cells: Cells, extra: Mapping[str, Hits]) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]]]:
    """Footnotes: (row label -> letters, [(letter, text)]). They come from the runs, which say how they were made."""
    texts: dict[str, str] = {}
    marks: dict[str, tuple[str, ...]] = {}

    def note(label: str, record: Record | None) -> None:
        for text in record.provenance.get("deviations", []) if record and record.artifact else []:
            letter = texts.setdefault(text, _letter(len(texts)))
            if letter not in marks.get(label, ()):
                marks[label] = (*marks.get(label, ()), letter)

    for cell in cells.all:
        for record in cell.records:
            note(cell.row.label, record)
    for label, hits in extra.items():
        for _, record in hits:
            note(label, record)
    return marks, [(letter, text) for text, letter in texts.items()]


def _letter(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa."""
    return ("" if number < 26 else _letter(number // 26 - 1)) + chr(ord("a") + number % 26)
