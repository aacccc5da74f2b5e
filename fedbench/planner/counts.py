"""Number of cells by state, of each table at each budget. counts.json holds the counts of the built-in tables with the
shipped results, so that a list of all tables reads neither tables nor packs. Where a store or an imported pack has runs
that may fill more cells of a table, its cells are looked up.

    python -m fedbench.planner.counts      writes the file again; run it when a table, a pack or a version has changed
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedbench import protocol, resources
from fedbench.data import called
from fedbench.planner import table as tables
from fedbench.planner.cells import DEFAULT_BUDGET, SMOKE, find
from fedbench.planner.settings import scopes
from fedbench.planner.table.spec import Table
from fedbench.protocol import PAPER
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs, Scope, with_fedbench
from fedbench.results.run import State
from fedbench.store import Store

FILE = Path(__file__).with_name("counts.json")


def done(states: Mapping[str, int]) -> int:
    """Number of cells with a number; `states`: state -> number of cells."""
    return whole(states) + states.get(State.PARTIAL.value, 0)


def whole(states: Mapping[str, int]) -> int:
    """Number of cells with a number over all of their seeds."""
    return states.get(State.DONE.value, 0) + states.get(State.STALE.value, 0)


@dataclass(frozen=True)
class Count:
    """Number of cells of a table at a budget ("" for a counted table), by state."""

    states: Counter[str]
    shipped: int  #: number of shipped cells
    precision: str = ""

    @property
    def done(self) -> int:
        return done(self.states)


@dataclass(frozen=True)
class TableCounts:
    """A table's counts at each budget, in the order of its protocol."""

    table: str
    title: str
    datasets: Sequence[str] = ()
    budgets: dict[str, Count] = field(default_factory=dict)


def fullest(of: Iterable[TableCounts]) -> str:
    """The budget with most numbers in all these tables; of equal ones the paper's own. Without numbers the default.

    Numbers of SMOKE count only where the user names it.
    """
    numbers: Counter[str] = Counter()
    for counts in of:
        for budget, count in counts.budgets.items():
            numbers[budget] += count.done * (budget != SMOKE)
    if not any(numbers.values()):
        return "" if "" in numbers else DEFAULT_BUDGET
    return max(numbers, key=lambda budget: (numbers[budget], budget == PAPER))


def elsewhere(counts: TableCounts, budget: str) -> list[str]:
    """A line that names the other budgets at which the table has numbers; empty if there are none."""
    numbers = {name: of.done for name, of in counts.budgets.items() if of.done and name not in (budget, SMOKE)}
    if not numbers:
        return []
    each = (f"{n} at {name} (--budget {name})" for name, n in numbers.items())
    return [f"Numbers at other budgets: {', '.join(each)}."]


def numbers_of(table: Table, frame: Frame, roots: Sequence[Path], precision: str | None = None) -> TableCounts:
    """The counts of a table at all its budgets, also of one on another data set or with some of its columns."""
    if table.part or precision is not None or table.id not in tables.names():
        return _counted(table, frame, roots, precision)
    (counts,) = count([table.id], frame, roots)
    return counts


def count(
    names: Iterable[str], frame: Frame, roots: Sequence[Path], *, precision: str | None = None, exact: bool = False
) -> Iterator[TableCounts]:
    """The counts of these tables at all their budgets. The states of cells without a number depend on which images
    exist here, so they are right only if `exact`. Raises FedbenchError for an unknown table or precision."""
    ships = {*with_fedbench()} <= {*frame.packs.paths}
    kept = _kept() if ships and precision is None and not exact else {}
    changed = _unshipped(frame) if kept else set()
    for name in names:
        if (counts := kept.get(name)) is None:
            yield _counted(tables.load(name), frame, roots, precision)
            continue
        outdated = (
            {budget for budget in counts.budgets if budget and _may_have(tables.load(name), budget, changed)}
            if {dataset for dataset, *_ in changed} & {*counts.datasets}
            else set()
        )
        if outdated:
            of = _counted(tables.load(name), frame, roots, None, outdated)
            counts = TableCounts(counts.table, counts.title, counts.datasets, {**counts.budgets, **of.budgets})
        yield counts


def _may_have(table: Table, budget: str, runs: set[Scope]) -> bool:
    """Whether any of these runs may be in a cell of the table at a budget."""
    return any(scopes(table, column, budget) & runs for column in table.measured)


def _unshipped(frame: Frame) -> set[Scope]:
    """Data set, model, rounds and precision of the runs in the store and in packs that fedbench does not ship."""
    return frame.own_scopes | Packs([path for path in frame.packs.paths if path not in with_fedbench()]).scopes


def _counted(
    table: Table, frame: Frame, roots: Sequence[Path], precision: str | None, only: Iterable[str] = ()
) -> TableCounts:
    budgets = [""] if table.counted else list(only) or list(protocol.load(table.protocol).budgets)
    cells = {b: find(table, b, frame, roots, precision=precision) for b in budgets}
    datasets = [] if table.counted else sorted({called(column.dataset) for column in table.measured})
    counts = {
        b: Count(Counter({s.value: n for s, n in sorted(found.counts.items())}), found.shipped, found.precision)
        for b, found in cells.items()
    }
    return TableCounts(table.id, table.title, datasets, counts)


def _kept() -> dict[str, TableCounts]:
    """Table -> its counts in the file; empty if the file was made from other packs."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    if raw["packs"] != _packs():
        return {}
    return {
        table: TableCounts(table, title, datasets, {b: Count(Counter(states), *rest) for b, states, *rest in budgets})
        for table, title, datasets, budgets in raw["tables"]
    }


def _packs() -> dict[str, int]:
    """Path -> size in bytes, of the packs that fedbench ships."""
    return {path.relative_to(resources.TABLES).as_posix(): path.stat().st_size for path in with_fedbench()}


def written() -> str:
    """The file's content, computed without a store and without images."""
    with tempfile.TemporaryDirectory() as folder:
        frame = Frame(Store(Path(folder)), Packs(with_fedbench()))
        every = [_counted(tables.load(name), frame, [], None) for name in tables.names()]
    lines = [
        json.dumps(
            [counts.table, counts.title, counts.datasets, [(b, *vars(at).values()) for b, at in counts.budgets.items()]]
        )
        for counts in every
    ]
    rows = ",\n".join(lines)
    return f'{{"packs": {json.dumps(_packs())},\n"tables": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
