"""From a figure's panels to images: the partitions that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.report.figures.curves import RIDGE, Panel, curves
from fedbench.report.figures.spec import FigureSpec, PanelSpec
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.partition import Partition

#: More curves than this cannot be told apart.
MOST = 8


def panels(
    figure: FigureSpec,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], None] | None = None,
    *,
    seed: int = 0,
    ridge: float = RIDGE,
) -> list[Panel]:
    """All panels of a figure; partitions are made where the store lacks them. Raises FedbenchError without images."""
    return [_named(panel, figure.protocol, store, roots, notify, seed, ridge) for panel in figure.panels]


def of_partition(
    partition: Partition,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], None] | None = None,
    *,
    title: str = "",
    clients: Sequence[int] | None = None,
    first: int = 0,
    ridge: float = RIDGE,
) -> Panel:
    """The panel of a partition's clients (all if None), printed as counted from `first`.

    Raises FedbenchError for a client that is not there, and for more clients than can be told apart.
    """
    from fedbench import data

    chosen = range(partition.clients) if clients is None else sorted(set(clients))
    for client in chosen:
        if not 0 <= client < partition.clients:
            raise FedbenchError(
                f"partition {partition.id} has no client {client}", f"it has 0..{partition.clients - 1}"
            )
    if len(chosen) > MOST:
        raise FedbenchError(
            f"{len(chosen)} clients cannot be told apart in one panel", f"choose up to {MOST}: --client"
        )
    seen = partition.shifted_images(data.load(partition.spec.dataset, store, roots, notify))
    sides = {"train": False, "test": True}
    images = {(c + first, s): seen[partition.rows(c, test=t)] for c in chosen for s, t in sides.items()}
    name = partition.spec.dataset.name
    return Panel(title or f"{name}, {partition.spec.label}", name, partition.id, curves(images, ridge))


def _named(
    panel: PanelSpec,
    protocol: str,
    store: Store,
    roots: Sequence[Path],
    notify: Callable[[str], None] | None,
    seed: int,
    ridge: float,
) -> Panel:
    from fedbench import data
    from fedbench import partition as partitions
    from fedbench import protocol as protocols

    dataset = data.resolve(panel.dataset, store, roots)
    classes = data.info(dataset, store).partition_classes
    spec = protocols.load(protocol).partition_spec(dataset, classes, layout=panel.layout, seed=seed)
    made = partitions.build(spec, store, roots, notify)
    # The paper counts its clients from 1.
    return of_partition(made, store, roots, notify, title=panel.title, clients=panel.clients, first=1, ridge=ridge)
