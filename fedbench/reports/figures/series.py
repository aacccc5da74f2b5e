"""Table cells as points of lines: Figures 4, 5, 8, 10 and 12 of FLUX, 4 of pFedFDA and 7 of FedDRM."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.planner.table.claims import Verdict
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.panel import Content, Lines, Panel, Point, every_name, every_point, line_names
from fedbench.reports.figures.spec import FigureSpec, SeriesSpec
from fedbench.reports.figures.style import COLOURS, abreast, distinct_looks, handle, subplots, titled
from fedbench.reports.numbers.measured import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.planner.table.spec import Column, Row, Table
    from fedbench.reports.layout.grid import Entry
    from fedbench.results.frame import Frame


class Series(Kind[Lines]):
    """A panel per heading of columns and a line per row; x is an option of the columns' partitions.

    Other kinds change `by_column`, `place`, `x`, `points` and `error`, which make a cell's points, and the forms below.
    """

    needs: ClassVar[str] = "series"
    options: ClassVar[tuple[str, ...]] = ("budget", "seed", "compare")
    columns: ClassVar[tuple[str, ...]] = (
        "panel",
        "table",
        "budget",
        "line",
        "axis",
        "x",
        "mean",
        "std",
        "error",
        "seeds",
        "reported",
        "reported_std",
        "runs",
    )

    def gather(self, figure: FigureSpec, request: Request) -> Content[Lines]:
        """The measured cells as points; missing cells break their line and are named in a remark.

        With `compare`, the paper's numbers, except doubtful ones, are included. Raises FedbenchError without any point.
        """
        assert figure.series is not None
        axis = figure.series
        budget = source.budget_of(axis.tables.values(), request)
        tables = [(heading, source.filled(name, budget, request)) for heading, name in axis.tables.items()]
        read = [self._read(filled, heading, axis, bool(request.compare), request.frame) for heading, filled in tables]
        panels = [panel for shown, _, _ in read for panel in shown if panel.marks.lines]
        source.check(figure, panels, [filled for _, filled in tables])
        for (_, filled), (_, missing, others) in zip(tables, read, strict=True):
            source.say(figure, request, filled, missing, others)
        claims = [_under(heading, ours) for heading, filled in tables for ours, _ in filled.grid.verdicts]
        names = list(dict.fromkeys(panel.marks.table for panel in panels))
        missing = [cell for _, missing, _ in read for cell in missing]
        about = self.about(names, budget, axis, missing)
        return Content(panels, about, claims, source.counted([filled for _, filled in tables]))

    def _read(
        self, filled: source.Filled, heading: str, axis: SeriesSpec, compared: bool, frame: Frame
    ) -> tuple[list[Panel[Lines]], list[str], list[str]]:
        """A table's panels, its missing cells, and its cells that have a number but are not done."""
        from fedbench.planner.settings import sketch
        from fedbench.results.run import State

        table, grid = filled.table, filled.grid
        rounds = tuple(sorted({sketch(table, column, filled.budget).rounds for column in table.measured}))
        panels: dict[str, tuple[str, Lines]] = {}  # by title, or by column, because columns may share a title
        missing, others = [], []
        rows = {row.label: row for row in table.rows}
        cells = [(line, k) for line in grid.lines if line.in_table for k in range(len(grid.heads))]
        for line, k in sorted(cells, key=itemgetter(1)) if self.by_column else cells:
            row, column, entry = rows[line.label], table.printed[k], line.entries[k]
            title, name, names = self.place(table, row, column)
            title_below = f"{heading}, {title[:1].lower()}{title[1:]}" if heading else title
            new = title_below, Lines(table.id, grid.heads[k].unit, rounds, names)
            _, marks = panels.setdefault(column.key if self.by_column and len(rows) > 1 else title, new)
            cell = f"{line.label} at {column.key} ({entry.state})"
            reported = table.trusted.get((line.label, column.key)) if compared else None
            if entry.value is None and entry.state is State.UNDEFINED and not reported:
                continue
            x = self.x(table, row, column, axis, filled.budget)
            if entry.value is None and entry.state is not State.UNDEFINED:
                missing.append(cell)
                if x is not None:
                    marks.gaps.setdefault(name, []).append(x)
            elif entry.value is not None and entry.state not in (State.DONE, State.PARTIAL):
                others.append(cell)
            if entry.value is not None or reported:
                points = self.points(filled, row, column, entry, x, reported, frame)
                marks.lines.setdefault(name, []).extend(points)
        for points in (points for _, marks in panels.values() for points in marks.lines.values()):
            points.sort(key=lambda p: math.inf if p.x is None else p.x)
        made = [Panel(title, self.about_panel(marks), marks) for title, marks in panels.values()]
        return made, missing, others

    by_column: ClassVar[bool] = False  #: whether cells are read column by column
    line = "line"  #: the key of a line's name in `rows`

    def place(self, table: Table, row: Row, column: Column) -> tuple[str, str, tuple[str, ...]]:
        """The title of a cell's panel, the name of its line, and the names of all lines of the panel."""
        return column.group, row.label, tuple(r.label for r in table.rows)

    def x(self, table: Table, row: Row, column: Column, axis: SeriesSpec, budget: str) -> float | None:
        """The x of a cell. Raises FedbenchError if the column's partitions do not share one value."""
        by_key = {c.key: c for c in table.columns}
        values = {by_key[key].partition.get(axis.x) for key in column.of or [column.key]}
        if len(values) != 1 or (place := axis.at(values.pop())) is None:
            raise FedbenchError(f"{table.path}, column {column.key} has no single {axis.x}", "give its partitions one")
        return place

    def points(
        self,
        filled: source.Filled,
        row: Row,
        column: Column,
        entry: Entry,
        x: float | None,
        reported: tuple[float, float | None] | None,
        frame: Frame,
    ) -> list[Point]:
        """The points of a cell: here a single one."""
        from fedbench.planner.settings import sketch

        rounds = None if column.of else sketch(filled.table, column, filled.budget, row).rounds
        return [Point(x, entry.value, self.error(entry.value) if entry.value else None, reported, rounds, entry.runs)]

    def error(self, value: Value) -> float | None:
        """Half the length of an error bar: the value's ±."""
        return value.std

    def about(self, tables: list[str], budget: str, axis: SeriesSpec, missing: list[str]) -> dict[str, Any]:
        """Facts about all panels."""
        return {"tables": tables, "budget": budget, "axis": axis.x, "missing": missing}

    def about_panel(self, marks: Lines) -> dict[str, Any]:
        """Facts about one panel."""
        return {"table": marks.table, "unit": marks.unit}

    def rows(self, marks: Lines) -> Iterator[Mapping[str, Any]]:
        """One row per point: means and ± in the panel's unit; `error` is half the length of the error bar."""
        for name, points in marks.lines.items():
            yield from ({self.line: name, **self.numbers(p)} for p in points)

    def numbers(self, point: Point) -> dict[str, Any]:
        """The numbers of a point, by column."""
        values: dict[str, Any] = {"x": point.x}
        if v := point.value:
            values |= {"mean": v.mean, "std": v.std, "error": point.error, "seeds": v.seeds}
        if point.reported:
            values |= {"reported": point.reported[0], "reported_std": point.reported[1]}
        return {**values, "runs": list(point.runs)}

    def words(self, figure: FigureSpec, content: Content[Lines]) -> Iterable[str]:
        assert figure.series is not None
        for panel in content.panels:
            lines, parts = panel.marks.lines, []
            for name in [n for n in figure.series.bold if n in lines] or lines:
                measured = [(p.x, p.value.mean) for p in lines[name] if p.value]
                numbers = [f"{mean:.2f} ({'own' if x is None else figure.series.tick(x)})" for x, mean in measured]
                parts.append(f"{name} {', '.join(numbers) or 'not measured'}")
            unit = f" ({panel.marks.unit})" if panel.marks.unit else ""
            yield f"{panel.title}{unit}, budget {content.about['budget']}, by {figure.series.x}: {'; '.join(parts)}"

    def paint(self, figure: FigureSpec, content: Content[Lines]) -> Figure:
        """Draw a row of panels per table."""
        assert figure.series is not None
        axis = figure.series
        tables = by_key((panel.marks.table, panel) for panel in content.panels)
        wide, looks, every = max(map(len, tables.values())), looks_of(content, axis), every_point(content.panels)
        tall = 2.9 if len(tables) == 1 else 2.1
        picture, grid = subplots((max(4.5, 0.5 + 3.3 * wide), 0.9 + tall * len(tables)), len(tables), wide)
        for line, panels in zip(grid, tables.values(), strict=True):
            for axes, panel in titled([line], panels):
                _panel(axes, panel.marks, axis, looks)
            if axis.bold:  # without bold lines, panels are different data sets
                _on_one_axis([axes for axes, p in zip(line, panels, strict=False) if p.marks.unit in ("%", "")])
        for axes in grid[-1]:
            axes.set_xlabel(axis.label)
        picture.suptitle(heading_of(figure, content), fontsize=9)
        handles = [handle(name, **looks[name]) for name in line_names(content)]
        if any(p.x is None for p in every):
            handles.append(handle("own choice", color="0.2", linewidth=0.9, linestyle="--"))
        lines = [points for panel in content.panels for points in panel.marks.lines.values()]
        measured = {_measured(points) for points in lines if any(p.reported for p in points)}
        if True in measured:
            handles.append(handle("the paper's", color="0.2", **_TICK))
        if False in measured:
            handles.append(handle("the paper's, not measured", color="0.2", **_REPORTED))
        picture.legend(handles=handles, loc="outside lower center", ncols=abreast(handles, picture.get_figwidth()))
        return picture


class Sweep(Series):
    """A panel per data set and a line per heading of columns; x is a hyper-parameter or training option of the rows.

    A row that does not set it, so that the method chooses, is a horizontal line. Error bars are standard errors, as in
    FLUX's figures (App. D.1).
    """

    def place(self, table: Table, row: Row, column: Column) -> tuple[str, str, tuple[str, ...]]:
        return column.label, column.group, tuple(dict.fromkeys(c.group for c in table.printed))

    def x(self, table: Table, row: Row, column: Column, axis: SeriesSpec, budget: str) -> float | None:
        value = row.params.get(axis.x, row.train.get(axis.x))
        if value is not None and axis.at(value) is None:
            there = f"one of {', '.join(axis.values.values())}" if axis.values else "a number"
            raise FedbenchError(f"{table.path}, row {row.label}: {axis.x} must be {there}, not {value!r}")
        return axis.at(value)

    def error(self, value: Value) -> float | None:
        """The standard error over the seeds."""
        return None if value.std is None else value.std / math.sqrt(value.seeds)


def _under(heading: str, verdict: Verdict) -> Verdict:
    """The verdict, with the table's heading in front of its text."""
    if not heading:
        return verdict
    return dataclasses.replace(
        verdict, claim=dataclasses.replace(verdict.claim, text=f"{heading}: {verdict.claim.text}")
    )


#: One per line, so that lines of equal colour, or in grey, are distinguishable.
_MARKERS = "os^DvPX*<>ph"
#: The paper's numbers: ticks if the line is also measured, so that it is not drawn twice, else a dotted line.
_TICK: dict[str, Any] = {"linestyle": "none", "marker": "_", "markersize": 8, "markeredgewidth": 1.1}
_REPORTED: dict[str, Any] = {"linewidth": 0.7, "linestyle": ":"}
#: Lines with error bars are shifted along x, within this share of the smallest distance between points.
_SHIFT = 0.36

#: Seconds get a logarithmic axis if the largest is more than so many times the smallest.
_LOG_FROM = 4.0
#: Smallest range of an accuracy axis, in percentage points.
_LEAST_RANGE = 4.0


def looks_of(content: Content[Lines], axis: SeriesSpec) -> dict[str, dict[str, Any]]:
    """Name -> its matplotlib style, the same for any number of measured lines: bold lines first, then the tables'
    order. Lines beyond the number of colours are hollow and dashed."""
    every = every_name(content)
    bold = [name for name in axis.bold if name in every]
    rest, looks = COLOURS[len(bold) :], {}
    for i, name in enumerate([*bold, *(name for name in every if name not in bold)]):
        thick, nth = i < len(bold), i - len(bold)
        colour, hollow = (COLOURS[i], False) if thick else (rest[nth % len(rest)], nth >= len(rest))
        looks[name] = {
            "color": colour,
            "marker": _MARKERS[i % len(_MARKERS)],
            "markersize": 5 if thick else 3.6,
            "linewidth": 1.8 if thick else 0.9,
            "linestyle": (0, (4, 1.5)) if hollow else "-",
            "markerfacecolor": "white" if hollow else colour,
            "markeredgewidth": 0.8,
            "zorder": 3 if thick else 4,  # a thick line would hide a thin one
        }
    return looks


def _measured(points: Iterable[Point]) -> bool:
    """Whether a line has a measured point along the axis."""
    return any(p.x is not None and p.value is not None for p in points)


def _panel(axes: Axes, marks: Lines, axis: SeriesSpec, looks: dict[str, dict[str, Any]]) -> None:
    xs = sorted({p.x for p in marks.points if p.x is not None})
    places = dict(zip(xs, _places(xs, axis.scale), strict=True))
    least = min((b - a for a, b in pairwise(places.values())), default=0.0)
    spread = any(p.error for p in marks.points)
    if not spread:  # with error bars, equal lines are shifted
        looks = looks | distinct_looks(marks.measured_lines, looks)
    for i, (name, points) in enumerate(marks.lines.items()):
        look = looks[name]
        aside = _SHIFT * least * ((i + 0.5) / len(marks.lines) - 0.5) if spread else 0.0
        placed = [(places[p.x] + aside, p) for p in points if p.x is not None]
        measured = [(places[x] + aside, *rest) for x, *rest in marks.measured(name) if x in places]
        if measured:
            at, means, errors = zip(*measured, strict=True)
            axes.plot(at, means, **look)
            if any(errors):
                axes.errorbar(
                    at,
                    means,
                    errors,
                    color=look["color"],
                    linestyle="none",
                    capsize=1.5,
                    capthick=0.6,
                    linewidth=1.0 if name in axis.bold else 0.6,
                    alpha=0.75,
                    zorder=2,
                )
        for p in points:
            if p.x is None and p.value is not None:
                axes.axhline(p.value.mean, color=look["color"], linewidth=0.9, linestyle="--", zorder=1)
        reported = [(x, p.reported[0]) for x, p in placed if p.reported]
        if reported:
            faint = _TICK if _measured(points) else {"marker": look["marker"], "markersize": 2, **_REPORTED}
            axes.plot(*zip(*reported, strict=True), color=look["color"], alpha=0.8, zorder=2, **faint)
    axes.set_xticks(list(places.values()), [axis.tick(x) for x in places])
    axes.margins(x=0.05)
    axes.grid(axis="y")
    axes.set_ylabel({"": "accuracy", "%": "accuracy (%)", "s": "seconds"}.get(marks.unit, marks.unit))
    low, high = axes.get_ylim()
    if marks.unit == "%" and high - low < _LEAST_RANGE:  # do not magnify negligible differences
        axes.set_ylim((low + high - _LEAST_RANGE) / 2, (low + high + _LEAST_RANGE) / 2)
    if marks.unit not in ("%", ""):
        means = [p.value.mean for p in marks.points if p.value is not None]
        if marks.unit == "s" and min(means, default=0) > 0 and max(means) > _LOG_FROM * min(means):
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            axes.set_ylim(0, 1.05 * high)


def _places(values: Sequence[float], scale: str) -> list[float]:
    """Axis positions of sorted values; `scale` is "linear", "log" or "even" (equal steps)."""
    if scale == "even":
        return [float(i) for i in range(len(values))]
    if scale == "log" and values and values[0] <= 0:
        raise FedbenchError(f"a logarithmic axis has no place for {values[0]:g}", 'scale = "even" has one')
    return [math.log2(x) if scale == "log" else float(x) for x in values]


def _on_one_axis(grid_row: Sequence[Axes]) -> None:
    """Give a table's panels of accuracies the same y range."""
    ends = [axes.get_ylim() for axes in grid_row]
    for axes in grid_row:
        axes.set_ylim(max(0.0, min(low for low, _ in ends)), min(101.0, max(high for _, high in ends)))


def heading_of(figure: FigureSpec, content: Content[Lines]) -> str:
    """The figure's title, with the budget, rounds and seeds of its runs."""
    rounds = sorted({n for panel in content.panels for n in panel.marks.rounds})
    seeds = sorted({p.value.seeds for p in every_point(content.panels) if p.value})
    if not seeds:
        return f"{figure.title} (as the paper reports it)"
    each = ((rounds, "round"), (seeds, "seed"))
    runs = ", ".join(f"{' or '.join(map(str, of))} {noun}{'s' * (of != [1])}" for of, noun in each)
    return f"{figure.title} (budget {content.about['budget']}, {runs})"
