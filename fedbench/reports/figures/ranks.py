"""Average ranks over data sets and partitions; if these outnumber the methods, as a critical-difference diagram
(Demšar, JMLR 2006, Figure 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.reports.compare.ranks import Ranks, of_tables, ranked
from fedbench.reports.compare.significance import LEVEL, neighbours
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Ranking(Kind[Ranks]):
    """Methods along an axis of ranks. If there are more places (data sets and partitions) than methods, a bar joins
    methods between which Nemenyi's test finds no difference."""

    options = ("filters", "metric", "by", "view", "budget")
    columns = ("metric", "line", "average_rank", "place", "value", "rank")

    def check(self, figure: FigureSpec, request: Request) -> None:
        """As `Kind.check`; also refuse options of runs for a figure of tables, and the reverse."""
        super().check(figure, request)
        for name in request.options:
            if (name == "budget") is not bool(figure.ranked):
                what = "the table's own rows" if figure.ranked else "any runs"
                raise FedbenchError(f"--{name} does not go with {figure.id}, which ranks {what}", "leave it out")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Ranks]:
        """The ranks in tables, or of the runs that the filters select. Raises FedbenchError as `runs.select`,
        `ranks.ranked` and `ranks.of_tables` do."""
        if figure.ranked:
            budget = source.budget_of(figure.ranked, request)
            filled = [source.filled(name, budget, request) for name in figure.ranked]
            for one in filled:
                source.say(figure, request, one, [], [])
            ranks, cells = of_tables([(one.table, one.grid) for one in filled]), source.counted(filled)
        else:
            view = request.seen()
            ranks, cells = ranked(request.runs(), request.metric, request.by or (), view), None
        for text in ranks.left_out:
            request.remark(f"left out: {text}")
        if ranks.mixed:
            request.remark(f"a line is a mean over runs that differ in {', '.join(ranks.mixed)}, too")
        return Content([Panel(ranks.number.label, {}, ranks)], {"metric": ranks.number.name}, cells=cells)

    def rows(self, marks: Ranks) -> Iterator[Mapping[str, Any]]:
        """One row per method and place."""
        for j, (line, average) in enumerate(zip(marks.lines, marks.result.average.tolist(), strict=True)):
            for i, place in enumerate(marks.places):
                value, rank = float(marks.values[i, j]), float(marks.result.ranks[i, j])
                yield {"line": line, "average_rank": average, "place": place, "value": value, "rank": rank}

    def summary(self, marks: Ranks) -> Mapping[str, Any]:
        """Friedman's test, the critical difference, and the sets of lines that differ by less."""
        result = marks.result
        return {
            "chi2": result.chi2,
            "f": None if result.f == float("inf") else result.f,
            "p": result.p,
            "level": LEVEL,
            "critical_difference": result.difference,
            "alike": [[marks.lines[j] for j in members] for members in result.indistinguishable],
        }

    def words(self, figure: FigureSpec, content: Content[Ranks]) -> Iterable[str]:
        for panel in content.panels:
            marks, result = panel.marks, panel.marks.result
            yield "Average ranks: " + ", ".join(f"{marks.lines[j]} {result.average[j]:.2f}" for j in marks.order)
            pairs = f"Nemenyi's critical difference {result.difference:.2f} at {LEVEL}"
            pairs = pairs if marks.critical else neighbours(marks.values, marks.order)
            yield (
                f"Friedman over {len(marks.places)} data sets and partitions: chi squared {result.chi2:.2f}, F "
                f"{result.f:.2f}, p {result.p:.3g}; {pairs}"
            )
            if result.p > LEVEL:
                yield f"p is above {LEVEL}: the ranks tell no difference between any two."

    def paint(self, figure: FigureSpec, content: Content[Ranks]) -> Figure:
        """Draw ranks from left (best) to right; the names of the better half are on the left."""
        (panel,) = content.panels
        k = len(panel.marks.lines)
        half = (k + 1) // 2
        picture, ((axes,),) = subplots(
            (max(6.4, 0.2 * k + 3.0), 1.2 + 0.2 * half + 0.12 * len(_bars(panel.marks))), 1, 1
        )
        _paint(axes, panel.marks)
        result = panel.marks.result
        picture.suptitle(
            f"{panel.title}: average rank over {len(panel.marks.places)} data sets and partitions (Friedman p "
            f"{result.p:.2g})",
            fontsize=8,
        )
        return picture


def _bars(marks: Ranks) -> Sequence[tuple[int, ...]]:
    """The sets of methods that a bar joins."""
    return marks.result.indistinguishable if marks.critical else ()


def _paint(axes: Axes, marks: Ranks) -> None:
    """Draw ranks along x; y counts lines of text downwards from the axis at 0."""
    result, k = marks.result, len(marks.lines)
    half, bars = (k + 1) // 2, 0.5 * len(_bars(marks))
    width = max(k - 1, 1)
    black: dict[str, Any] = {"color": "black", "linewidth": 0.8, "clip_on": False}
    axes.plot([1, k], [0, 0], **black)
    step = 1 if k <= 20 else 5  # more numbers would overlap
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, -0.25], **black)
        if rank == 1 or rank % step == 0:
            axes.text(rank, -0.4, str(rank), ha="center", va="bottom")
    wide = 1 + result.difference if marks.critical else 1
    if marks.critical:
        axes.plot([1, wide], [-1.6, -1.6], marker="|", **black)
        axes.text((1 + wide) / 2, -1.75, f"CD = {result.difference:.2f}", ha="center", va="bottom", fontsize=7)
    for place, j in enumerate(marks.order):
        left = place < half
        row = place if left else k - 1 - place
        y, x = 1 + bars + row, float(result.average[j])
        end = 1 - 0.08 * width if left else k + 0.08 * width
        axes.plot([x, x, end], [0, y, y], **black)
        text = f"{marks.lines[j]}  {x:.2f}" if left else f"{x:.2f}  {marks.lines[j]}"
        gap = -0.015 * width if left else 0.015 * width
        axes.text(end + gap, y, text, ha="right" if left else "left", va="center")
    for i, members in enumerate(_bars(marks)):
        first, last = (float(result.average[j]) for j in (members[0], members[-1]))
        y = 0.5 + 0.5 * i
        axes.plot([first - 0.01 * width, last + 0.01 * width], [y, y], color="black", linewidth=3.2)
    axes.set_xlim(1 - 0.1 * width, max(k, wide) + 0.1 * width)
    axes.set_ylim(1.4 + bars + half, -2.6)
    axes.set_axis_off()
