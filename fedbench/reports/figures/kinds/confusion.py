"""Confusion matrices of any runs: which class is predicted as which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.metrics.accuracy import confusion
from fedbench.partitions.names import called
from fedbench.planner.runs import grouped
from fedbench.reports.figures.kind import Kind, Request, Row, room_for
from fedbench.reports.figures.style import colour, ink, named, short, subplots
from fedbench.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most matrices in one picture.
PANELS = 8
#: Most classes with shares written into the cells, and with names along the axes.
_WRITTEN, _NAMED = 12, 40


class Confusion(Kind):
    """A matrix for each group of runs, with the accuracy of each class."""

    names = ("confusion",)
    title = "Which classes are taken for which"
    options = ("filters", "client", "by", "view")
    columns = ("panel", "test_images", "client", "class", "name", "answer", "images", "share", "runs")
    of_figure = ("test_images",)
    of_panel = ("client", "accuracy", "class_accuracy")
    one_column = False

    def rows(self, request: Request) -> list[Row]:
        """A row per true class and predicted class ("answer"), a panel per group of runs, whose counts are added: each
        client's model after the last round predicts the client's test images. The share is that of the true class's
        images, None for a class without images.

        Raises FedbenchError as `runs.select` and `confusion` do.
        """
        view, rows = request.seen(), []
        for group in grouped(request.runs(), request.by or ()):
            for name, runs in group.lines.items():
                for client in request.client or (None,):
                    counts = _counts(runs, view, client)
                    who = "" if client is None else f", {called(runs[0].client_names, client)}"
                    classes, title = _classes(runs[0], len(counts), request), f"{group.title}: {name}{who}"
                    about = {"test_images": view, "panel": title, "client": "all" if client is None else client}
                    rows += _panel_of(about, counts, classes, [run.id for run in runs])
                    request.say(f"{title}: {_words(counts, classes)}")
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Stack the panels, each with its class accuracies on the right. Raises FedbenchError for more than PANELS."""
        from matplotlib.colors import LinearSegmentedColormap

        panels = self.panels(rows)
        too_many = f"matrices are too many for one picture (up to {PANELS})"
        room_for(len(panels), PANELS, too_many, "name one run, or take --csv")
        shades = LinearSegmentedColormap.from_list("shares", ["white", colour(0)])
        letters = max((len(name) for panel in panels for name in _names(panel)), default=0)
        most = figure.get_figwidth() - 1.6 - 0.07 * letters
        sides = [min(_side(panel), most) for panel in panels]
        spare = max(0.01, most - max(sides))  # beside the bars, so that cells are squares on a page, too
        ratios = {"width_ratios": [max(sides), 0.9, spare], "height_ratios": sides}
        grid = subplots(figure, len(sides), 3, tall=1.0, **ratios)
        figure.set_figheight(sum(1.0 + 0.04 * letters + side for side in sides))
        for (axes, right, rest), panel in zip(grid, panels, strict=True):
            rest.remove()
            _paint(axes, panel, shades)
            _bars(right, panel)
            axes.set_title(panel[0]["panel"])


def _counts(runs: Sequence[Run], view: str, client: int | None) -> NDArray[np.int64]:
    """[K, K] images: true class by row, predicted class by column, added over the runs."""
    counts = [confusion(run.artifact, view, client) for run in runs]
    size = max(len(one) for one in counts)
    total = np.zeros((size, size), np.int64)
    for one in counts:
        total[: len(one), : len(one)] += one
    return total


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """[K, K] counts as shares of the true class's images; NaN for a class without images."""
    with np.errstate(invalid="ignore"):
        shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares


def _panel_of(about: Row, counts: NDArray[np.int64], classes: Sequence[str], runs: list[str]) -> list[Row]:
    shares = [[None if np.isnan(share) else share for share in of.tolist()] for of in _shares(counts)]
    right = {name: shares[k][k] for k, name in enumerate(classes)}
    about = about | {"accuracy": float(np.trace(counts) / counts.sum()), "class_accuracy": right}
    return [
        {
            **about,
            "class": k,
            "name": classes[k],
            "answer": answer,
            "images": int(images),
            "share": shares[k][answer],
            "runs": runs,
        }
        for (k, answer), images in np.ndenumerate(counts)
    ]


def _words(counts: NDArray[np.int64], classes: Sequence[str]) -> str:
    """How many images are answered rightly, the worst class, and the most frequent mistake."""
    shares, images = _shares(counts), int(counts.sum())
    accuracies = shares.diagonal().copy()
    np.fill_diagonal(shares, np.nan)
    worst = int(np.nanargmin(accuracies))
    text = f"{100 * np.trace(counts) / images:.2f} % of {images:,} test images are answered rightly"
    text += f"; the worst class is {classes[worst]} ({100 * accuracies[worst]:.1f} %)"
    if len(classes) > 1 and np.nanmax(shares) > 0:
        k, answer = divmod(int(np.nanargmax(shares)), len(classes))
        text += f"; {100 * shares[k, answer]:.1f} % of {classes[k]} are taken for {classes[answer]}"
    return text


def _classes(run: Run, count: int, request: Request) -> tuple[str, ...]:
    """The classes' names from the partition, or their numbers if the store no longer has it."""
    from fedbench import partitions

    artifact = request.store.whole(run.spec.setting.partition)
    names = tuple(partitions.read(artifact).classes) if artifact else ()
    return names if len(names) == count else tuple(map(str, range(count)))


def _of(panel: list[Row]) -> list[str]:
    """The names of a panel's classes."""
    return list({row["class"]: row["name"] for row in panel}.values())


def _side(panel: list[Row]) -> float:
    """Side of the matrix in inches."""
    classes = len(_of(panel))
    return max(1.6, min(6.5, (0.32 if classes <= _WRITTEN else 0.16) * classes))


def _names(panel: list[Row]) -> list[str]:
    """The names along the axes; none for many classes."""
    return [named(short(name)) for name in _of(panel)] if len(_of(panel)) <= _NAMED else []


def _paint(axes: Axes, panel: list[Row], shades: Any) -> None:
    """Draw the shares of each class's images, with percentages if there is room."""
    names, classes = _names(panel), len(_of(panel))
    shares = np.array([np.nan if row["share"] is None else row["share"] for row in panel]).reshape(classes, classes)
    axes.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto")
    places = range(len(names))
    # Long names are rotated so that they do not overlap.
    axes.set_xticks(places, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    axes.set_yticks(places, names)
    axes.set_xlabel("answer (% of the class)" if classes <= _WRITTEN else "answer")
    axes.set_ylabel("class")
    axes.tick_params(length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    if classes > _WRITTEN:
        return
    for (k, answer), share in np.ndenumerate(shares):
        if share >= 0.005:
            axes.text(answer, k, f"{100 * share:.0f}", ha="center", va="center", color=ink(shades(share)))


def _bars(axes: Axes, panel: list[Row]) -> None:
    """Draw the accuracy of each class in the row of the matrix, and a line at the accuracy over all images."""
    accuracies = [100 * (row["share"] or 0) for row in panel if row["class"] == row["answer"]]
    every = 100 * panel[0]["accuracy"]
    axes.barh(range(len(accuracies)), accuracies, color=colour(0), height=0.7)
    axes.axvline(every, color="0.3", linewidth=0.8, linestyle="--")
    axes.set_ylim(len(accuracies) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    axes.set_yticks([])
    axes.set_xlabel("right (%)")
    axes.set_title(f"all: {every:.1f} %")
