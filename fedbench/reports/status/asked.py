"""The runs of a store that tables ask for, at every budget and under every seed that the store has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench import protocol
from fedbench.errors import unknown
from fedbench.reports import table as tables
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import Index, State
from fedbench.results.shelf import Shelf
from fedbench.store import Store


def of_tables(names: Sequence[str], store: Store, roots: Sequence[Path], packs: Shelf | None = None) -> dict[str, str]:
    """The complete and the failed runs that cells of these tables read, or of all tables of these papers: id -> the
    label of the row ("A or B" where rows of two labels read it).

    Where a table chooses values, the trials that decide may lie in `packs`, and the runs with what they chose in the
    store. Raises FedbenchError for an unknown table.
    """
    index = Index(store, packs)
    settings = [records[0].spec.setting for records in index.records.values()]
    rows: dict[str, dict[str, None]] = {}  # id -> an ordered set
    for table in (tables.load(name) for name in _all(names)):
        if table.counted:
            continue
        for budget in protocol.load(table.protocol).budgets:
            seeds = {s.seed for s in settings if s.budget == budget}
            precisions = {s.precision for s in settings if s.budget == budget}
            precisions |= {precision for _, of, precision in index.shelf.scopes if of == budget}
            for precision in precisions:
                for chosen in ((), *((seed,) for seed in sorted(seeds))):
                    cells = find(table, budget, store, roots, precision=precision, seeds=chosen, index=index)
                    for cell in cells.all:
                        for r in (*cell.records, *cell.trials):
                            if r is not None and (r.artifact or r.state is State.FAILED):
                                rows.setdefault(r.id, {})[cell.row.label] = None
    return {id: " or ".join(labels) for id, labels in rows.items()}


def _all(names: Sequence[str]) -> list[str]:
    """The tables of these names, a paper's name standing for all of its own."""
    every: list[str] = []
    for name in names:
        own = [table for table in tables.names() if table.startswith(f"{name}/")]
        if not own and "/" not in name and not name.endswith(".toml") and name not in tables.headline():
            raise unknown("table or paper", name, {*tables.names(), *(t.partition("/")[0] for t in tables.names())})
        every += own or [name]
    return list(dict.fromkeys(every))
