"""Learning curves of any runs: a metric against rounds, bytes or seconds. A panel is a partition, a line the mean over
a group of runs, and a band the standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError, check_known
from fedbench.metrics.definitions import all_metrics
from fedbench.metrics.read import Metrics
from fedbench.planner.runs import SEEDS, differing, grouped
from fedbench.planner.table.spec import UNITS
from fedbench.reports.compare.comparison import measured
from fedbench.reports.figures.kind import Kind, Request, quantity, room_for
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import abreast, distinct_looks, handle, look, shape, subplots, titled
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
#: Default metric: the first of these that is measured.
DEFAULTS = ("average_accuracy", "client_auc_mean")
#: Most panels, and most lines, in one picture.
PANELS, LINES = 24, 24
#: Most remarks on single runs.
_REMARKS = 5


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean of a metric over runs, after each of the T rounds in which all of them measured it."""

    runs: tuple[Run, ...]
    rounds: NDArray[np.int64]  #: [T]
    x: NDArray[np.float64]  #: [T] mean over runs: the round, or bytes or seconds up to its end
    mean: NDArray[np.float64]  #: [T] in the unit in which it is printed
    std: NDArray[np.float64] | None  #: [T] over runs (ddof 1); None for one run
    mixed: tuple[str, ...]  #: keys that the runs differ in besides their seeds


#: Label -> curve, on one partition.
Curves = Mapping[str, Curve]


def curves(
    runs: Sequence[Run],
    metric: str | None = None,
    against: str = "round",
    by: Sequence[str] = (),
    view: str | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Content[Curves]:
    """The curves of runs, grouped by `planner.runs.grouped`.

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
    chosen = metric or next((m for m in DEFAULTS if any(m in one.names for one in found.values())), DEFAULTS[0])
    by_view = {one: {id: by_round(m, chosen, one) for id, m in found.items()} for one in ([view] if view else VIEWS)}
    view = max(by_view, key=lambda one: (sum(map(bool, by_view[one].values())), sum(map(len, by_view[one].values()))))
    series = by_view[view]
    left = [run for run in runs if series.get(run.id)]
    if not left:
        there = sorted({name for one in found.values() for name in one.names if by_round(one, name, view)})
        raise FedbenchError(f"no run has {chosen} by round ({view} test images)", f"by round: {', '.join(there)}")
    at = {run.id: _along(found[run.id], against, series[run.id]) for run in left}
    known = all_metrics().get(chosen)
    factor, unit = (1.0, known.unit if known else "")
    if unit == "fraction":
        factor, unit = UNITS["percent"]
    panels = [
        Panel(panel.title, {}, {name: _curve(group, series, at, by, factor) for name, group in panel.lines.items()})
        for panel in grouped(left, by)
    ]
    problems = [str(error) for error in errors]
    problems += [f"run {id} has no {chosen} by round ({view} test images)" for id, curve in series.items() if not curve]
    more = len(problems) - _REMARKS
    for problem in problems[:_REMARKS] + [f"and {counted(more, 'more run')} without"] * (more > 0):
        remark(problem)
    for panel in panels:
        _explain(panel, remark)
    seen = view if known and known.by_view else ""
    return Content(panels, {"metric": chosen, "unit": unit, "test_images": seen, "axis": against})


def by_round(metrics: Metrics, metric: str, view: str) -> dict[int, float]:
    """Round -> value, without round 0, which stands for the whole run."""
    return {t: value for t, value in metrics.series(metric, view).items() if t}


def _along(metrics: Metrics, against: str, rounds: Mapping[int, float]) -> dict[int, float]:
    """Round -> its x on the axis."""
    total = dict.fromkeys(rounds, 0.0)
    if not AXES[against].sums:
        return {t: float(t) for t in rounds}
    for name in AXES[against].sums:
        each = by_round(metrics, name, "")
        sums = np.cumsum([each[t] for t in sorted(each)])
        ends = np.searchsorted(sorted(each), list(rounds), side="right")
        for t, end in zip(rounds, ends.tolist(), strict=True):
            total[t] += float(sums[end - 1]) if end else 0.0
    return total


def _curve(
    runs: Sequence[Run],
    series: Mapping[str, Mapping[int, float]],
    at: Mapping[str, Mapping[int, float]],
    by: Sequence[str],
    factor: float,
) -> Curve:
    """The mean curve of runs. Raises FedbenchError if they have no evaluated round in common."""
    rounds = sorted(set.intersection(*(set(series[run.id]) for run in runs)))
    if not rounds:
        ids = f"{runs[0].id} and {runs[1].id}"
        raise FedbenchError(f"runs such as {ids} are one group, but have no evaluated round in common", "name --by KEY")
    values = np.array([[series[run.id][t] for t in rounds] for run in runs])
    x = np.array([[at[run.id][t] for t in rounds] for run in runs])
    std = values.std(axis=0, ddof=1) * factor if len(runs) > 1 else None
    mixed = tuple(key for key in differing(runs) if key not in SEEDS) if by else ()  # else only seeds differ
    return Curve(tuple(runs), np.array(rounds), x.mean(axis=0), values.mean(axis=0) * factor, std, mixed)


class Learning(Kind[Curves]):
    """A metric against rounds, bytes or seconds."""

    options = ("filters", "metric", "against", "by", "view")
    columns = ("panel", "metric", "unit", "test_images", "line", "axis", "x", "round", "mean", "std", "runs", "ids")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Curves]:
        """The curves of the runs that the filters select. Raises FedbenchError as `select` and `curves` do."""
        return curves(
            request.runs(), request.metric, request.against or "round", request.by or (), request.view, request.remark
        )

    def rows(self, marks: Curves) -> Iterator[Mapping[str, Any]]:
        """One row per point."""
        for name, c in marks.items():
            about = {"line": name, "runs": len(c.runs), "ids": [run.id for run in c.runs]}
            std = [None] * len(c.rounds) if c.std is None else c.std.tolist()
            for point in zip(c.rounds.tolist(), c.x.tolist(), c.mean.tolist(), std, strict=True):
                yield about | dict(zip(("round", "x", "mean", "std"), point, strict=True))

    def words(self, figure: FigureSpec, content: Content[Curves]) -> Iterable[str]:
        what = quantity(content)
        for panel in content.panels:
            yield f"{panel.title}: {what} at the end"
            for name, curve in panel.marks.items():
                spread = "" if curve.std is None else f" ± {curve.std[-1]:.2g}"
                yield f"  {name}: {curve.mean[-1]:.4g}{spread} ({_count(curve)}, round {curve.rounds[-1]})"

    def charts(self, figure: FigureSpec, content: Content[Curves]) -> Iterable[RenderableType]:
        """The curves as charts of text."""
        axis = AXES[content.about["axis"]]
        for panel in content.panels:
            curves = panel.marks.items()
            lines = {name: list(zip((c.x * axis.unit).tolist(), c.mean.tolist(), strict=True)) for name, c in curves}
            title = f"{panel.title}: " if len(content.panels) > 1 else ""
            yield text_curves(lines, axis.short or axis.label, title + quantity(content))

    def paint(self, figure: FigureSpec, content: Content[Curves]) -> Figure:
        """Draw small multiples with one legend. Raises FedbenchError for more than PANELS or LINES."""
        from matplotlib.ticker import EngFormatter, MaxNLocator

        names = list(dict.fromkeys(name for panel in content.panels for name in panel.marks))
        for count, most, what in ((len(content.panels), PANELS, "panels"), (len(names), LINES, "lines")):
            hint = "choose runs by filters such as dataset=mnist, group them by --by KEY, or take --csv"
            room_for(count, most, f"{what} are too many for one picture (up to {most})", hint)
        rows, columns = shape(len(content.panels))
        looks = {name: look(i) for i, name in enumerate(names)}
        picture, grid = subplots((max(4.5, 0.5 + 3.2 * columns), 0.9 + 2.4 * rows), rows, columns)
        for i, (axes, panel) in enumerate(titled(grid, content.panels)):
            _paint(axes, panel.marks, looks)
            if i + columns >= len(content.panels):
                axes.set_xlabel(AXES[content.about["axis"]].label)
            if content.about["axis"] == "bytes":
                axes.xaxis.set_major_formatter(EngFormatter("B"))
            else:
                axes.xaxis.set_major_locator(
                    MaxNLocator(6, steps=[1, 2, 5, 10], integer=content.about["axis"] == "round")
                )
        for row in grid:
            row[0].set_ylabel(quantity(content))
        counts = {_count(curve) for panel in content.panels for curve in panel.marks.values()}
        several = any(curve.std is not None for panel in content.panels for curve in panel.marks.values())
        over = counts.pop() if len(counts) == 1 else "seeds"
        if several:
            picture.suptitle(f"mean over {over}, band: ± standard deviation", fontsize=8)
        handles = [handle(name if over != "seeds" else _counted(name, content), **looks[name]) for name in names]
        picture.legend(handles=handles, loc="outside lower center", ncols=abreast(handles, picture.get_figwidth()))
        return picture


def _paint(axes: Axes, curves: Curves, looks: Mapping[str, dict[str, Any]]) -> None:
    """Draw lines with a few markers, and their bands; a single point is a marker with an error bar."""
    looks = distinct_looks({name: list(zip(c.x, c.mean, strict=True)) for name, c in curves.items()}, looks)
    shade = max(0.05, min(0.18, 0.6 / len(curves)))  # many bands overlap
    for i, (name, curve) in enumerate(curves.items()):
        step = max(1, len(curve.x) // 6)
        # The lines' markers are shifted against each other, so that equal lines are visibly two.
        first = i * step // max(1, len(curves)) if len(curve.x) > step else 0
        axes.plot(curve.x, curve.mean, **looks[name], markevery=(first, step))
        if curve.std is not None and len(curve.x) > 1:
            low, high = curve.mean - curve.std, curve.mean + curve.std
            axes.fill_between(curve.x, low, high, color=looks[name]["color"], alpha=shade, linewidth=0)
        elif curve.std is not None:
            axes.errorbar(curve.x, curve.mean, curve.std, color=looks[name]["color"], capsize=2, linewidth=0.8)
    axes.margins(x=0.03)
    axes.grid(axis="y")


def _explain(panel: Panel[Curves], remark: Callable[[str], None]) -> None:
    """Remark on lines that cover only the last rounds, or that average over more than seeds."""
    short = {name: c for name, c in panel.marks.items() if c.rounds[0] > 1 + c.rounds[-1] / 2}
    if short:
        some = ", ".join(list(short)[:_REMARKS]) + (" and others" if len(short) > _REMARKS else "")
        whole = "train with --every 1 to get the whole curve"
        remark(f"{panel.title}: evaluated in the last rounds only: {some}; {whole}")
    for name, curve in panel.marks.items():
        if curve.mixed:
            remark(f"{panel.title}: {name} is a mean over runs that differ in {', '.join(curve.mixed)}, too")


def _count(*curves: Curve) -> str:
    """How many runs each of these curves averages, in words."""
    numbers = sorted({len(curve.runs) for curve in curves})
    noun = "run" if any(curve.mixed for curve in curves) else "seed"
    return f"{' or '.join(map(str, numbers))} {noun}{'' if numbers == [1] else 's'}"


def _counted(name: str, content: Content[Curves]) -> str:
    """A line's name with its number of runs."""
    curves = [panel.marks[name] for panel in content.panels if name in panel.marks]
    return f"{name} ({_count(*curves)})"
