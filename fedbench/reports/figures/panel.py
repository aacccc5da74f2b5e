"""What a figure of any kind shows: panels, each with its marks, and facts about all of them.

The marks of table cells are points of lines over an axis, measured or reported by a paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedbench.partitions import schemes
from fedbench.planner.table.claims import Verdict
from fedbench.protocol import budgets_of
from fedbench.reports.numbers.measured import Value
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.store import Artifact


#: What a kind draws in a panel.
Marks = TypeVar("Marks")


@dataclass(frozen=True, eq=False)
class Panel(Generic[Marks]):
    """One panel: the marks that its kind draws, and where they come from."""

    title: str
    about: Mapping[str, Any]  #: data set, partition, run, ..., by column of the CSV and JSON
    marks: Marks


@dataclass(frozen=True, eq=False)
class Content(Generic[Marks]):
    """All panels of a figure."""

    panels: Sequence[Panel[Marks]]
    about: Mapping[str, Any] = field(default_factory=dict)  #: facts about all panels, as in `Panel`
    claims: Sequence[Verdict] = ()  #: verdicts on the paper's claims about the figure
    cells: tuple[int, int] | None = None  #: (measured, all) cells of the tables behind it

    @property
    def sparse(self) -> str:
        """How many cells are measured, in words; "" if that is at least half of them."""
        measured, every = self.cells or (0, 0)
        return f"{measured} of {every} cell{'' if every == 1 else 's'} measured" if 2 * measured < every else ""


def of_run(run: Artifact, marks: Marks, title: str = "") -> Panel[Marks]:
    """A panel about a run. Without a title, it is named after the run's method, data set and partition."""
    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, partition = spec.setting, spec.setting.partition
    name = partition.dataset.name
    about = {"run": run.id, "budget": budgets_of(setting), "dataset": name, "partition": partition.id}
    title = title or f"{run.provenance.get('title', spec.method)}, {name} {schemes.label(partition)}"
    return Panel(title, about, marks)


@dataclass(frozen=True)
class Point:
    """One cell: measured, reported by the paper, or both. `x` is None for a level, which holds at every x."""

    x: float | None
    value: Value | None
    error: float | None  #: half the length of its error bar
    reported: tuple[float, float | None] | None  #: (value, ±)
    rounds: int | None  #: of its runs; None for a column that is derived from others
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Lines:
    """Lines over one axis."""

    table: str
    unit: str  #: its symbol, "" for fractions
    rounds: tuple[int, ...]  #: numbers of rounds of the table's runs
    names: tuple[str, ...]  #: of all possible lines; a line's style depends on its index here
    lines: dict[str, list[Point]] = field(default_factory=dict)  #: name -> points by x
    gaps: dict[str, list[float]] = field(default_factory=dict)  #: name -> x of missing cells

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines.values() for point in line]

    def measured(self, name: str) -> list[tuple[float, float, float]]:
        """(x, mean, half an error bar) of a line's measured points, by x. Missing cells between them have the mean NaN,
        so that the drawn line breaks there."""
        there = sorted(
            (p.x, p.value.mean, p.error or 0.0) for p in self.lines[name] if p.x is not None and p.value is not None
        )
        between = [x for x in self.gaps.get(name, ()) if there and there[0][0] < x < there[-1][0]]
        return sorted([*there, *((x, math.nan, 0.0) for x in between)], key=itemgetter(0))

    @property
    def measured_lines(self) -> dict[str, list[tuple[float, ...]]]:
        """Name -> measured points, for lines that have any."""
        return {name: points for name in self.lines if (points := self.measured(name))}


def every_name(content: Content[Lines]) -> list[str]:
    """The names of all possible lines, in the tables' order."""
    return list(dict.fromkeys(name for panel in content.panels for name in panel.marks.names))


def line_names(content: Content[Lines]) -> list[str]:
    """The names of the lines that have points in at least one panel."""
    return [name for name in every_name(content) if any(name in panel.marks.lines for panel in content.panels)]


def every_point(panels: Sequence[Panel[Lines]]) -> list[Point]:
    return [point for panel in panels for point in panel.marks.points]
