"""Figure 3 of pFedFDA, for any partition: a bubble per client and class, whose area is the number of samples."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row, room_for
from fedbench.reports.figures.style import DOT, colour, handle, named, short, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most clients: more would be wider than a page.
MOST = 200
#: Most classes with names on the axis; more classes have numbers.
NAMED = 30


class Bubbles(Kind):
    """Clients x classes."""

    names = ("partition", "bubbles")
    title = "Samples of each class that each client holds"
    options = ("partition", "filters", "seed")
    columns = ("panel", "dataset", "partition", "client", "client_name", "class", "name", "train", "test", "samples")
    of_panel = ("dataset", "partition")

    def rows(self, request: Request) -> list[Row]:
        """A row per client and class, also for pairs without samples; equal titles of panels get the id of their
        partition appended."""
        seen, rows = list(source.of_partitions(self.spec, request)), []
        titles = Counter(one.about["panel"] for one in seen)
        for about, partition, *_ in seen:
            title = about["panel"]
            title = f"{title}, partition {partition.id}" if titles[title] > 1 else title
            train, test = partition.class_counts(test=False), partition.class_counts(test=True)
            room_for(len(train), MOST, "clients are too many for a bubble plot", f"it shows up to {MOST}")
            for (client, k), count in np.ndenumerate(train):
                row = {**about, "panel": title, "client": client, "class": k, "name": partition.classes[k]}
                row |= {"client_name": partition.names[client]} if partition.names else {}
                counts = {"train": int(count), "test": int(test[client, k])}
                rows.append({**row, **counts, "samples": sum(counts.values())})
            samples = train + test
            sizes, classes = samples.sum(axis=1), (samples > 0).sum(axis=1)
            request.say(
                f"{title}: {len(sizes)} clients hold {sizes.min():,} to {sizes.max():,} samples (median "
                f"{np.median(sizes):,.0f}) of {classes.min()} to {classes.max()} of {samples.shape[1]} classes (median "
                f"{np.median(classes):g}); partition {partition.id}"
            )
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw the panels in a row if they fit and share classes, else stack them; one area scale per data set."""
        panels, width = self.panels(rows), figure.get_figwidth()
        clients, classes = ([1 + max(row[of] for row in panel) for panel in panels] for of in ("client", "class"))
        names = [tuple({row["class"]: row["name"] for row in panel}.values()) for panel in panels]
        most: dict[str, int] = {}  # data set -> the largest count in its panels
        for row in rows:
            most[row["dataset"]] = max(most.get(row["dataset"], 1), row["samples"])
        # Inches between neighbouring clients and classes: at most what the width has room for.
        room, letters = width - 1.0, max(len(name) for of in names for name in of) if max(classes) <= NAMED else 2
        room -= 0.07 * letters
        abreast = room / (sum(clients) + 2 * len(panels)) > _LEAST and len(set(names)) == 1
        wide = min(0.3, room / (sum(clients) + 2 * len(panels) if abreast else max(clients) + 1))
        heights = [min(0.24, 8.0 / count) for count in classes]
        tall = [0.6 + down * count for down, count in zip(heights, classes, strict=True)]
        # The largest bubble may overlap its neighbours in its row, but hardly those in the next row.
        diameter = 72 * min(3.0 * wide, 1.1 * min(heights))
        shape = (1, len(panels)) if abreast else (len(panels), 1)
        ratios = {"width_ratios": clients, "sharey": True} if abreast else {"height_ratios": tall}
        grid = subplots(figure, *shape, tall=1.0, **ratios)
        figure.set_figheight(max(tall) if abreast else sum(tall))
        for i, (axes, panel) in enumerate(zip(chain(*grid), panels, strict=True)):
            largest = most[panel[0]["dataset"]]
            _paint(axes, panel, diameter**2 / largest)
            if len(most) > 1:
                _legend(axes, largest, diameter, loc="upper left", bbox_to_anchor=(1.01, 1.0))
            axes.set_title(panel[0]["panel"])
            axes.set_ylabel("class" if i == 0 or not abreast else "")
        if len(most) == 1:
            _legend(figure, next(iter(most.values())), diameter, loc="outside right upper")


#: Panels stand side by side if neighbouring clients are at least so many inches apart.
_LEAST = 0.08


def _paint(axes: Axes, panel: list[Row], area: float) -> None:
    """Draw a panel: clients from left to right, classes from top to bottom; `area` is square points per sample."""
    clients, classes = (1 + max(row[of] for row in panel) for of in ("client", "class"))
    held = sorted((row for row in panel if row["samples"]), key=lambda row: -row["samples"])  # small ones over large
    axes.scatter(
        [row["client"] for row in held],
        [row["class"] for row in held],
        s=[row["samples"] * area for row in held],
        color=colour(0),
        alpha=0.6,
        edgecolor="white",
        linewidth=0.3,
        zorder=2,
    )
    axes.set_xlabel("client")
    axes.set_xlim(-1, clients)
    axes.set_ylim(classes - 0.3, -0.7)
    called = {row["client"]: row["client_name"] for row in panel if "client_name" in row}
    if called and clients <= NAMED:
        axes.set_xticks(range(clients), [named(short(called[client])) for client in range(clients)], rotation=90)
    else:
        axes.set_xticks(range(0, clients, 10 if clients > 30 else 5 if clients > 10 else 1))
    if classes <= NAMED:
        axes.set_yticks(range(classes), [named(short(row["name"])) for row in panel[:classes]])
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
        handle(f"{n:,}", color=colour(0), alpha=0.6, markersize=diameter * math.sqrt(n / most), **DOT) for n in sizes
    ]
    owner.legend(handles=handles, title="samples", labelspacing=1.1, handlelength=1.2 * diameter / 8, **place)
