"""A statement of a paper beside what simulated data say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: An exponent may miss by this share of itself: the simulations are small.
SHARE = 0.25


@dataclass(frozen=True)
class Point:
    """One number of a check."""

    at: str  #: what is measured, or where
    measured: float
    claimed: float


@dataclass(frozen=True)
class Check:
    """One statement, its numbers, and whether they bear it out."""

    source: str  #: where it comes from, such as "Theorem 2.2"
    statement: str
    points: tuple[Point, ...]
    holds: bool
    remark: str  #: one line on what this shows
    control: bool = False  #: what the statement needs is broken on purpose: it should not hold


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """r of y = c xʳ, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def near(measured: float, claimed: float, share: float = SHARE) -> bool:
    """Whether a number is within a share of what it should be."""
    return abs(measured - claimed) <= share * abs(claimed)
