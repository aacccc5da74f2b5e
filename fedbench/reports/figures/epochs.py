"""Figure 4 of pFedFDA: mean accuracy of the clients by the number of local epochs, from table cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.reports.figures.panel import Content, Lines, Point, line_names
from fedbench.reports.figures.series import Series
from fedbench.reports.figures.spec import FigureSpec, SeriesSpec
from fedbench.reports.figures.style import abreast, distinct_looks, handle, look, subplots, titled
from fedbench.reports.numbers.measured import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.planner.table.spec import Column, Row, Table


class Epochs(Series):
    """A panel per heading of columns and a line per row; x is the number of local epochs of the columns' runs."""

    options = ("budget", "seed")
    columns = (
        "panel",
        "budget",
        "row",
        "rounds",
        "epochs",
        "mean",
        "std",
        "clients",
        "weighted",
        "unweighted",
        "seeds",
        "seed_std",
        "runs",
    )

    def x(self, table: Table, row: Row, column: Column, name: str, budget: str) -> float | None:
        """The number of local epochs. Raises FedbenchError for a column that trains by local steps."""
        from fedbench.planner.settings import sketch

        epochs = sketch(table, column, budget, row).epochs
        if epochs is None:
            raise FedbenchError(f"{table.path}, column {column.key} has no local epochs", "give it train.epochs")
        return epochs

    def error(self, value: Value) -> float | None:
        """The ± over seeds: the spread over clients is not an error of the mean, and is wider than the picture."""
        return value.seed_std

    def about(self, tables: list[str], budget: str, axis: SeriesSpec, missing: list[str]) -> dict[str, Any]:
        return {"table": tables[0], "budget": budget, "missing": missing}

    def about_panel(self, marks: Lines) -> dict[str, Any]:
        return {}

    line = "row"

    def numbers(self, point: Point) -> dict[str, Any]:
        """Mean and standard deviations (ddof 1): `std` over clients, `seed_std` over seeds (None for one)."""
        v = point.value
        assert v is not None
        return {
            "epochs": point.x,
            "rounds": point.rounds,
            "mean": v.mean,
            "std": v.std,
            "clients": v.count,
            "weighted": v.weighted,
            "unweighted": v.unweighted,
            "seeds": v.seeds,
            "seed_std": v.seed_std,
            "runs": list(point.runs),
        }

    def words(self, figure: FigureSpec, content: Content[Lines]) -> Iterable[str]:
        for panel in content.panels:
            rows = [
                f"{name} " + ", ".join(f"{p.value.mean:.3f} (E = {p.x:g})" for p in points if p.value)
                for name, points in panel.marks.lines.items()
            ]
            yield f"{panel.title}, budget {content.about['budget']}, {_rounds(panel.marks)}: {'; '.join(rows)}"

    def paint(self, figure: FigureSpec, content: Content[Lines]) -> Figure:
        """Draw the panels in a row."""
        from matplotlib.ticker import NullFormatter, NullLocator

        assert figure.series is not None
        picture, (row,) = subplots((0.6 + 3.0 * len(content.panels), 3.0), 1, len(content.panels))
        looks = {name: look(i) for i, name in enumerate(line_names(content))}
        for axes, panel in titled([row], content.panels):
            for name, style in distinct_looks(panel.marks.measured_lines, looks).items():
                at, means, spread = zip(*panel.marks.measured(name), strict=True)
                if any(spread):
                    axes.errorbar(at, means, spread, color=style["color"], linestyle="none", capsize=2, linewidth=0.8)
                axes.plot(at, means, **style, label=name)
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
        handles = [handle(name, **style) for name, style in looks.items()]
        picture.legend(handles=handles, loc="outside lower center", ncols=abreast(handles, picture.get_figwidth()))
        return picture


def _rounds(marks: Lines) -> str:
    """How many communication rounds the runs have, in words."""
    rounds = sorted({p.rounds or 0 for p in marks.points})
    return " or ".join(map(str, rounds)) + " round" + "s" * (rounds != [1])
