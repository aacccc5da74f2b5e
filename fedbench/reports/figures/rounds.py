"""Figure 7 of FedDRM: what the metrics of a table's columns are, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Ask
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.points import Lines, Point, names
from fedbench.reports.figures.series import Series, heading_of, looks_of
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import handle, subplots
from fedbench.reports.numbers.measured import Value
from fedbench.reports.table.spec import UNITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.reports.status.index import Index
    from fedbench.reports.table.spec import Column


class Rounds(Series):
    """A panel a column, a line a row: the column's metric after each round in which it was measured."""

    options = ("budget", "seed")
    columns = ("panel", "table", "budget", "line", "round", "value", "run")

    def gather(self, figure: FigureSpec, ask: Ask) -> Content[Lines]:
        """Each cell's first run. Those that are missing are left out and named; raises FedbenchError if all are."""
        from fedbench.reports.status.index import Index, State
        from fedbench.reports.status.settings import sketch

        assert figure.series is not None
        index = Index(ask.store, ask.shelf)
        panels: list[Panel[Lines]] = []
        every: list[source.Filled] = []
        remarks: list[tuple[source.Filled, list[str], list[str]]] = []
        for heading, name in figure.series.tables.items():
            filled = source.filled(name, ask, index)
            missing: list[str] = []
            others: list[str] = []
            every.append(filled)
            for i, column in enumerate(filled.table.printed):
                rounds = (sketch(filled.table, column, filled.budget).rounds,)
                labels = tuple(row.label for row in filled.table.rows)
                marks = Lines(filled.table.id, filled.grid.heads[i].unit, rounds, labels)
                for line in (line for line in filled.grid.lines if line.asked):
                    entry, cell = line.entries[i], f"{line.label} at {column.key}"
                    if entry.value is not None:
                        marks.lines[line.label] = _points(index, column, str(filled.table.view), entry.runs[0])
                        others += [f"{cell} ({entry.state})"] if entry.state is not State.DONE else []
                    elif entry.state is not State.UNDEFINED:
                        missing.append(f"{cell} ({entry.state})")
                if marks.lines:
                    panels.append(Panel(f"{heading} {column.label}".strip(), {}, marks))
            remarks.append((filled, missing, others))
        source.check(figure, panels, every)
        for remark in remarks:
            source.say(figure, ask, *remark)
        claims = [ours for filled in every for ours, _ in filled.grid.verdicts]
        tables = list(dict.fromkeys(panel.marks.table for panel in panels))
        return Content(panels, {"tables": tables, "budget": every[0].budget}, claims)

    def rows(self, marks: Lines) -> Iterator[Mapping[str, Any]]:
        """One line a row and round."""
        for name, points in marks.lines.items():
            for round, value, run in map(_numbers, points):
                yield {"table": marks.table, "line": name, "round": round, "value": value, "run": run}

    def values(self, marks: Lines) -> dict[str, Any]:
        """Rounds and values, line by line."""
        columns = {name: list(zip(*map(_numbers, points), strict=True)) for name, points in marks.lines.items()}
        lines = [
            {"line": name, "run": run[0], "rounds": list(rounds), "values": list(values)}
            for name, (rounds, values, run) in columns.items()
        ]
        return {"table": marks.table, "unit": marks.unit, "lines": lines}

    def words(self, figure: FigureSpec, content: Content[Lines]) -> Iterable[str]:
        for panel in content.panels:
            last = [f"{name} {_numbers(points[-1])[1]:.4g}" for name, points in panel.marks.lines.items()]
            yield f"{panel.title}, budget {content.about['budget']}, after the last round: {'; '.join(last)}"

    def paint(self, figure: FigureSpec, content: Content[Lines]) -> Figure:
        """The panels beside each other."""
        from matplotlib.ticker import MaxNLocator

        assert figure.series is not None
        drawn = looks_of(content, figure.series)
        picture, (row,) = subplots((0.6 + 3.2 * len(content.panels), 3.6), 1, len(content.panels))
        styles = {name: {k: look.line[k] for k in ("color", "linewidth", "linestyle")} for name, look in drawn.items()}
        for axes, panel in zip(row, content.panels, strict=True):
            for name, points in panel.marks.lines.items():
                rounds, values, _ = zip(*map(_numbers, points), strict=True)
                axes.plot(rounds, values, **styles[name], marker="." if len(rounds) < _FEW else "")
            axes.set_title(panel.title)
            axes.set_xlabel(figure.series.label)
            axes.set_ylabel(panel.marks.unit)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.02)
            axes.grid(axis="y")
        picture.suptitle(heading_of(figure, content), fontsize=9)
        handles = [handle(name, **styles[name]) for name in names(content)]
        picture.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7))
        return picture


#: Fewer rounds than this have dots.
_FEW = 30


def _points(index: Index, column: Column, view: str, run: str) -> list[Point]:
    """The column's metric after each round of a run."""
    metrics = index.read(run)
    seen, factor = view if view in metrics.views else "plain", UNITS[str(column.unit)][0]
    by_round = metrics.series(str(column.metric), seen)
    return [Point(t, Value(value * factor), None, None, max(by_round), (run,)) for t, value in by_round.items() if t]


def _numbers(p: Point) -> tuple[int, float, str]:
    """Round, value, run."""
    assert p.x is not None
    assert p.value is not None
    return int(p.x), p.value.mean, p.runs[0]
