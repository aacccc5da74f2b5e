"""Figure 11 of FLUX: the clients' descriptors under a PCA to two dimensions, with clusters and true groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.report.figures import source
from fedbench.report.figures.kind import Ask, Kind
from fedbench.report.figures.spec import FigureSpec
from fedbench.specs import RunSpec

if TYPE_CHECKING:
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
        from fedbench.report.figures import descriptors_draw

        return descriptors_draw.paint(shown)


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
    title = title or f"{run.provenance.get('title', spec.method)}, {dataset} {setting.partition.label}"
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
