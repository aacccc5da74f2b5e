"""What the views of a partition are painted with: plain tables, and cells shaded by a share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
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


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
