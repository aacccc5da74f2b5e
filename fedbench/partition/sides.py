"""The view of partitions whose training and test distributions differ: a line for either side of each client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partition.artifact import Partition
from fedbench.partition.density import COLORED_STRATA
from fedbench.partition.shade import (
    CLASSES,
    LARGEST,
    class_cells,
    head,
    largest_cells,
    measure,
    rows_shown,
    shaded,
    two_lines,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def render(p: Partition, width: int) -> Iterable[RenderableType]:
    """The lines and the table that describe a mixture or a colored partition."""
    from rich.text import Text

    spec = p.spec
    clients = f"{p.clients} clients" if p.clients > 1 else "1 client"
    what = f"  {spec.label}  {clients}  seed {spec.seed}\n{_sizes(p)}\n"
    yield Text.assemble((spec.dataset.name, "bold"), what)
    if spec.scheme == "colored":
        yield _colored(p)
    elif len(p.classes) <= CLASSES and measure(_matrix(p)) <= width:
        yield _matrix(p)
    else:
        spare = width - measure(_compact(p, len(LARGEST)))
        yield _compact(p, len(LARGEST) + max(0, spare))
    if more := _groups(p) - rows_shown(_groups(p)):
        yield f"and {more} more"


def _groups(p: Partition) -> int:
    return len(p.spec.train_mix or p.spec.flips or ())


def _sizes(p: Partition) -> str:
    """How many images there are, and what is common to the clients."""
    members, spec = p.clients // _groups(p), p.spec
    if spec.scheme == "colored":
        return (
            f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images; "
            f"{spec.label_noise:.0%} of the labels are flipped"
        )
    copies = 1 if spec.disjoint else members
    text = f"{p.n_train.sum() // copies:,} training and {p.n_test.sum() // copies:,} test images"
    if members == 1:
        return text
    sharing = "share the images of their group out" if spec.disjoint else "hold the same images"
    return f"{text}; {_groups(p)} groups of {members} clients, who {sharing}"


def _lines(p: Partition) -> Iterable[tuple[str, str, np.ndarray]]:
    """Name, side and class counts for either side of each group; a group of one is its client."""
    groups = _groups(p)
    members = p.clients // groups
    train, test = (p.class_counts(side).reshape(groups, members, -1) for side in (False, True))
    for g in range(rows_shown(groups)):
        name = f"{g * members}-{(g + 1) * members - 1}" if members > 1 else str(g)
        for label, side, counts in ((name, "train", train), ("", "test", test)):
            yield label, side, counts[g].sum(axis=0) if p.spec.disjoint else counts[g, 0]


def _title(p: Partition) -> str:
    return "client" if p.clients == _groups(p) else "clients"


def _matrix(p: Partition) -> Table:
    grid = head([_title(p), "", *map(two_lines, p.classes), "images"], gap=1)
    for name, side, counts in _lines(p):
        grid.add_row(name, side, *class_cells(counts), f"{counts.sum():,}")
    return grid


def _compact(p: Partition, room: int) -> Table:
    grid = head([_title(p), "", "images", "classes"], gap=2)
    grid.add_column(LARGEST, no_wrap=True)
    for name, side, counts in _lines(p):
        grid.add_row(name, side, f"{counts.sum():,}", *largest_cells(counts, p.classes, room))
    return grid


def _colored(p: Partition) -> Table:
    """Labels, and how often the colour agrees with them beside the probability that it does not."""
    assert p.spec.flips is not None
    grid = head(["client", "", *p.classes, *COLORED_STRATA, "flip probability", "images"], gap=2)
    for client in range(rows_shown(p.clients)):
        for test, side in enumerate(("train", "test")):
            rows = p.rows(client, bool(test))
            strata = np.bincount(p.densities.strata[rows], minlength=len(COLORED_STRATA))
            labels = np.bincount(p.label[rows], minlength=len(p.classes))
            flip = p.spec.flips[client][test]
            cells = [*class_cells(labels), *class_cells(strata), shaded(f"{flip:g}", flip)]
            grid.add_row("" if test else str(client), side, *cells, f"{labels.sum():,}")
    return grid
