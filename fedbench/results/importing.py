"""Somebody else's packs: checked, marked as theirs, and put beside a store's own runs."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.results.pack import Pack, Row, add, same_numbers, write
from fedbench.results.shelf import FOLDER, Shelf, imported
from fedbench.store import Store
from fedbench.words import counted

#: Which numbers stand of a run that is there with others.
NEW, OLD = "new", "old"


def take_in(path: Path, store: Store, by: str = "", prefer: str | None = None) -> tuple[Path, list[Row], int, int]:
    """Add the runs of a pack to the one of that name in a store's folder of results, as those of `by` (default: who the
    pack says).

    Of runs that are there with other numbers, NEW takes these in the place of other imported packs' (the store's own
    still come first), OLD leaves them out.

    Every row is read and checked first. Raises FedbenchError for a damaged pack, one without runs, one that is hidden,
    if nobody says whose it is, and if runs are there with other numbers and nobody says which to prefer. Returns the
    pack in the store, the runs taken in, how many were left out, and how many it has now.
    """
    if not path.is_file():
        raise FedbenchError(f"there is no file {path}", "name a result pack (.parquet)")
    if path.name.startswith("."):
        raise FedbenchError(f"a pack whose name begins with a dot is hidden, and never read: {path}", "rename it")
    if prefer not in (None, NEW, OLD):
        raise unknown("run to prefer", prefer, (NEW, OLD))
    pack = Pack(path)
    rows = pack.rows()
    if not rows:
        raise FedbenchError(f"there are no runs in {path}", "'fedbench results export' makes a pack")
    if not by and not all(row.by for row in rows):
        raise FedbenchError(f"{path} does not say who made its runs", "say it: --by NAME")
    rows = [dataclasses.replace(row, by=by or row.by) for row in rows]
    place = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    shelf = Shelf.of(store)
    there = {row.id: names for row in rows if (names := _elsewhere(row, store, shelf))}
    if there and prefer is None:
        few = [f"{id} ({', '.join(names)})" for id, names in [*there.items()][:3]]
        raise FedbenchError(
            f"{counted(len(there), 'run')} of {path} {'has' if len(there) == 1 else 'have'} other numbers than are "
            f"there: {', '.join([*few, *(['...'] if len(there) > 3 else [])])}",
            f"--prefer {NEW} takes these, --prefer {OLD} leaves them out",
        )
    taken = [row for row in rows if row.id not in there] if prefer == OLD else rows
    total = add(place, taken, pack.failures) if taken or pack.failures else 0
    if prefer == NEW:
        for other in (other for other in shelf.packs if other.path in imported(store) and other.path != place):
            if not there.keys().isdisjoint(other.places):
                write(other.path, [row for row in other.rows() if row.id not in there], other.failures)
    return place, taken, len(rows) - len(taken), total


def _elsewhere(row: Row, store: Store, shelf: Shelf) -> list[str]:
    """Who has this run with other numbers: the store, and packs by their names."""
    packs = [run.pack for run in shelf.others(row.id, row.metrics)]
    with contextlib.suppress(FedbenchError):  # what is damaged has no numbers
        own = store.get(row.spec)
        if own is not None and not same_numbers(load(evaluate(own, store)), row.metrics):
            return ["this store", *packs]
    return packs
