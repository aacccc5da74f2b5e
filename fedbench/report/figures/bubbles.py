"""Figure 3 of pFedFDA: a bubble a client and class, its area the number of samples, for any partition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partition import schemes
from fedbench.report.figures import source
from fedbench.report.figures.kind import Ask, Kind
from fedbench.report.figures.spec import FigureSpec
from fedbench.report.figures.style import COLOURS, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.partition import Partition

#: More clients than this would need more width than a page has.
MOST = 200
#: More names of classes than this are not read; their numbers are.
NAMED = 30


@dataclass(frozen=True, eq=False)
class Panel:
    """How many samples of each of K classes each of M clients holds."""

    title: str
    dataset: str
    partition: str  #: id
    classes: tuple[str, ...]  #: names [K]
    train: NDArray[np.int64]  #: [M, K]
    test: NDArray[np.int64]  #: [M, K]

    @property
    def samples(self) -> NDArray[np.int64]:
        """Training and test samples [M, K]."""
        return self.train + self.test


class Bubbles(Kind[Sequence[Panel]]):
    """Clients x classes."""

    options = ("partition", "seed")
    columns = ("panel", "dataset", "partition", "client", "class", "name", "train", "test", "samples")

    def gather(self, figure: FigureSpec, ask: Ask) -> list[Panel]:
        """The panels of the figure's partitions, or of the one asked for. Raises FedbenchError for too many clients."""
        if ask.partition is not None:
            return [of_partition(source.chosen_partition(ask.partition, ask))]
        return [of_partition(source.partition(figure, panel, ask), panel.title) for panel in figure.panels]

    def lines(self, shown: Sequence[Panel]) -> Iterator[Sequence[Any]]:
        """One line a client and class, those without samples too."""
        for panel in shown:
            for client, (train, test) in enumerate(zip(panel.train.tolist(), panel.test.tolist(), strict=True)):
                for k, name in enumerate(panel.classes):
                    counts = (train[k], test[k], train[k] + test[k])
                    yield [panel.title, panel.dataset, panel.partition, client, k, name, *counts]

    def told(self, shown: Sequence[Panel]) -> dict[str, Any]:
        """Counts as lists, a list a client."""
        return {
            "panels": [
                {
                    "title": panel.title,
                    "dataset": panel.dataset,
                    "partition": panel.partition,
                    "classes": list(panel.classes),
                    "train": panel.train.tolist(),
                    "test": panel.test.tolist(),
                }
                for panel in shown
            ]
        }

    def words(self, figure: FigureSpec, shown: Sequence[Panel]) -> Iterable[str]:
        for panel in shown:
            sizes, held = panel.samples.sum(axis=1), (panel.samples > 0).sum(axis=1)
            yield (
                f"{panel.title}: {len(sizes)} clients hold {sizes.min():,} to {sizes.max():,} samples (median "
                f"{np.median(sizes):,.0f}) of {held.min()} to {held.max()} of {len(panel.classes)} classes (median "
                f"{np.median(held):g}); partition {panel.partition}"
            )

    def paint(self, figure: FigureSpec, shown: Sequence[Panel]) -> Figure:
        """One panel below the other; areas mean the same in all of them."""
        from matplotlib.figure import Figure

        most = max(int(panel.samples.max()) for panel in shown)
        # Inches from one client to the next and from one class to the next: what a page can hold, and no more air
        # than the eye needs.
        across = min(0.3, 9.0 / max(len(panel.train) for panel in shown))
        heights = [min(0.24, 8.0 / len(panel.classes)) for panel in shown]
        width = 1.9 + across * max(len(panel.train) for panel in shown)
        tall = [0.6 + down * len(panel.classes) for panel, down in zip(shown, heights, strict=True)]
        # The largest bubble may lie over its neighbours in its row, but hardly over the next row.
        diameter = 72 * min(3.0 * across, 1.1 * min(heights))
        drawn = Figure(figsize=(width, sum(tall)), layout="constrained")
        column = drawn.subplots(len(shown), 1, squeeze=False, height_ratios=tall)[:, 0]
        for axes, panel in zip(column, shown, strict=True):
            _paint(axes, panel, diameter**2 / most)
        _legend(drawn, most, diameter)
        return drawn


def of_partition(partition: Partition, title: str = "") -> Panel:
    """The panel of a partition. Raises FedbenchError for more clients than a picture can hold."""
    train, test = partition.class_counts(test=False), partition.class_counts(test=True)
    if len(train) > MOST:
        raise FedbenchError(f"{len(train)} clients are too many for a bubble plot", f"it shows up to {MOST}")
    name = partition.spec.dataset.name
    title = title or f"{name}, {schemes.label(partition.spec)}"
    return Panel(title, name, partition.id, tuple(partition.classes), train, test)


def _paint(axes: Axes, panel: Panel, area: float) -> None:
    """One panel: clients from left to right, classes from top to bottom; `area` in square points a sample."""
    counts = panel.samples
    clients, classes = counts.shape
    client, k = np.nonzero(counts)
    first = np.argsort(-counts[client, k], kind="stable")  # small bubbles over large ones
    client, k = client[first], k[first]
    axes.scatter(
        client, k, s=counts[client, k] * area, color=COLOURS[0], alpha=0.6, edgecolor="white", linewidth=0.3, zorder=2
    )
    axes.set_title(panel.title)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xlim(-1, clients)
    axes.set_ylim(classes - 0.3, -0.7)
    axes.set_xticks(range(0, clients, 10 if clients > 30 else 1))
    if classes <= NAMED:
        axes.set_yticks(range(classes), [named(c) for c in panel.classes])
    axes.grid(color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _legend(drawn: Figure, most: int, diameter: float) -> None:
    """A few round numbers of samples, as large as they are in the panels."""
    from matplotlib.lines import Line2D

    top = 10 ** math.floor(math.log10(most))
    largest = max(n for n in (top, 2 * top, 5 * top) if n <= most)
    sizes = sorted({n for n in (largest // 100, largest // 10, largest // 2, largest) if n >= 1})
    handles = [
        Line2D(
            [], [], linestyle="none", marker="o", color=COLOURS[0], alpha=0.6, markeredgecolor="white",
            markeredgewidth=0.3, markersize=diameter * math.sqrt(n / most), label=f"{n:,}",
        )
        for n in sizes
    ]  # fmt: skip
    drawn.legend(
        handles=handles, title="samples", loc="outside right upper", labelspacing=1.1, handlelength=1.2 * diameter / 8
    )
