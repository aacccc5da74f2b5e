"""Points of lines over an axis, measured and reported: what a figure of tables' cells shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedbench.report.figures.spec import SeriesSpec
from fedbench.report.numbers.measured import Value
from fedbench.report.table.claims import Verdict


@dataclass(frozen=True)
class Point:
    """One cell: measured, reported by the paper, or both. `x` is None for a line's level, which holds at every x."""

    x: float | None
    value: Value | None
    error: float | None  #: half the length of its error bar
    reported: tuple[float, float | None] | None  #: (value, ±)
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """Lines over one axis: name -> its points by x."""

    table: str
    heading: str  #: of the table, among several
    title: str
    unit: str  #: its sign
    rounds: tuple[int, ...]  #: of the table's runs
    names: tuple[str, ...]  #: of all lines that there can be: a line's look goes by its place here
    lines: dict[str, list[Point]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Heading and title."""
        return f"{self.heading}, {self.title[:1].lower()}{self.title[1:]}" if self.heading else self.title

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines.values() for point in line]


@dataclass(frozen=True)
class Shown:
    """All panels at one budget."""

    budget: str
    axis: SeriesSpec
    panels: list[Panel]
    missing: list[str]  #: cells without a number
    claims: tuple[Verdict, ...]

    @property
    def names(self) -> list[str]:
        """The lines of all panels that have points, in the tables' order."""
        every = dict.fromkeys(name for panel in self.panels for name in panel.names)
        return [name for name in every if any(name in panel.lines for panel in self.panels)]
