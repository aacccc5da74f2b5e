"""Building blocks for the views of a partition: plain tables, and cells shaded by a share."""

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


#: More classes than CLASSES are summarised in one column with the header LARGEST.
CLASSES, LARGEST = 12, "largest classes"
#: If there are more than MANY clients (or groups), only the first FEW are shown.
MANY, FEW = 32, 10
#: Background colours from a share of 0 to a share of 1, from dark blue to yellow, after viridis.
_RAMP = np.array([[38, 40, 74], [49, 89, 134], [38, 138, 141], [83, 187, 110], [240, 220, 60]])


def rows_shown(count: int) -> int:
    """Return how many of `count` clients or groups get a row."""
    return count if count <= MANY else FEW


def plain_table(gap: int) -> Table:
    """Return a table without a frame, with columns `gap` apart."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")


def measure(table: Table) -> int:
    """Return the width of a table, in terminal columns, if nothing is squeezed."""
    from rich.console import Console

    return Console(width=1000, markup=False, emoji=False).measure(table).maximum


def shaded(text: str, share: float) -> Text:
    """Return text whose background shows a share in 0..1; the ink contrasts with it."""
    from rich.text import Text

    if share <= 0:
        return Text(text, style="dim")
    at = min(share, 1.0) * (len(_RAMP) - 1)
    low = min(int(at), len(_RAMP) - 2)
    r, g, b = (_RAMP[low] + (at - low) * (_RAMP[low + 1] - _RAMP[low])).astype(int)
    ink = "black" if 0.3 * r + 0.6 * g + 0.1 * b > 120 else "white"
    return Text(text, style=f"{ink} on rgb({r},{g},{b})")


def percent(share: float) -> str:
    """Format a share in 0..1 in whole per cent."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def two_lines(name: str) -> str:
    """Break a class name for a narrow column: 5 letters per line, at most two lines."""
    return name if len(name) <= 5 else f"{name[:5]}\n{name[5:10]}"


def class_cells(counts: NDArray[np.int64]) -> list[Text]:
    """Return a cell per class with its count, shaded by its share of all samples; a dot for no samples."""
    total = counts.sum()
    return [shaded(f"{n:,}" if n else "·", n / total) for n in counts]


def largest_cells(counts: NDArray[np.int64], names: Sequence[str], room: int) -> list[Text]:
    """Return the number of classes that occur, and the largest three classes in `room` terminal columns."""
    from rich.text import Text

    total, present = counts.sum(), int((counts > 0).sum())
    largest = np.argsort(-counts, kind="stable")[: min(3, present)]
    text = Text(", ").join(
        Text.assemble(f"{names[k][:14]} ", shaded(percent(counts[k] / total), counts[k] / total)) for k in largest
    )
    text.truncate(room, overflow="ellipsis")
    return [shaded(str(present), present / len(names)), text]


def head(columns: Sequence[str], gap: int) -> Table:
    """Return a table with these right-aligned columns, whose text is never wrapped."""
    from rich.text import Text

    grid = plain_table(gap)
    for name in columns:
        grid.add_column(Text(name), justify="right", no_wrap=True)
    return grid


# -- sides -----------------------------------------------------------------------------------------------------
# Views of partitions whose training and test distributions differ: one line for each side of each client.


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
