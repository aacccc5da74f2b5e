"""Tables by their names, laid out: what `fedbench report` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedbench.data import called
from fedbench.errors import FedbenchError, check_known
from fedbench.planner import table as specs
from fedbench.planner.cells import DEFAULT_BUDGET, find
from fedbench.planner.table.spec import VIEWS, Table
from fedbench.reports.layout.build import grid_of
from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.grid import only_done as filled
from fedbench.results.frame import Frame
from fedbench.store import Store

# -- client mean -----------------------------------------------------------------------------------------------
# The mean over clients, by their test images or unweighted: a table has one and can be asked for the other.


#: How it is taken -> the statistic of a client's metric, and the metric of the federation, that take it so.
MEANS = {
    "unweighted": ("clients", "client_accuracy_mean"),
    "weighted": ("weighted_clients", "client_accuracy_weighted"),
}


def with_client_mean(table: Table, mean: str) -> Table:
    """The table with its means over clients taken in one of MEANS. What is reported and claimed stays.

    Raises FedbenchError for an unknown one, and for a table that has no such means, or has rows with another metric in
    their place.
    """
    check_known("mean over clients", mean, MEANS)
    new = {old: name for pair in MEANS.values() for old, name in zip(pair, MEANS[mean], strict=True)}
    present = {str(value) for c in table.measured for value in (c.statistic, c.metric)} & new.keys()
    mapped = [row.label for row in table.rows if row.metrics.keys() & present]
    if not present or mapped:
        why = f"{mapped[0]} has another metric in its place" if mapped else "it has none"
        raise FedbenchError(f"no other mean over clients for table {table.id}: {why}", "leave --client-mean out")
    columns = [
        dataclasses.replace(
            c, statistic=new.get(str(c.statistic), c.statistic), metric=new.get(str(c.metric), c.metric)
        )
        for c in table.columns
    ]
    other = dataclasses.replace(table, column=columns)
    other.__dict__["reported"] = table.reported
    return other


# -- tables ----------------------------------------------------------------------------------------------------


def grids_of(
    names: Sequence[str],
    store: Store,
    roots: list[Path],
    *,
    budget: str | None = None,
    precision: str | None = None,
    dataset: str | None = None,
    columns: Sequence[str] = (),
    view: str | None = None,
    client_mean: str | None = None,
    seeds: Sequence[int] = (),
    compare: bool = False,
    only_done: bool = False,
    mine: bool = False,
    extra: bool = False,
    appendix: bool = False,
) -> list[Grid]:
    """The tables of these names (none: the headline tables), filled from the store, and from result packs where it
    lacks a run (not if `mine`); runs that lack metrics are evaluated. The options are those of `fedbench report`.

    Raises FedbenchError for an unknown table, column or value of an option, and for `only_done` where no cell is.
    """
    check_known("test augmentation", view, VIEWS)
    frame = Frame(store) if mine else Frame.of(store)
    grids = []
    for name in dict.fromkeys(names or [name for _, name in specs.headline().values()]):
        wanted = specs.load(name)
        if dataset is not None and not wanted.counted:
            wanted = specs.on_dataset(wanted, called(dataset))
        if columns:
            wanted = wanted.only(columns)
        if client_mean is not None:
            wanted = with_client_mean(wanted, client_mean)
        at = budget or DEFAULT_BUDGET
        cells = find(wanted, at, frame, roots, precision=precision, seeds=seeds)
        grids.append(grid_of(cells, view=view, seeds=seeds, compare=compare, extra=extra, appendix=appendix))
    if not only_done:
        return grids
    left = [part for part in map(filled, grids) if part.lines]
    if not left:
        command = grids[0].command
        raise FedbenchError("no cell has a number yet", f"make them: {command}" if command else "leave out --only-done")
    return left
