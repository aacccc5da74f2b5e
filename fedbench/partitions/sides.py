"""Views of partitions whose training and test distributions differ: one line for each side of each client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partitions.artifact import Partition

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
from fedbench.partitions.shade import (
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

#: Name, side and class counts [K] of each line.
Lines = Sequence[tuple[str, str, np.ndarray]]


def of_groups(p: Partition, label: str, groups: int, disjoint: bool, width: int) -> Iterable[RenderableType]:
    """Render a mixture: a heading and a table. The clients of a group divide its images (`disjoint`) or hold the
    same."""
    members = p.clients // groups
    copies = 1 if disjoint else members
    sizes = f"{p.n_train.sum() // copies:,} training and {p.n_test.sum() // copies:,} test images"
    if members > 1:
        sharing = "share the images of their group out" if disjoint else "hold the same images"
        sizes += f"; {groups} groups of {members} clients, who {sharing}"
    yield _heading(p, label, sizes)
    stub, lines = "client" if members == 1 else "clients", list(_lines(p, groups, disjoint))
    grid = _matrix(p, stub, lines)
    if len(p.classes) > CLASSES or measure(grid) > width:
        spare = width - measure(_compact(p, stub, lines, len(LARGEST)))
        grid = _compact(p, stub, lines, len(LARGEST) + max(0, spare))
    yield grid
    yield from _more(groups)


def of_flips(
    p: Partition, label: str, strata: Sequence[str], flips: Sequence[Sequence[float]], label_noise: float
) -> Iterable[RenderableType]:
    """Render a colored partition: for each side of each client its labels, how often the colour agrees with them
    (`strata`), and the probability that it does not (`flips`)."""
    sizes = f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images"
    yield _heading(p, label, f"{sizes}; {label_noise:.0%} of the labels are flipped")
    grid = head(["client", "", *p.classes, *strata, "flip probability", "images"], gap=2)
    for client in range(rows_shown(p.clients)):
        for test, side in enumerate(("train", "test")):
            rows = p.rows(client, bool(test))
            colours = np.bincount(p.densities.strata[rows], minlength=len(strata))
            labels = np.bincount(p.label[rows], minlength=len(p.classes))
            flip = flips[client][test]
            cells = [*class_cells(labels), *class_cells(colours), shaded(f"{flip:g}", flip)]
            grid.add_row("" if test else str(client), side, *cells, f"{labels.sum():,}")
    yield grid
    yield from _more(p.clients)


def _heading(p: Partition, label: str, sizes: str) -> RenderableType:
    from rich.text import Text

    clients = f"{p.clients} clients" if p.clients > 1 else "1 client"
    what = f"  {label}  {clients}  seed {p.spec.seed}\n{sizes}\n"
    return Text.assemble((p.spec.dataset.name, "bold"), what)


def _more(groups: int) -> Iterable[str]:
    if more := groups - rows_shown(groups):
        yield f"and {more} more"


def _lines(p: Partition, groups: int, disjoint: bool) -> Iterable[tuple[str, str, np.ndarray]]:
    """Yield name, side and class counts for both sides of each group; a group of one is named after its client."""
    members = p.clients // groups
    train, test = (p.class_counts(side).reshape(groups, members, -1) for side in (False, True))
    for g in range(rows_shown(groups)):
        name = f"{g * members}-{(g + 1) * members - 1}" if members > 1 else str(g)
        for stub, side, counts in ((name, "train", train), ("", "test", test)):
            yield stub, side, counts[g].sum(axis=0) if disjoint else counts[g, 0]


def _matrix(p: Partition, stub: str, lines: Lines) -> Table:
    grid = head([stub, "", *map(two_lines, p.classes), "images"], gap=1)
    for name, side, counts in lines:
        grid.add_row(name, side, *class_cells(counts), f"{counts.sum():,}")
    return grid


def _compact(p: Partition, stub: str, lines: Lines, room: int) -> Table:
    grid = head([stub, "", "images", "classes"], gap=2)
    grid.add_column(LARGEST, no_wrap=True)
    for name, side, counts in lines:
        grid.add_row(name, side, f"{counts.sum():,}", *largest_cells(counts, p.classes, room))
    return grid
