"""Figure 4 of pFedFDA: mean accuracy of the clients by the number of local epochs, from the cells of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.points import Lines, Point, names
from fedbench.reports.figures.series import Series
from fedbench.reports.figures.spec import FigureSpec, SeriesSpec
from fedbench.reports.figures.style import colour, subplots
from fedbench.reports.numbers.measured import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.reports.table.spec import Column, Row, Table


class Epochs(Series):
    """A panel a heading of columns, a line a row, along the local epochs of the columns' runs."""

    options = ("budget", "seed")
    columns = (
        "panel", "budget", "row", "rounds", "epochs", "mean", "std", "clients", "weighted", "unweighted", "seeds",
        "seed_std", "runs",
    )  # fmt: skip

    def x(self, table: Table, row: Row, column: Column, name: str, budget: str) -> float | None:
        """The epochs. Raises FedbenchError for a column of local steps."""
        from fedbench.reports.status.settings import sketch

        epochs = sketch(table, column, budget, row).epochs
        if epochs is None:
            raise FedbenchError(f"{table.path}, column {column.key} has no local epochs", "give it train.epochs")
        return epochs

    def error(self, value: Value) -> float | None:
        """± over seeds: the spread over clients is no error of the mean, and wider than the picture."""
        return value.seed_std

    def about(self, tables: list[str], budget: str, axis: SeriesSpec) -> dict[str, Any]:
        return {"table": tables[0], "budget": budget}

    def rows(self, marks: Lines) -> Iterator[Mapping[str, Any]]:
        """One line a cell."""
        for name, points in marks.lines.items():
            for p in points:
                yield {"row": name, **_values(p), "runs": " ".join(p.runs)}

    def values(self, marks: Lines) -> dict[str, Any]:
        """Means, standard deviations (ddof 1) over clients, and over seeds where there are several."""
        return {"rows": [{"row": name, "cells": [_values(p) for p in ps]} for name, ps in marks.lines.items()]}

    def words(self, figure: FigureSpec, content: Content[Lines]) -> Iterable[str]:
        for panel in content.panels:
            rows = [
                f"{name} " + ", ".join(f"{p.value.mean:.3f} (E = {p.x:g})" for p in points if p.value)
                for name, points in panel.marks.lines.items()
            ]
            yield f"{panel.title}, budget {content.about['budget']}, {_rounds(panel.marks)}: {'; '.join(rows)}"

    def paint(self, figure: FigureSpec, content: Content[Lines]) -> Figure:
        """One panel beside the other."""
        from matplotlib.ticker import NullFormatter, NullLocator

        assert figure.series is not None
        picture, (row,) = subplots((0.6 + 3.0 * len(content.panels), 3.0), 1, len(content.panels))
        listed, lines = names(content), {}
        for axes, panel in zip(row, content.panels, strict=True):
            for name in panel.marks.lines:
                i = listed.index(name)
                at, means, spread = zip(*panel.marks.measured(name), strict=True)
                if any(spread):
                    axes.errorbar(at, means, spread, color=colour(i), linestyle="none", capsize=2, linewidth=0.8)
                marker = "osD^vP*X"[i % 8]
                (lines[name],) = axes.plot(at, means, color=colour(i), marker=marker, markersize=4, label=name)
            measured = sorted({p.x for p in panel.marks.points if p.x is not None})
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks(measured, [f"{x:g}" for x in measured])
            axes.margins(x=0.06, y=0.12)
            axes.grid(axis="y")
            axes.set_title(f"{panel.title} (budget {content.about['budget']}, {_rounds(panel.marks)})")
            axes.set_xlabel(figure.series.label)
        unit = content.panels[0].marks.unit
        row[0].set_ylabel("mean local test accuracy" + (f" ({unit})" if unit else ""))
        picture.legend(handles=[lines[name] for name in listed], loc="outside lower center", ncols=4)
        return picture


def _rounds(marks: Lines) -> str:
    """How many communication rounds the runs have, in words."""
    return " or ".join(map(str, sorted({p.rounds or 0 for p in marks.points}))) + " rounds"


def _values(p: Point) -> dict[str, Any]:
    v = p.value
    assert v is not None
    return {
        "epochs": p.x, "rounds": p.rounds, "mean": v.mean, "std": v.std, "clients": v.count, "weighted": v.weighted,
        "unweighted": v.unweighted, "seeds": v.seeds, "seed_std": v.seed_std, "runs": list(p.runs),
    }  # fmt: skip
