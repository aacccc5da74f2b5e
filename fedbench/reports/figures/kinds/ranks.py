"""Average ranks over data sets and partitions; if these outnumber the methods, as a critical-difference diagram
(Demšar, JMLR 2006, Figure 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.reports.compare.ranks import Ranks, of_tables, ranked
from fedbench.reports.compare.significance import LEVEL, neighbours
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row, by_line
from fedbench.reports.figures.style import INCHES_A_LETTER, ink, named, short, subplots, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Ranking(Kind):
    """Methods along an axis of ranks. If there are more places (data sets and partitions) than methods, a bar joins
    methods between which Nemenyi's test finds no difference."""

    names = ("ranks",)
    title = "Average ranks over data sets and partitions"
    options = ("filters", "metric", "by", "view", "budget")
    columns = ("metric", "line", "average_rank", "place", "value", "rank")
    of_figure = ("metric",)
    of_panel = ("chi2", "f", "p", "level", "critical_difference", "alike")
    one_column = False

    def rows(self, request: Request) -> list[Row]:
        """A row per method and place: the ranks in tables, or of the runs that the filters select; and Friedman's test,
        the critical difference, and the sets of lines that differ by less.

        Raises FedbenchError as `runs.select`, `ranks.ranked` and `ranks.of_tables` do, and for an option of runs if the
        figure is of tables, or the reverse."""
        figure = self.spec
        for name in request.options:
            if (name == "budget") is not bool(figure.ranked):
                what = "the table's own rows" if figure.ranked else "any runs"
                raise FedbenchError(f"--{name} does not go with {figure.id}, which ranks {what}", "leave it out")
        if figure.ranked:
            budget = source.budget_of(figure.ranked, request)
            filled = [source.filled(name, budget, request) for name in figure.ranked]
            for one in filled:
                source.say(figure, request, one, [], [])
            ranks, cells = of_tables([(one.table, one.grid) for one in filled]), {"cells": source.counted(filled)}
        else:
            ranks, cells = ranked(request.runs(), request.metric, request.by or (), request.seen()), {}
        for text in ranks.left_out:
            request.remark(f"left out: {text}")
        if ranks.mixed:
            request.remark(f"a line is a mean over runs that differ in {', '.join(ranks.mixed)}, too")
        _say(ranks, request)
        result = ranks.result
        about: Row = {
            "metric": ranks.number.name,
            "panel": ranks.number.label,
            **cells,
            "chi2": result.chi2,
            "f": None if result.f == float("inf") else result.f,
            "p": result.p,
            "level": LEVEL,
            "critical_difference": result.difference,
            "alike": [[ranks.lines[j] for j in members] for members in result.indistinguishable],
        }
        rows = []
        for j, (line, average) in enumerate(zip(ranks.lines, result.average.tolist(), strict=True)):
            for i, place in enumerate(ranks.places):
                value, rank = float(ranks.values[i, j]), float(result.ranks[i, j])
                of_line = {"line": line, "average_rank": average}
                rows.append({**about, **of_line, "place": place, "value": value, "rank": rank})
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw ranks from left (best) to right; the names of the better half are on the left. Where no critical
        difference is meaningful, a heat map of the values says more, as on the site."""
        average = {line: of[0]["average_rank"] for line, of in by_line(rows).items()}
        places = len({row["place"] for row in rows})
        of, half = rows[0], (len(average) + 1) // 2
        letters = int(_SHARE * figure.get_figwidth() / INCHES_A_LETTER)
        names = {line: wrapped(line, letters) for line in average}
        each = 1 + max(name.count("\n") for name in names.values())  # lines of text
        if places > len(average):
            ((axes,),) = subplots(figure, 1, 1, tall=1.1 + 0.17 * half * each + 0.12 * len(of["alike"]))
            _paint(axes, average, names, each, of["critical_difference"], of["alike"])
        else:
            names = {line: wrapped(named(line), letters) for line in average}
            above = [short(place, 30) for place in dict.fromkeys(row["place"] for row in rows)]
            long = INCHES_A_LETTER * max(map(len, above))
            left = INCHES_A_LETTER * (5 + max(len(part) for name in names.values() for part in name.split("\n")))
            # Slanted, the last name reaches over the right side.
            slope = _SLOPE if figure.get_figwidth() - left - long * math.cos(_SLOPE) > _CELL * places else math.pi / 2
            tall = 0.5 + long * math.sin(slope) + 0.155 * len(average) * each
            ((axes,),) = subplots(figure, 1, 1, tall=tall)
            _heat(axes, rows, average, names)
            axes.set_xticks(range(places), map(named, above), rotation=math.degrees(slope), ha="left")
        figure.suptitle(
            f"{of['panel']}: average rank over {places} data sets and partitions (Friedman p {of['p']:.2g})"
        )


def _say(ranks: Ranks, request: Request) -> None:
    """The ranks and the tests in words."""
    result = ranks.result
    request.say("Average ranks: " + ", ".join(f"{ranks.lines[j]} {result.average[j]:.2f}" for j in ranks.order))
    pairs = f"Nemenyi's critical difference {result.difference:.2f} at {LEVEL}"
    pairs = pairs if ranks.critical else neighbours(ranks.values, ranks.order)
    request.say(
        f"Friedman over {len(ranks.places)} data sets and partitions: chi squared {result.chi2:.2f}, F "
        f"{result.f:.2f}, p {result.p:.3g}; {pairs}"
    )
    if result.p > LEVEL:
        request.say(f"p is above {LEVEL}: the ranks tell no difference between any two.")


#: A line's name takes at most so much of the width.
_SHARE = 0.36
#: How names above columns are slanted, in radians; the least width of a column that needs no upright names, in inches.
_SLOPE, _CELL = math.radians(35), 0.4
#: Shades of ranks, from the best to the worst.
_BEST, _WORST = "#0072B2", "#FFFFFF"


def _heat(axes: Axes, rows: list[Row], average: dict[str, float], names: dict[str, str]) -> None:
    """Draw a row per line, by average rank, and a column per place: the value, darker for a better rank there."""
    from matplotlib.colors import LinearSegmentedColormap

    lines, places = sorted(average, key=lambda line: average[line]), list(dict.fromkeys(row["place"] for row in rows))
    at = {(row["line"], row["place"]): row for row in rows}
    ranks = [[at[line, place]["rank"] for place in places] for line in lines]
    shades = LinearSegmentedColormap.from_list("ranks", [_BEST, _WORST])
    axes.imshow(ranks, cmap=shades, vmin=1, vmax=len(lines), aspect="auto")
    digits = 1 if max(abs(row["value"]) for row in rows) > 1 else 3
    for i, line in enumerate(lines):
        for j, place in enumerate(places):
            shade = ink(shades((ranks[i][j] - 1) / max(1, len(lines) - 1)))
            axes.text(j, i, f"{at[line, place]['value']:.{digits}f}", ha="center", va="center", color=shade)
    axes.set_yticks(range(len(lines)), [f"{names[line]}  {average[line]:.1f}" for line in lines])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _paint(
    axes: Axes, average: dict[str, float], names: dict[str, str], each: int, critical: float, alike: list[list[str]]
) -> None:
    """Draw ranks along x; y counts lines of text downwards from the axis at 0, `each` a name."""
    k = len(average)
    half, bars = (k + 1) // 2, 0.5 * len(alike)
    width = max(k - 1, 1)
    black: dict[str, Any] = {"color": "black", "linewidth": 0.8, "clip_on": False}
    axes.plot([1, k], [0, 0], **black)
    step = 1 if k <= 20 else 5  # more numbers would overlap
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, -0.25], **black)
        if rank == 1 or rank % step == 0:
            axes.text(rank, -0.4, str(rank), ha="center", va="bottom")
    wide = 1 + critical
    axes.plot([1, wide], [-1.6, -1.6], marker="|", **black)
    axes.text((1 + wide) / 2, -1.75, f"CD = {critical:.2f}", ha="center", va="bottom")
    for place, (line, x) in enumerate(sorted(average.items(), key=lambda one: one[1])):
        left = place < half
        y = 1 + bars + each * (place if left else k - 1 - place)
        end = 1 - 0.08 * width if left else k + 0.08 * width
        axes.plot([x, x, end], [0, y, y], **black)
        text = f"{names[line]}  {x:.2f}" if left else f"{x:.2f}  {names[line]}"
        gap = -0.015 * width if left else 0.015 * width
        axes.text(end + gap, y, text, ha="right" if left else "left", va="center")
    for i, members in enumerate(alike):
        y = 0.5 + 0.5 * i
        ends = [average[members[0]] - 0.01 * width, average[members[-1]] + 0.01 * width]
        axes.plot(ends, [y, y], color="black", linewidth=3.2)
    axes.set_xlim(1 - 0.1 * width, max(k, wide) + 0.1 * width)
    axes.set_ylim(1.4 + bars + each * half, -2.6)
    axes.set_axis_off()
