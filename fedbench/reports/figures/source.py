"""What figures show: partitions of a protocol or of the store, table cells and their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from fedbench.errors import FedbenchError, check_known
from fedbench.partitions import schemes
from fedbench.protocol import budgets_of
from fedbench.reports.figures.kind import Request, Row
from fedbench.reports.figures.spec import CellSpec, FigureSpec, PanelSpec
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.partitions import Partition
    from fedbench.planner.table.spec import Table
    from fedbench.reports.layout.grid import Grid
    from fedbench.store import Artifact

#: Most cells that a remark names; it counts the others.
NAMED = 8


@dataclass(frozen=True)
class Filled:
    """A table's numbers at a budget, and the command that fills its missing cells."""

    table: Table
    budget: str
    grid: Grid
    absent: tuple[str, ...]  #: why data sets are unavailable
    command: str
    makers: tuple[str, ...]  #: lines about who made the shipped runs of the table


class Seen(NamedTuple):
    """The partition that a panel shows."""

    about: Row  #: the panel's title, data set and partition
    partition: Partition
    clients: Sequence[int]
    panel: PanelSpec | None  #: None: the user named the partition


def of_partitions(figure: FigureSpec, request: Request) -> Iterator[Seen]:
    """The figure's partitions, or those that the user names. Raises FedbenchError if a data set is unavailable."""
    chosen = [(one, None) for one in chosen_partitions(request)]
    for of, panel in chosen or ((partition(figure, panel, request), panel) for panel in figure.panels):
        name = of.spec.dataset.name
        title = (panel.title if panel else "") or f"{name}, {schemes.label(of.spec)}"
        about = {"panel": title, "dataset": name, "partition": of.id}
        yield Seen(about, of, clients_of(of, panel.clients if panel else request.client), panel)


def of_run(run: Artifact, title: str = "") -> Row:
    """What a panel about a run says of it. Without a title, it is named after its method, data set and partition."""
    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, partition = spec.setting, spec.setting.partition
    name = partition.dataset.name
    title = title or f"{run.provenance.get('title', spec.method)}, {name} {schemes.label(partition)}"
    return {
        "panel": title,
        "run": run.id,
        "budget": budgets_of(setting),
        "dataset": name,
        "partition": partition.id,
    }


def partition(figure: FigureSpec, panel: PanelSpec, request: Request) -> Partition:
    """The partition of a panel, built if the store lacks it. Raises FedbenchError if its data set is unavailable."""
    from fedbench import data, partitions
    from fedbench import protocol as protocols

    dataset = data.resolve(panel.dataset, request.store, request.roots)
    classes = data.info(dataset, request.store).partition_classes
    spec = protocols.load(figure.protocol).partition_spec(dataset, classes, **{**panel.partition, "seed": request.seed})
    return partitions.build(spec, request.store, request.roots, request.notify)


def chosen_partitions(request: Request) -> list[Partition]:
    """The partitions that the user names: by id, by an id among the filters, or as partitions of runs; [] by default.

    Raises FedbenchError for a partition that is unknown or was deleted.
    """
    from fedbench import partitions
    from fedbench.planner.runs import select, spelt_out
    from fedbench.results.frame import Frame

    if request.partition is not None:
        return [partitions.read(request.store.find(request.partition, ("partition",)))]
    words = spelt_out(request.filters or ())
    kinds = {word: request.store.locate(word, ("partition", "run"))[0] for word in words if "=" not in word}
    ids = [word for word, kind in kinds.items() if kind == "partition"]
    chosen = [partitions.read(request.store.find(id, ("partition",))) for id in ids]
    others = [word for word in words if word not in ids]
    of_runs = {
        run.spec.setting.partition.id: run.id
        for run in (select(Frame(request.store), others, request.roots) if others else ())
    }
    for id, run in of_runs.items():
        if not request.store.path("partition", id).exists():
            raise FedbenchError(f"partition {id} of run {run} is no more", "'fedbench partition' makes it again")
    return chosen + [partitions.read(request.store.open("partition", id)) for id in of_runs if id not in ids]


def clients_of(partition: Partition, clients: Sequence[int] | None) -> Sequence[int]:
    """The requested clients of a partition, in order; all if None. Raises FedbenchError for an unknown client."""
    if clients is None:
        return range(partition.clients)
    for client in clients:
        if not 0 <= client < partition.clients:
            raise FedbenchError(
                f"partition {partition.id} has no client {client}", f"it has 0..{partition.clients - 1}"
            )
    return sorted(set(clients))


def run_of(figure: FigureSpec, wanted: CellSpec, request: Request) -> Artifact:
    """The run of a cell, of the first seed that has a complete one.

    Raises FedbenchError if there is none, with the command that makes it.
    """
    from fedbench.planner import cells
    from fedbench.planner import table as tables
    from fedbench.reports.layout.notes import command
    from fedbench.results.frame import Frame
    from fedbench.results.run import State

    table, seeds = tables.load(wanted.table), () if request.seed is None else (request.seed,)
    rows = {r.label: r for r in table.rows}
    check_known(f"row of table {table.id}", wanted.row, rows)
    row, table = rows[wanted.row], table.only([wanted.column])
    column = table.columns[0]
    mine = replace(request, frame=Frame(request.store))  # a pack holds no snapshots
    status = cells.find(table, budget_of([wanted.table], mine), mine.frame, request.roots, seeds=seeds)
    one = next(c for c in status.all if (c.row.label, c.column.key) == (row.label, column.key))
    run = next((r.artifact for r in one.records if r and r.complete), None)
    if run is None:
        hint = f"make it: {command(status, seeds)} --method {row.method}"
        if one.state not in (State.MISSING, State.PARTIAL, State.FAILED):
            hint = one.reason
        raise FedbenchError(
            f"the run of {figure.id} is not there ({row.label}, {column.key}, {status.scope}: {one.state})", hint
        )
    if one.state is State.STALE:
        request.remark(f"run {run.id} is stale")
    request.remark_code([run])
    return run


def budget_of(names: Iterable[str], request: Request) -> str:
    """The requested budget, or the one at which these tables have most numbers."""
    from fedbench.planner import table as tables
    from fedbench.planner.counts import fullest, numbers_of

    if request.budget:
        return request.budget
    return fullest(numbers_of(tables.load(name), request.frame, request.roots) for name in names)


def filled(name: str, budget: str, request: Request) -> Filled:
    """A table at a budget and the requested seed, with the paper's numbers. Raises FedbenchError as `find` does."""
    from fedbench.planner import table as tables
    from fedbench.planner.cells import find
    from fedbench.planner.others import records
    from fedbench.reports.layout.build import grid_of
    from fedbench.reports.layout.notes import command
    from fedbench.reports.layout.shipped import of_runs

    table = tables.load(name)
    seeds = () if request.seed is None else (request.seed,)
    cells = find(table, budget, request.frame, request.roots, seeds=seeds)
    grid = grid_of(cells, seeds=seeds, compare=True)
    for problem in grid.problems:
        request.remark(problem)
    runs = records(cells, {})
    request.remark_code(runs)
    makers = tuple(of_runs(run.shipped for run in runs if run.shipped))
    return Filled(table, budget, grid, tuple(cells.absent.values()), command(cells, seeds), makers)


def counted(tables: Sequence[Filled]) -> dict[str, int]:
    """How many cells of the tables are measured, as counted below a printed table."""
    from fedbench.planner.counts import done as numbered

    counts = sum((Counter(one.grid.counts) for one in tables), Counter[str]())
    return {"measured": numbered(counts), "all": counts.total()}


def say(figure: FigureSpec, request: Request, filled: Filled, missing: Sequence[str], others: Sequence[str]) -> None:
    """Remark on missing cells, on cells that are shown but not done, and on who made shipped runs."""
    for line in filled.makers:
        request.remark(line)
    if others:
        request.remark(f"{figure.id} shows as they are: {_some(others)}")
    if missing:
        hints = [*filled.absent, f"to fill them: {filled.command}"]
        request.remark(f"{figure.id} lacks {'; '.join([_some(missing), *hints])}")


def _some(cells: Sequence[str]) -> str:
    rest = len(cells) - NAMED
    return ", ".join(cells[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
