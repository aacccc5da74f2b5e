"""Figures 4, 5, 8, 10 and 12 of FLUX: cells of tables as points of lines, measured and reported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.report.figures import source
from fedbench.report.figures.kind import Ask, Kind
from fedbench.report.figures.points import Panel, Point, Shown
from fedbench.report.figures.spec import FigureSpec, SeriesSpec
from fedbench.report.figures.style import COLOURS
from fedbench.report.numbers.measured import Value
from fedbench.report.table.claims import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.report.layout.grid import Entry
    from fedbench.report.table.spec import Column, Row, Table


class Series(Kind[Shown]):
    """A panel a heading of columns, a line a row, along what the columns' partitions have."""

    options = ("budget", "seed", "compare")
    columns = (
        "panel", "table", "budget", "line", "axis", "x", "mean", "std", "error", "seeds", "reported", "reported_std",
        "runs",
    )  # fmt: skip

    def gather(self, figure: FigureSpec, ask: Ask) -> Shown:
        """Cells that are missing are left out and named; raises FedbenchError if all of them are.

        To compare, what the paper reports without doubt comes with them, and is enough by itself.
        """
        from fedbench.report.status.index import Index

        assert figure.series is not None
        axis, index, compared = figure.series, Index(ask.store), bool(ask.compare)
        panels: list[Panel] = []
        missing: list[str] = []
        claims: list[Verdict] = []
        tables = [(heading, source.filled(name, ask, index)) for heading, name in axis.tables.items()]
        read = [self._read(found, heading, axis, compared, panels) for heading, found in tables]
        panels = [panel for panel in panels if panel.lines]
        if not panels:
            raise source.nothing(figure, [found for _, found in tables])
        for (heading, found), (lacking, others) in zip(tables, read, strict=True):
            source.say(figure, ask, found, lacking, others)
            missing += lacking
            claims += (_under(heading, ours) for ours, _ in found.grid.verdicts)
        return Shown(tables[0][1].budget, axis, panels, missing, tuple(claims))

    def _read(
        self, found: source.Filled, heading: str, axis: SeriesSpec, compared: bool, panels: list[Panel]
    ) -> tuple[list[str], list[str]]:
        """Add a table's panels; (cells that are missing, cells not quite done)."""
        from fedbench.report.status.index import State
        from fedbench.report.status.settings import sketch

        table, own = found.table, {}
        rounds = tuple(sorted({sketch(table, column, found.budget).rounds for column in table.measured}))
        missing, others = [], []
        rows = {row.label: row for row in table.rows}
        for line in (line for line in found.grid.lines if line.asked):
            row = rows[line.label]
            for column, head, entry in zip(table.printed, found.grid.heads, line.entries, strict=True):
                title, name, names = self.place(table, row, column)
                if title not in own:
                    own[title] = Panel(table.id, heading, title, head.unit, rounds, names)
                said = f"{line.label} at {column.key} ({entry.state})"
                if entry.value is None and entry.state is not State.UNDEFINED:
                    missing.append(said)
                elif entry.value is not None and entry.state is not State.DONE:
                    others.append(said)
                reported = table.trusted.get((line.label, column.key)) if compared else None
                if entry.value is not None or reported:
                    point = self.point(self.x(table, row, column, axis.x), entry, reported)
                    own[title].lines.setdefault(name, []).append(point)
        for panel in own.values():
            for points in panel.lines.values():
                points.sort(key=lambda p: math.inf if p.x is None else p.x)
        panels += own.values()
        return missing, others

    # -- what kinds of series differ in ------------------------------------------------------------------

    def place(self, table: Table, row: Row, column: Column) -> tuple[str, str, tuple[str, ...]]:
        """Of a cell: the panel's title, the line's name, and the names of all lines of the panel."""
        return column.group, row.label, tuple(r.label for r in table.rows)

    def x(self, table: Table, row: Row, column: Column, name: str) -> float | None:
        """Where a cell stands. Raises FedbenchError where the column's runs do not have one such value."""
        by_key = {c.key: c for c in table.columns}
        values = {by_key[key].partition.get(name) for key in column.of or [column.key]}
        if len(values) != 1 or not isinstance(value := values.pop(), int | float):
            raise FedbenchError(f"{table.path}, column {column.key} has no single {name}", "give its partitions one")
        return value

    def error(self, value: Value) -> float | None:
        """Half an error bar: the value's own ±."""
        return value.std

    def point(self, x: float | None, entry: Entry, reported: tuple[float, float | None] | None) -> Point:
        error = None if entry.value is None else self.error(entry.value)
        return Point(x, entry.value, error, reported, entry.runs)

    # -- forms -------------------------------------------------------------------------------------------

    def lines(self, shown: Shown) -> Iterator[Sequence[Any]]:
        """One line a point."""
        for panel in shown.panels:
            for name, points in panel.lines.items():
                for p in points:
                    numbers = (p.value.mean, p.value.std, p.error, p.value.seeds) if p.value else (None,) * 4
                    place = (panel.name, panel.table, shown.budget, name, shown.axis.x, p.x)
                    yield [*place, *numbers, *(p.reported or (None, None)), " ".join(p.runs)]

    def told(self, shown: Shown) -> dict[str, Any]:
        """Means and their ± in the panel's unit; `error` is the half length of an error bar."""
        return {
            "tables": list(dict.fromkeys(panel.table for panel in shown.panels)),
            "budget": shown.budget,
            "axis": shown.axis.x,
            "missing": shown.missing,
            "panels": [
                {
                    "title": panel.name,
                    "table": panel.table,
                    "unit": panel.unit,
                    "lines": [{"line": n, "points": [_told(p) for p in ps]} for n, ps in panel.lines.items()],
                }
                for panel in shown.panels
            ],
        }

    def verdicts(self, figure: FigureSpec, shown: Shown) -> Sequence[Verdict]:
        return shown.claims

    def words(self, figure: FigureSpec, shown: Shown) -> Iterable[str]:
        for panel in shown.panels:
            parts = []
            for name in [n for n in shown.axis.bold if n in panel.lines] or panel.lines:
                measured = [p for p in panel.lines[name] if p.value]
                numbers = [f"{p.value.mean:.2f} ({'own' if p.x is None else f'{p.x:g}'})" for p in measured if p.value]
                parts.append(f"{name} {', '.join(numbers) or 'not measured'}")
            yield f"{panel.name}, budget {shown.budget}, by {shown.axis.x}: {'; '.join(parts)}"

    def paint(self, figure: FigureSpec, shown: Shown) -> Figure:
        return paint(figure, shown)


class Sweep(Series):
    """A panel a data set, a line a heading of columns, along a hyper-parameter of the rows.

    A row that leaves it at the method's own choice is a level across the panel. Error bars are standard errors, as in
    FLUX's figures (App. D.1).
    """

    def place(self, table: Table, row: Row, column: Column) -> tuple[str, str, tuple[str, ...]]:
        return column.label, column.group, tuple(dict.fromkeys(c.group for c in table.printed))

    def x(self, table: Table, row: Row, column: Column, name: str) -> float | None:
        value = row.params.get(name)
        if value is not None and not isinstance(value, int | float):
            raise FedbenchError(f"{table.path}, row {row.label}: {name} must be a number, not {value!r}")
        return value

    def error(self, value: Value) -> float | None:
        """The standard error over the seeds."""
        return None if value.std is None else value.std / math.sqrt(value.seeds)


def _under(heading: str, verdict: Verdict) -> Verdict:
    """The verdict with the table's heading before its text."""
    if not heading:
        return verdict
    return dataclasses.replace(
        verdict, claim=dataclasses.replace(verdict.claim, text=f"{heading}: {verdict.claim.text}")
    )


def _told(p: Point) -> dict[str, Any]:
    told: dict[str, Any] = {"x": p.x}
    if p.value:
        told |= {"mean": p.value.mean, "std": p.value.std, "error": p.error, "seeds": p.value.seeds}
    if p.reported:
        told |= {"reported": p.reported[0], "reported_std": p.reported[1]}
    return {**told, "runs": list(p.runs)}


# -- drawing ------------------------------------------------------------------------------------------

#: One a line, so that lines of one colour, or without any, can be told apart.
_MARKERS = "os^DvPX*<>ph"
_REPORTED: dict[str, Any] = {"linewidth": 0.7, "linestyle": ":"}
#: Lines stand beside each other, within this share of the least distance of two points, where they have error bars.
_ABREAST = 0.36

#: Points of accuracy that an axis shows at least.
_LEAST = 4.0


@dataclass(frozen=True)
class _Look:
    colour: str
    marker: str
    hollow: bool
    bold: bool

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        return {
            "color": self.colour, "marker": self.marker, "markersize": 5 if self.bold else 3.6,
            "linewidth": 1.8 if self.bold else 0.9, "linestyle": (0, (4, 1.5)) if self.hollow else "-",
            "markerfacecolor": "white" if self.hollow else self.colour, "markeredgewidth": 0.8,
            "zorder": 3 if self.bold else 4,  # a thick line would hide a thin one
        }  # fmt: skip


def paint(figure: FigureSpec, shown: Shown) -> Figure:
    """The panels of one table beside each other."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows: dict[str, list[Panel]] = {}
    for panel in shown.panels:
        rows.setdefault(panel.table, []).append(panel)
    wide, looks = max(map(len, rows.values())), _looks(shown)
    tall = 2.9 if len(rows) == 1 else 2.1
    drawn = Figure(figsize=(max(4.5, 0.5 + 3.3 * wide), 0.9 + tall * len(rows)), layout="constrained")
    grid = drawn.subplots(len(rows), wide, squeeze=False)
    for line, panels in zip(grid, rows.values(), strict=True):
        for axes, panel in zip(line, panels, strict=False):
            _panel(axes, panel, shown, looks)
        for axes in line[len(panels) :]:
            axes.set_visible(False)
        _on_one_axis(line, panels, shown)
    for axes in grid[-1]:
        axes.set_xlabel(shown.axis.label)
    drawn.suptitle(_about(figure, shown), fontsize=9)
    handles = [Line2D([], [], **looks[name].line, label=name) for name in shown.names]
    if any(p.x is None for panel in shown.panels for p in panel.points):
        handles.append(Line2D([], [], color="0.2", linewidth=0.9, linestyle="--", label="own choice"))
    if any(p.reported for panel in shown.panels for p in panel.points):
        handles.append(Line2D([], [], color="0.2", **_REPORTED, label="the paper's"))
    drawn.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7 if wide > 2 else 6))
    return drawn


def _looks(shown: Shown) -> dict[str, _Look]:
    """Name -> its look, the same however many lines there are: the bold lines first, then the tables' order."""
    every = dict.fromkeys(name for panel in shown.panels for name in panel.names)
    bold = [name for name in shown.axis.bold if name in every]
    others = [name for name in every if name not in bold]
    rest = COLOURS[len(bold) :]
    looks = {name: _Look(COLOURS[i], _MARKERS[i], False, True) for i, name in enumerate(bold)}
    for i, name in enumerate(others):
        marker = _MARKERS[(len(bold) + i) % len(_MARKERS)]
        looks[name] = _Look(rest[i % len(rest)], marker, i >= len(rest), False)
    return looks


def _panel(axes: Axes, panel: Panel, shown: Shown, looks: dict[str, _Look]) -> None:
    known = sorted({p.x for p in panel.points if p.x is not None})
    places = dict(zip(known, _places(known, shown.axis.scale), strict=True))
    least = min((b - a for a, b in pairwise(places.values())), default=0.0)
    spread = any(p.error for p in panel.points)
    for i, (name, points) in enumerate(panel.lines.items()):
        look = looks[name]
        aside = _ABREAST * least * ((i + 0.5) / len(panel.lines) - 0.5) if spread else 0.0
        placed = [(places[p.x] + aside, p) for p in points if p.x is not None]
        drawn = [(x, p, p.value.mean) for x, p in placed if p.value is not None]
        if drawn:
            at, measured, means = zip(*drawn, strict=True)
            axes.plot(at, means, **look.line)
            if any(p.error for p in measured):
                axes.errorbar(
                    at, means, [p.error or 0.0 for p in measured], color=look.colour, linestyle="none", capsize=1.5,
                    capthick=0.6, linewidth=1.0 if look.bold else 0.6, alpha=0.75, zorder=2,
                )  # fmt: skip
        for p in points:
            if p.x is None and p.value is not None:
                axes.axhline(p.value.mean, color=look.colour, linewidth=0.9, linestyle="--", zorder=1)
        told = [(x, p.reported[0]) for x, p in placed if p.reported]
        if told:  # a faint marker at each number
            axes.plot(
                [x for x, _ in told], [value for _, value in told], color=look.colour, marker=look.marker,
                markersize=2, alpha=0.8, zorder=2, **_REPORTED,
            )  # fmt: skip
    axes.set_xticks(list(places.values()), [f"{x:g}" for x in places])
    axes.set_title(panel.name)
    axes.margins(x=0.05)
    axes.grid(axis="y", color="0.92", linewidth=0.5)
    axes.set_ylabel(_quantity(panel))
    low, high = axes.get_ylim()
    if panel.unit == "%" and high - low < _LEAST:  # what differs by nothing is not to look as if it did
        axes.set_ylim((low + high - _LEAST) / 2, (low + high + _LEAST) / 2)
    if panel.unit == "s":
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _places(values: Sequence[float], scale: str) -> list[float]:
    """Where sorted values stand on an axis: "linear", "log", or "even" (one step from each to the next)."""
    if scale == "even":
        return [float(i) for i in range(len(values))]
    return [math.log2(x) if scale == "log" else float(x) for x in values]


def _on_one_axis(line: Sequence[Axes], panels: Sequence[Panel], shown: Shown) -> None:
    """Panels of a table that share lines and unit share their accuracies' axis."""
    if not shown.axis.bold:  # one line a condition: each panel is another data set's
        return
    alike = [axes for axes, panel in zip(line, panels, strict=False) if panel.unit != "s"]
    ends = [axes.get_ylim() for axes in alike]
    for axes in alike:
        axes.set_ylim(max(0.0, min(low for low, _ in ends)), min(101.0, max(high for _, high in ends)))


def _quantity(panel: Panel) -> str:
    return "wall time of a run (s)" if panel.unit == "s" else f"accuracy ({panel.unit})" if panel.unit else "accuracy"


def _about(figure: FigureSpec, shown: Shown) -> str:
    """The title, and what the runs behind the numbers are."""
    rounds = sorted({n for panel in shown.panels for n in panel.rounds})
    seeds = sorted({p.value.seeds for panel in shown.panels for p in panel.points if p.value})
    if not seeds:
        return f"{figure.title} (as the paper reports it)"
    runs = f"{' or '.join(map(str, rounds))} rounds, {' or '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"
    return f"{figure.title} (budget {shown.budget}, {runs})"
