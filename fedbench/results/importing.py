"""Somebody else's packs: checked, marked as theirs, and put beside a store's own runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedbench.errors import FedbenchError
from fedbench.plain import plain
from fedbench.results.pack import Pack, Row, add
from fedbench.results.shelf import FOLDER
from fedbench.store import Store


def take_in(path: Path, store: Store, by: str = "") -> tuple[Path, list[Row], int]:
    """Add the runs of a pack to the one of that name in a store's folder of results, as those of `by` (default: who the
    pack says).

    Every row is read and checked first. Raises FedbenchError for a damaged pack, one without runs, and if nobody says
    whose it is. Returns the pack in the store, the runs, and how many it has now.
    """
    if not path.is_file():
        raise FedbenchError(f"there is no file {path}", "name a result pack (.parquet)")
    pack = Pack(path)
    rows = pack.rows()
    if not rows:
        raise FedbenchError(f"there are no runs in {path}", "'fedbench results export' makes a pack")
    for row in rows:
        check(row, path)
    if not all(failure.reason == plain(failure.reason) for failure in pack.failures):
        raise FedbenchError(f"cannot read the result pack {path} (why a run diverged is damaged)", "get it anew")
    if not by and not all(row.by for row in rows):
        raise FedbenchError(f"{path} does not say who made its runs", "say it: --by NAME")
    rows = [dataclasses.replace(row, by=by or row.by) for row in rows]
    place = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    return place, rows, add(place, rows, pack.failures)


def check(row: Row, path: Path) -> None:
    """Raise FedbenchError unless a run's metrics are whole and its texts are plain."""
    m, texts = row.metrics, (row.by, row.machine, row.started, row.predictions)
    lengths = {len(values) for values in (m.metric, m.view, m.round, m.client, m.value)}
    inside = len(lengths) == 1 and all(
        not len(places) or (places.min() >= 0 and places.max() < len(names))
        for places, names in ((m.metric, m.names), (m.view, m.views))
    )
    if not inside or not all(text == plain(text) for text in (*texts, *m.names, *m.views)):
        raise FedbenchError(f"cannot read the result pack {path} (run {row.id} is damaged)", "get it anew")
