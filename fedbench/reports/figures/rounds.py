"""Figure 7 of FedDRM: the metrics of a table's columns, round by round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.planner.table.spec import UNITS
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Request
from fedbench.reports.figures.panel import Content, Lines, Panel, Point, line_names
from fedbench.reports.figures.series import Series, heading_of, looks_of
from fedbench.reports.figures.spec import FigureSpec, SeriesSpec
from fedbench.reports.figures.style import abreast, distinct_looks, handle, subplots, titled
from fedbench.reports.numbers.measured import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.planner.table.spec import Column, Row, Table
    from fedbench.reports.layout.grid import Entry
    from fedbench.results.frame import Frame


class Rounds(Series):
    """A panel per column and a line per row: the column's metric after each round in which it was measured. A table of
    one row has a panel per heading of columns and a line per column. With `changes`, panels with the change per round
    follow."""

    options = ("budget", "seed")
    columns = ("panel", "table", "budget", "line", "round", "value", "run")
    by_column = True

    def gather(self, figure: FigureSpec, request: Request) -> Content[Lines]:
        content = super().gather(figure, request)
        assert figure.series is not None
        more = [Panel(f"{p.title}, change a round", p.about, _changes(p.marks)) for p in content.panels]
        return dataclasses.replace(content, panels=[*content.panels, *more]) if figure.series.changes else content

    def place(self, table: Table, row: Row, column: Column) -> tuple[str, str, tuple[str, ...]]:
        if len(table.rows) == 1:
            return column.group, column.label, tuple(dict.fromkeys(c.label for c in table.printed))
        return column.label, row.label, tuple(r.label for r in table.rows)

    def x(self, table: Table, row: Row, column: Column, axis: SeriesSpec, budget: str) -> None:
        """None: a cell's points have an x each, the cell has none."""

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
        """The column's metric after each round of the cell's first run. Raises FedbenchError if it has none."""
        metrics, run, column = frame.named(entry.runs[0]).metrics, entry.runs[:1], row.reads(column)
        view = str(filled.table.view) if filled.table.view in metrics.views else "plain"
        by_round, factor = metrics.series(str(column.metric), view), UNITS[str(column.unit)][0]
        points = [Point(t, Value(v * factor), None, None, max(by_round), run) for t, v in by_round.items() if t]
        if column.of or column.client or not points:
            what = f"{filled.table.path}, column {column.key} is no metric of the federation that each round has"
            raise FedbenchError(what, "hidden = true leaves it out")
        return points

    def about(self, tables: list[str], budget: str, axis: SeriesSpec, missing: list[str]) -> dict[str, Any]:
        return {"tables": tables, "budget": budget}

    def rows(self, marks: Lines) -> Iterator[Mapping[str, Any]]:
        """One row per line and round."""
        for name, points in marks.lines.items():
            for round, value, run in map(_numbers, points):
                yield {"line": name, "round": round, "value": value, "run": run}

    def words(self, figure: FigureSpec, content: Content[Lines]) -> Iterable[str]:
        for panel in content.panels:
            last = [f"{name} {_numbers(points[-1])[1]:.4g}" for name, points in panel.marks.lines.items()]
            yield f"{panel.title}, budget {content.about['budget']}, after the last round: {'; '.join(last)}"

    def paint(self, figure: FigureSpec, content: Content[Lines]) -> Figure:
        """Draw the panels in a row, and the changes below them."""
        from matplotlib.ticker import MaxNLocator

        assert figure.series is not None
        drawn, down = looks_of(content, figure.series), 1 + figure.series.changes
        across = len(content.panels) // down
        picture, grid = subplots((0.6 + 3.2 * across, 3.6 * down), down, across)
        styles = {name: {k: look[k] for k in ("color", "linewidth", "linestyle")} for name, look in drawn.items()}
        for axes, panel in titled(grid, content.panels):
            distinct = distinct_looks(panel.marks.measured_lines, styles)
            for name, points in panel.marks.lines.items():
                rounds, values, _ = zip(*map(_numbers, points), strict=True)
                axes.plot(rounds, values, **distinct[name], marker="." if len(rounds) < _FEW else "")
            axes.set_xlabel(figure.series.label)
            axes.set_ylabel(panel.marks.unit)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.02)
            axes.grid(axis="y")
        picture.suptitle(heading_of(figure, content), fontsize=9)
        handles = [handle(name, **styles[name]) for name in line_names(content)]
        picture.legend(handles=handles, loc="outside lower center", ncols=abreast(handles, picture.get_figwidth()))
        return picture


def _changes(marks: Lines) -> Lines:
    """Each line's change per round, from one point to the next."""
    lines = {}
    for name, points in marks.lines.items():
        pairs = [(b, _numbers(a), _numbers(b)) for a, b in pairwise(points)]
        lines[name] = [dataclasses.replace(p, value=Value((y - x) / (t - s))) for p, (s, x, _), (t, y, _) in pairs]
    return dataclasses.replace(marks, lines={name: points for name, points in lines.items() if points})


#: Lines of fewer rounds than this have dots.
_FEW = 30


def _numbers(p: Point) -> tuple[int, float, str]:
    """A point's round, value and run id."""
    assert p.x is not None
    assert p.value is not None
    return int(p.x), p.value.mean, p.runs[0]
