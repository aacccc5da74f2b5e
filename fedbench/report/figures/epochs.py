"""Figure 4 of pFedFDA: mean accuracy of the clients by the number of local epochs, from the cells of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.report.figures import source
from fedbench.report.figures.kind import Ask, Kind
from fedbench.report.figures.spec import FigureSpec
from fedbench.report.figures.style import COLOURS
from fedbench.report.numbers.measured import Value
from fedbench.report.table.claims import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.report.layout.grid import Grid
    from fedbench.report.table.spec import Table


@dataclass(frozen=True)
class Point:
    """One cell."""

    epochs: int
    rounds: int
    value: Value
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """The columns of one heading: row label -> its cells by local epochs, those that are there."""

    title: str
    curves: dict[str, list[Point]]

    @property
    def rounds(self) -> str:
        """How many communication rounds the runs have, in words."""
        return " or ".join(map(str, sorted({p.rounds for points in self.curves.values() for p in points}))) + " rounds"


@dataclass(frozen=True)
class Shown:
    """All panels at one budget."""

    table: str
    budget: str
    unit: str  #: its sign, "" for fractions
    panels: list[Panel]
    missing: list[str]  #: cells without a number
    claims: tuple[Verdict, ...]

    @property
    def labels(self) -> list[str]:
        """Rows with a number in some panel, in the table's order."""
        return list(dict.fromkeys(label for panel in self.panels for label in panel.curves))


class Epochs(Kind[Shown]):
    """Accuracy by local epochs."""

    options = ("budget", "seed")
    columns = (
        "panel", "budget", "row", "rounds", "epochs", "mean", "std", "clients", "weighted", "seeds", "seed_std", "runs",
    )  # fmt: skip

    def gather(self, figure: FigureSpec, ask: Ask) -> Shown:
        """Cells that are missing are left out and named; raises FedbenchError if all of them are."""
        from fedbench.report.status.index import Index
        from fedbench.report.table.spec import UNITS

        assert figure.cells is not None
        found = source.filled(figure.cells.table, ask, Index(ask.store))
        table, grid = found.table, found.grid
        panels, missing, others = _sorted(table, found.budget, grid)
        if not panels:
            raise source.nothing(figure, [found])
        source.say(figure, ask, found, missing, others)
        unit = UNITS[str(table.columns[0].unit)][1]
        return Shown(table.id, found.budget, unit, panels, missing, tuple(ours for ours, _ in grid.verdicts))

    def lines(self, shown: Shown) -> Iterator[Sequence[Any]]:
        """One line a cell."""
        for panel in shown.panels:
            for label, points in panel.curves.items():
                for p in points:
                    v = p.value
                    numbers = (v.mean, v.std, v.count, v.weighted, v.seeds, v.seed_std)
                    yield [panel.title, shown.budget, label, p.rounds, p.epochs, *numbers, " ".join(p.runs)]

    def told(self, shown: Shown) -> dict[str, Any]:
        """Means, standard deviations (ddof 1) over clients, and over seeds where there are several."""
        return {
            "table": shown.table,
            "budget": shown.budget,
            "missing": shown.missing,
            "panels": [
                {
                    "title": panel.title,
                    "rows": [{"row": label, "cells": [_told(p) for p in ps]} for label, ps in panel.curves.items()],
                }
                for panel in shown.panels
            ],
        }

    def verdicts(self, figure: FigureSpec, shown: Shown) -> Sequence[Verdict]:
        return shown.claims

    def words(self, figure: FigureSpec, shown: Shown) -> Iterable[str]:
        for panel in shown.panels:
            rows = [
                f"{label} " + ", ".join(f"{p.value.mean:.3f} (E = {p.epochs})" for p in points)
                for label, points in panel.curves.items()
            ]
            yield f"{panel.title}, budget {shown.budget}, {panel.rounds}: {'; '.join(rows)}"

    def paint(self, figure: FigureSpec, shown: Shown) -> Figure:
        """One panel beside the other; ± over seeds where there are several.

        The spread over clients (in the CSV and JSON) is no error of the mean, and wider than the picture.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter, NullLocator

        drawn = Figure(figsize=(0.6 + 3.0 * len(shown.panels), 3.0), layout="constrained")
        row = drawn.subplots(1, len(shown.panels), squeeze=False)[0]
        looks = {label: (COLOURS[i % len(COLOURS)], "osD^vP*X"[i % 8]) for i, label in enumerate(shown.labels)}
        lines = {}
        for axes, panel in zip(row, shown.panels, strict=True):
            for label, points in panel.curves.items():
                colour, marker = looks[label]
                epochs, means = [p.epochs for p in points], [p.value.mean for p in points]
                if any(p.value.seed_std for p in points):
                    spread = [p.value.seed_std or 0.0 for p in points]
                    axes.errorbar(epochs, means, spread, color=colour, linestyle="none", capsize=2, linewidth=0.8)
                (lines[label],) = axes.plot(epochs, means, color=colour, marker=marker, markersize=4, label=label)
            measured = sorted({p.epochs for points in panel.curves.values() for p in points})
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks(measured, [str(e) for e in measured])
            axes.margins(x=0.06, y=0.12)
            axes.grid(axis="y", color="0.92", linewidth=0.5)
            axes.set_title(f"{panel.title} (budget {shown.budget}, {panel.rounds})")
            axes.set_xlabel("local epochs $E$ a round")
        row[0].set_ylabel("mean local test accuracy" + (f" ({shown.unit})" if shown.unit else ""))
        drawn.legend(handles=[lines[label] for label in shown.labels], loc="outside lower center", ncols=4)
        return drawn


def _sorted(table: Table, budget: str, grid: Grid) -> tuple[list[Panel], list[str], list[str]]:
    """Panels by the headings of the columns, points by local epochs; the missing cells, and those not quite done.

    Raises FedbenchError for a column of local steps.
    """
    from fedbench.report.status.index import State
    from fedbench.report.status.settings import sketch

    panels: dict[str, Panel] = {}
    missing, others = [], []
    rows = {row.label: row for row in table.rows}
    for line in (line for line in grid.lines if line.asked):
        for column, entry in zip(table.columns, line.entries, strict=True):
            panel = panels.setdefault(column.group, Panel(column.group, {}))
            said = f"{line.label} at {column.key} ({entry.state})"
            if entry.value is None:
                missing.append(said)
                continue
            if entry.state is not State.DONE:
                others.append(said)
            setting = sketch(table, column, budget, rows[line.label])
            if setting.epochs is None:
                raise FedbenchError(f"{table.path}, column {column.key} has no local epochs", "give it train.epochs")
            point = Point(setting.epochs, setting.rounds, entry.value, entry.runs)
            panel.curves.setdefault(line.label, []).append(point)
    for points in (points for panel in panels.values() for points in panel.curves.values()):
        points.sort(key=lambda p: p.epochs)
    return [panel for panel in panels.values() if panel.curves], missing, others


def _told(point: Point) -> dict[str, Any]:
    v = point.value
    return {
        "epochs": point.epochs, "rounds": point.rounds, "mean": v.mean, "std": v.std, "clients": v.count,
        "weighted": v.weighted, "seeds": v.seeds, "seed_std": v.seed_std, "runs": list(point.runs),
    }  # fmt: skip
