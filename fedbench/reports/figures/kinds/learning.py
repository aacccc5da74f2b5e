"""Learning curves of any runs: a metric against rounds, bytes or seconds. A panel is a partition, a line the mean over
a group of runs, and a band the standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError, check_known
from fedbench.metrics.definitions import all_metrics
from fedbench.metrics.read import USUAL, Metrics
from fedbench.planner.runs import SEEDS, differing, grouped
from fedbench.planner.table.spec import UNITS
from fedbench.reports.compare.comparison import measured
from fedbench.reports.figures.kind import Kind, Request, Row, broken, by_line, enough, quantity, room_for
from fedbench.reports.figures.style import across, distinct_looks, handle, line_looks, name_ends, subplots, titled
from fedbench.reports.figures.text import text_curves
from fedbench.results.run import Run
from fedbench.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True)
class Axis:
    """An x axis of curves."""

    sums: tuple[str, ...]  #: metrics whose cumulative sum over rounds is x; empty: x is the round
    label: str
    unit: float = 1.0  #: factor of x in a terminal, where `short` is its label
    short: str = ""


_SENT = " sent and received by all clients"
_SECONDS = "seconds of training, without evaluation"  # evaluation is not part of the method
AXES: Mapping[str, Axis] = {
    "round": Axis((), "round"),
    "bytes": Axis(("bytes_up", "bytes_down"), "bytes" + _SENT, 1e-6, "MB" + _SENT),
    "seconds": Axis(("local_training_seconds", "server_seconds"), _SECONDS),
}
#: Views of the test images; the first one wins a tie.
VIEWS = ("plain", "crop")
#: Most panels, and most lines, in one picture.
PANELS, LINES = 24, 24
#: Most remarks on single runs.
_REMARKS = 5


def curves(
    runs: Sequence[Run],
    metric: str | None = None,
    against: str = "round",
    by: Sequence[str] = (),
    view: str | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """The curves of runs, grouped by `planner.runs.grouped`: a panel is a partition, a row a round in which all runs of
    a line measured the metric. Its `x` is a mean over these runs, too: the round, or bytes or seconds up to its end.

    Arguments:
        metric: one that is measured by round; default: average accuracy, or the area under the ROC curve.
        against: one of AXES.
        by: keys to group by; default: all that the runs differ in.
        view: of the test images, "plain" or "crop"; default: the one with which most runs, and then most
            rounds, are evaluated.
        remark: called with each problem, one line.

    Raises FedbenchError for an unknown metric, axis, key or view, and if no run has the metric by round.
    """
    check_known("axis", against, AXES)
    check_known("test augmentation", view, VIEWS)
    found, errors = measured(runs)
    if errors and not found:
        raise errors[0]
    chosen = metric or next((m for m in USUAL if any(m in one.names for one in found.values())), USUAL[0])
    by_view = {one: {id: by_round(m, chosen, one) for id, m in found.items()} for one in ([view] if view else VIEWS)}
    view = max(by_view, key=lambda one: (sum(map(bool, by_view[one].values())), sum(map(len, by_view[one].values()))))
    series = by_view[view]
    left = [run for run in runs if series.get(run.id)]
    if not left:
        there = sorted({name for one in found.values() for name in one.names if by_round(one, name, view)})
        raise FedbenchError(f"no run has {chosen} by round ({view} test images)", f"by round: {', '.join(there)}")
    known = all_metrics().get(chosen)
    factor, unit = (1.0, known.unit if known else "")
    if unit == "fraction":
        factor, unit = UNITS["percent"]
    seen = view if known and known.by_view else ""
    asked = {run.id: found[run.id].evaluated(seen) if seen else set() for run in left}
    at = {run.id: _along(found[run.id], against, asked[run.id] | series[run.id].keys()) for run in left}
    about: Row = {"metric": chosen, "unit": unit, "test_images": seen, "axis": against}
    rows = []
    for panel in grouped(left, by):
        # Without --by, runs of a line differ in their seeds only.
        differ = {name: differing(group) if by else () for name, group in panel.lines.items()}
        mixed = {name: own for name, keys in differ.items() if (own := [key for key in keys if key not in SEEDS])}
        lines = {name: _curve(name, group, series, at, factor) for name, group in panel.lines.items()}
        lacking = {name: _gaps(panel.lines[name], line, asked, at) for name, line in lines.items()}
        of_panel = about | {"panel": panel.title, "mixed": mixed, "gaps": {n: own for n, own in lacking.items() if own}}
        rows += [of_panel | row for line in lines.values() for row in line]
    problems = [str(error) for error in errors]
    problems += [f"run {id} has no {chosen} by round ({view} test images)" for id, curve in series.items() if not curve]
    more = len(problems) - _REMARKS
    for problem in problems[:_REMARKS] + [f"and {counted(more, 'more run')} without"] * (more > 0):
        remark(problem)
    return rows


def by_round(metrics: Metrics, metric: str, view: str) -> dict[int, float]:
    """Round -> value, without round 0, which stands for the whole run."""
    return {t: value for t, value in metrics.series(metric, view).items() if t}


def _along(metrics: Metrics, against: str, rounds: Iterable[int]) -> dict[int, float]:
    """Round -> its x on the axis."""
    rounds = sorted(rounds)
    total = dict.fromkeys(rounds, 0.0)
    if not AXES[against].sums:
        return {t: float(t) for t in rounds}
    for name in AXES[against].sums:
        each = by_round(metrics, name, "")
        sums = np.cumsum([each[t] for t in sorted(each)])
        ends = np.searchsorted(sorted(each), rounds, side="right")
        for t, end in zip(rounds, ends.tolist(), strict=True):
            total[t] += float(sums[end - 1]) if end else 0.0
    return total


def _curve(
    name: str,
    runs: Sequence[Run],
    series: Mapping[str, Mapping[int, float]],
    at: Mapping[str, Mapping[int, float]],
    factor: float,
) -> list[Row]:
    """The mean curve of runs, with the standard deviation (ddof 1) over them. Raises FedbenchError if they have no
    evaluated round in common."""
    rounds = sorted(set.intersection(*(set(series[run.id]) for run in runs)))
    if not rounds:
        ids = f"{runs[0].id} and {runs[1].id}"
        raise FedbenchError(f"runs such as {ids} are one group, but have no evaluated round in common", "name --by KEY")
    values = np.array([[series[run.id][t] for t in rounds] for run in runs])
    x = np.array([[at[run.id][t] for t in rounds] for run in runs]).mean(axis=0).tolist()
    mean = (values.mean(axis=0) * factor).tolist()
    std = (values.std(axis=0, ddof=1) * factor).tolist() if len(runs) > 1 else [None] * len(rounds)
    about = {"line": name, "runs": len(runs), "ids": [run.id for run in runs]}
    return [
        about | dict(zip(("round", "x", "mean", "std"), point, strict=True))
        for point in zip(rounds, x, mean, std, strict=True)
    ]


def _gaps(
    runs: Sequence[Run], line: Sequence[Row], asked: Mapping[str, set[int]], at: Mapping[str, Mapping[int, float]]
) -> list[float]:
    """The x of the rounds between a line's points after which its runs were evaluated, but lack the metric."""
    measured = {row["round"] for row in line}
    lacking = set.intersection(*(asked[run.id] for run in runs)) - measured
    inside = sorted(t for t in lacking if min(measured) < t < max(measured))
    return [float(np.mean([at[run.id][t] for run in runs])) for t in inside]


class Learning(Kind):
    """A metric against rounds, bytes or seconds."""

    names = ("curves",)
    title = "Learning curves of runs"
    options = ("filters", "metric", "against", "by", "view")
    columns = ("panel", "metric", "unit", "test_images", "line", "axis", "x", "round", "mean", "std", "runs", "ids")
    of_figure = ("metric", "unit", "test_images", "axis")
    of_panel = ("mixed", "gaps")

    def rows(self, request: Request) -> list[Row]:
        """The curves of the runs that the filters select. Raises FedbenchError as `select` and `curves` do."""
        rows = curves(
            request.runs(), request.metric, request.against or "round", request.by or (), request.view, request.remark
        )
        for panel in self.panels(rows):
            _explain(panel, request.remark)
            request.say(f"{panel[0]['panel']}: {quantity(panel[0])} at the end")
            for name, points in by_line(panel).items():
                end = points[-1]
                spread = "" if end["std"] is None else f" ± {end['std']:.2g}"
                request.say(f"  {name}: {end['mean']:.4g}{spread} ({_count(panel, name)}, round {end['round']})")
        return rows

    def charts(self, rows: list[Row]) -> Iterable[RenderableType]:
        """The curves as charts of text."""
        axis, panels = AXES[rows[0]["axis"]], self.panels(rows)
        for panel in panels:
            lines = {
                name: [(x * axis.unit, y) for x, y in broken(_points(of), panel[0]["gaps"].get(name, ()))]
                for name, of in by_line(panel).items()
            }
            title = f"{panel[0]['panel']}: " if len(panels) > 1 else ""
            yield text_curves(lines, axis.short or axis.label, title + quantity(panel[0]))

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw small multiples with one legend. Raises FedbenchError for more than PANELS or LINES."""
        from matplotlib.ticker import EngFormatter, MaxNLocator

        enough(len(rows), self.spec, "train with --every 1 for a point a round, or choose more runs")
        panels, names, against = self.panels(rows), [*by_line(rows)], rows[0]["axis"]
        for count, most, what in ((len(panels), PANELS, "panels"), (len(names), LINES, "lines")):
            hint = "choose runs by filters such as dataset=mnist, group them by --by KEY, or take --csv"
            room_for(count, most, f"{what} are too many for one picture (up to {most})", hint)
        looks, wide = line_looks(names), across(figure, len(panels))
        grid = subplots(figure, -(-len(panels) // wide), wide)
        for i, (axes, panel) in enumerate(titled(grid, panels)):
            _paint(axes, by_line(panel), panel[0]["gaps"], looks)
            if i + wide >= len(panels):
                axes.set_xlabel(AXES[against].label)
            if against == "bytes":
                axes.xaxis.set_major_formatter(EngFormatter("B"))
            if len(places := {row["x"] for row in panel}) > 1:
                axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=against == "round"))
            else:
                axes.set_xticks([*places])
        for line in grid:
            line[0].set_ylabel(quantity(rows[0]))
        counts = {_count(panel, name) for panel in panels for name in by_line(panel)}
        over = counts.pop() if len(counts) == 1 else "seeds"
        if any(row["std"] is not None for row in rows):
            figure.suptitle(f"mean over {over}, band: ± standard deviation")
        shown = {name: name if over != "seeds" else _counted(name, panels) for name in names}
        for curve in (curve for axes in figure.axes for curve in axes.get_lines()):
            curve.set_label(shown.get(str(curve.get_label()), curve.get_label()))  # error bars have no name
        name_ends(figure, grid, [handle(shown[name], **looks[name]) for name in names])


def _points(rows: Iterable[Row]) -> list[tuple[float, float]]:
    return [(row["x"], row["mean"]) for row in rows]


def _paint(
    axes: Axes,
    curves: Mapping[str, list[Row]],
    gaps: Mapping[str, list[float]],
    looks: Mapping[str, dict[str, Any]],
) -> None:
    """Draw lines with a few markers, and their bands; a single point is a marker with an error bar. A line breaks where
    a round lacks the metric."""
    looks = distinct_looks({name: _points(rows) for name, rows in curves.items()}, looks)
    shade = max(0.05, min(0.18, 0.6 / len(curves)))  # many bands overlap
    for i, (name, rows) in enumerate(curves.items()):
        points = broken(((row["x"], row["mean"], row["std"] or 0.0) for row in rows), gaps.get(name, ()))
        x, mean, std = np.array(points).T
        step = max(1, len(x) // 6)
        # The lines' markers are shifted against each other, so that equal lines are visibly two.
        first = i * step // max(1, len(curves)) if len(x) > step else 0
        lone = np.isnan(np.append(np.nan, mean[:-1])) & np.isnan(np.append(mean[1:], np.nan))  # no stroke shows it
        marked = sorted({*range(first, len(x), step), *np.flatnonzero(lone).tolist()})
        axes.plot(x, mean, **looks[name], label=name, markevery=marked)
        if rows[0]["std"] is None:
            continue
        if len(x) > 1:
            axes.fill_between(x, mean - std, mean + std, color=looks[name]["color"], alpha=shade, linewidth=0)
        else:
            axes.errorbar(x, mean, std, color=looks[name]["color"], capsize=2, linewidth=0.8)
    axes.margins(x=0.03)
    axes.grid(axis="y")


def _explain(panel: list[Row], remark: Callable[[str], None]) -> None:
    """Remark on lines that cover only the last rounds, or that average over more than seeds."""
    title = panel[0]["panel"]
    short = [name for name, rows in by_line(panel).items() if rows[0]["round"] > 1 + rows[-1]["round"] / 2]
    if short:
        some = ", ".join(short[:_REMARKS]) + (" and others" if len(short) > _REMARKS else "")
        whole = "train with --every 1 to get the whole curve"
        remark(f"{title}: evaluated in the last rounds only: {some}; {whole}")
    for name, keys in panel[0]["mixed"].items():
        remark(f"{title}: {name} is a mean over runs that differ in {', '.join(keys)}, too")


def _count(panel: list[Row], name: str) -> str:
    """How many runs a curve averages, in words."""
    return _runs({row["runs"] for row in panel if row["line"] == name}, name in panel[0]["mixed"])


def _runs(numbers: set[int], mixed: bool) -> str:
    noun = "run" if mixed else "seed"
    return f"{' or '.join(map(str, sorted(numbers)))} {noun}{'' if numbers == {1} else 's'}"


def _counted(name: str, panels: Iterable[list[Row]]) -> str:
    """A line's name with its number of runs."""
    there = [(row, panel[0]["mixed"]) for panel in panels for row in panel if row["line"] == name]
    return f"{name} ({_runs({row['runs'] for row, _ in there}, any(name in mixed for _, mixed in there))})"
