"""Table cells as points of lines: Figures 4, 5, 8, 9, 10 and 12 of FLUX, 4 of pFedFDA, 4 to 7 of FedDRM.

One kind with four ways to read a cell's x: an option of its column's partition (`series`), a hyper-parameter of its row
(`sweep`), the local epochs of its runs (`epochs`), or each round of its first run (`rounds`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.definitions import all_metrics
from fedbench.planner.table.claims import Verdict
from fedbench.planner.table.spec import UNITS
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row, broken, by_line, enough
from fedbench.reports.figures.output import claims_of
from fedbench.reports.figures.spec import FigureSpec, SeriesSpec
from fedbench.reports.figures.style import across, distinct_looks, handle, line_looks, name_ends, subplots
from fedbench.reports.numbers.measured import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.planner.table.spec import Column, Table
    from fedbench.planner.table.spec import Row as TableRow
    from fedbench.reports.layout.grid import Entry
    from fedbench.results.frame import Frame


@dataclass(frozen=True)
class Way:
    """How cells become points of lines."""

    #: The title of a cell's panel, the name of its line, and the names of all lines of the panel.
    place: Callable[[Table, TableRow, Column], tuple[str, str, Sequence[str]]]
    #: The x of a cell at a budget, None if it holds at every x. None: the points have an x each.
    x: Callable[[Table, TableRow, Column, SeriesSpec, str], float | None] | None
    error: Callable[[Value], float | None]  #: half the length of an error bar
    columns: tuple[str, ...]
    of_figure: tuple[str, ...]
    of_panel: tuple[str, ...] = ("table", "unit", "lines", "rounds", "gaps")
    names: tuple[str, str, str, str] = ("line", "x", "mean", "error")  #: of line, x, y and error in rows
    options: tuple[str, ...] = ("budget", "seed")


def _by_row(table: Table, row: TableRow, column: Column) -> tuple[str, str, Sequence[str]]:
    return column.group, row.label, [r.label for r in table.rows]


def _by_heading(table: Table, row: TableRow, column: Column) -> tuple[str, str, Sequence[str]]:
    return column.label, column.group, list(dict.fromkeys(c.group for c in table.printed))


def _by_column(table: Table, row: TableRow, column: Column) -> tuple[str, str, Sequence[str]]:
    """A panel per column and a line per row; of a table of one row, a panel per heading and a line per column."""
    if len(table.rows) == 1:
        return column.group, column.label, list(dict.fromkeys(c.label for c in table.printed))
    shared = sum(c.label == column.label for c in table.printed) > 1
    return f"{column.group}, {column.label}" if shared else column.label, row.label, [r.label for r in table.rows]


def _of_partition(table: Table, row: TableRow, column: Column, axis: SeriesSpec, budget: str) -> float | None:
    """Raises FedbenchError if the column's partitions do not share one value."""
    by_name = {c.key: c for c in table.columns}
    values = {by_name[key].partition.get(axis.x) for key in column.of or [column.key]}
    if len(values) != 1 or (place := axis.at(values.pop())) is None:
        raise FedbenchError(f"{table.path}, column {column.key} has no single {axis.x}", "give its partitions one")
    return place


def _of_row(table: Table, row: TableRow, column: Column, axis: SeriesSpec, budget: str) -> float | None:
    """None for a row that does not set it, so that the method chooses."""
    value = row.params.get(axis.x, row.train.get(axis.x))
    if value is not None and axis.at(value) is None:
        there = f"one of {', '.join(axis.values.values())}" if axis.values else "a number"
        raise FedbenchError(f"{table.path}, row {row.label}: {axis.x} must be {there}, not {value!r}")
    return axis.at(value)


def _of_epochs(table: Table, row: TableRow, column: Column, axis: SeriesSpec, budget: str) -> float | None:
    """Raises FedbenchError for a column that trains by local steps."""
    from fedbench.planner.settings import sketch

    epochs = sketch(table, column, budget, row).epochs
    if epochs is None:
        raise FedbenchError(f"{table.path}, column {column.key} has no local epochs", "give it train.epochs")
    return epochs


def _standard_error(value: Value) -> float | None:
    """Over the seeds, as in FLUX's figures (App. D.1)."""
    return None if value.std is None else value.std / math.sqrt(value.seeds)


_LINES = ("panel", "table", "budget", "line", "axis", "x", "mean", "std", "error", "seeds")
_PAPERS = ("reported", "reported_std", "runs", "machine")
_ABOUT = ("tables", "budget", "axis", "missing")
_COMPARED = ("budget", "seed", "compare")
_SPREAD = ("mean", "std", "clients", "weighted", "unweighted", "seeds", "seed_std")
WAYS: Mapping[str, Way] = {
    "series": Way(_by_row, _of_partition, lambda v: v.std, (*_LINES, *_PAPERS), _ABOUT, options=_COMPARED),
    "sweep": Way(_by_heading, _of_row, _standard_error, (*_LINES, *_PAPERS), _ABOUT, options=_COMPARED),
    "epochs": Way(
        _by_row,
        _of_epochs,
        lambda v: v.seed_std,  # the spread over clients is not an error of the mean, and is wider than the picture
        ("panel", "budget", "row", "rounds", "epochs", *_SPREAD, "runs"),
        ("table", "budget", "missing"),
        of_panel=("unit", "lines", "gaps"),
        names=("row", "epochs", "mean", "seed_std"),
    ),
    "rounds": Way(
        _by_column,
        None,
        lambda v: None,
        ("panel", "table", "budget", "line", "round", "value", "run"),
        ("tables", "budget"),
        names=("line", "round", "value", ""),
    ),
}


class Cells(Kind):
    """Lines over an axis; missing cells break them. With `compare`, the paper's numbers stand beside ours, except
    doubtful ones. With `changes`, panels of the change per round follow."""

    names = tuple(WAYS)
    needs = "series"

    def __init__(self, spec: FigureSpec) -> None:
        super().__init__(spec)
        assert spec.series is not None
        self.axis, self.way = spec.series, WAYS[spec.kind]
        if self.axis.range and not (len(self.axis.range) == 2 and self.axis.range[0] < self.axis.range[1]):
            raise FedbenchError(f"figure {spec.id}: range must be two numbers, the lower one first", "range = [0, 100]")
        self.options, self.columns = self.way.options, self.way.columns
        self.of_figure, self.of_panel = self.way.of_figure, self.way.of_panel

    def rows(self, request: Request) -> list[Row]:
        """Remarks on missing cells. Raises FedbenchError without any point along the axis."""
        budget = source.budget_of(self.axis.tables.values(), request)
        tables = {heading: source.filled(name, budget, request) for heading, name in self.axis.tables.items()}
        read = [self._read(of, heading, request) for heading, of in tables.items()]
        rows = [row for shown, _, _ in read for row in shown]
        self._check(rows, [*tables.values()])
        for of, (_, missing, others) in zip(tables.values(), read, strict=True):
            source.say(self.spec, request, of, missing, others)
        names = list(dict.fromkeys(row["table"] for row in rows))
        about = {
            "tables": names,
            "table": names[0],
            "axis": self.axis.x,
            "missing": [cell for _, missing, _ in read for cell in missing],
        }
        about = {name: value for name, value in about.items() if name in self.of_figure}
        verdicts = [_under(heading, ours) for heading, of in tables.items() for ours, _ in of.grid.verdicts]
        about |= {"budget": budget, "cells": source.counted([*tables.values()]), **claims_of(verdicts)}
        if self.axis.changes:
            rows += [row for panel in self.panels(rows) for row in _changes(panel)]
        rows = [row | about for row in rows]
        for panel in self.panels(rows):
            request.say(self._words(panel))
            if len(machines := _machines(panel)) > 1:
                request.remark(f"{panel[0]['panel']}: a line breaks between machines: {'; '.join(machines)}")
        return rows

    def _read(self, of: source.Filled, heading: str, request: Request) -> tuple[list[Row], list[str], list[str]]:
        """A table's points, its missing cells, and its cells that have a number but are not done."""
        from fedbench.planner.settings import sketch
        from fedbench.results.run import State

        table, grid, way = of.table, of.grid, self.way
        line, at, *_ = way.names
        rounds = sorted({sketch(table, column, of.budget).rounds for column in table.measured})
        panels: dict[str, tuple[Row, list[Row]]] = {}  # title -> facts, points
        missing, others = [], []
        rows = {row.label: row for row in table.rows}
        cells = [(label, k) for label in grid.lines if label.in_table for k in range(len(grid.heads))]
        for of_row, k in cells if way.x else sorted(cells, key=itemgetter(1)):
            row, column, entry = rows[of_row.label], table.printed[k], of_row.entries[k]
            title, name, lines = way.place(table, row, column)
            title = f"{heading}, {title[:1].lower()}{title[1:]}" if heading else title
            about: Row = {"panel": title, "table": table.id, "unit": grid.heads[k].unit, "lines": list(lines)}
            about |= {"gaps": {}} | ({"rounds": rounds} if "rounds" in self.of_panel else {})
            about, points = panels.setdefault(title, (about, []))
            cell = f"{row.label} at {column.key} ({entry.state})"
            reported = table.trusted.get((row.label, column.key)) if request.compare else None
            x = way.x(table, row, column, self.axis, of.budget) if way.x else None
            if entry.value is None and x is not None:
                about["gaps"].setdefault(name, []).append(x)
            if entry.value is None and entry.state is State.UNDEFINED and not reported:
                continue
            if entry.value is None and entry.state is not State.UNDEFINED:
                missing.append(cell)
            elif entry.value is not None and entry.state not in (State.DONE, State.PARTIAL):
                others.append(cell)
            if way.x is None and entry.value is not None:
                by_round, gaps = _by_round(of, row, column, entry, request.frame)
                points += [{line: name, at: t, "value": v, "run": entry.runs[0]} for t, v in by_round.items()]
                about["gaps"][name] = gaps
            elif entry.value is not None or reported:
                numbers = self._numbers(of, row, column, entry, reported, about["unit"], request.frame)
                points.append({line: name, at: x, **numbers})
        made = []
        for about, points in panels.values():
            about["gaps"] = {name: own for name, xs in about["gaps"].items() if (own := _inside(xs, points, name, way))}
            for of_line in by_line(points, line).values():
                of_line.sort(key=lambda point: math.inf if point[at] is None else point[at])
                made += [about | point for point in of_line]
        return made, missing, others

    def _numbers(
        self,
        of: source.Filled,
        row: TableRow,
        column: Column,
        entry: Entry,
        reported: tuple[float, float | None] | None,
        unit: str,
        frame: Frame,
    ) -> Row:
        """A cell's numbers, in the panel's unit; of a time also the machine that it was measured on (a CPU, or the name
        of a GPU). Standard deviations have ddof 1; `std` is the table's own ±."""
        from fedbench.planner.settings import sketch

        values: Row = {}
        if self.spec.kind == "epochs" and (v := entry.value):
            values = {"rounds": None if column.of else sketch(of.table, column, of.budget, row).rounds}
            values |= {"mean": v.mean, "std": v.std, "clients": v.count, "weighted": v.weighted}
            values |= {"unweighted": v.unweighted, "seeds": v.seeds, "seed_std": v.seed_std}
        elif v := entry.value:
            values = {"mean": v.mean, "std": v.std, "error": self.way.error(v), "seeds": v.seeds}
        if reported:
            values |= {"reported": reported[0], "reported_std": reported[1]}
        values["runs"] = list(entry.runs)
        if entry.runs and unit == _SECONDS:
            devices = {str(frame.named(id).provenance.get("device", "cpu")) for id in entry.runs}
            values["machine"] = " and ".join(sorted("CPU" if device == "cpu" else device for device in devices))
        return values

    def _check(self, rows: list[Row], tables: Sequence[source.Filled]) -> None:
        """Raise FedbenchError if no point lies along the axis; levels, which hold at every x, do not count."""
        if any(row[self.way.names[1]] is not None for row in rows):
            return
        one, first = len(tables) == 1, tables[0]
        names = f"table {first.table.id}" if one else f"tables {', '.join(f.table.id for f in tables)}"
        places = " along its axis" if rows else ""
        raise FedbenchError(
            f"no cell of {names}{places} is measured at budget {first.budget}, and {self.spec.id} shows nothing else",
            "; ".join(dict.fromkeys(why for f in tables for why in f.absent)) or f"make them: {first.command}",
        )

    def _words(self, panel: list[Row]) -> str:
        """A panel's lines in words: those that the figure is about, or all."""
        line, x, y, _ = self.way.names
        lines, parts = by_line(panel, line), []
        unit = f" ({panel[0]['unit']})" if panel[0]["unit"] else ""
        about = f"{panel[0]['panel']}{unit}, budget {panel[0]['budget']}"
        if self.way.x is None:
            ends = "; ".join(f"{name} {points[-1][y]:.4g}" for name, points in lines.items())
            return f"{about}, after the last round: {ends}"
        for name in [n for n in self.axis.bold if n in lines] or lines:
            measured = [(row[x], row[y]) for row in lines[name] if y in row]
            digits = 2 if panel[0]["unit"] else 3
            numbers = [f"{mean:.{digits}f} ({'own' if at is None else self.axis.tick(at)})" for at, mean in measured]
            parts.append(f"{name} {', '.join(numbers) or 'not measured'}")
        return f"{about}, by {self.axis.x}: {'; '.join(parts)}"

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw a table's panels in a row, or of several tables a column each; changes below what changes. Raises
        FedbenchError for too few points."""
        _, x, y, _ = self.way.names
        points = sum(row[x] is not None and (y in row or "reported" in row) for row in rows)
        tables = dict.fromkeys(row["table"] for row in rows)
        more = "; ".join(f"fedbench train --table {name} --budget {rows[0]['budget']}" for name in tables)
        enough(points, self.spec, f"make more: {more}")
        panels = self.panels(rows)
        groups = [*by_key((self._without_heading(panel), panel) for panel in panels).values()]
        if self.axis.changes:
            groups = [panels[: len(panels) // 2], panels[len(panels) // 2 :]]
        wide = across(figure, max(map(len, groups)), *([_LEAST_WIDTH] if len(tables) > 1 else []))
        placed = [part for group in groups for part in _parts(group, wide)]
        bold, every = self.axis.bold, list(dict.fromkeys(name for panel in panels for name in panel[0]["lines"]))
        looks = line_looks(every, bold, dashed=self.way.x is None)
        if self.way.x is None and len({row["round"] for row in rows}) < _FEW:
            looks = {name: {**look, "marker": "."} for name, look in looks.items()}
        rings = _rings(rows)
        grid = subplots(figure, len(placed), wide)
        of_table: dict[str, list[Axes]] = {}  # its panels of accuracies
        for axes_row, group in zip(grid, placed, strict=True):
            for i, (axes, panel) in enumerate(zip(axes_row, group, strict=False)):
                self._panel(axes, panel, looks, rings)
                unit = panel[0]["unit"]
                if unit in ("%", ""):
                    of_table.setdefault(panel[0]["table"], []).append(axes)
                if i == 0 or unit != group[i - 1][0]["unit"]:
                    # Panels of rounds are named after metrics.
                    axes.set_ylabel(str(self.axis.y or (_QUANTITIES.get(unit, unit) if self.way.x else unit)))
                if i >= len(placed[-1]) or group is placed[-1]:
                    axes.set_xlabel(self.axis.label)
            for axes in axes_row[len(group) :]:
                axes.set_visible(False)
        for shown in of_table.values() if bold and self.way.x else ():  # without bold lines, panels are data sets
            _on_one_axis(shown, self.axis.range)
        figure.suptitle(self._heading(rows))
        name_ends(figure, grid, [*self._handles(rows, {name: looks[name] for name in every})])

    def _without_heading(self, panel: list[Row]) -> str:
        """What a panel's title says below the heading of its table; "" for the panels of a single table."""
        title = str(panel[0]["panel"])
        heads = (f"{heading}, " for heading in self.axis.tables if heading)
        return next((title.removeprefix(head) for head in heads if title.startswith(head)), "")

    def _handles(self, rows: list[Row], looks: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
        line, x, y, _ = self.way.names
        drawn = {row[line] for row in rows}
        yield from (handle(name, **look) for name, look in looks.items() if name in drawn)
        if any(row[x] is None for row in rows):
            yield handle("own choice", color="0.2", linewidth=0.9, linestyle="--")
        lines = by_key(((row["panel"], row[line]), row) for row in rows).values()
        measured = {_along(points, x, y) for points in lines if any("reported" in row for row in points)}
        yield from (handle(f"on {name}", **ring) for name, ring in _rings(rows).items())
        if True in measured:
            yield handle("the paper's", color="0.2", **_TICK)
        if False in measured:
            yield handle("the paper's, not measured", color="0.2", **_REPORTED)

    def _heading(self, rows: list[Row]) -> str:
        """The figure's title, with the budget, rounds and seeds of its runs."""
        of_panels = (row.get("rounds", []) for row in rows)
        rounds = sorted({n for of in of_panels for n in (of if isinstance(of, list) else [of]) if n is not None})
        seeds = sorted({row.get("seeds", 1) for row in rows if self.way.names[2] in row})
        if not seeds:
            return f"{self.spec.title} (as the paper reports it)"
        each = ((rounds, "round"), (seeds, "seed"))
        runs = ", ".join(f"{' or '.join(map(str, of))} {noun}{'s' * (of != [1])}" for of, noun in each)
        return f"{self.spec.title} (budget {rows[0]['budget']}, {runs})"

    def _panel(
        self,
        axes: Axes,
        panel: list[Row],
        looks: Mapping[str, dict[str, Any]],
        rings: Mapping[str, Mapping[str, Any]],
    ) -> None:
        from matplotlib.ticker import MaxNLocator

        line, at, y, bar = self.way.names
        gaps = panel[0]["gaps"]
        xs = sorted({*(row[at] for row in panel if row[at] is not None), *chain(*gaps.values())})
        places = dict(zip(xs, _places(xs, self.axis.scale), strict=True))
        least = min((b - a for a, b in pairwise(places.values())), default=0.0)
        spread = any(row.get(bar) for row in panel)
        lines = by_line(panel, line)
        measured = {name: _measured(points, self.way.names, gaps.get(name, [])) for name, points in lines.items()}
        if not spread:  # with error bars, equal lines are shifted
            looks = {**looks, **distinct_looks({n: points for n, points in measured.items() if points}, looks)}
        for i, (name, points) in enumerate(lines.items()):
            look = looks[name]
            aside = _SHIFT * least * ((i + 0.5) / len(lines) - 0.5) if spread else 0.0
            placed = [(places[x] + aside, *rest) for x, *rest in measured[name]]
            if placed:
                x, means, errors = zip(*placed, strict=True)
                axes.plot(x, means, **look, label=name)
                if any(error > 0 for error in errors):
                    bold = name in self.axis.bold
                    bars = {"color": look["color"], "linestyle": "none", "capsize": 1.5, "capthick": 0.6, "zorder": 2}
                    axes.errorbar(x, means, errors, **bars, linewidth=1.0 if bold else 0.6, alpha=0.75)
            for row in points:
                if row[at] is None and y in row:
                    axes.axhline(row[y], color=look["color"], linewidth=0.9, linestyle="--", zorder=1)
            there = [row for row in points if row[at] is not None and "reported" in row]
            reported = [(places[row[at]] + aside, row["reported"]) for row in there]
            if reported:
                faint = _TICK if _along(points, at, y) else {"marker": look["marker"], "markersize": 2, **_REPORTED}
                axes.plot(*zip(*reported, strict=True), color=look["color"], alpha=0.8, zorder=2, **faint)
            for row in points:
                if ring := rings.get(row.get("machine", "")):
                    axes.plot(places[row[at]] + aside, row[y], **ring)
        if self.way.x:
            labels = [self.axis.tick(x) for x in places]
            look = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _tight(axes, places, labels) else {}
            axes.set_xticks(list(places.values()), labels, **look)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_title(panel[0]["panel"])
        axes.margins(x=0.05)
        axes.grid(axis="y")
        if self.way.x:
            _limits(axes, panel[0]["unit"], [row[y] for row in panel if y in row])


def _parts(panels: Sequence[list[Row]], wide: int) -> list[Sequence[list[Row]]]:
    return [panels[i : i + wide] for i in range(0, len(panels), wide)]


def _inside(gaps: Iterable[float], points: Iterable[Row], name: str, way: Way) -> list[float]:
    """Those of a line's gaps that lie between two of its measured points."""
    line, at, y, _ = way.names
    there = [row[at] for row in points if row[line] == name and row[at] is not None and y in row]
    return sorted(x for x in gaps if there and min(there) < x < max(there))


def _by_round(
    of: source.Filled, row: TableRow, column: Column, entry: Entry, frame: Frame
) -> tuple[dict[int, float], list[float]]:
    """The column's metric after each round of the cell's first run, and the rounds after which that was evaluated
    without it. Raises FedbenchError if it has none."""
    metrics, column = frame.named(entry.runs[0]).metrics, row.reads(column)
    view = str(of.table.view) if of.table.view in metrics.views else "plain"
    factor = UNITS[str(column.unit)][0]
    by_round = {t: v * factor for t, v in metrics.series(str(column.metric), view).items() if t}
    if column.of or column.client or not by_round:
        what = f"{of.table.path}, column {column.key} is no metric of the federation that each round has"
        raise FedbenchError(what, "hidden = true leaves it out")
    asked = metrics.evaluated(view) if all_metrics()[str(column.metric)].by_view else set()
    return by_round, [float(t) for t in asked - by_round.keys()]


def _changes(panel: list[Row]) -> Iterator[Row]:
    """Each line's change per round, from one point to the next."""
    for points in by_line(panel).values():
        for a, b in pairwise(points):
            change = (b["value"] - a["value"]) / (b["round"] - a["round"])
            yield b | {"panel": f"{b['panel']}, change a round", "value": change}


def _under(heading: str, verdict: Verdict) -> Verdict:
    """The verdict, with the table's heading in front of its text."""
    if not heading:
        return verdict
    return dataclasses.replace(
        verdict, claim=dataclasses.replace(verdict.claim, text=f"{heading}: {verdict.claim.text}")
    )


def _machines(rows: Iterable[Row]) -> list[str]:
    """The kinds of machines that times were measured on, the most frequent first."""
    return [name for name, _ in Counter(row["machine"] for row in rows if "machine" in row).most_common()]


def _rings(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """What is drawn around the times of each machine but the most frequent one."""
    return {name: {**_RING, "markersize": 8.0 + 3 * i} for i, name in enumerate(_machines(rows)[1:])}


def _measured(points: Iterable[Row], names: tuple[str, ...], gaps: Iterable[float]) -> list[tuple[float, float, float]]:
    """(x, mean, half an error bar) of a line's measured points, by x, with a break where a cell is missing between them
    or two of them are times of different machines."""
    _, x, y, bar = names
    own = sorted((row for row in points if row[x] is not None and y in row), key=itemgetter(x))
    there = [(row[x], row[y], row.get(bar) or 0.0) for row in own]
    between = [(a[x], math.nan, 0.0) for a, b in pairwise(own) if a.get("machine") != b.get("machine")]
    return sorted([*broken(there, gaps), *between], key=itemgetter(0))


def _along(points: Iterable[Row], x: str, y: str) -> bool:
    """Whether a line has a measured point along the axis."""
    return any(row[x] is not None and y in row for row in points)


#: Lines of fewer rounds than this have dots.
_FEW = 30
#: The unit of times.
_SECONDS = "s"
#: Unit -> what has it, on the y axis; else the unit stands there alone.
_QUANTITIES = {"": "accuracy", "%": "accuracy (%)", "s": "seconds"}
#: The paper's numbers: ticks if the line is also measured, so that it is not drawn twice, else a dotted line.
_TICK: dict[str, Any] = {"linestyle": "none", "marker": "_", "markersize": 8, "markeredgewidth": 1.1}
_REPORTED: dict[str, Any] = {"linewidth": 0.7, "linestyle": ":"}
#: Around a time that was measured on another machine than most.
_RING: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markerfacecolor": "none",
    "color": "0.35",
    "zorder": 5,
    "clip_on": False,
}
#: Lines with error bars are shifted along x, within this share of the smallest distance between points.
_SHIFT = 0.36
#: Seconds get a logarithmic axis if the largest is more than so many times the smallest.
_LOG_FROM = 4.0
#: Width of the narrowest panel of several tables, in inches: four of them stand side by side on a page.
_LEAST_WIDTH = 1.35
#: Smallest range of an accuracy axis, in percentage points.
_LEAST_RANGE = 4.0


def _tight(axes: Axes, places: Mapping[float, float], labels: Sequence[str]) -> bool:
    """Whether labels of neighbouring ticks may touch, by the letters that there is room for."""
    grid, at = axes.get_subplotspec(), list(places.values())
    if grid is None or len(at) < 2:
        return False
    columns = grid.get_gridspec().ncols
    beside = 0.35 + 0.3 / columns  # inches of each column for what stands beside its axes
    inches = (axes.figure.bbox.width / axes.figure.dpi / columns - beside) / (at[-1] - at[0])
    near = zip(pairwise(at), pairwise(labels), strict=True)
    return any((b - a) * inches < 0.032 * len(one + other) + 0.03 for (a, b), (one, other) in near)


def _limits(axes: Axes, unit: str, means: Sequence[float]) -> None:
    """The range of the y axis: not so small that it magnifies negligible differences, and from 0 for what is no
    accuracy."""
    low, high = axes.get_ylim()
    if unit == "%" and high - low < _LEAST_RANGE:
        axes.set_ylim((low + high - _LEAST_RANGE) / 2, (low + high + _LEAST_RANGE) / 2)
    if unit in ("%", ""):
        return
    if unit == "s" and min(means, default=0) > 0 and max(means) > _LOG_FROM * min(means):
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


def _on_one_axis(panels: Sequence[Axes], least: tuple[float, ...]) -> None:
    """Give a table's panels of accuracies the same y range, which is at least (low, high) if these are given."""
    ends = [*(axes.get_ylim() for axes in panels), *([least] if least else [])]
    for axes in panels:
        axes.set_ylim(max(0.0, min(end[0] for end in ends)), min(101.0, max(end[1] for end in ends)))
