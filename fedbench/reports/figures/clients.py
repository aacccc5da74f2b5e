"""Accuracies of single clients: one method against another, or a single method, sorted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import all_metrics
from fedbench.planner.runs import grouped
from fedbench.planner.table.spec import UNITS
from fedbench.reports.figures.kind import Kind, Request, quantity, room_for
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import COLOURS, DOT, handle, shape, subplots, titled
from fedbench.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most panels in one picture.
PANELS = 24
#: Default metric: the first of these that is measured.
DEFAULTS = ("client_accuracy", "client_auc")
#: Most clients with numbers on the axis.
_NAMED = 30


@dataclass(frozen=True, eq=False)
class Pairs:
    """N clients under one or two methods, concatenated over the seeds."""

    labels: Sequence[str]  #: (method along x, method along y), or only the latter
    runs: Sequence[tuple[str, ...]]  #: [seeds] ids of the runs, one per method
    run: NDArray[np.int64]  #: [N] index into `runs`
    client: NDArray[np.int64]  #: [N]
    values: NDArray[np.float64]  #: [methods, N]
    unseen: NDArray[np.bool_]  #: [N] clients that never train

    @property
    def gain(self) -> NDArray[np.float64]:
        """[N] the last method's values minus the first method's."""
        gain: NDArray[np.float64] = self.values[-1] - self.values[0]
        return gain


class Clients(Kind[Pairs]):
    """A dot per client: two methods are the axes of the plane, a single method is sorted."""

    options = ("filters", "metric", "by", "view")
    columns = ("panel", "metric", "unit", "test_images", "line", "run", "client", "unseen", "value", "against", "base")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Pairs]:
        """On each partition, compare the first group of runs with each other group, seed by seed.

        Raises FedbenchError as `runs.select` does, if no run has the metric per client, and if compared groups have no
        partition and seed in common.
        """
        runs = request.runs()
        view, metric = request.seen(), request.metric or _default(runs)
        values = {run.id: run.metrics.per_client(metric, view) for run in runs}
        lacking = [run.id for run in runs if not len(values[run.id])]
        if len(lacking) == len(runs):
            there = sorted({name for run in runs for name in run.metrics.names if len(_of(run, name, view))})
            raise FedbenchError(
                f"no run has {metric} of single clients", f"of clients: {', '.join(there) or 'nothing'}"
            )
        for id in lacking[:5]:
            request.remark(f"run {id} has no {metric} of single clients")
        known = all_metrics().get(metric)
        factor, unit = (1.0, known.unit if known else "")
        if unit == "fraction":
            factor, unit = UNITS["percent"]
        panels = []
        for group in grouped([run for run in runs if run.id not in lacking], request.by or ()):
            (first, base), *others = group.lines.items()
            marks = [_pairs((first, name), (base, line), values, factor) for name, line in others]
            panels += [Panel(group.title, {}, one) for one in marks or [_pairs((first,), (base,), values, factor)]]
        return Content(panels, {"metric": metric, "unit": unit, "test_images": view})

    def rows(self, marks: Pairs) -> Iterator[Mapping[str, Any]]:
        """One row per client and seed; `base` is the value of the first of two methods."""
        for i, client in enumerate(marks.client.tolist()):
            row = {"line": marks.labels[-1], "run": marks.runs[marks.run[i]][-1], "client": client}
            row |= {"unseen": bool(marks.unseen[i]), "value": float(marks.values[-1, i])}
            yield row | ({"against": marks.labels[0], "base": float(marks.values[0, i])} if _two(marks) else {})

    def words(self, figure: FigureSpec, content: Content[Pairs]) -> Iterable[str]:
        for panel in content.panels:
            yield f"{panel.title}: {_summary(panel.marks, content.about['unit'])}"

    def paint(self, figure: FigureSpec, content: Content[Pairs]) -> Figure:
        """Draw small multiples. Raises FedbenchError for more than PANELS."""
        count, hint = len(content.panels), "choose runs by filters such as dataset=mnist, or take --csv"
        room_for(count, PANELS, f"panels are too many for one picture (up to {PANELS})", hint)
        rows, columns = shape(count)
        alone = not any(_two(panel.marks) for panel in content.panels)
        wide = 4.6 if alone and len(content.panels) == 1 else 3.3
        picture, grid = subplots((0.6 + wide * columns, 0.5 + 3.2 * rows), rows, columns)
        for axes, panel in titled(grid, content.panels):
            (_against if _two(panel.marks) else _sorted)(axes, panel.marks, content)
            axes.set_title(f"{panel.title}\n{_brief(panel.marks)}", fontsize=8)
        if any(panel.marks.unseen.any() for panel in content.panels):
            looks = {"trains": COLOURS[0], "unseen: never trains": "white"}
            handles = [handle(name, **{**DOT, **_EDGE, "markerfacecolor": fill}) for name, fill in looks.items()]
            picture.legend(handles=handles, loc="outside lower center", ncols=2)
        return picture


#: Edge of a dot, so that hollow dots are visible.
_EDGE: dict[str, Any] = {"color": COLOURS[0], "markeredgecolor": COLOURS[0], "markeredgewidth": 0.8}


def _default(runs: Sequence[Run]) -> str:
    return next((name for name in DEFAULTS if any(name in run.metrics.names for run in runs)), DEFAULTS[0])


def _of(run: Run, metric: str, view: str) -> NDArray[np.float64]:
    return run.metrics.per_client(metric, view)


def _pairs(
    labels: tuple[str, ...], lines: tuple[Sequence[Run], ...], values: Mapping[str, NDArray[np.float64]], factor: float
) -> Pairs:
    """The clients on the partitions and seeds that all lines share. Raises FedbenchError if there are none."""
    by_draw = [{(run.spec.setting.partition.id, run.spec.setting.seed): run for run in line} for line in lines]
    if all(len(runs_of) == 1 for runs_of in by_draw):  # single runs may be compared across seeds
        by_draw = [{(run.spec.setting.partition.id, 0): run for run in runs_of.values()} for runs_of in by_draw]
    common = [draw for draw in by_draw[0] if all(draw in runs_of for runs_of in by_draw[1:])]
    if not common:
        raise FedbenchError(
            f"{' and '.join(labels)} have no partition and seed in common", "their clients are not the same"
        )
    runs = [tuple(runs_of[draw].id for runs_of in by_draw) for draw in common]
    counts = [min(len(values[id]) for id in ids) for ids in runs]
    trainees = [by_draw[0][draw].spec.setting.partition.trainees for draw in common]
    client = np.concatenate([np.arange(n) for n in counts])
    each = np.array(
        [np.concatenate([values[ids[m]][:n] for ids, n in zip(runs, counts, strict=True)]) for m in range(len(lines))]
    )
    of_run, has = np.repeat(np.arange(len(runs)), counts), ~np.isnan(each).any(axis=0)
    unseen = client >= np.array(trainees)[of_run]
    return Pairs(labels, runs, of_run[has], client[has], each[:, has] * factor, unseen[has])


def _two(marks: Pairs) -> bool:
    return len(marks.labels) > 1


def _brief(marks: Pairs) -> str:
    """A panel's result in a few words."""
    if not _two(marks):
        values = marks.values[0]
        spread = f" ± {values.std(ddof=1):.2f} over clients" if len(values) > 1 else ""
        return f"mean {values.mean():.2f}{spread}, worst {values.min():.2f}"
    gain, seeds = marks.gain, len(marks.runs)
    every = f"{len(gain)} clients" + (f" of {seeds} seeds" if seeds > 1 else "")
    return f"of {every} {int((gain > 0).sum())} gain, {int((gain < 0).sum())} lose: {gain.mean():+.2f} on average"


def _summary(marks: Pairs, unit: str) -> str:
    """The same, with labels and unit."""
    names = f"{marks.labels[1]} against {marks.labels[0]}" if _two(marks) else marks.labels[0]
    return f"{names}: {_brief(marks)}" + (f" ({unit})" if unit else "")


def _against(axes: Axes, marks: Pairs, content: Content[Pairs]) -> None:
    """Draw the first method along x, the second along y; clients above the diagonal gain."""
    low, high = float(marks.values.min()), float(marks.values.max())
    room = 0.05 * (high - low) or 1.0
    axes.plot([low - room, high + room], [low - room, high + room], color="0.6", linewidth=0.8, zorder=1)
    _dots(axes, marks, marks.values[0], marks.values[1])
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(low - room, high + room)
    axes.set_aspect("equal")
    axes.grid()
    axes.set_xlabel(f"{marks.labels[0]}: {quantity(content)}")
    axes.set_ylabel(f"{marks.labels[1]}: {quantity(content)}")


def _sorted(axes: Axes, marks: Pairs, content: Content[Pairs]) -> None:
    """Draw the clients from the worst to the best."""
    order = np.argsort(marks.values[0], kind="stable")
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    axes.axhline(marks.values[0].mean(), color="0.6", linewidth=0.8, zorder=1)
    _dots(axes, marks, place, marks.values[0])
    axes.grid(axis="y")
    axes.set_ylabel(f"{marks.labels[0]}: {quantity(content)}")
    if len(marks.runs) == 1 and len(order) <= _NAMED:
        axes.set_xticks(range(len(order)), [str(c) for c in marks.client[order].tolist()])
        axes.set_xlabel("client, from the worst to the best")
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(order)} clients, from the worst to the best")


def _dots(axes: Axes, marks: Pairs, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    for unseen, fill in ((False, COLOURS[0]), (True, "white")):
        shown = marks.unseen == unseen
        look = {**DOT, **_EDGE, "markerfacecolor": fill, "markersize": 4.5, "alpha": 0.75}
        axes.plot(x[shown], y[shown], **look, zorder=2)
