"""How far measured numbers differ from the paper's: one rule and one wording for cells, tables and papers.

Accuracies have three statistics: the mean difference (measured - reported), the share within POINTS, and the share
within two standard errors of the difference of two means, 2 sqrt(s²/n + t²/m), where s and t are the standard
deviations (ddof 1) over the paper's n seeds and our m. With one seed of ours, t is unknown and s replaces it. The
third statistic is unknown if the paper's ± is missing or not over seeds (but over rounds or clients).

A cell is near if it is within POINTS or within two standard errors, and not more than FAR off. Other numbers (seconds,
ratios, distances) are near within their column's `tolerance`, and not judged without one;
counted numbers (`Table.counted`) must be equal as printed, unless their column has a tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedbench import protocol
from fedbench.planner.table import statistic
from fedbench.planner.table.noise import SeedNoise, two_errors
from fedbench.planner.table.spec import POINTS_IN, Column, Table
from fedbench.reports.numbers.measured import Value

#: Percentage points within which a number is near, and beyond which it never is.
POINTS, FAR = 2.0, 5.0
#: The text at the mark of a cell that is not near: for accuracies, and for other numbers.
OFF = f"off: more than {POINTS:g} points and more than two standard errors from the paper, or more than {FAR:g} points"
OFF_ELSE = "off: beyond the tolerance, or not equal to the paper's"


@dataclass(frozen=True)
class Offset:
    """How far a number differs from the paper's."""

    difference: float  #: measured - reported, in the printed unit (of the ratios, if the table has `ratio_to`)
    near: bool | None  #: None: not judged
    points: float | None = None  #: for accuracies: the difference in percentage points
    within_points: bool = False  #: ... whether that is within POINTS
    within_errors: bool | None = None  #: ... whether it is within two standard errors; None: unknown
    one_seed: bool = False  #: ... with the paper's ± for both sides
    counted: bool = False  #: of a table that needs no run


def offset(
    table: Table, column: Column, value: Value, ratio: float | None, reported: tuple[float, float | None]
) -> Offset | None:
    """The offset of a cell's number, or of its ratio if the table has ratios; None if a ratio is missing."""
    ours, (theirs, std) = value.mean, reported
    if table.ratio_to:
        base = table.reported.get((table.ratio_to, column.key))
        if base is None or ratio is None:
            return None
        ours, theirs = ratio, theirs / base[0]
    difference, slack = ours - theirs, 0.5 * 10.0 ** -(column.decimals or 0)  # printed numbers are rounded
    if table.counted or column.tolerance is not None:
        near = abs(difference) <= (column.tolerance or 0.0) + slack
        return Offset(difference, near, counted=table.counted)
    factor = POINTS_IN.get(str(column.unit))
    if factor is None or table.ratio_to:
        return Offset(difference, None)
    points, slack = factor * difference, factor * slack
    close, errors = abs(points) <= POINTS + slack, _two_errors(table, column, value, std)
    within = None if errors is None else abs(points) <= factor * errors + slack
    near = (close or bool(within)) and abs(points) <= FAR + slack
    return Offset(difference, near, points, close, within, within is not None and value.noise is None)


def noise_in_paper(table: Table, column: Column, std: float | None) -> SeedNoise | None:
    """The noise of a number of the paper with this ±, in the printed unit; None if the ± is not one over seeds."""
    ddof, spread, seeds = statistic.find(str(column.statistic)).ddof, column.spread, _seeds(table)
    if std is None or ddof is None or seeds < 2 or spread == "sample":
        return None
    if spread in ("rms", "mean"):  # ± of a typical part; parts are independent, so that of their mean is less
        std /= math.sqrt(len(column.of))
    return SeedNoise(std * math.sqrt((seeds - ddof) / (seeds - 1)), seeds)


def _two_errors(table: Table, column: Column, value: Value, std: float | None) -> float | None:
    """Two standard errors of the difference, in the printed unit; None if the paper's ± does not give them."""
    theirs = noise_in_paper(table, column, std)
    return theirs and two_errors((1, theirs), (1, value.noise or SeedNoise(theirs.std, 1)))


def _seeds(table: Table) -> int:
    """The number of seeds that the paper's numbers are means over."""
    rules = protocol.load(table.protocol)
    return len(rules.seeds("paper", table.seeds) if "paper" in rules.budgets else table.seeds)


@dataclass(frozen=True)
class Tally:
    """Counts of reported numbers: how many are measured, and how many of these agree with the paper."""

    reported: int = 0
    measured: int = 0
    whole: int = 0  #: ... over all of their seeds
    accuracies: int = 0  #: measured ones that are judged in percentage points
    points: float = 0.0  #: ... the sum of their differences
    close: int = 0  #: ... within POINTS
    compared: int = 0  #: ... with a ± over seeds in the paper
    alike: int = 0  #: ... of these: within two standard errors
    alike_far: int = 0  #: ... of these: within two standard errors, but more than FAR off
    one_seed: int = 0  #: ... of these: with the paper's ± for both sides
    counted: int = 0  #: measured ones that need no run
    equal: int = 0  #: ... of these: near
    others: int = 0  #: measured ones that have a tolerance
    tolerated: int = 0  #: ... of these: near

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Tally(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @classmethod
    def of(cls, reported: int, offsets: Iterable[Offset]) -> Tally:
        """The tally of `reported` numbers, of which the measured ones have these offsets."""
        return sum((cls._one(offset) for offset in offsets), cls(reported))

    @classmethod
    def _one(cls, off: Offset) -> Tally:
        if off.points is not None:
            alike = bool(off.within_errors)
            return cls(
                measured=1,
                accuracies=1,
                points=off.points,
                close=off.within_points,
                compared=off.within_errors is not None,
                alike=alike,
                alike_far=alike and not off.near,
                one_seed=off.one_seed,
            )
        if off.counted:
            return cls(measured=1, counted=1, equal=bool(off.near))
        return cls(measured=1, others=off.near is not None, tolerated=bool(off.near))

    @property
    def mean_difference(self) -> float | None:
        """The mean of measured - reported over accuracies, in percentage points; None without any."""
        return self.points / self.accuracies if self.accuracies else None

    @property
    def document(self) -> dict[str, int | float | None]:
        """The counts and the mean difference by name, for JSON."""
        counts = dataclasses.asdict(self)
        del counts["points"]
        return {**counts, "mean_difference": self.mean_difference}

    @property
    def three(self) -> tuple[str, str, str]:
        """As text: mean difference in points, share within POINTS, share within two standard errors; "" if unknown."""
        difference = "" if self.mean_difference is None else signed(self.mean_difference, 1)
        return difference, _percent(self.close, self.accuracies), _percent(self.alike, self.compared)

    def __str__(self) -> str:
        said = []
        if self.mean_difference is not None:
            close = _share(self.close, self.accuracies)
            said = [f"mean difference {signed(self.mean_difference, 1)} points", f"{close} within {POINTS:g} points"]
        if self.compared:
            some = "" if self.one_seed == self.compared else f"{self.one_seed} of "
            more = [
                *([f"{self.alike_far} of them more than {FAR:g} points off"] if self.alike_far else []),
                *([f"{some}one seed here: the paper's ± for both sides"] if self.one_seed else []),
            ]
            alike = f"{_share(self.alike, self.compared)} within two standard errors"
            said.append(f"{alike} ({'; '.join(more)})" if more else alike)
        if without := self.accuracies - self.compared:
            said.append(f"{without} without a ± over seeds")
        said += [f"{_share(self.equal, self.counted)} equal"] if self.counted else []
        said += [f"{_share(self.tolerated, self.others)} within their tolerance"] if self.others else []
        if unjudged := self.measured - self.accuracies - self.counted - self.others:
            said.append(f"{unjudged} not judged")
        return f"{self.measured} of {self.reported} reported numbers measured{': ' * bool(said)}{'; '.join(said)}"


def _share(some: int, of: int) -> str:
    return f"{some} of {of} ({_percent(some, of)})"


def _percent(some: int, of: int) -> str:
    return f"{some / of:.0%}" if of else ""


def signed(number: float, decimals: int) -> str:
    """The number with its sign, rounded, for printing."""
    return f"{round(number, decimals) + 0.0:+.{decimals}f}".replace("-", "−")  # no negative zero
