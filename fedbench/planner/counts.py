"""How full tables are at each budget. Of fedbench's own tables with the results that ship it is kept in counts.json
beside this file, so that a list of all tables reads neither tables nor packs; where a store or an imported pack has
runs that may fill more of a table, its cells are looked up.

    python -m fedbench.planner.counts      writes the file anew, whenever a table, a pack or a version has changed
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
from fedbench.planner.cells import DEFAULT_BUDGET, find
from fedbench.planner.table.spec import Table
from fedbench.results.frame import Frame, State
from fedbench.results.packs import Packs, with_fedbench
from fedbench.store import Store

FILE = Path(__file__).with_name("counts.json")


def done(states: Mapping[str, int]) -> int:
    """How many of the cells in these states have a number."""
    return states.get(State.DONE.value, 0) + states.get(State.STALE.value, 0)


@dataclass(frozen=True)
class Count:
    """The cells of a table at a budget ("" of a counted table) by their states."""

    states: Counter[str]
    shipped: int  #: of those that have a number
    precision: str = ""

    @property
    def done(self) -> int:
        return done(self.states)


@dataclass(frozen=True)
class Counts:
    """A table's counts at each budget, in the order of its protocol."""

    table: str
    title: str
    datasets: Sequence[str] = ()
    budgets: dict[str, Count] = field(default_factory=dict)


def fullest(of: Iterable[Counts]) -> str:
    """The budget at which these tables together have most numbers; of equals, the usual one."""
    numbers: Counter[str] = Counter()
    for one in of:
        for budget, count in one.budgets.items():
            numbers[budget] += count.done
    return max(numbers, key=lambda budget: (numbers[budget], budget == DEFAULT_BUDGET), default=DEFAULT_BUDGET)


def count(
    names: Iterable[str], frame: Frame, roots: Sequence[Path], *, precision: str | None = None, exact: bool = False
) -> Iterator[Counts]:
    """Of these tables, at all of their budgets; of cells without a number the state is right only where it is to be
    `exact`, since it depends on which images are at hand. Raises FedbenchError for an unknown table or precision."""
    ships = {*with_fedbench()} <= {*frame.packs.paths}
    kept = _kept() if ships and precision is None and not exact else {}
    changed = _own(frame) if kept else set()
    for name in names:
        if (one := kept.get(name)) is None:
            yield _counted(tables.load(name), frame, roots, precision)
            continue
        anew = {
            budget
            for budget, at in one.budgets.items()
            if any((dataset, budget, at.precision) in changed for dataset in one.datasets)
        }
        if anew:
            of = _counted(tables.load(name), frame, roots, None, anew)
            one = Counts(one.table, one.title, one.datasets, {**one.budgets, **of.budgets})
        yield one


def _own(frame: Frame) -> set[tuple[str, str, str]]:
    """(data set, budget, precision) of the runs that do not come with fedbench."""
    return frame.own_scopes | Packs([path for path in frame.packs.paths if path not in with_fedbench()]).scopes


def _counted(
    table: Table, frame: Frame, roots: Sequence[Path], precision: str | None, only: Iterable[str] = ()
) -> Counts:
    budgets = [""] if table.counted else list(only) or list(protocol.load(table.protocol).budgets)
    cells = {b: find(table, b, frame, roots, precision=precision) for b in budgets}
    datasets = [] if table.counted else sorted({called(column.dataset) for column in table.measured})
    counts = {
        b: Count(Counter({s.value: n for s, n in sorted(one.counts.items())}), one.shipped, one.precision)
        for b, one in cells.items()
    }
    return Counts(table.id, table.title, datasets, counts)


# -- file ------------------------------------------------------------------------------------------------------


def _kept() -> dict[str, Counts]:
    """What the file says; nothing where the packs are others than those that it was made of."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    if raw["packs"] != _packs():
        return {}
    return {
        table: Counts(table, title, datasets, {b: Count(Counter(states), *rest) for b, states, *rest in budgets})
        for table, title, datasets, budgets in raw["tables"]
    }


def _packs() -> dict[str, int]:
    """The packs that come with fedbench, and their sizes."""
    return {path.relative_to(resources.TABLES).as_posix(): path.stat().st_size for path in with_fedbench()}


def written() -> str:
    """The file's content as it is to be: neither a store nor images go into it."""
    with tempfile.TemporaryDirectory() as folder:
        frame = Frame(Store(Path(folder)), Packs(with_fedbench()))
        every = [_counted(tables.load(name), frame, [], None) for name in tables.names()]
    lines = [
        json.dumps([one.table, one.title, one.datasets, [(b, *vars(at).values()) for b, at in one.budgets.items()]])
        for one in every
    ]
    rows = ",\n".join(lines)
    return f'{{"packs": {json.dumps(_packs())},\n"tables": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
