"""Accuracies of single clients: one method against another, or a single method, sorted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import all_metrics
from fedbench.metrics.statistics import across_clients
from fedbench.planner.runs import grouped
from fedbench.planner.table.spec import UNITS
from fedbench.reports.figures.kind import Kind, Request, Row, quantity, room_for
from fedbench.reports.figures.style import (
    DOT,
    INCHES_A_LETTER,
    across,
    colour,
    handle,
    legend,
    named,
    short,
    subplots,
    titled,
)
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
#: Names of at least so many letters stand upright on the axis.
_SHORT = 4
#: Most letters of a method's name along an axis.
_LETTERS = 60
#: Width of what stands left of a panel, in inches.
_BESIDE = 0.6


class Clients(Kind):
    """A dot per client: two methods are the axes of the plane, a single method is sorted."""

    names = ("clients",)
    title = "Accuracies of single clients"
    options = ("filters", "metric", "by", "view")
    columns = (
        "panel",
        "metric",
        "unit",
        "test_images",
        "line",
        "run",
        "client",
        "client_name",
        "unseen",
        "value",
        "against",
        "base",
    )
    of_figure = ("metric", "unit", "test_images")
    apart = ("panel", "line")

    def rows(self, request: Request) -> list[Row]:
        """A row per client and seed. On each partition, the first group of runs is compared with each other group, seed
        by seed; `base` is the value of the first of two methods.

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
        about, rows = {"metric": metric, "unit": unit, "test_images": view}, []
        for group in grouped([run for run in runs if run.id not in lacking], request.by or ()):
            (first, base), *others = group.lines.items()
            made = [_pairs((first, name), (base, line), values, factor) for name, line in others]
            for pairs in made or [_pairs((first,), (base,), values, factor)]:
                panel = [{**about, "panel": group.title, **row} for row in pairs]
                request.say(f"{group.title}: {_summary(panel)}")
                rows += panel
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw small multiples. Raises FedbenchError for more than PANELS."""
        panels, hint = self.panels(rows), "choose runs by filters such as dataset=mnist, or take --csv"
        room_for(len(panels), PANELS, f"panels are too many for one picture (up to {PANELS})", hint)
        wide = across(figure, len(panels), 2.1)
        below = max(len(name) for panel in panels for name in _names(panel) or [""]) * INCHES_A_LETTER
        tall = min(3.2, 0.3 + figure.get_figwidth() / wide) + below
        grid = subplots(figure, -(-len(panels) // wide), wide, tall=tall)
        for axes, panel in titled(grid, panels):
            (_against if _two(panel) else _sorted)(axes, panel)
            axes.set_title(f"{panel[0]['panel']}\n{_brief(panel)}")
        if any(row["unseen"] for row in rows):
            looks = {"trains": colour(0), "unseen: never trains": "white"}
            dot = {**DOT, **_edge()}
            legend(figure, [handle(name, **{**dot, "markerfacecolor": fill}) for name, fill in looks.items()])


def _edge() -> dict[str, Any]:
    """Edge of a dot, so that hollow dots are visible."""
    return {"color": colour(0), "markeredgecolor": colour(0), "markeredgewidth": 0.8}


def _default(runs: Sequence[Run]) -> str:
    return next((name for name in DEFAULTS if any(name in run.metrics.names for run in runs)), DEFAULTS[0])


def _of(run: Run, metric: str, view: str) -> NDArray[np.float64]:
    return run.metrics.per_client(metric, view)


def _pairs(
    labels: tuple[str, ...], lines: tuple[Sequence[Run], ...], values: Mapping[str, NDArray[np.float64]], factor: float
) -> Iterator[Row]:
    """The clients on the partitions and seeds that all lines share. Raises FedbenchError if there are none."""
    by_draw = [{(run.spec.setting.partition.id, run.spec.setting.seed): run for run in line} for line in lines]
    if all(len(runs_of) == 1 for runs_of in by_draw):  # single runs may be compared across seeds
        by_draw = [{(run.spec.setting.partition.id, 0): run for run in runs_of.values()} for runs_of in by_draw]
    common = [draw for draw in by_draw[0] if all(draw in runs_of for runs_of in by_draw[1:])]
    if not common:
        raise FedbenchError(
            f"{' and '.join(labels)} have no partition and seed in common", "their clients are not the same"
        )
    for draw in common:
        ids, part = [runs_of[draw].id for runs_of in by_draw], by_draw[0][draw].spec.setting.partition
        names = by_draw[0][draw].client_names
        for client, each in enumerate(zip(*(values[id].tolist() for id in ids), strict=False)):
            if any(np.isnan(value) for value in each):
                continue
            row = {"line": labels[-1], "run": ids[-1], "client": client, "unseen": client >= part.trainees}
            row |= {"corrupted_copy": True} if client >= part.clients else {}
            row |= {"client_name": names[client]} if names else {}
            row["value"] = each[-1] * factor
            yield row | ({"against": labels[0], "base": each[0] * factor} if len(labels) > 1 else {})


def _two(panel: list[Row]) -> bool:
    return "base" in panel[0]


def _values(panel: list[Row], name: str = "value") -> NDArray[np.float64]:
    return np.array([row[name] for row in panel])


def _trained(panel: list[Row]) -> list[Row]:
    """The clients that train, or all of a panel in which none does."""
    return [row for row in panel if not row["unseen"]] or panel


def _brief(panel: list[Row]) -> str:
    """A panel's result in a few words: over the clients that train, as in tables and comparisons, and apart from them
    over those that never train, without their corrupted copies."""
    trained = _trained(panel)
    others = [row for row in panel if row["unseen"] and not row.get("corrupted_copy")] if trained is not panel else []
    values = _values(trained)
    if not _two(panel):
        over = across_clients(values)
        spread = f" ± {over.std:.2f} over clients" if over.count > 1 else ""
        unseen = f"; unseen {across_clients(_values(others)).mean:.2f}" if others else ""
        return f"mean {over.mean:.2f}{spread}, worst {values.min():.2f}{unseen}"
    gain, seeds = values - _values(trained, "base"), len({row["run"] for row in panel})
    every = f"{len(gain)} clients" + (f" of {seeds} seeds" if seeds > 1 else "")
    unseen = f"; unseen {across_clients(_values(others) - _values(others, 'base')).mean:+.2f}" if others else ""
    gains = f"{int((gain > 0).sum())} gain, {int((gain < 0).sum())} lose"
    return f"of {every} {gains}: {across_clients(gain).mean:+.2f} on average{unseen}"


def _summary(panel: list[Row]) -> str:
    """The same, with labels and unit."""
    line, unit = panel[0]["line"], panel[0]["unit"]
    names = f"{line} against {panel[0]['against']}" if _two(panel) else line
    return f"{names}: {_brief(panel)}" + (f" ({unit})" if unit else "")


def _against(axes: Axes, panel: list[Row]) -> None:
    """Draw the first method along x, the second along y; clients above the diagonal gain."""
    x, y = _values(panel, "base"), _values(panel)
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    room = 0.05 * (high - low) or 1.0
    axes.plot([low - room, high + room], [low - room, high + room], color="0.6", linewidth=0.8, zorder=1)
    _dots(axes, panel, x, y)
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(low - room, high + room)
    axes.set_aspect("equal")
    axes.grid()
    for of, label in (("against", axes.set_xlabel), ("line", axes.set_ylabel)):
        label(f"{short(panel[0][of], _LETTERS)}: {quantity(panel[0])}")


def _sorted(axes: Axes, panel: list[Row]) -> None:
    """Draw the clients from the worst to the best."""
    values = _values(panel)
    order = np.argsort(values, kind="stable")
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    axes.axhline(across_clients(_values(_trained(panel))).mean, color="0.6", linewidth=0.8, zorder=1)
    _dots(axes, panel, place, values)
    axes.grid(axis="y")
    axes.set_ylabel(f"{short(panel[0]['line'], _LETTERS)}: {quantity(panel[0])}")
    if names := _names(panel):
        called = [named(names[i]) for i in order.tolist()]
        axes.set_xticks(range(len(order)), called, rotation=0 if _fit(axes, called) else 90)
        axes.set_xlabel("client, from the worst to the best")
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(order)} clients, from the worst to the best")


def _fit(axes: Axes, names: Sequence[str]) -> bool:
    """Whether names along x are short enough to stand beside each other."""
    place, longest = axes.get_subplotspec(), max(map(len, names))
    columns = place.get_gridspec().ncols if place else 1
    room = (axes.figure.bbox.width / axes.figure.dpi / columns - _BESIDE) / len(names)
    return longest < _SHORT and INCHES_A_LETTER * (longest + 1) < room


def _names(panel: list[Row]) -> list[str]:
    """The names of a run's clients along the axis; none for two methods, several runs or many clients."""
    if _two(panel) or len({row["run"] for row in panel}) > 1 or len(panel) > _NAMED:
        return []
    return [short(str(row.get("client_name", row["client"]))) for row in panel]


def _dots(axes: Axes, panel: list[Row], x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    unseen = np.array([row["unseen"] for row in panel])
    for hidden, fill in ((False, colour(0)), (True, "white")):
        shown = unseen == hidden
        look = {**DOT, **_edge(), "markerfacecolor": fill, "markersize": 4.5, "alpha": 0.75}
        axes.plot(x[shown], y[shown], **look, zorder=2)
