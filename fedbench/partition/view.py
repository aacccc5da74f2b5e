"""A partition for the eye: the clients x classes table in colour, sizes and shifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partition.artifact import Partition

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

#: Columns wanted where the output is not a terminal.
WIDTH = 100
#: More classes than this are summed up in one column.
_CLASSES = 12
#: More clients than this are summed up in quartiles, with the first few as examples.
_CLIENTS, _EXAMPLES = 32, 10
#: Least width of the column of the largest classes: that of its head.
_HEAD = len("largest classes")
#: From nothing of a client's samples to all of them: background from dark blue to yellow, after viridis.
_RAMP = np.array([[38, 40, 74], [49, 89, 134], [38, 138, 141], [83, 187, 110], [240, 220, 60]])


def render(partition: Partition, width: int = WIDTH) -> Iterable[RenderableType]:
    """The lines and tables that describe a partition, within `width` columns where its class names allow it."""
    p, spec = partition, partition.spec
    groups = len(set(p.groups))
    seen = "no covariate shift" if spec.shift == "none" else f"shift {spec.shift} in {groups} groups"
    yield (
        f"[bold]{spec.dataset.name}[/]  {spec.label}  {p.clients} clients  {seen}  seed {spec.seed}\n"
        f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images"
        + ("; grey images have no hue and no saturation to shift" if _grey(p) else "")
        + "\n"
    )
    if p.clients > _CLIENTS:
        yield _summary(p)
        yield f"The first {_EXAMPLES} clients:"
    if len(p.classes) <= _CLASSES:
        if _measure(_matrix(p)) <= width:
            yield _matrix(p)
            return
        if _measure(_matrix(p, shift=False)) <= width:
            yield _matrix(p, shift=False)
            if spec.shift != "none":
                yield "\n" + "\n".join(f"client {c}: {p.shifts[c]}" for c in range(_shown(p)))
            return
    spare = width - _measure(_compact(p, _HEAD))
    yield _compact(p, _HEAD + max(0, spare))


def _shown(p: Partition) -> int:
    """How many clients have a row of their own."""
    return p.clients if p.clients <= _CLIENTS else _EXAMPLES


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
    from rich.text import Text

    table = _table(gap=1)
    table.add_column("client", justify="right", no_wrap=True)
    for name in p.classes:
        table.add_column(Text(_two_lines(name)), justify="right", no_wrap=True)
    counts = p.class_counts()

    def cells(c: int) -> list[Text]:
        total = counts[c].sum()
        return [_shaded(f"{n:,}" if n else "·", n / total) for n in counts[c]]

    return _fill(table, p, cells, shift)


def _compact(p: Partition, room: int) -> Table:
    """How many classes, and the largest of them in `room` columns."""
    table = _table(gap=2)
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column("largest classes", no_wrap=True)
    counts = p.class_counts()

    def cells(c: int) -> list[Text]:
        from rich.text import Text

        total, present = counts[c].sum(), int((counts[c] > 0).sum())
        largest = np.argsort(-counts[c], kind="stable")[: min(3, present)]
        text = Text(", ").join(
            Text.assemble(f"{p.classes[k][:14]} ", _shaded(_percent(counts[c, k] / total), counts[c, k] / total))
            for k in largest
        )
        text.truncate(room, overflow="ellipsis")
        return [_shaded(str(present), present / len(p.classes)), text]

    return _fill(table, p, cells)


def _table(gap: int) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")


def _measure(table: Table) -> int:
    """Columns that a table takes when nothing is squeezed."""
    from rich.console import Console

    return Console(width=1000).measure(table).maximum


def _fill(table: Table, p: Partition, cells: Callable[[int], list[Text]], shift: bool = True) -> Table:
    """Add sizes and perhaps the shift behind the cells of each client. A step that no client takes has no column."""
    steps = {"gamma": "g", "hue": "+g", "saturation": "g", "posterize": "d"}
    heads = {"saturation": "satu-\nration", "posterize": "poste-\nrize"}
    used = [s for s in steps if shift and any(getattr(one, s) is not None for one in p.shifts)]
    for name in ("train", "test", *used):
        table.add_column(heads.get(name, name), justify="right", no_wrap=True)
    for c in range(_shown(p)):
        values = [getattr(p.shifts[c], s) for s in used]
        shown = ["-" if v is None else format(v, steps[s]) for s, v in zip(used, values, strict=True)]
        table.add_row(str(c), *cells(c), f"{p.n_train[c]:,}", f"{p.n_test[c]:,}", *shown)
    return table


def _summary(p: Partition) -> Table:
    table = _table(gap=2)
    for name in ("a client's", "min", "25 %", "median", "75 %", "max"):
        table.add_column(name, justify="left" if name == "a client's" else "right")
    rows: Sequence[tuple[str, np.ndarray]] = (
        ("training images", p.n_train),
        ("test images", p.n_test),
        (f"classes of {len(p.classes)}", (p.class_counts() > 0).sum(axis=1)),
        ("largest class, % of its images", 100 * p.class_counts().max(axis=1) / (p.n_train + p.n_test)),
    )
    for name, values in rows:
        table.add_row(name, *(f"{v:,.0f}" for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))
    return table


def _shaded(text: str, share: float) -> Text:
    """Text on a background that tells a share in 0..1; ink dark on light and light on dark."""
    from rich.text import Text

    if share <= 0:
        return Text(text, style="dim")
    at = min(share, 1.0) * (len(_RAMP) - 1)
    low = min(int(at), len(_RAMP) - 2)
    r, g, b = (_RAMP[low] + (at - low) * (_RAMP[low + 1] - _RAMP[low])).astype(int)
    ink = "black" if 0.3 * r + 0.6 * g + 0.1 * b > 120 else "white"
    return Text(text, style=f"{ink} on rgb({r},{g},{b})")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _two_lines(name: str) -> str:
    """A class name over a narrow column: 5 letters a line, two lines at most."""
    return name if len(name) <= 5 else f"{name[:5]}\n{name[5:10]}"
