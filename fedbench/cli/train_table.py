"""`fedbench train --table`: find the runs that a table misses, and train them or list what they cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fedbench import protocol as protocols
from fedbench.cli import context
from fedbench.cli.costs import of_the_paper, show
from fedbench.cli.making import How, make
from fedbench.errors import FedbenchError
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.engine.sweep import MissingRuns, Wanted
    from fedbench.planner.table.spec import Table

#: Finds the runs that are missing at the time of the call.
Missing = Callable[[], "MissingRuns"]


@dataclass(frozen=True)
class Selection:
    """A table and which of its runs the user wants."""

    table: str  #: as the user named it
    methods: Sequence[str]  #: runs of these alone; a method without a row gets an extra row
    params: Mapping[str, str]  #: hyper-parameters of the only method, which makes it an extra row
    dataset: str | None  #: replaces the table's data sets
    columns: Sequence[str]  #: runs of these columns alone
    budget: str
    precision: str | None
    seed: int | None
    include_shipped: bool  #: runs that result packs hold are missing, too

    def load(self) -> Table:
        """The table, on the selected data set and with the selected columns."""
        from fedbench.data import called
        from fedbench.planner import table as tables

        table = tables.load(self.table)
        if table.counted:  # has no run that an option could select
            return table
        table = table if self.dataset is None else tables.on_dataset(table, called(self.dataset))
        return table.only(self.columns) if self.columns else table


def train_table(selection: Selection, how: How, dry_run: bool) -> None:
    """Train the missing runs of a table (or runs of the selected methods with their hyper-parameters in all of the
    table's settings), or only list them (`dry_run`).

    Several processes can do this on one store and share the runs. A failed run does not stop the others; it is listed
    at the end, and the exit code is then 1.
    """
    from fedbench.planner.cells import scope
    from fedbench.specs import Setting

    table = selection.load()
    if selection.precision is None and not table.counted:
        selection = replace(selection, precision=protocols.load(table.protocol).precision(selection.budget))
    missing = _missing(table, selection, how)
    lacking = missing()
    engine = how.where.engine_for(context.store(), context.roots(), selection.precision or Setting.precision)
    console = context.err()
    for remark in (*lacking.remarks, *_other_executors(lacking.runs, how.where.executor)):
        console.print(remark, style="dim")
    tuned = bool(table.tune) and not table.counted
    if tuned:
        first = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in table.tune.items())
        follow = f": {counted(len(lacking.following), 'run')}" if lacking.following else ""
        console.print(f"each cell chooses on validation images: {first}; the other seeds follow with its best{follow}")
    within = scope(selection.budget, selection.precision or "")
    nothing = "no cell of the table is missing" if lacking.complete else "all runs that can be made are there"
    nothing += ", and today's code made the store's runs of it" if how.again else ""
    if dry_run:
        show(lacking, within, nothing, how.where.kind, how.as_json)
        if not (table.counted or how.as_json or selection.budget == protocols.PAPER):
            console.print(_of_the_paper(table, selection, how, lacking.runs), style="dim", soft_wrap=True, end="")
        return
    with engine:
        complete = make(lacking.runs, within, nothing, engine, how, _more(missing, lacking.runs) if tuned else tuple)
    if not complete:
        sys.exit(1)


def _missing(table: Table, selection: Selection, how: How) -> Missing:
    """A function that finds the table's missing runs among the selected ones, and remarks on those left out."""
    from fedbench.engine.sweep import MissingRuns, plan

    if table.counted:
        prints = f"'fedbench report --table {selection.table}' prints it as it is"
        return lambda: MissingRuns((), [f"table {table.id} is counted by formula: {prints}"])
    return partial(
        plan,
        table,
        context.store(),
        context.roots(),
        only=selection.methods,
        params=selection.params,
        budget=selection.budget,
        precision=selection.precision,
        seed=selection.seed,
        again=how.again,
        keep=how.keep,
        packs=None if selection.include_shipped else context.frame().packs,
    )


def _of_the_paper(table: Table, selection: Selection, how: How, listed: Sequence[Wanted]) -> str:
    """A line on what the table lacks at its paper's own budget, if it has one and that asks for other runs."""
    rules = protocols.load(table.protocol)
    if protocols.PAPER not in rules.budgets:
        return ""
    own = replace(selection, budget=protocols.PAPER, precision=rules.precision(protocols.PAPER))
    try:
        runs = _missing(table, own, how)().runs
    except FedbenchError:  # it has no model for this data set
        return ""
    same = {one.spec.id for one in runs} == {one.spec.id for one in listed}
    line = "" if same else of_the_paper(runs, listed, how.where.kind)
    return f"{line}\n" if line else ""


def _other_executors(runs: Sequence[Wanted], executor: str) -> Iterator[str]:
    """A remark if the settings of a table that measures times name other executors than the user."""
    fixed = sorted({one.spec.setting.executor for one in runs if one.spec.setting.executor} - {executor})
    if fixed and executor != "auto":
        yield f"--executor {executor} is not used where the table measures times with {' and '.join(fixed)}"


def _more(missing: Missing, first: Sequence[Wanted]) -> Callable[[], list[Wanted]]:
    """A function for after the `first` runs of a tuned table: the runs that have become necessary since its last call,
    because cells have chosen their hyper-parameters."""
    planned = {one.spec.id for one in first}

    def more() -> list[Wanted]:
        rest = [one for one in missing().runs if one.spec.id not in planned]
        planned.update(one.spec.id for one in rest)
        return rest

    return more
