"""What is said of values that cells have chosen for themselves (`status.tuning`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbench import protocol
from fedbench.reports.status.cells import Cell, Cells
from fedbench.reports.status.index import State
from fedbench.reports.table.own import short
from fedbench.reports.table.spec import Row


def in_brief(cells: Cells) -> Iterator[str]:
    """What was chosen from, by what, and how often each value was taken."""
    table = cells.table
    if not table.tune:
        return
    own = list(_distinct(cells))
    values = "; ".join(f"{name} from {', '.join(map(short, of))}" for name, of in table.tune.items())
    counts = Counter("to be chosen" if cell.tuned is None else _words(cell.tuned) for cell in own)
    failed = sum(record is not None and record.state is State.FAILED for cell in own for record in cell.trials)
    failures = f"; {failed} of the runs that they were chosen by failed" if failed else ""
    (seed, *_) = table.seeds or protocol.load(table.protocol).seeds(cells.budget)
    how_often = ", ".join(f"{words}: {n}" for words, n in counts.most_common())
    yield (
        f"Tuned: {values}, for each row and partition by the accuracy on images that clients hold back, seed {seed}"
        f"{f' ({how_often}{failures})' if own else ''}."
    )


def by_row(cells: Cells, rows: Sequence[Row]) -> Iterator[str]:
    """The values of each row, by column."""
    for row in rows:
        places: dict[str, list[str]] = {}
        for cell in _distinct(cells):
            if cell.row is row and cell.tuned is not None:
                places.setdefault(_words(cell.tuned), []).append(cell.column.key)
        if places:
            texts = (f"{words} in {', '.join(keys)}" for words, keys in places.items())
            yield f"{row.label}: {'; '.join(texts)}."


def _distinct(cells: Cells) -> Iterator[Cell]:
    """A cell of each row and setting: several columns may read the same runs, shipped ones without the images too."""
    for line in cells.grid:
        by_runs = {cell.specs: cell for cell in reversed(line) if cell.trials}
        yield from reversed(by_runs.values())


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in values.items())
