"""What a printed table must say of itself: budget, statistic, what is missing, how its methods deviate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.report.cells import DEFAULT_PRECISION, Cells, find, sketch
from fedbench.report.index import Record, State
from fedbench.report.others import Hits
from fedbench.report.spec import OVER_SEEDS, SPREADS, Column, Row, Table
from fedbench.spec import PRECISIONS, Setting

VIEWS = {
    "crop": "test images are cropped at random as in training (--view plain for untouched ones)",
    "plain": "test images are untouched",
}


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
    records = _records(cells, extra)
    lines = [
        _budget(cells),
        *_own_budgets(cells),
        *_statistics(cells, extra, views or _expected(cells, view)),
        *_spreads(table),
        *_executors(cells, extra),
        *_sources(cells),
        *_completeness(cells, counts, seeds),
    ]
    if compare:
        lines += _cost(records)
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


def _budget(cells: Cells) -> str:
    table, scope = cells.table, cells.scope
    text = f"{scope[0].upper()}{scope[1:]}: {scale(table, cells.budget)}"
    rules = protocol.load(table.protocol)
    if cells.budget != "paper" and "paper" in rules.budgets and table.of_paper:
        seeds = rules.seeds("paper")
        more = table.seeds or len(seeds) == len(rules.seeds(cells.budget))
        text += f"; budget paper: {scale(table, 'paper')}{'' if more else f', {len(seeds)} seeds'}"
    return text + "."


def scale(table: Table, budget: str) -> str:
    """A budget in words: rounds, local work, models, evaluated rounds. Of rows that share the table's, if any do."""
    rows = [None] if any(not row.own(budget) for row in table.rows) else table.rows
    settings = [sketch(table, column, budget, row) for row in rows for column in table.measured]
    windows = {s.window: None for s in settings}
    window = f", the last {_unique(map(str, windows))} counted" if max(windows) > 1 else ""
    rounds = _unique(str(s.rounds) for s in settings)
    cohorts: dict[int, dict[str, None]] = {}
    for s in settings:
        if s.cohort:
            cohorts.setdefault(s.partition.clients, {})[str(s.cohort)] = None
    cohort = "".join(f", {_unique(drawn)} of {clients} clients in each" for clients, drawn in cohorts.items())
    rounds += " round" if rounds == "1" else " rounds"
    return f"{rounds} of {_local(settings)}{cohort}, {_unique(s.model for s in settings)}{window}"


def _local(settings: Sequence[Setting]) -> str:
    """A client's work in a round."""
    epochs = _unique(str(s.epochs) for s in settings if s.epochs is not None)
    steps = (s.steps for s in settings if s.steps is not None)
    told = ("one batch a client" if n == 1 else f"{n} steps" for n in steps)
    return _unique([f"{epochs} epoch{'' if epochs == '1' else 's'}", *told] if epochs else told)


def _own_budgets(cells: Cells) -> list[str]:
    """What a budget gives to single columns and rows: settings of their own, and the protocol's hyper-parameters."""
    own = [(_place(cells, c), c.budget.get(cells.budget, {})) for c in cells.table.measured]
    own += [place for row in cells.table.rows for place in _of_row(cells, row)]
    labels: dict[str, dict[str, None]] = {}
    for label, values in own:
        told = ", ".join(f"{v} rounds" if k == "rounds" else f"{k} = {v}" for k, v in values.items())
        labels.setdefault(told, {})[label] = None
    return [f"{', '.join(names)}: {told}." for told, names in labels.items() if told]


def _of_row(cells: Cells, row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row's name and what holds for its runs; by data set where the protocol has other hyper-parameters for some."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    places: list[tuple[str, dict[str, Any]]] = []
    for dataset in dict.fromkeys(c.dataset for c in table.measured if not table.undefines(row.label, c.key)):
        preset = rules.method_params(row.method, cells.budget, dataset)
        # What a row sets itself stands above what the protocol would.
        places.append(
            (dataset, {**row.own(cells.budget), **preset, **{k: row.params.get(k, v) for k, v in preset.items()}})
        )
    if all(values == places[0][1] for _, values in places):
        yield from ((row.label, values) for _, values in places[:1])
    else:
        yield from ((f"{row.label} on {dataset}", values) for dataset, values in places)


def _place(cells: Cells, column: Column) -> str:
    """A column's name among budgets: its group's, where all of that have the same."""
    budgets = [c.budget.get(cells.budget) for c in cells.table.measured if c.group == column.group]
    return column.group if column.group and all(b == budgets[0] for b in budgets) else column.key


def _statistics(cells: Cells, extra: Mapping[str, Hits], views: Collection[tuple[str, bool]]) -> list[str]:
    """What the numbers are taken over; by columns where these differ."""
    columns: dict[str, list[Column]] = {}
    for column in cells.table.measured:
        columns.setdefault(str(column.statistic), []).append(column)
    told = {name: _statistic(name, of, cells, extra, views) for name, of in columns.items()}
    if len(told) == 1:
        return [f"{text}." for text in told.values()]
    return [f"{', '.join(_places(columns[name], cells.table))}: {text}." for name, text in told.items()]


def _places(columns: Sequence[Column], table: Table) -> list[str]:
    """What to call these columns: by their groups where all of a group's are among them."""
    rest = {c.group for c in table.measured if c not in columns}
    return list(dict.fromkeys(c.group if c.group and c.group not in rest else c.key for c in columns))


def _statistic(
    name: str,
    columns: Sequence[Column],
    cells: Cells,
    extra: Mapping[str, Hits],
    views: Collection[tuple[str, bool]],
) -> str:
    window = _unique(str(sketch(cells.table, c, cells.budget).window) for c in columns)
    said = {
        "last_rounds": "± is the standard deviation (ddof 0) over the last "
        + ("round of a run" if window == "1" else f"{window} rounds of a run"),
        "clients": "± is the standard deviation (ddof 1) across clients after the last round",
        "rounds": "± is the standard deviation (ddof 1) over a run's rounds without the first",
        "whole_run": "One number a run",
        "pairs": "Over all pairs of the snapshots of all runs; ± is the standard deviation (ddof 0) over the pairs",
        "final": "Value after the last round",
        "folds": "Value after the last round",
        "best_round": "Value at the evaluated round of the best mean client accuracy (selected on test data)",
    }[name]
    used = sorted(set(cells.seeds))
    seeds = ", ".join(map(str, used))
    if name == "pairs":
        return f"{said}; seed{'s' * (len(used) > 1)} {seeds}"
    if name in OVER_SEEDS and len(used) > 1:
        said += f"; ± is the standard deviation (ddof {OVER_SEEDS[name]}) over seeds"
    text = f"{said}; {'seed' if len(used) == 1 else f'mean of {len(used)} seeds:'} {seeds}"
    if name not in ("whole_run", "rounds"):
        shown = sorted(view for view in views if view[0] in VIEWS)
        once = " and asked for after the last round only, so without ±"
        return text + "; " + " and ".join(VIEWS[view] + once * (only and name == "last_rounds") for view, only in shown)
    devices = _unique(
        str(r.provenance.get("device", "unknown"))
        for r in _records(cells, extra, [c.key for c in columns])
        if r.artifact
    )
    return text + (f"; measured on {devices}" if devices else "")


def _expected(cells: Cells, view: str) -> set[tuple[str, bool]]:
    """The views that numbers will be of: only runs with crops have those, and plain images once."""
    found = {sketch(cells.table, c, cells.budget).augment == "crop" for c in cells.table.measured}
    return {("crop", False) if crops and view == "crop" else ("plain", crops) for crops in found}


def _executors(cells: Cells, extra: Mapping[str, Hits]) -> list[str]:
    """Which executor the runs were made with whose times the table prints, and where, as the runs say."""
    found: dict[str, dict[str, None]] = {}  # executor and device -> where they are read
    places = [(cell.column, record) for cell in cells.all for record in cell.records]
    for column, record in (*places, *(hit for hits in extra.values() for hit in hits)):
        metric = str(column.metric)
        if metric not in METRICS:  # of pairs of runs' snapshots
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

    specs = {s.partition.dataset.name: s.partition.dataset for own in cells.settings.values() for s in own}
    lines = []
    for name, spec in specs.items():
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


def _records(cells: Cells, extra: Mapping[str, Hits], columns: Collection[str] = ()) -> list[Record]:
    """The runs that the table's rows and its extra ones read (in these columns; else in all), each once."""
    places = [(cell.column, record) for cell in cells.all for record in cell.records]
    places += [hit for hits in extra.values() for hit in hits]
    found = (record for column, record in places if record is not None and (not columns or column.key in columns))
    return list({record.id: record for record in found}.values())


def _cost(records: Sequence[Record]) -> list[str]:
    done = [r for r in records if r.artifact is not None]
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


def _unique(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))
