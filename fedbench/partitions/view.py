"""Print a partition: the clients x classes table in colour, sizes and shifts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench import words
from fedbench.data.part import as_array
from fedbench.errors import FedbenchError
from fedbench.partitions import artifact, schemes
from fedbench.partitions.artifact import Partition
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.distribution import counted
from fedbench.partitions.names import column_of
from fedbench.partitions.shade import (
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
from fedbench.partitions.transforms import SHIFTS, Transform, of_clients
from fedbench.specs import PartitionSpec
from fedbench.store import Artifact

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


#: At most this many clients of a group are listed.
_NAMED = 12


def of_client(p: Partition, client: int) -> str:
    """Return a client's group; under drift, its group in each phase and then that of its test data."""
    if p.spec.phases is None:
        return str(p.groups[client])
    return "→".join(str(phase[client]) for phase in p.phase_groups) + f", {p.test_groups[client]}"


def render_groups(p: Partition, width: int) -> Iterable[str | Table]:
    """Render one line per group: its clients (under drift those that train on it and those that are tested on it), and
    its distribution in words."""
    total = len(p.distributions)
    drifting = p.spec.phases is not None
    if drifting:
        yield "\nColumn group: of each phase of the training data, and behind the comma of the test data."
    grid = plain_table(gap=2)
    grid.add_column("group", justify="right", no_wrap=True)
    for name in ("training", "test") if drifting else ("clients",):
        grid.add_column(name)
    grid.add_column("distribution")
    yield ""
    for g in range(rows_shown(total)):
        trained = [c for c in range(p.clients) if any(phase[c] == g for phase in p.phase_groups)]
        tested = [c for c in range(p.clients) if p.test_groups[c] == g]
        who = [trained, tested] if drifting else [trained]
        grid.add_row(str(g), *map(_clients, who), p.distributions[g].described(p.classes))
    yield grid
    if more := total - rows_shown(total):
        yield f"and {more:,} more"


def _clients(numbers: list[int]) -> str:
    """List client numbers, shortened after _NAMED of them."""
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = len(numbers) - _NAMED
    return f"{named} and {more} more" if more > 0 else named or "none"


#: Width if the output is not a terminal.
WIDTH = 100


def render(partition: Partition, width: int = WIDTH) -> Iterable[RenderableType]:
    """Render a partition as lines and tables, within `width` terminal columns if the class names allow it."""
    from rich.text import Text

    p, spec = partition, partition.spec
    own = schemes.of(spec).view(p, width) if schemes.at_hand(spec) else None
    if own is not None:
        yield from own
        if line := leakage(p):
            yield line
        return
    dealt = slice(spec.clients)  # unseen clients under corruptions hold only copies of others' images
    groups = len(set(p.groups[dealt]))
    seen = "no covariate shift" if spec.shift == "none" else f"shift {spec.shift} in {groups} groups"
    if p.drawn is not None:
        seen = f"{LEVELLED.get(spec.shift, 'natural groups')} in {words.counted(len(p.distributions), 'group')}"
    yield Text.assemble(
        (spec.dataset.name, "bold"),
        f"  {schemes.label(spec)}  {spec.clients} clients  {seen}  seed {spec.seed}\n{_sizes(p, dealt)}",
        "; grey images have no hue and no saturation to shift" if _grey(p) else "",
        "\n",
        *(f"{line}\n" for line in (*_details(p), leakage(p)) if line),
    )
    yield from _tables(p, width)
    if p.drawn is not None:
        yield from render_groups(p, width)


def leakage(p: Partition) -> str:
    """Say how many test images are training images of other clients; "" if none is."""
    return artifact.leakage(p.leaked, int(p.n_test.sum()), p.spec.dataset.samples)


def _sizes(p: Partition, dealt: slice) -> str:
    sides = [f"{p.n_train[dealt].sum():,} training", f"{p.n_test[dealt].sum():,} test {p.spec.dataset.samples}"]
    if p.validation is not None:
        sides[:1] = [f"{sides[0]}, {p.n_validation[dealt].sum():,} validation"]
    return " and ".join(sides)


def _tables(p: Partition, width: int) -> Iterable[RenderableType]:
    """Render the clients x classes table in the widest form that fits."""
    if p.clients > (shown := rows_shown(p.clients)):
        yield _summary(p)
        yield f"The first {shown} clients:"
    if len(p.classes) <= CLASSES:
        if measure(_matrix(p)) <= width:
            yield _matrix(p)
            return
        if measure(_matrix(p, shift=False)) <= width:
            yield _matrix(p, shift=False)
            if any(transform != Transform() for transform in p.transforms[:shown]):
                yield "\n" + "\n".join(f"client {c}: {p.transforms[c]}" for c in range(shown))
            return
    spare = width - measure(_compact(p, len(LARGEST)))
    yield _compact(p, len(LARGEST) + max(0, spare))


def _details(p: Partition) -> Iterable[str]:
    """Yield how the samples were assigned in addition, and which clients never train."""
    spec = p.spec
    if details := schemes.details(spec):
        yield "; ".join(details)
    if spec.unseen:
        first, last = spec.trainees, spec.all_clients - 1
        who = f"clients {first} to {last}" if last > first else f"client {first}"
        yield f"{who} (counted from 0) never train{'s' * (first == last)} (*)"


def _grey(p: Partition) -> bool:
    """Whether the shift lost its colour steps because the images are grey."""
    if p.spec.shift not in SHIFTS:
        return False
    whole = of_clients(p.spec.shift, p.spec.clients)
    return list(p.transforms[: len(whole)]) == [transform.on_grey() for transform in whole] != whole


def display(console: Console, partition: Partition) -> None:
    """Print `render` on the console, as wide as the terminal, or WIDTH columns if there is none."""
    if not console.is_terminal:
        console.width = WIDTH
    for part in render(partition, console.width):
        console.print(part, soft_wrap=False)


def _matrix(p: Partition, shift: bool = True) -> Table:
    """Return a table of samples by class, each cell shaded by its share of the client's samples."""
    grid = head([*_who(p), *map(two_lines, p.classes)], gap=1)
    counts = p.class_counts()
    return _fill(grid, p, lambda c: class_cells(counts[c]), shift)


def _compact(p: Partition, room: int) -> Table:
    """Return a table of the number of classes, and of the largest ones in `room` terminal columns."""
    grid = head([*_who(p), "classes"], gap=2)
    grid.add_column(LARGEST, no_wrap=True)
    counts = p.class_counts()
    return _fill(grid, p, lambda c: largest_cells(counts[c], p.classes, room))


#: At most so many letters of a client's name.
_LETTERS = 24


def _who(p: Partition) -> list[str]:
    """The heads of the columns that say which client it is: its number, and the name of its natural group."""
    return ["client", words.plain(column_of(p.spec))] if p.names else ["client"]


def _fill(grid: Table, p: Partition, cells: Callable[[int], list[Text]], shift: bool = True) -> Table:
    """Add sizes, and optionally the shift, after the cells of each client. Unused steps of the shift have no column."""
    from rich.text import Text

    steps = {"gamma": "{:g}", "hue": "{:+g}", "saturation": "{:g}", "posterize": "{:d}", "corruption": "{}"}
    heads = {"saturation": "satu-\nration", "posterize": "poste-\nrize", "validation": "vali-\ndation"}
    shown = rows_shown(p.clients)
    used = [s for s in steps if shift and any(getattr(one, s) is not None for one in p.transforms[:shown])]
    own = [] if p.drawn is None else ["group"]
    if p.names:
        grid.columns[1].justify = "left"
    validated = [] if p.validation is None else ["validation"]
    for name in ("train", *validated, "test", *used, *own):
        grid.add_column(heads.get(name, name), justify="right", no_wrap=True)
    for c in range(shown):
        seen = p.transforms[c]
        values = [_corruption(seen) if s == "corruption" else getattr(seen, s) for s in used]
        written = ["-" if v is None else steps[s].format(v) for s, v in zip(used, values, strict=True)]
        mark = ("*" if p.unseen[c] else " ") if p.spec.unseen else ""
        sizes = [f"{sizes[c]:,}" for sizes in (p.n_train, *([p.n_validation] if validated else []), p.n_test)]
        group = [Text(words.plain(p.names[c]))] if p.names else []
        for called in group:
            called.truncate(_LETTERS, overflow="ellipsis")
        grid.add_row(f"{c}{mark}", *group, *cells(c), *sizes, *written, *([of_client(p, c)] if own else []))
    return grid


def _corruption(transform: Transform) -> str | None:
    return f"{transform.corruption} {transform.severity}".replace("_", " ") if transform.corruption else None


def _summary(p: Partition) -> Table:
    grid = plain_table(gap=2)
    for name in ("a client's", "min", "25 %", "median", "75 %", "max"):
        grid.add_column(name, justify="left" if name == "a client's" else "right")
    counts = p.class_counts()[: p.spec.clients]
    samples = p.spec.dataset.samples
    rows: Sequence[tuple[str, np.ndarray]] = (
        (f"training {samples}", p.n_train[: p.spec.clients]),
        (f"test {samples}", p.n_test[: p.spec.clients]),
        (f"classes of {len(p.classes)}", (counts > 0).sum(axis=1)),
        (f"largest class, % of its {samples}", 100 * counts.max(axis=1) / counts.sum(axis=1)),
    )
    for name, values in rows:
        grid.add_row(name, *(f"{v:,.0f}" for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))
    return grid


def class_counts(made: Artifact) -> tuple[tuple[str, ...], NDArray[np.int64], bool]:
    """Return the names of the K classes, each client's samples by class [M, K], and whether an image has several
    labels. Raises FedbenchError if the artifact is no partition or its file is damaged."""
    spec = made.spec
    if not isinstance(spec, PartitionSpec):
        raise FedbenchError(f"{made.kind} {made.id} is not a partition")
    table = made.table("samples", ["client", "label"])
    classes = tuple(json.loads(table.schema.metadata[b"classes"]))
    client, label = as_array(table["client"]), as_array(table["label"])
    return classes, counted(client, label, spec.all_clients, len(classes)), label.ndim > 1
