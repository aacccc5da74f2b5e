"""Figure 11 of FLUX: the clients' descriptors under a PCA to two dimensions, with clusters and true groups."""

from __future__ import annotations

from collections import Counter
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
from fedbench.report.figures.style import COLOURS
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.store import Artifact


@dataclass(frozen=True, eq=False)
class Panel:
    """The clients of one run that described themselves."""

    title: str
    run: str
    budget: str
    dataset: str
    partition: str
    client: NDArray[np.int64]  #: [N]
    place: NDArray[np.float64]  #: [N, 2] under the first two principal axes
    share: tuple[float, float]  #: of the descriptors' variance along them
    length: int  #: of a descriptor
    cluster: tuple[int | None, ...]  #: found by the method; None: in none
    group: tuple[int, ...]  #: true

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return len({m for m in self.cluster if m is not None})


class Descriptors(Kind[Sequence[Panel]]):
    """Clients in the plane: colour and number say the cluster found, markers the true group."""

    options = ("run", "budget", "seed")
    columns = ("panel", "run", "dataset", "partition", "client", "cluster", "group", "x", "y")

    def gather(self, figure: FigureSpec, ask: Ask) -> list[Panel]:
        """The panels of those of the figure's runs that are there, or of the run asked for.

        Raises FedbenchError if there is none, or if the run asked for has no descriptors.
        """
        if ask.run is not None:
            return [of_run(ask.store.find(ask.run, ("run",)))]
        panels, faults = [], []
        for title, wanted in figure.runs.items():
            try:
                panels.append(of_run(source.run_of(figure, wanted, ask), title))
            except FedbenchError as error:
                faults.append(error)
        if not panels:
            raise faults[0]
        for fault in faults:
            ask.remark(str(fault))
        return panels

    def lines(self, shown: Sequence[Panel]) -> Iterator[Sequence[Any]]:
        """One line a client."""
        for panel in shown:
            for told in _clients(panel):
                yield [panel.title, panel.run, panel.dataset, panel.partition, *told.values()]

    def told(self, shown: Sequence[Panel]) -> dict[str, Any]:
        """Places and shares of variance, client by client."""
        return {
            "panels": [
                {
                    "title": panel.title,
                    "run": panel.run,
                    "budget": panel.budget,
                    "dataset": panel.dataset,
                    "partition": panel.partition,
                    "length": panel.length,
                    "clusters": panel.clusters,
                    "true_clusters": len(set(panel.group)),
                    "variance": list(panel.share),
                    "clients": list(_clients(panel)),
                }
                for panel in shown
            ]
        }

    def words(self, figure: FigureSpec, shown: Sequence[Panel]) -> Iterable[str]:
        for panel in shown:
            sizes = sorted(Counter(m for m in panel.cluster if m is not None).values(), reverse=True)
            many = ", ".join(map(str, sizes[:10])) + (", ..." if len(sizes) > 10 else "")
            yield (
                f"{panel.title}: {len(panel.client)} clients of {len(set(panel.group))} true distributions in "
                f"{panel.clusters} clusters (of {many or 'nobody'}); two axes hold {100 * sum(panel.share):.0f} % of "
                f"the variance of {panel.length} numbers; run {panel.run}"
            )

    def paint(self, figure: FigureSpec, shown: Sequence[Panel]) -> Figure:
        return paint(shown)


def of_run(run: Artifact, title: str = "") -> Panel:
    """The panel of a run whose table `descriptors` holds each client's (columns client, descriptor).

    Raises FedbenchError for a run without them, and where run and table disagree.
    """
    from fedbench.metrics.predictions import broken

    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, dataset = spec.setting, spec.setting.partition.dataset.name
    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(
            f"run {run.id} ({spec.method}) kept no descriptors of its clients", "choose a run of flux that clustered"
        )
    table, clients = run.table("descriptors"), run.table("clients")
    for name, of, known in (
        ("client", "descriptors", table), ("descriptor", "descriptors", table), ("group", "clients", clients),
    ):  # fmt: skip
        if name not in known.column_names:
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
    found = clients.column("cluster").to_pylist() if "cluster" in clients.column_names else [None] * len(clients)
    cluster = dict(zip(group, found, strict=True))
    place, share = plane(described)
    title = title or f"{run.provenance.get('title', spec.method)}, {dataset} {schemes.label(setting.partition)}"
    return Panel(
        title, run.id, setting.budget, dataset, setting.partition.id, client, place, share, described.shape[1],
        tuple(cluster[c] for c in client.tolist()), tuple(group[c] for c in client.tolist()),
    )  # fmt: skip


def plane(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """PCA to two dimensions (centred, not whitened): places [N, 2] and the shares of the variance along both axes.

    An axis points to where its largest loading is positive, so that the picture is the same everywhere. Directions
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


def _clients(panel: Panel) -> Iterator[dict[str, Any]]:
    for i, client in enumerate(panel.client.tolist()):
        x, y = panel.place[i].tolist()
        yield {"client": client, "cluster": panel.cluster[i], "group": panel.group[i], "x": x, "y": y}


# -- drawing ------------------------------------------------------------------------------------------

_MARKERS = "osD^vP*X<>ph"
_NONE = "0.7"
#: Panels beside each other.
_ABREAST = 3
#: More clients than this have smaller markers, and their clusters no sizes.
_FEW = 30


def paint(panels: Sequence[Panel]) -> Figure:
    """Up to three panels beside each other, the markers of the true groups below them."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    wide = min(_ABREAST, len(panels))
    tall, size = -(-len(panels) // wide), 2.6 if wide > 1 else 3.6
    most = max(len(set(panel.group)) for panel in panels)
    listed, columns = min(most, len(_MARKERS)), max(3, 2 * wide)
    lines = 1 + listed // columns
    drawn = Figure(
        figsize=(0.4 + (size + 0.1) * max(1.2, wide), 0.4 + 0.18 * lines + size * tall), layout="constrained"
    )
    places = drawn.subplots(tall, wide, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _panel(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    handles = [
        Line2D([], [], marker=_MARKERS[g], label=f"true group {g + 1}", color="0.45", linestyle="none", markersize=5)
        for g in range(listed)
    ]
    few = any(len(panel.client) <= _FEW for panel in panels)
    if most > listed:
        handles[-1].set_label(f"true group {listed} (the next as the first)")
    handles.append(
        Line2D(
            [], [], color="0.45", linewidth=0.7, marker="$1$", label="cluster found" + (" (its clients)" if few else "")
        )
    )
    drawn.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns), columnspacing=1.1)
    return drawn


def _panel(axes: Axes, panel: Panel) -> None:
    """Clusters and groups are numbered from 1 in the order of their first clients."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=1.5, foreground="white")]
    few, centre = len(panel.client) <= _FEW, panel.place.mean(axis=0)
    clusters = _numbered([m for m in panel.cluster if m is not None])
    groups = _numbered(panel.group)
    for m, number in clusters.items():
        members = panel.place[[own == m for own in panel.cluster]]
        middle, colour = members.mean(axis=0), COLOURS[number % len(COLOURS)]
        for end in members:
            axes.plot(*zip(middle, end, strict=True), color=colour, linewidth=0.7, alpha=0.7, zorder=1)
        out = np.where(middle < centre, -1, 1)  # away from the others
        axes.annotate(
            f"{number + 1} ({len(members)})" if few else f"{number + 1}", middle, xytext=tuple(4 * out),
            textcoords="offset points", ha="right" if out[0] < 0 else "left", va="top" if out[1] < 0 else "bottom",
            color=colour, fontsize=7, zorder=2, annotation_clip=False, path_effects=halo,
        )  # fmt: skip
    for (x, y), own, g in zip(panel.place, panel.cluster, panel.group, strict=True):
        colour = _NONE if own is None else COLOURS[clusters[own] % len(COLOURS)]
        axes.plot(
            x, y, linestyle="none", marker=_MARKERS[groups[g] % len(_MARKERS)], markersize=6 if few else 4,
            color=colour, markeredgecolor="white", markeredgewidth=0.5, alpha=0.9, zorder=3,
        )  # fmt: skip
    axes.set_title(panel.title)
    for which, share in zip(("x", "y"), panel.share, strict=True):
        getattr(axes, f"set_{which}label")(f"principal axis {1 + 'xy'.index(which)} ({100 * share:.0f} %)")
    axes.margins(0.18, 0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    if not np.ptp(panel.place):  # all descriptors are equal
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)


def _numbered(values: Sequence[int]) -> dict[int, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}
