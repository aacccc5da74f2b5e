"""A partition for the eye: the clients x classes table in colour, sizes and shifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partition import sides
from fedbench.partition.artifact import Partition
from fedbench.partition.shade import (
    CLASSES,
    LARGEST,
    class_cells,
    head,
    largest_cells,
    measure,
    plain_table,
    rows_shown,
    two_lines,
)
from fedbench.spec import DRAWN_APART

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

#: Columns wanted where the output is not a terminal.
WIDTH = 100


def render(partition: Partition, width: int = WIDTH) -> Iterable[RenderableType]:
    """The lines and tables that describe a partition, within `width` columns where its class names allow it."""
    p, spec = partition, partition.spec
    if spec.scheme in DRAWN_APART:
        yield from sides.render(p, width)
        return
    groups = len(set(p.groups))
    seen = "no covariate shift" if spec.shift == "none" else f"shift {spec.shift} in {groups} groups"
    yield (
        f"[bold]{spec.dataset.name}[/]  {spec.label}  {p.clients} clients  {seen}  seed {spec.seed}\n"
        f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images"
        + ("; grey images have no hue and no saturation to shift" if _grey(p) else "")
        + "\n"
    )
    if p.clients > (shown := rows_shown(p.clients)):
        yield _summary(p)
        yield f"The first {shown} clients:"
    if len(p.classes) <= CLASSES:
        if measure(_matrix(p)) <= width:
            yield _matrix(p)
            return
        if measure(_matrix(p, shift=False)) <= width:
            yield _matrix(p, shift=False)
            if spec.shift != "none":
                yield "\n" + "\n".join(f"client {c}: {p.shifts[c]}" for c in range(shown))
            return
    spare = width - measure(_compact(p, len(LARGEST)))
    yield _compact(p, len(LARGEST) + max(0, spare))


def _grey(p: Partition) -> bool:
    """Whether the shift lost its colour steps, the images being grey."""
    return p.spec.shift != "none" and all(shift == shift.on_grey() for shift in p.shifts)


def display(console: Console, partition: Partition) -> None:
    """Print `render` on the console: as wide as the terminal, WIDTH columns elsewhere."""
    if not console.is_terminal:
        console.width = WIDTH
    for part in render(partition, console.width):
        console.print(part, soft_wrap=False)


def _matrix(p: Partition, shift: bool = True) -> Table:
    """How many samples of each class, each cell shaded by its share of the client."""
    grid = head(["client", *map(two_lines, p.classes)], gap=1)
    counts = p.class_counts()
    return _fill(grid, p, lambda c: class_cells(counts[c]), shift)


def _compact(p: Partition, room: int) -> Table:
    """How many classes, and the largest of them in `room` columns."""
    grid = head(["client", "classes"], gap=2)
    grid.add_column(LARGEST, no_wrap=True)
    counts = p.class_counts()
    return _fill(grid, p, lambda c: largest_cells(counts[c], p.classes, room))


def _fill(grid: Table, p: Partition, cells: Callable[[int], list[Text]], shift: bool = True) -> Table:
    """Add sizes and perhaps the shift behind the cells of each client. A step that no client takes has no column."""
    steps = {"gamma": "g", "hue": "+g", "saturation": "g", "posterize": "d"}
    heads = {"saturation": "satu-\nration", "posterize": "poste-\nrize"}
    used = [s for s in steps if shift and any(getattr(one, s) is not None for one in p.shifts)]
    for name in ("train", "test", *used):
        grid.add_column(heads.get(name, name), justify="right", no_wrap=True)
    for c in range(rows_shown(p.clients)):
        values = [getattr(p.shifts[c], s) for s in used]
        shown = ["-" if v is None else format(v, steps[s]) for s, v in zip(used, values, strict=True)]
        grid.add_row(str(c), *cells(c), f"{p.n_train[c]:,}", f"{p.n_test[c]:,}", *shown)
    return grid


def _summary(p: Partition) -> Table:
    grid = plain_table(gap=2)
    for name in ("a client's", "min", "25 %", "median", "75 %", "max"):
        grid.add_column(name, justify="left" if name == "a client's" else "right")
    rows: Sequence[tuple[str, np.ndarray]] = (
        ("training images", p.n_train),
        ("test images", p.n_test),
        (f"classes of {len(p.classes)}", (p.class_counts() > 0).sum(axis=1)),
        ("largest class, % of its images", 100 * p.class_counts().max(axis=1) / (p.n_train + p.n_test)),
    )
    for name, values in rows:
        grid.add_row(name, *(f"{v:,.0f}" for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))
    return grid
