"""Figure 11 of FLUX: PCA of the clients' descriptors to two dimensions, with clusters and true groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row
from fedbench.reports.figures.style import MARKERS, across, handle, legend, subplots, titled
from fedbench.reports.figures.style import colour as colour_of
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.store import Artifact


class Descriptors(Kind):
    """Clients in the plane: colour and number show the cluster found, the marker the true group."""

    names = ("descriptors",)
    needs = "runs"
    options = ("run", "budget", "seed")
    columns = ("panel", "run", "dataset", "partition", "client", "cluster", "group", "x", "y")
    of_panel = ("run", "budget", "dataset", "partition", "length", "clusters", "true_clusters", "variance")

    def rows(self, request: Request) -> list[Row]:
        """A row per client, of the requested run, or a panel for each of the figure's runs that the store has.

        Raises FedbenchError if there is none, or if the requested run has no descriptors.
        """
        if request.run is not None:
            rows = of_run(request.run_itself())
        else:
            gathered, faults = [], []
            for title, cell in self.spec.runs.items():
                try:
                    gathered.append(of_run(source.run_of(self.spec, cell, request), title))
                except FedbenchError as error:
                    faults.append(error)
            if not gathered:
                raise faults[0]
            for fault in faults:
                request.remark(str(fault))
            cells = {"measured": len(gathered), "all": len(self.spec.runs)}
            rows = [row | {"cells": cells} for panel in gathered for row in panel]
        for panel in self.panels(rows):
            about = panel[0]
            found = Counter(row["cluster"] for row in panel if row["cluster"] is not None)
            sizes = sorted(found.values(), reverse=True)
            many = ", ".join(map(str, sizes[:10])) + (", ..." if len(sizes) > 10 else "")
            request.say(
                f"{about['panel']}: {len(panel)} clients of {about['true_clusters']} true distributions in "
                f"{len(sizes)} clusters (of {many or 'nobody'}); two axes hold {100 * sum(about['variance']):.0f} % of "
                f"the variance of {about['length']} numbers; run {about['run']}"
            )
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw up to three panels per row; the legend of the true groups is below them."""
        panels = self.panels(rows)
        wide = across(figure, len(panels), figure.get_figwidth() / _PER_ROW if len(panels) > 1 else 0.1)
        tall = -(-len(panels) // wide)
        grid = subplots(figure, tall, wide, tall=figure.get_figwidth() / wide)
        for axes, panel in titled(grid, panels):
            _panel(axes, panel)
        listed = min(most := max(panel[0]["true_clusters"] for panel in panels), len(MARKERS))
        dot = {"color": "0.45", "linestyle": "none", "markersize": 5}
        handles = [handle(f"true group {g + 1}", marker=MARKERS[g], **dot) for g in range(listed)]
        if most > listed:
            handles[-1].set_label(f"true group {listed} (the next as the first)")
        label = "cluster found" + (" (its clients)" if any(len(panel) <= _FEW for panel in panels) else "")
        handles.append(handle(label, color="0.45", linewidth=0.7, marker="$1$"))
        legend(figure, handles)


def of_run(run: Artifact, title: str = "") -> list[Row]:
    """The panel of a run with a table `descriptors` (columns client, descriptor).

    Raises FedbenchError if the run has no such table, or if its tables are damaged.
    """
    from fedbench.metrics.predictions import broken

    spec = run.spec
    assert isinstance(spec, RunSpec)
    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(
            f"run {run.id} ({spec.method}) stored no descriptors of its clients", "choose a run of flux that clustered"
        )
    table, clients = run.table("descriptors"), run.table("clients")
    for name, of, columns in (
        ("client", "descriptors", table),
        ("descriptor", "descriptors", table),
        ("group", "clients", clients),
    ):
        if name not in columns.column_names:
            raise broken(run, f"table {of} has no column '{name}'")
    rows = table.column("descriptor").to_pylist()
    client = np.array(table.column("client").to_pylist(), np.int64)
    if len({len(row or ()) for row in rows}) != 1 or not rows[0]:
        raise broken(run, "the descriptors of table descriptors must be of one length")
    described = np.array(rows, np.float64)
    if not np.isfinite(described).all():
        raise broken(run, "column 'descriptor' of table descriptors holds a value that is not finite")
    group = dict(zip(clients.column("client").to_pylist(), clients.column("group").to_pylist(), strict=True))
    if len(set(client.tolist())) < len(client) or not group.keys() >= set(client.tolist()):
        raise broken(run, f"table descriptors must name each of the run's {len(group)} clients once at most")
    clusters = clients.column("cluster").to_pylist() if "cluster" in clients.column_names else [None] * len(clients)
    cluster = dict(zip(group, clusters, strict=True))
    place, share = plane(described)
    about: Row = {
        **source.of_run(run, title),
        "length": described.shape[1],
        "clusters": len({cluster[c] for c in client.tolist()} - {None}),
        "true_clusters": len({group[c] for c in client.tolist()}),
        "variance": list(share),
    }
    points = zip(client.tolist(), place.tolist(), strict=True)
    return [{**about, "client": c, "cluster": cluster[c], "group": group[c], "x": x, "y": y} for c, (x, y) in points]


def plane(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """PCA to two dimensions (centred, not whitened): coordinates [N, 2] and the shares of the variance along both axes.

    The sign of an axis makes its largest loading positive, so that the picture is the same on every machine. Axes
    without variance are zero.
    """
    centred = rows - rows.mean(axis=0)
    _, s, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes[:2])), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    place = np.zeros((len(rows), 2))
    place[:, : len(axes)] = centred @ axes.T
    whole = float((s**2).sum())
    share = [float(v) / whole if whole else 0.0 for v in s[:2] ** 2] + [0.0, 0.0]
    return place, (share[0], share[1])


_NONE = "0.7"
#: Most panels in a row.
_PER_ROW = 3
#: With more clients than this, markers are smaller and clusters are labelled without sizes.
_FEW = 30


def _panel(axes: Axes, panel: list[Row]) -> None:
    """Draw a panel. Clusters and groups are numbered from 1 in the order of their first clients."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=1.5, foreground="white")]
    place = np.array([(row["x"], row["y"]) for row in panel])
    few, centre = len(panel) <= _FEW, place.mean(axis=0)
    clusters = _numbered(row["cluster"] for row in panel if row["cluster"] is not None)
    groups = _numbered(row["group"] for row in panel)
    for m, number in clusters.items():
        members = place[[row["cluster"] == m for row in panel]]
        middle, colour = members.mean(axis=0), colour_of(number)
        for end in members:
            axes.plot(*zip(middle, end, strict=True), color=colour, linewidth=0.7, alpha=0.7, zorder=1)
        out = np.where(middle < centre, -1, 1)  # the label points away from the centre
        axes.annotate(
            f"{number + 1} ({len(members)})" if few else f"{number + 1}",
            middle,
            xytext=tuple(4 * out),
            textcoords="offset points",
            ha="right" if out[0] < 0 else "left",
            va="top" if out[1] < 0 else "bottom",
            color=colour,
            fontsize="small",
            zorder=2,
            annotation_clip=False,
            path_effects=halo,
        )
    for row in panel:
        axes.plot(
            row["x"],
            row["y"],
            linestyle="none",
            marker=MARKERS[groups[row["group"]] % len(MARKERS)],
            markersize=6 if few else 4,
            color=_NONE if row["cluster"] is None else colour_of(clusters[row["cluster"]]),
            markeredgecolor="white",
            markeredgewidth=0.5,
            alpha=0.9,
            zorder=3,
        )
    for which, share in zip(("x", "y"), panel[0]["variance"], strict=True):
        getattr(axes, f"set_{which}label")(f"principal axis {1 + 'xy'.index(which)} ({100 * share:.0f} %)")
    axes.margins(0.18, 0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    if not np.ptp(place):  # all descriptors are equal
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)


def _numbered(values: Iterable[int]) -> dict[int, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}
