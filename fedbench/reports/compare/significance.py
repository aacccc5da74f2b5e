"""Tests of methods against each other, as Demšar recommends them: Statistical Comparisons of Classifiers over Multiple
Data Sets (JMLR 7, 2006). SciPy is imported where one is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Below it a difference is called significant.
LEVEL = 0.05


@dataclass(frozen=True)
class Signed:
    """Wilcoxon's signed-rank test of n paired differences."""

    n: int
    p: float  #: two-sided
    effect: float  #: matched-pairs rank-biserial correlation: (R+ - R-) / (R+ + R-), in [-1, 1]


def wilcoxon(differences: np.ndarray) -> Signed:
    """Of differences [n]; the ranks of zeros are shared between both signs (Demšar, section 3.1.3)."""
    from scipy.stats import rankdata
    from scipy.stats import wilcoxon as of_scipy

    d = np.round(differences, 12)  # what is equal but for rounding is a tie
    if not d.any():
        return Signed(len(d), 1.0, 0.0)
    ranks = rankdata(np.abs(d))
    effect = float((ranks * np.sign(d)).sum() / ranks.sum())
    return Signed(len(d), float(of_scipy(d, zero_method="zsplit").pvalue), effect)


def least_p(n: int) -> float:
    """The least two-sided p that n pairs can have: all differences of one sign."""
    return min(1.0, 2.0 ** (1 - n))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p of several tests (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979)."""
    adjusted, running = [1.0] * len(ps), 0.0
    for step, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - step) * ps[i]))
        adjusted[i] = running
    return adjusted


@dataclass(frozen=True, eq=False)
class Friedman:
    """k methods on N data sets, compared by their ranks."""

    ranks: np.ndarray  #: [N, k], 1 the best, ties have their mean
    chi2: float
    f: float  #: Iman and Davenport's, which is less conservative
    p: float  #: of f; of chi2 where f is infinite, as all data sets have one order
    difference: float  #: critical difference of average ranks (Nemenyi) at LEVEL

    @property
    def average(self) -> np.ndarray:
        """Average ranks [k]."""
        average: np.ndarray = self.ranks.mean(axis=0)
        return average

    @property
    def alike(self) -> list[tuple[int, ...]]:
        """The largest sets of methods, two at least and best first, whose average ranks do not differ by the critical
        difference."""
        order = [int(i) for i in np.argsort(self.average, kind="stable")]
        sets: list[tuple[int, ...]] = []
        end = 0
        for start, first in enumerate(order):
            stop = start
            while stop < len(order) and self.average[order[stop]] - self.average[first] < self.difference:
                stop += 1
            if stop > max(end, start + 1):
                sets.append(tuple(order[start:stop]))
            end = max(end, stop)
        return sets


def friedman(values: np.ndarray, best: str = "max") -> Friedman:
    """Of values [N, k] of k >= 2 methods on N >= 2 data sets, where the greatest ("max") or the least is best.

    Demšar, section 3.2.2, equations for chi squared, F and the critical difference.
    """
    from scipy import stats

    n, k = values.shape
    ranks = stats.rankdata(np.round(-values if best == "max" else values, 12), axis=1)
    average = ranks.mean(axis=0)
    chi2 = 12 * n / (k * (k + 1)) * (float((average**2).sum()) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi2
    if rest > 1e-9:
        f = (n - 1) * chi2 / rest
        p = float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))
    else:
        f, p = math.inf, float(stats.chi2.sf(chi2, k - 1))
    return Friedman(ranks, chi2, f, p, critical_value(k) * math.sqrt(k * (k + 1) / (6 * n)))


def critical_value(k: int, level: float = LEVEL) -> float:
    """Nemenyi's q of k methods: the studentised range with infinite degrees of freedom, over the root of two."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - level, k, np.inf)) / math.sqrt(2)
