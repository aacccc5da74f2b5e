"""The grids of tables by name, which `fedbench report` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.data import called
from fedbench.errors import FedbenchError, check_known
from fedbench.planner import table as specs
from fedbench.planner.cells import find
from fedbench.planner.counts import elsewhere, fullest, numbers_of
from fedbench.planner.table.spec import VIEWS
from fedbench.reports.layout.build import grid_of
from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.grid import only_done as filled
from fedbench.results.frame import Frame
from fedbench.store import Store


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
    seeds: Sequence[int] = (),
    compare: bool = False,
    only_done: bool = False,
    shipped: bool = True,
    yours: bool = True,
    appendix: bool = False,
) -> list[Grid]:
    """The grids of these tables (of a paper all; empty: the headline tables), from runs of the store and, if `shipped`,
    of result packs. Evaluates runs without metrics. The options are those of `fedbench report`.

    Raises FedbenchError for an unknown table, column or value of an option, and for `only_done` without any number.
    """
    check_known("test augmentation", view, VIEWS)
    frame = Frame.of(store) if shipped else Frame(store)
    grids = []
    for name in specs.of_names(names) if names else [name for _, name in specs.headline().values()]:
        table = specs.load(name)
        if dataset is not None and not table.counted:
            table = specs.on_dataset(table, called(dataset))
        if columns:
            table = table.only(columns)
        counts = None if budget else numbers_of(table, frame, roots, precision)
        chosen = budget or fullest([counts] if counts else [])
        cells = find(table, chosen, frame, roots, precision=precision, seeds=seeds)
        others = elsewhere(table, counts, chosen) if counts else ()
        how = {"view": view, "seeds": seeds, "compare": compare, "yours": yours, "appendix": appendix}
        grids.append(grid_of(cells, elsewhere=others, **how))
    if not only_done:
        return grids
    remaining = [part for part in map(filled, grids) if part.lines]
    if not remaining:
        command = grids[0].command
        raise FedbenchError("no cell has a number yet", f"make them: {command}" if command else "leave out --only-done")
    return remaining
