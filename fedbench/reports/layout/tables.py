"""The grids of tables by name, which `fedbench report` prints."""

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
# The mean over clients, weighted by test images or unweighted: a table declares one, and an option selects the other.


#: Kind of mean -> (statistic of clients' metrics, metric of the federation).
MEANS = {
    "unweighted": ("clients", "client_accuracy_mean"),
    "weighted": ("weighted_clients", "client_accuracy_weighted"),
}


def with_client_mean(table: Table, mean: str) -> Table:
    """The table with its means over clients replaced by those of kind `mean` (one of MEANS). Keeps reported numbers and
    claims.

    Raises FedbenchError for an unknown kind, and for a table without such means, or with rows that use another metric
    for them.
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
    """The grids of these tables (empty: the headline tables), from runs of the store and, unless `mine`, of result
    packs. Evaluates runs without metrics. The options are those of `fedbench report`.

    Raises FedbenchError for an unknown table, column or value of an option, and for `only_done` without any number.
    """
    check_known("test augmentation", view, VIEWS)
    frame = Frame(store) if mine else Frame.of(store)
    grids = []
    for name in dict.fromkeys(names or [name for _, name in specs.headline().values()]):
        table = specs.load(name)
        if dataset is not None and not table.counted:
            table = specs.on_dataset(table, called(dataset))
        if columns:
            table = table.only(columns)
        if client_mean is not None:
            table = with_client_mean(table, client_mean)
        budget_ = budget or DEFAULT_BUDGET
        cells = find(table, budget_, frame, roots, precision=precision, seeds=seeds)
        grids.append(grid_of(cells, view=view, seeds=seeds, compare=compare, extra=extra, appendix=appendix))
    if not only_done:
        return grids
    remaining = [part for part in map(filled, grids) if part.lines]
    if not remaining:
        command = grids[0].command
        raise FedbenchError("no cell has a number yet", f"make them: {command}" if command else "leave out --only-done")
    return remaining
