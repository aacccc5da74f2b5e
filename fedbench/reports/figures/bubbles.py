"""Figure 3 of pFedFDA, for any partition: a bubble per client and class, whose area is the number of samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Request, room_for
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.spec import FigureSpec, PanelSpec
from fedbench.reports.figures.style import COLOURS, DOT, handle, named, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.partitions import Partition

#: Most clients: more would be wider than a page.
MOST = 200
#: Largest total width of panels in a row, in inches.
PAGE = 9.0
#: Most classes with names on the axis; more classes have numbers.
NAMED = 30


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Sample counts of M clients for K classes."""

    classes: tuple[str, ...]  #: names [K]
    train: NDArray[np.int64]  #: [M, K]
    test: NDArray[np.int64]  #: [M, K]

    @property
    def samples(self) -> NDArray[np.int64]:
        """Training and test samples [M, K]."""
        return self.train + self.test


class Bubbles(source.OfPartitions[ClassCounts]):
    """Clients x classes."""

    options = ("partition", "filters", "seed")
    columns = ("panel", "dataset", "partition", "client", "class", "name", "train", "test", "samples")

    def gather(self, figure: FigureSpec, request: Request) -> Content[ClassCounts]:
        """A panel per partition; equal titles get the id of their partition appended."""
        panels = super().gather(figure, request).panels
        titles = Counter(panel.title for panel in panels)
        named = [f"{p.title}, partition {p.about['partition']}" if titles[p.title] > 1 else p.title for p in panels]
        return Content([replace(panel, title=title) for panel, title in zip(panels, named, strict=True)])

    def see(
        self, partition: Partition, clients: Sequence[int], request: Request, panel: PanelSpec | None
    ) -> ClassCounts:
        train, test = partition.class_counts(test=False), partition.class_counts(test=True)
        room_for(len(train), MOST, "clients are too many for a bubble plot", f"it shows up to {MOST}")
        return ClassCounts(tuple(partition.classes), train, test)

    def rows(self, marks: ClassCounts) -> Iterator[Mapping[str, Any]]:
        """One row per client and class, also for pairs without samples."""
        for (client, k), samples in np.ndenumerate(marks.samples):
            train, test = int(marks.train[client, k]), int(marks.test[client, k])
            about = {"client": client, "class": k, "name": marks.classes[k]}
            yield {**about, "train": train, "test": test, "samples": int(samples)}

    def words(self, figure: FigureSpec, content: Content[ClassCounts]) -> Iterable[str]:
        for panel in content.panels:
            samples = panel.marks.samples
            sizes, classes = samples.sum(axis=1), (samples > 0).sum(axis=1)
            yield (
                f"{panel.title}: {len(sizes)} clients hold {sizes.min():,} to {sizes.max():,} samples (median "
                f"{np.median(sizes):,.0f}) of {classes.min()} to {classes.max()} of {samples.shape[1]} classes (median "
                f"{np.median(classes):g}); partition {panel.about['partition']}"
            )

    def paint(self, figure: FigureSpec, content: Content[ClassCounts]) -> Figure:
        """Draw the panels in a row if they fit and share classes, else stack them; one area scale per data set."""
        counts = [panel.marks.samples for panel in content.panels]
        clients = max(map(len, counts))
        most: dict[str, int] = {}  # data set -> the largest count in its panels
        for panel, c in zip(content.panels, counts, strict=True):
            most[panel.about["dataset"]] = max(most.get(panel.about["dataset"], 1), int(c.max()))
        # Inches between neighbouring clients and classes: at most what fits a page, and not wider than is readable.
        across = min(0.3, 9.0 / clients)
        heights = [min(0.24, 8.0 / c.shape[1]) for c in counts]
        tall = [0.6 + down * c.shape[1] for c, down in zip(counts, heights, strict=True)]
        wide = [across * (len(c) + 1) for c in counts]
        abreast = sum(wide) <= PAGE and len({panel.marks.classes for panel in content.panels}) == 1
        # The largest bubble may overlap its neighbours in its row, but hardly those in the next row.
        diameter = 72 * min(3.0 * across, 1.1 * min(heights))
        if abreast:
            picture, grid = subplots((1.6 + sum(wide), tall[0]), 1, len(wide), width_ratios=wide, sharey=True)
        else:
            picture, grid = subplots((1.9 + across * clients, sum(tall)), len(tall), 1, height_ratios=tall)
        for i, (axes, panel) in enumerate(zip(chain(*grid), content.panels, strict=True)):
            _paint(axes, panel.marks, diameter**2 / most[panel.about["dataset"]])
            if len(most) > 1:
                _legend(axes, most[panel.about["dataset"]], diameter, loc="upper left", bbox_to_anchor=(1.01, 1.0))
            axes.set_title(panel.title)
            axes.set_ylabel("class" if i == 0 or not abreast else "")
        if len(most) == 1:
            _legend(picture, next(iter(most.values())), diameter, loc="outside right upper")
        return picture


def _paint(axes: Axes, marks: ClassCounts, area: float) -> None:
    """Draw a panel: clients from left to right, classes from top to bottom; `area` is square points per sample."""
    counts = marks.samples
    clients, classes = counts.shape
    client, k = np.nonzero(counts)
    first = np.argsort(-counts[client, k], kind="stable")  # draw small bubbles over large ones
    client, k = client[first], k[first]
    axes.scatter(
        client, k, s=counts[client, k] * area, color=COLOURS[0], alpha=0.6, edgecolor="white", linewidth=0.3, zorder=2
    )
    axes.set_xlabel("client")
    axes.set_xlim(-1, clients)
    axes.set_ylim(classes - 0.3, -0.7)
    axes.set_xticks(range(0, clients, 10 if clients > 30 else 1))
    if classes <= NAMED:
        axes.set_yticks(range(classes), [named(c) for c in marks.classes])
    axes.grid()
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _legend(owner: Figure | Axes, most: int, diameter: float, **place: Any) -> None:
    """Add a legend of a few round sample counts, drawn in the panels' scale."""
    top = 10 ** math.floor(math.log10(most))
    largest = max(n for n in (top, 2 * top, 5 * top) if n <= most)
    sizes = sorted({n for n in (largest // 100, largest // 10, largest // 2, largest) if n >= 1})
    handles = [
        handle(f"{n:,}", color=COLOURS[0], alpha=0.6, markersize=diameter * math.sqrt(n / most), **DOT) for n in sizes
    ]
    owner.legend(handles=handles, title="samples", labelspacing=1.1, handlelength=1.2 * diameter / 8, **place)
