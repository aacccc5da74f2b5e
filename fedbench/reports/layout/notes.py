"""What a printed table says of itself: in brief what no number may stand without, and everything else in full."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.reports.layout import times
from fedbench.reports.layout.budgets import hyper_parameters, in_words, of_own, own_budgets, the_papers
from fedbench.reports.layout.facts import departures, holding
from fedbench.reports.layout.shipped import shipped
from fedbench.reports.layout.taken import VIEWS, expected, statistics
from fedbench.reports.layout.tuned import by_row, in_brief
from fedbench.reports.status.cells import Cells, find
from fedbench.reports.status.index import Record, State
from fedbench.reports.status.others import Hits, other_texts, records
from fedbench.reports.status.versions import by_other_code
from fedbench.reports.table.spec import SPREADS, Column, Table
from fedbench.specs import PRECISIONS
from fedbench.words import counted, duration


class Notes:
    """The texts below a table.

    `extra` are its extra rows; `timed` its columns of times with the provenance of each run, `apart` those of several
    processors; `views` are the views that its numbers are of, and whether they were asked for once
    (without numbers: `view` as far as the runs will have it); `rows` the labels of the rows that have a number. Only
    of these anything is said; of a table without any number, of all.
    """

    def __init__(
        self,
        cells: Cells,
        extra: Mapping[str, Hits],
        counts: Mapping[str, int],
        views: Collection[tuple[str, bool]],
        view: str,
        rows: Collection[str],
        timed: times.Times,
        apart: Sequence[Column],
    ) -> None:
        self.cells, self.table, self.extra, self.counts = cells, cells.table, extra, counts
        self.timed, self.apart = timed, apart
        self.views = views if views or self.table.counted else expected(cells, view)
        self.rows = [row for row in self.table.rows if row.label in rows] or self.table.rows

    def brief(self) -> list[str]:
        """Budget, what ± is, seeds, how many cells are there; what is mixed or not as the table asks for it."""
        table = self.table
        if table.counted:
            what = {
                "count": "Counted from layer shapes",
                "preset": f"Follows from preset '{table.preset}'",
                "levels": "Counted in the distributions that clients draw",
                "properties": "✓ yes, ○ on a condition, – no, by what methods declare and by counted costs",
            }[table.statistic]
            return [f"{what}: needs no run, and no budget applies."]
        return [
            in_words(self.cells),
            *of_own(self.cells),
            *table.about,
            *_sources(self.cells),
            *own_budgets(self.cells, self.rows),
            *in_brief(self.cells),
            *statistics(self.cells, self.extra, self.views),
            *_spreads(table),
            *([times.by_column(self.timed)] if len(times.executors(self.timed)) > 1 else []),
            *times.processors(provenance for _, provenance in self.timed),
            *times.unranked(self.apart),
            *(self._augmentation() if self._other_view else []),
            *self._completeness(),
            *by_other_code(r.artifact for r in records(self.cells, self.extra) if r.artifact),
            *shipped(records(self.cells, {})),
            *other_texts(self.cells, self.extra),
        ]

    def full(self, compare: bool) -> list[str]:
        """All that the brief lines leave out, but for the methods' deviations and the claims."""
        table, budget = self.table, self.cells.budget
        executors = times.executors(self.timed)
        runs = [] if table.counted else [
            *the_papers(self.cells),
            *hyper_parameters(self.cells, self.rows),
            *by_row(self.cells, self.rows),
            *([] if self._other_view else self._augmentation()),
            *([f"Times are those of executor {executors[0]}."] if len(executors) == 1 else []),
            *(_cost(records(self.cells, self.extra)) if compare else []),
            *(_tolerance(table) if compare else []),
        ]  # fmt: skip
        return [
            *runs,
            *table.notes,
            *holding(table.remark, table, budget, self.rows, self.cells.precision),
            *table.reported_notes,
            *departures(table, budget, self.rows, self.cells.precision),
            *(f"{row.label}: {row.note}" for row in self.rows if row.note),
        ]

    def deviations(self) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """How methods deviate from their papers, as their runs say: row label -> the letter of its method (of all that
        deviate alike), and (letters, text)."""
        texts: dict[str, dict[str, None]] = {}  # row -> an ordered set
        places = [(cell.row.label, record) for cell in self.cells.all for record in cell.records]
        places += [(label, record) for label, hits in self.extra.items() for _, record in hits]
        shown = {*(row.label for row in self.rows), *self.extra}
        for label, record in places:
            if record and record.artifact and label in shown:
                texts.setdefault(label, {}).update(dict.fromkeys(record.provenance.get("deviations", [])))
        letters: dict[tuple[str, ...], str] = {}
        marks = {label: letters.setdefault(tuple(own), _letter(len(letters))) for label, own in texts.items() if own}
        together: dict[str, list[str]] = {}
        for own, letter in letters.items():
            for text in own:
                together.setdefault(text, []).append(letter)
        return marks, [(",".join(of), text) for text, of in together.items()]

    @property
    def _other_view(self) -> bool:
        """Whether test images are not seen as the table asks for it, or not all in one way."""
        usual = expected(self.cells, self.table.view)
        return {view for view, _ in self.views} != {view for view, _ in usual}

    def _augmentation(self) -> list[str]:
        views = sorted({view for view, _ in self.views if view in VIEWS})
        return [f"Test augmentation: {' and '.join(VIEWS[view] for view in views)}."] if views else []

    def _completeness(self) -> list[str]:
        counts, absent = self.counts, self.cells.absent
        done = sum(counts.get(s.value, 0) for s in (State.DONE, State.STALE))
        open_states = [s.value for s in State if s not in (State.DONE, State.STALE)]
        rest = [f"{counts[state]} {state}" for state in open_states if counts.get(state)]
        stale = [f"{counts[State.STALE.value]} stale"] if counts.get(State.STALE.value) else []
        lines = [f"{'; '.join([f'{done} of {sum(counts.values())} cells', *rest, *stale])}."]
        empty = {cell.column.dataset for cell in self.cells.all if cell.state is State.NO_DATA}
        absent = {name: why for name, why in absent.items() if name in empty}
        if absent and counts.get(State.NO_DATA.value):
            why = "; ".join(absent.values()) if self.table.part else f"'fedbench tables {_name(self.table)}' says why"
            lines.append(f"No images of {', '.join(absent)} are at hand ({why}).")
        return lines


def _tolerance(table: Table) -> list[str]:
    """How far off still counts as reproduced."""
    reported = {column for _, column in table.trusted}
    judged = [r for r in table.rows if any(row == r.label for row, _ in table.trusted)]
    bands = [f"{r.label} in {r.band[0]:g} to {r.band[1]:g}" for r in judged if r.band]
    by_size: dict[tuple[float, float, str], list[str]] = {}
    for column in (c for c in table.columns if c.key in reported and any(not r.band for r in judged)):
        what = (
            "of the ratio to " + table.ratio_to if table.ratio_to else {"percent": "points"}.get(str(column.unit), "")
        )
        by_size.setdefault((column.tolerance or 0.0, column.tolerance_stds or 0.0, what), []).append(column.key)
    sizes = [_size(*size) for size in by_size]
    if len(sizes) > 1:
        sizes = [f"{size} ({', '.join(keys)})" for size, keys in zip(sizes, by_size.values(), strict=True)]
    words = "; ".join([*bands, *(sizes if any(size or stds for size, stds, _ in by_size) else [])])
    meant = ", meant for the paper's own budget" if table.shipped else ""
    return [f"Tolerance: {words}{meant}."] if words else []


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


def _sources(cells: Cells) -> list[str]:
    """Data sets whose images are not those of the recipe's first source, such as a copy or a part."""
    from fedbench.data import recipe

    copies: dict[str, dict[str, None]] = {}  # title of a source -> the data sets
    packed = (record.spec.setting.partition.dataset for record in records(cells, {}) if record.shipped)
    for spec in (*(spec for spec, _ in cells.made.datasets.values()), *packed):
        try:
            others = recipe(spec.name).sources[1:]
        except FedbenchError:  # a recipe of the user's own that is not here now
            continue
        for source in (source for source in others if source.name == spec.source):
            copies.setdefault(source.title, {})[spec.name] = None
    return [f"{', '.join(names)} images: {title}." for title, names in copies.items()]


def _name(table: Table) -> str:
    """What the command line calls the table."""
    if "/" in table.id:
        return table.id
    return f"{table.path.as_posix()}:{table.number}" if table.number else table.path.as_posix()


def command(cells: Cells, seeds: tuple[int, ...] = ()) -> str:
    """What fills the table's missing cells."""
    table = cells.table
    replaced = f" --dataset {table.columns[0].dataset}" if table.replaced else ""
    usual = protocol.load(table.protocol).precision(cells.budget)
    precise = f" --precision {cells.precision}" if cells.precision != usual else ""
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
    rules = protocol.load(cells.table.protocol)
    usual = rules.precision(cells.budget)
    # Of several, another budget at its own precision comes first (at the same, if that was asked for).
    for precision in ("" if cells.precision == usual else cells.precision, *PRECISIONS):
        for budget in sorted(rules.budgets, key=lambda b: b != cells.budget):
            other = find(cells.table, budget, cells.index.store, roots, precision=precision or None, index=cells.index)
            if done := _done(other):
                own = precision or other.precision
                named = (("budget", budget, cells.budget), ("precision", own, rules.precision(budget)))
                differ = {name: value for name, value, ours in named if value != ours}
                options = " ".join(f"--{name} {value}" for name, value in differ.items())
                return f"{done} cells are done at another {' and '.join(differ)}: {options}"
    return ""


def _done(cells: Cells) -> int:
    return sum(cells.counts[s] for s in (State.DONE, State.STALE, State.UNEVALUATED))


def _cost(runs: Sequence[Record]) -> list[str]:
    done = [r for r in runs if r.artifact is not None]
    seconds = sum(float(r.provenance.get("train_seconds", 0.0)) for r in done)
    return [f"Cost: {duration(seconds)} of training in {counted(len(done), 'run')}."] if done else []


def _letter(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa."""
    return ("" if number < 26 else _letter(number // 26 - 1)) + chr(ord("a") + number % 26)
