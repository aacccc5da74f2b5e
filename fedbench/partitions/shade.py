"""Building blocks for the views of a partition: plain tables, and cells shaded by a share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
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
