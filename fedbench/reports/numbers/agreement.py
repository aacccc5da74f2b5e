"""How far measured numbers lie from the paper's: one rule and one wording for cells, tables and papers.

Of accuracies three things are said: the mean difference (measured - reported), the share within POINTS, and the share
within two standard errors of the difference of two means, 2 sqrt(s²/n + t²/m), where s and t are the standard
deviations (ddof 1) over the paper's n seeds and our m. One seed of ours has no deviation: the paper's stands for both.
Where the paper's ± is not over seeds (over rounds, over clients) or missing, the third cannot be said.

A cell is near if it lies within POINTS, or within the two standard errors, and never if it lies more than FAR off.
Numbers that are no accuracies (seconds, ratios, distances) are near within their column's `tolerance` or their row's
`band`, and without one are not judged; counted ones (`Table.counted`) are exact or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedbench import protocol
from fedbench.planner.table.claims import Noise, two_errors
from fedbench.planner.table.spec import OVER_SEEDS, POINTS_IN, Column, Row, Table
from fedbench.reports.numbers.measured import Value

#: Percentage points that are as good as no difference, and beyond which nothing is near.
POINTS, FAR = 2.0, 5.0
#: What the mark of a cell that is not near says.
OFF = f"off: more than {POINTS:g} points and than two standard errors, or more than {FAR:g} points"
OFF_ELSE = "off: beyond the tolerance, or not what the paper has"


@dataclass(frozen=True)
class Offset:
    """How far a number lies off the paper's."""

    difference: float  #: measured - reported, in the printed unit (of the ratio, where the table has one)
    near: bool | None  #: None: not judged
    points: float | None = None  #: of accuracies: the difference in percentage points
    within_points: bool = False  #: ... whether that is within POINTS
    within_errors: bool | None = None  #: ... whether it is within two standard errors; None: unknown
    one_seed: bool = False  #: ... taking the paper's ± for both sides
    counted: bool = False  #: of a table that needs no run


def offset(
    table: Table, row: Row, column: Column, value: Value, ratio: float | None, reported: tuple[float, float | None]
) -> Offset | None:
    """Of a cell's number, and its ratio where the table has one; None where the paper has none to set it against."""
    ours, (theirs, std) = value.mean, reported
    if table.ratio_to:
        base = table.reported.get((table.ratio_to, column.key))
        if base is None or ratio is None:
            return None
        ours, theirs = ratio, theirs / base[0]
    difference, slack = ours - theirs, 0.5 * 10.0 ** -(column.decimals or 0)  # what is printed is rounded
    if row.band:
        return Offset(difference, row.band[0] <= ours <= row.band[1])
    if table.counted or column.tolerance is not None:
        near = abs(difference) <= (column.tolerance or 0.0) + slack
        return Offset(difference, near, counted=table.counted)
    factor = POINTS_IN.get(str(column.unit))
    if factor is None or table.ratio_to:
        return Offset(difference, None)
    points, slack = factor * difference, factor * slack
    close, errors = abs(points) <= POINTS + slack, _two_errors(table, column, value, std)
    alike = None if errors is None else abs(points) <= factor * errors + slack
    near = (close or bool(alike)) and abs(points) <= FAR + slack
    return Offset(difference, near, points, close, alike, alike is not None and value.noise is None)


def _two_errors(table: Table, column: Column, value: Value, std: float | None) -> float | None:
    """Two standard errors of the difference, in the printed unit; None where the paper's ± does not tell them."""
    ddof, spread, seeds = OVER_SEEDS.get(str(column.statistic)), column.spread, _seeds(table)
    if std is None or ddof is None or seeds < 2 or spread == "sample":
        return None
    if spread in ("rms", "mean"):  # the usual ± of a part, which that of the mean is less than: parts are independent
        std /= math.sqrt(len(column.of))
    theirs = Noise(std * math.sqrt((seeds - ddof) / (seeds - 1)), seeds)
    return two_errors((1, theirs), (1, value.noise or Noise(theirs.std, 1)))


def _seeds(table: Table) -> int:
    """How many the paper's numbers are means over."""
    rules = protocol.load(table.protocol)
    return len(table.seeds or (rules.seeds("paper") if "paper" in rules.budgets else ()))


@dataclass(frozen=True)
class Tally:
    """Of reported numbers: how many there are and are measured, and how the measured ones stand beside them."""

    reported: int = 0
    measured: int = 0
    accuracies: int = 0  #: of the measured ones: those that are judged in points
    points: float = 0.0  #: ... the sum of their differences
    close: int = 0  #: ... within POINTS
    compared: int = 0  #: ... of which the paper has a ± over seeds
    alike: int = 0  #: ... within two standard errors
    alike_far: int = 0  #: ... and more than FAR off
    one_seed: int = 0  #: ... compared by the paper's ± alone
    counted: int = 0  #: those that need no run
    equal: int = 0
    others: int = 0  #: those that have a tolerance or a band
    tolerated: int = 0

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Tally(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @classmethod
    def of(cls, reported: int, offsets: Iterable[Offset]) -> Tally:
        """Of so many reported numbers, of which some lie so far off."""
        return sum((cls._one(offset) for offset in offsets), cls(reported))

    @classmethod
    def _one(cls, off: Offset) -> Tally:
        if off.points is not None:
            alike = bool(off.within_errors)
            return cls(
                measured=1, accuracies=1, points=off.points, close=off.within_points,
                compared=off.within_errors is not None, alike=alike, alike_far=alike and not off.near,
                one_seed=off.one_seed,
            )  # fmt: skip
        if off.counted:
            return cls(measured=1, counted=1, equal=bool(off.near))
        return cls(measured=1, others=off.near is not None, tolerated=bool(off.near))

    @property
    def mean_difference(self) -> float | None:
        """Of the accuracies, measured - reported, in points."""
        return self.points / self.accuracies if self.accuracies else None

    @property
    def document(self) -> dict[str, int | float | None]:
        """For programs."""
        counts = dataclasses.asdict(self)
        del counts["points"]
        return {**counts, "mean_difference": self.mean_difference}

    @property
    def three(self) -> tuple[str, str, str]:
        """In brief: mean difference in points, share within POINTS, and within two standard errors; "" if unknown."""
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
    """With its sign, as it prints."""
    return f"{round(number, decimals) + 0.0:+.{decimals}f}".replace("-", "−")  # no negative zero
