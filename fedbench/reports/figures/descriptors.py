"""Figure 11 of FLUX: PCA of the clients' descriptors to two dimensions, with clusters and true groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.reports.figures import panel as panels
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import colour as colour_of
from fedbench.reports.figures.style import handle, subplots, titled
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.store import Artifact


@dataclass(frozen=True, eq=False)
class Plane:
    """The N clients of one run that have a descriptor."""

    client: NDArray[np.int64]  #: [N]
    place: NDArray[np.float64]  #: [N, 2] coordinates along the first two principal axes
    share: tuple[float, float]  #: of the descriptors' variance along these axes
    length: int  #: numbers per descriptor
    cluster: tuple[int | None, ...]  #: [N] found by the method; None: in no cluster
    group: tuple[int, ...]  #: [N] true group

    @property
    def clusters(self) -> Counter[int]:
        """Number of clients in each cluster."""
        return Counter(m for m in self.cluster if m is not None)


class Descriptors(Kind[Plane]):
    """Clients in the plane: colour and number show the cluster found, the marker the true group."""

    needs = "runs"
    options = ("run", "budget", "seed")
    columns = ("panel", "run", "dataset", "partition", "client", "cluster", "group", "x", "y")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Plane]:
        """The panel of the requested run, or a panel for each of the figure's runs that the store has.

        Raises FedbenchError if there is none, or if the requested run has no descriptors.
        """
        if request.run is not None:
            return Content([of_run(request.run_itself())])
        gathered, faults = [], []
        for title, cell in figure.runs.items():
            try:
                gathered.append(of_run(source.run_of(figure, cell, request), title))
            except FedbenchError as error:
                faults.append(error)
        if not gathered:
            raise faults[0]
        for fault in faults:
            request.remark(str(fault))
        return Content(gathered, cells=(len(gathered), len(figure.runs)))

    def rows(self, marks: Plane) -> Iterator[Mapping[str, Any]]:
        """One row per client."""
        columns = (marks.client.tolist(), marks.cluster, marks.group, *marks.place.T.tolist())
        for line in zip(*columns, strict=True):
            yield dict(zip(("client", "cluster", "group", "x", "y"), line, strict=True))

    def summary(self, marks: Plane) -> Mapping[str, Any]:
        """The descriptors' length, the numbers of found and true clusters, and the axes' shares of the variance."""
        clusters = {"clusters": len(marks.clusters), "true_clusters": len(set(marks.group))}
        return {"length": marks.length, **clusters, "variance": list(marks.share)}

    def words(self, figure: FigureSpec, content: Content[Plane]) -> Iterable[str]:
        for panel in content.panels:
            marks = panel.marks
            sizes = sorted(marks.clusters.values(), reverse=True)
            many = ", ".join(map(str, sizes[:10])) + (", ..." if len(sizes) > 10 else "")
            yield (
                f"{panel.title}: {len(marks.client)} clients of {len(set(marks.group))} true distributions in "
                f"{len(sizes)} clusters (of {many or 'nobody'}); two axes hold {100 * sum(marks.share):.0f} % of "
                f"the variance of {marks.length} numbers; run {panel.about['run']}"
            )

    def paint(self, figure: FigureSpec, content: Content[Plane]) -> Figure:
        """Draw up to three panels per row; the legend of the true groups is below them."""
        planes = [panel.marks for panel in content.panels]
        wide = min(_PER_ROW, len(planes))
        tall, size = -(-len(planes) // wide), 2.6 if wide > 1 else 3.6
        most = max(len(set(plane.group)) for plane in planes)
        listed, columns = min(most, len(_MARKERS)), max(3, 2 * wide)
        height = 0.4 + 0.18 * (1 + listed // columns) + size * tall
        picture, grid = subplots((0.4 + (size + 0.1) * max(1.2, wide), height), tall, wide)
        for axes, panel in titled(grid, content.panels):
            _panel(axes, panel.marks)
        dot = {"color": "0.45", "linestyle": "none", "markersize": 5}
        handles = [handle(f"true group {g + 1}", marker=_MARKERS[g], **dot) for g in range(listed)]
        if most > listed:
            handles[-1].set_label(f"true group {listed} (the next as the first)")
        label = "cluster found" + (" (its clients)" if any(len(plane.client) <= _FEW for plane in planes) else "")
        handles.append(handle(label, color="0.45", linewidth=0.7, marker="$1$"))
        ncols = min(len(handles), columns)
        picture.legend(handles=handles, loc="outside lower center", ncols=ncols, columnspacing=1.1)
        return picture


def of_run(run: Artifact, title: str = "") -> Panel[Plane]:
    """The panel of a run with a table `descriptors` (columns client, descriptor).

    Raises FedbenchError if the run has no such table, or if its tables are damaged.
    """
    from fedbench.metrics.predictions import broken

    spec = run.spec
    assert isinstance(spec, RunSpec)
    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(
            f"run {run.id} ({spec.method}) kept no descriptors of its clients", "choose a run of flux that clustered"
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
    of_clients = (tuple(values[c] for c in client.tolist()) for values in (cluster, group))
    return panels.of_run(run, Plane(client, place, share, described.shape[1], *of_clients), title)


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


_MARKERS = "osD^vP*X<>ph"
_NONE = "0.7"
#: Most panels in a row.
_PER_ROW = 3
#: With more clients than this, markers are smaller and clusters are labelled without sizes.
_FEW = 30


def _panel(axes: Axes, marks: Plane) -> None:
    """Draw a panel. Clusters and groups are numbered from 1 in the order of their first clients."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=1.5, foreground="white")]
    few, centre = len(marks.client) <= _FEW, marks.place.mean(axis=0)
    clusters = _numbered([m for m in marks.cluster if m is not None])
    groups = _numbered(marks.group)
    for m, number in clusters.items():
        members = marks.place[[cluster == m for cluster in marks.cluster]]
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
            fontsize=7,
            zorder=2,
            annotation_clip=False,
            path_effects=halo,
        )
    for (x, y), cluster, g in zip(marks.place, marks.cluster, marks.group, strict=True):
        colour = _NONE if cluster is None else colour_of(clusters[cluster])
        axes.plot(
            x,
            y,
            linestyle="none",
            marker=_MARKERS[groups[g] % len(_MARKERS)],
            markersize=6 if few else 4,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.5,
            alpha=0.9,
            zorder=3,
        )
    for which, share in zip(("x", "y"), marks.share, strict=True):
        getattr(axes, f"set_{which}label")(f"principal axis {1 + 'xy'.index(which)} ({100 * share:.0f} %)")
    axes.margins(0.18, 0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    if not np.ptp(marks.place):  # all descriptors are equal
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)


def _numbered(values: Sequence[int]) -> dict[int, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}
