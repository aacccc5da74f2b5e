"""Points of lines over an axis, measured and reported: what a panel of tables' cells shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.numbers.measured import Value


@dataclass(frozen=True)
class Point:
    """One cell: measured, reported by the paper, or both. `x` is None for a line's level, which holds at every x."""

    x: float | None
    value: Value | None
    error: float | None  #: half the length of its error bar
    reported: tuple[float, float | None] | None  #: (value, ±)
    rounds: int | None  #: of its runs; None where the column has none of its own
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Lines:
    """Lines over one axis: name -> its points by x."""

    table: str
    unit: str  #: its sign, "" for fractions
    rounds: tuple[int, ...]  #: of the table's runs
    names: tuple[str, ...]  #: of all lines that there can be: a line's look goes by its place here
    lines: dict[str, list[Point]] = field(default_factory=dict)
    gaps: dict[str, list[float]] = field(default_factory=dict)  #: name -> where cells are missing

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines.values() for point in line]

    def measured(self, name: str) -> list[tuple[float, float, float]]:
        """(x, mean, half an error bar) of a line's measured points, by x. Where cells between them are missing the mean
        is NaN, so that no stroke goes over them as if it said something of them."""
        there = sorted(
            (p.x, p.value.mean, p.error or 0.0) for p in self.lines[name] if p.x is not None and p.value is not None
        )
        between = [x for x in self.gaps.get(name, ()) if there and there[0][0] < x < there[-1][0]]
        return sorted([*there, *((x, math.nan, 0.0) for x in between)], key=itemgetter(0))


def every_name(content: Content[Lines]) -> list[str]:
    """The lines that there can be, in the tables' order."""
    return list(dict.fromkeys(name for panel in content.panels for name in panel.marks.names))


def names(content: Content[Lines]) -> list[str]:
    """Those of them that have points in some panel."""
    return [name for name in every_name(content) if any(name in panel.marks.lines for panel in content.panels)]


def every_point(panels: Sequence[Panel[Lines]]) -> list[Point]:
    return [point for panel in panels for point in panel.marks.points]
