"""What a printed table must say of itself: budget, statistic, what is missing, how its methods deviate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.report.cells import DEFAULT_PRECISION, Cells, find, sketch
from fedbench.report.index import Record, State
from fedbench.report.spec import OVER_SEEDS, SPREADS, Column, Table
from fedbench.spec import PRECISIONS, Setting

VIEWS = {
    "crop": "test images are cropped at random as in training (--view plain for untouched ones)",
    "plain": "test images are untouched",
}


def about(
    cells: Cells, counts: Mapping[str, int], views: Iterable[str], seeds: tuple[int, ...], compare: bool
) -> list[str]:
    """The lines under a table, without its own notes."""
    table = cells.table
    if table.counted:
        what = "Counted from layer shapes" if table.statistic == "count" else f"Follows from layout '{table.layout}'"
        return [f"{what}: needs no run, and no budget applies."]
    lines = [
        _budget(cells),
        *_own_budgets(cells),
        _statistic(table, cells, views),
        *_spreads(table),
        *_executors(cells),
        *_sources(cells),
        *_completeness(cells, counts, seeds),
    ]
    if compare:
        lines += _cost(cells)
        lines += _tolerance(table)
    return lines


def _tolerance(table: Table) -> list[str]:
    """How far off still counts as reproduced."""
    bands = [f"{r.label} in {r.band[0]:g} to {r.band[1]:g}" for r in table.rows if r.band]
    what = "of the ratio to " + table.ratio_to if table.ratio_to else {"percent": "points"}.get(table.unit, "")
    by_size: dict[tuple[float, float], list[str]] = {}
    told_of = {column for _, column in table.trusted}
    for column in (c for c in table.columns if c.key in told_of):
        by_size.setdefault((column.tolerance or 0.0, column.tolerance_stds or 0.0), []).append(column.key)
    sizes = [_size(size, stds, what) for size, stds in by_size]
    if len(sizes) > 1:
        sizes = [f"{size} ({', '.join(keys)})" for size, keys in zip(sizes, by_size.values(), strict=True)]
    told = "; ".join(bands or (sizes if any(any(pair) for pair in by_size) else []))
    return [f"Tolerance: {told}, meant for the paper's own budget."] if table.reported and told else []


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


def departures(table: Table) -> list[str]:
    """Where the table's protocol differs from the paper's, for all methods alike."""
    # Pairs of snapshots compare no methods.
    quiet = table.counted or table.statistic == "pairs"
    return [] if quiet else [f"{d[0].upper()}{d[1:]}." for d in protocol.load(table.protocol).deviates]


def _budget(cells: Cells) -> str:
    table, scope = cells.table, cells.scope
    text = f"{scope[0].upper()}{scope[1:]}: {scale(table, cells.budget)}"
    rules = protocol.load(table.protocol)
    if cells.budget != "paper" and "paper" in rules.budgets:
        seeds = rules.seeds("paper")
        more = table.seeds or len(seeds) == len(rules.seeds(cells.budget))
        text += f"; the paper: {scale(table, 'paper')}{'' if more else f', {len(seeds)} seeds'}"
    return text + "."


def scale(table: Table, budget: str) -> str:
    """A budget in words: rounds, local work, models, evaluated rounds."""
    settings = [sketch(table, column, budget) for column in table.measured]
    first = settings[0]
    models = _unique(s.model for s in settings)
    window = f", the last {first.window} counted" if first.window > 1 else ""
    rounds = _unique(str(s.rounds) for s in settings)
    cohort = f", {first.cohort} of {first.partition.clients} clients in each" if first.cohort else ""
    rounds += " round" if rounds == "1" else " rounds"
    return f"{rounds} of {_local(settings)}{cohort}, {models}{window}"


def _local(settings: Sequence[Setting]) -> str:
    """A client's work in a round."""
    epochs = _unique(str(s.epochs) for s in settings if s.epochs is not None)
    steps = (s.steps for s in settings if s.steps is not None)
    told = ("one gradient a client" if n == 1 else f"{n} steps" for n in steps)
    return _unique([f"{epochs} epochs", *told] if epochs else told)


def _own_budgets(cells: Cells) -> list[str]:
    """What a budget gives to single columns and rows: settings of their own, and the protocol's hyper-parameters."""
    rules = protocol.load(cells.table.protocol)
    own = [(_place(cells, c), c.budget.get(cells.budget, {})) for c in cells.table.measured]
    own += [
        (row.label, {**row.own(cells.budget), **rules.method_params(row.method, cells.budget)})
        for row in cells.table.rows
    ]
    labels: dict[str, dict[str, None]] = {}
    for label, values in own:
        told = ", ".join(f"{v} rounds" if k == "rounds" else f"{k} = {v}" for k, v in values.items())
        labels.setdefault(told, {})[label] = None
    return [f"{', '.join(names)}: {told}." for told, names in labels.items() if told]


def _place(cells: Cells, column: Column) -> str:
    """A column's name among budgets: its group's, where all of that have the same."""
    budgets = [c.budget.get(cells.budget) for c in cells.table.measured if c.group == column.group]
    return column.group if column.group and all(b == budgets[0] for b in budgets) else column.key


def _statistic(table: Table, cells: Cells, views: Iterable[str]) -> str:
    window = _window(cells, table)
    said = {
        "last_rounds": f"± is the standard deviation (ddof 0) over the last {window} rounds of a run",
        "clients": "± is the standard deviation (ddof 1) across clients after the last round",
        "rounds": "± is the standard deviation (ddof 1) over a run's rounds without the first",
        "whole_run": "One run a cell",
        "pairs": "Over all pairs of the snapshots of all runs; ± is the standard deviation (ddof 0) over the pairs",
        "final": "Value after the last round",
        "folds": "Value after the last round",
        "best_round": "Value at the evaluated round of the best mean client accuracy (selected on test data)",
    }[table.statistic]
    used = sorted({s.seed for settings in cells.settings.values() for s in settings}) or table.seeds
    if table.statistic == "pairs":
        told = "seeds" if len(used) > 1 else "seed"
        return f"{said}; {told} {', '.join(map(str, used))}."
    if table.statistic in OVER_SEEDS and len(used) > 1:
        said += f"; ± is the standard deviation (ddof {OVER_SEEDS[table.statistic]}) over seeds"
    label = "seed" if len(used) == 1 else f"mean of {len(used)} seeds:"
    text = f"{said}; {label} {', '.join(map(str, used))}"
    if table.statistic not in ("whole_run", "rounds"):
        text += "; " + " and ".join(VIEWS[v] for v in sorted(views) if v in VIEWS)
        cropped = any(s.augment != "none" for settings in cells.settings.values() for s in settings)
        if cropped and table.statistic == "last_rounds" and "plain" in views:
            text += " and asked for after the last round only, so without ±"
    else:
        devices = _unique(str(r.provenance.get("device", "unknown")) for r in _records(cells) if r.artifact)
        text += f"; measured on {devices}" if devices else ""
    return text + "."


def _window(cells: Cells, table: Table) -> str:
    settings = [s for group in cells.settings.values() for s in group]
    return _unique(str(s.window) for s in settings or [sketch(table, c, cells.budget) for c in table.measured])


def _executors(cells: Cells) -> list[str]:
    """Which executor the runs were made with whose times the table prints, and where, as the runs say."""
    found: dict[str, dict[str, None]] = {}  # executor and device -> where they are read
    for cell in cells.all:
        metric = str(cell.column.metric)
        if metric not in METRICS:  # of pairs of runs' snapshots
            continue
        if cell.column.of or not (METRICS[metric].unit == "seconds" or metric.endswith("_share")):
            continue
        for record in cell.records:
            if record and record.artifact and (executor := record.provenance.get("executor")):
                where = f"{executor} on {record.provenance.get('device', 'unknown')}"
                found.setdefault(where, {})[cell.column.group or cell.column.label] = None
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
        why = f"'fedbench tables {_name(cells.table)}' says why"
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
    columns = "".join(f' --column "{key}"' for key in table.chosen)
    return f"fedbench train --table {_name(table)} --budget {cells.budget}{precise}{replaced}{columns}" + "".join(
        f" --seed {s}" for s in seeds
    )


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


def _records(cells: Cells) -> list[Record]:
    """The runs that the table's rows read, each once."""
    return list({r.id: r for cell in cells.all for r in cell.records if r is not None}.values())


def _cost(cells: Cells) -> list[str]:
    done = [r for r in _records(cells) if r.artifact is not None]
    seconds = sum(float(r.provenance.get("train_seconds", 0.0)) for r in done)
    return [f"Cost: {duration(seconds)} of training in {len(done)} run{'s' * (len(done) > 1)}."] if done else []


def duration(seconds: float) -> str:
    """Seconds in words: 48 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def deviations(
    cells: Cells, extra: Mapping[str, list[tuple[Column, Record]]]
) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]]]:
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
