"""What the views of a partition are painted with: plain tables, and cells shaded by a share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.partitions.artifact import Partition

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


#: More classes than this are summed up in one column, whose head is LARGEST.
CLASSES, LARGEST = 12, "largest classes"
#: More clients (or groups of them) than MANY are cut to the first FEW.
MANY, FEW = 32, 10
#: From nothing of a client's samples to all of them: background from dark blue to yellow, after viridis.
_RAMP = np.array([[38, 40, 74], [49, 89, 134], [38, 138, 141], [83, 187, 110], [240, 220, 60]])


def rows_shown(count: int) -> int:
    """How many of so many clients, or groups of them, have rows of their own."""
    return count if count <= MANY else FEW


def plain_table(gap: int) -> Table:
    """A table without a frame, its columns `gap` apart."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")


def measure(table: Table) -> int:
    """Columns that a table takes when nothing is squeezed."""
    from rich.console import Console

    return Console(width=1000, markup=False, emoji=False).measure(table).maximum


def shaded(text: str, share: float) -> Text:
    """Text on a background that tells a share in 0..1; ink dark on light and light on dark."""
    from rich.text import Text

    if share <= 0:
        return Text(text, style="dim")
    at = min(share, 1.0) * (len(_RAMP) - 1)
    low = min(int(at), len(_RAMP) - 2)
    r, g, b = (_RAMP[low] + (at - low) * (_RAMP[low + 1] - _RAMP[low])).astype(int)
    ink = "black" if 0.3 * r + 0.6 * g + 0.1 * b > 120 else "white"
    return Text(text, style=f"{ink} on rgb({r},{g},{b})")


def percent(share: float) -> str:
    """A share in 0..1 in whole per cent."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def two_lines(name: str) -> str:
    """A class name over a narrow column: 5 letters a line, two lines at most."""
    return name if len(name) <= 5 else f"{name[:5]}\n{name[5:10]}"


def class_cells(counts: NDArray[np.int64]) -> list[Text]:
    """How many samples of each class, each cell shaded by its share of all; a dot for none."""
    total = counts.sum()
    return [shaded(f"{n:,}" if n else "·", n / total) for n in counts]


def largest_cells(counts: NDArray[np.int64], names: Sequence[str], room: int) -> list[Text]:
    """How many classes there are samples of, and the largest three in `room` columns."""
    from rich.text import Text

    total, present = counts.sum(), int((counts > 0).sum())
    largest = np.argsort(-counts, kind="stable")[: min(3, present)]
    text = Text(", ").join(
        Text.assemble(f"{names[k][:14]} ", shaded(percent(counts[k] / total), counts[k] / total)) for k in largest
    )
    text.truncate(room, overflow="ellipsis")
    return [shaded(str(present), present / len(names)), text]


def head(columns: Sequence[str], gap: int) -> Table:
    """A table with these right-aligned columns, which are never broken."""
    from rich.text import Text

    grid = plain_table(gap)
    for name in columns:
        grid.add_column(Text(name), justify="right", no_wrap=True)
    return grid


# -- sides -----------------------------------------------------------------------------------------------------
# The view of partitions whose training and test distributions differ: a line for either side of each client.


#: Name, side and class counts [K] of each line.
Lines = Sequence[tuple[str, str, np.ndarray]]


def of_groups(p: Partition, label: str, groups: int, disjoint: bool, width: int) -> Iterable[RenderableType]:
    """The lines and the table that describe a mixture: clients in groups, which share their images out (`disjoint`)
    or hold the same."""
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
    """The same of a colored partition: labels, and how often the colour agrees with them (`strata`) beside the
    probabilities that it does not, of each client's two sides (`flips`)."""
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
    """Name, side and class counts for either side of each group; a group of one is its client."""
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
