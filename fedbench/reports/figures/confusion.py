"""Confusion matrices of any runs: which class is predicted as which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.metrics.accuracy import confusion
from fedbench.planner.runs import grouped
from fedbench.reports.figures.kind import Kind, Request, room_for
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import COLOURS, named, subplots
from fedbench.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most matrices in one picture.
PANELS = 8
#: Most classes with shares written into the cells, and with names along the axes.
_WRITTEN, _NAMED = 12, 40


@dataclass(frozen=True, eq=False)
class Matrix:
    """The confusion matrix of one group of runs over K classes."""

    classes: tuple[str, ...]  #: names [K]
    counts: NDArray[np.int64]  #: [K, K] images: true class by row, predicted class by column
    runs: tuple[str, ...]  #: ids; the counts are sums over these runs

    @property
    def shares(self) -> NDArray[np.float64]:
        """[K, K] counts as shares of the true class's images; NaN for a class without images."""
        with np.errstate(invalid="ignore"):
            shares: NDArray[np.float64] = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def accuracies(self) -> NDArray[np.float64]:
        """[K] the accuracy of each class."""
        return self.shares.diagonal()

    @property
    def accuracy(self) -> float:
        """The accuracy over all images."""
        return float(np.trace(self.counts) / self.counts.sum())


class Confusion(Kind[Matrix]):
    """A matrix for each group of runs, with the accuracy of each class."""

    options = ("filters", "client", "by", "view")
    columns = ("panel", "test_images", "client", "class", "name", "answer", "images", "share", "runs")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Matrix]:
        """A matrix per group of runs: each client's model after the last round predicts the client's test images.

        Raises FedbenchError as `runs.select` and `confusion` do.
        """
        view = request.seen()
        panels, clients = [], request.client or (None,)
        for group in grouped(request.runs(), request.by or ()):
            for name, runs in group.lines.items():
                for client in clients:
                    matrix = _matrix(runs, view, client, request)
                    who = "" if client is None else f", client {client}"
                    about = {"client": "all" if client is None else client}
                    panels.append(Panel(f"{group.title}: {name}{who}", about, matrix))
        return Content(panels, {"test_images": view})

    def rows(self, marks: Matrix) -> Iterator[Mapping[str, Any]]:
        """One row per true class and predicted class ("answer")."""
        shares = marks.shares
        for (k, answer), images in np.ndenumerate(marks.counts):
            share = None if np.isnan(shares[k, answer]) else float(shares[k, answer])
            about = {"class": k, "name": marks.classes[k], "answer": answer, "images": int(images), "share": share}
            yield {**about, "runs": marks.runs}

    def summary(self, marks: Matrix) -> Mapping[str, Any]:
        """The accuracy over all images and of each class; null for a class without images."""
        accuracies = [None if np.isnan(one) else one for one in marks.accuracies.tolist()]
        return {"accuracy": marks.accuracy, "class_accuracy": dict(zip(marks.classes, accuracies, strict=True))}

    def words(self, figure: FigureSpec, content: Content[Matrix]) -> Iterable[str]:
        for panel in content.panels:
            marks, off = panel.marks, panel.marks.shares.copy()
            np.fill_diagonal(off, np.nan)
            accuracies = marks.accuracies
            worst, images = int(np.nanargmin(accuracies)), int(marks.counts.sum())
            text = f"{panel.title}: {100 * marks.accuracy:.2f} % of {images:,} test images are answered rightly"
            text += f"; the worst class is {marks.classes[worst]} ({100 * accuracies[worst]:.1f} %)"
            if len(marks.classes) > 1 and np.nanmax(off) > 0:
                k, answer = divmod(int(np.nanargmax(off)), len(marks.classes))
                often = f"{100 * off[k, answer]:.1f} % of {marks.classes[k]} are taken for {marks.classes[answer]}"
                text += f"; {often}"
            yield text

    def paint(self, figure: FigureSpec, content: Content[Matrix]) -> Figure:
        """Stack the panels, each with its class accuracies on the right. Raises FedbenchError for more than PANELS."""
        from matplotlib.colors import LinearSegmentedColormap

        too_many = f"matrices are too many for one picture (up to {PANELS})"
        room_for(len(content.panels), PANELS, too_many, "name one run, or take --csv")
        shades = LinearSegmentedColormap.from_list("shares", ["white", COLOURS[0]])
        sides = [_side(panel.marks) for panel in content.panels]
        letters = max((len(name) for panel in content.panels for name in _names(panel.marks)), default=0)
        picture, grid = subplots(
            (1.6 + 0.07 * letters + max(sides), sum(1.0 + 0.04 * letters + side for side in sides)),
            len(sides),
            2,
            width_ratios=[max(sides), 0.9],
            height_ratios=sides,
        )
        for (axes, right), panel in zip(grid, content.panels, strict=True):
            _paint(axes, panel.marks, shades)
            _bars(right, panel.marks)
            axes.set_title(panel.title)
        return picture


def _matrix(runs: Sequence[Run], view: str, client: int | None, request: Request) -> Matrix:
    counts = [confusion(run.artifact, view, client) for run in runs]
    size = max(len(one) for one in counts)
    total = np.zeros((size, size), np.int64)
    for one in counts:
        total[: len(one), : len(one)] += one
    return Matrix(_classes(runs[0], size, request), total, tuple(run.id for run in runs))


def _classes(run: Run, count: int, request: Request) -> tuple[str, ...]:
    """The classes' names from the partition, or their numbers if the store no longer has it."""
    from fedbench import partitions

    artifact = request.store.whole(run.spec.setting.partition)
    names = tuple(partitions.read(artifact).classes) if artifact else ()
    return names if len(names) == count else tuple(map(str, range(count)))


def _side(marks: Matrix) -> float:
    """Side of the matrix in inches."""
    return max(1.6, min(6.5, (0.32 if len(marks.classes) <= _WRITTEN else 0.16) * len(marks.classes)))


def _names(marks: Matrix) -> list[str]:
    """The names along the axes; none for many classes."""
    return [named(name) for name in marks.classes] if len(marks.classes) <= _NAMED else []


def _paint(axes: Axes, marks: Matrix, shades: Any) -> None:
    """Draw the shares of each class's images, with percentages if there is room."""
    shares, names = marks.shares, _names(marks)
    axes.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto")
    places = range(len(names))
    # Long names are rotated so that they do not overlap.
    axes.set_xticks(places, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    axes.set_yticks(places, names)
    axes.set_xlabel("answer (% of the class)" if len(marks.classes) <= _WRITTEN else "answer")
    axes.set_ylabel("class")
    axes.tick_params(length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    if len(marks.classes) > _WRITTEN:
        return
    for (k, answer), share in np.ndenumerate(shares):
        if share >= 0.005:
            colour = "white" if share > 0.6 else "black"
            axes.text(answer, k, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=colour)


def _bars(axes: Axes, marks: Matrix) -> None:
    """Draw the accuracy of each class in the row of the matrix, and a line at the accuracy over all images."""
    places = np.arange(len(marks.classes))
    axes.barh(places, 100 * np.nan_to_num(marks.accuracies), color=COLOURS[0], height=0.7)
    axes.axvline(100 * marks.accuracy, color="0.3", linewidth=0.8, linestyle="--")
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    axes.set_yticks([])
    axes.set_xlabel("right (%)")
    axes.set_title(f"all: {100 * marks.accuracy:.1f} %", fontsize=8)
