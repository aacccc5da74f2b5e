"""Significance tests between methods, as recommended by Demšar, Statistical Comparisons of Classifiers over Multiple
Data Sets (JMLR 7, 2006). Functions import SciPy when called, because its import is slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedbench.words import counted

#: Differences with a smaller p are significant.
LEVEL = 0.05


@dataclass(frozen=True)
class Signed:
    """The result of Wilcoxon's signed-rank test on n paired differences."""

    n: int
    p: float  #: two-sided
    effect: float  #: matched-pairs rank-biserial correlation: (R+ - R-) / (R+ + R-), in [-1, 1]


def wilcoxon(differences: np.ndarray) -> Signed:
    """Wilcoxon's test on differences [n]; the ranks of zeros are split between both signs (Demšar, section 3.1.3).

    The p is exact for any n, also with ties and zeros: the share of all assignments of signs to the differences that
    are not zero with a sum of ranks as extreme as this one.
    """
    from scipy.stats import rankdata

    d = np.round(differences, 12)  # values that are equal up to rounding errors are ties
    if not d.any():
        return Signed(len(d), 1.0, 0.0)
    ranks = rankdata(np.abs(d))
    effect = float((ranks * np.sign(d)).sum() / ranks.sum())
    doubled = np.rint(2 * ranks[d != 0]).astype(np.int64)  # ties have half ranks
    return Signed(len(d), _share_as_extreme(doubled, int(doubled[d[d != 0] > 0].sum())), effect)


def _share_as_extreme(ranks: np.ndarray, positive: int) -> float:
    """The share of all assignments of signs to whole-number ranks whose positive ones sum up to `positive`, or to a
    value as far from half of all ranks."""
    share = np.zeros(int(ranks.sum()) + 1)  #: [sum of positive ranks], by convolution of one rank after another
    share[0], most = 1.0, 0
    for rank in ranks.tolist():
        half = share[: most + 1] / 2
        share[: most + 1] = half
        share[rank : most + rank + 1] += half
        most += rank
    tail = min(positive, most - positive)
    return min(1.0, float(2 * share[: tail + 1].sum()))


def least_p(n: int) -> float:
    """The smallest two-sided p that n pairs can have, if all differences have the same sign."""
    return min(1.0, 2.0 ** (1 - n))


def holm(ps: Sequence[float]) -> list[float]:
    """The adjusted p of each of these tests (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979)."""
    adjusted, running = [1.0] * len(ps), 0.0
    for step, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - step) * ps[i]))
        adjusted[i] = running
    return adjusted


@dataclass(frozen=True, eq=False)
class Friedman:
    """The result of Friedman's test of k methods on N data sets."""

    ranks: np.ndarray  #: [N, k], 1 is best, ties get their mean rank
    chi2: float
    f: float  #: Iman and Davenport's statistic, which is less conservative
    p: float  #: of f; of chi2 if f is infinite because all data sets have the same order
    difference: float  #: Nemenyi's critical difference of average ranks at LEVEL

    @property
    def average(self) -> np.ndarray:
        """Average ranks [k]."""
        average: np.ndarray = self.ranks.mean(axis=0)
        return average

    @property
    def indistinguishable(self) -> list[tuple[int, ...]]:
        """The maximal sets of at least two methods, best first, whose average ranks differ by less than the critical
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


def ranks_of(values: np.ndarray, best: str = "max") -> np.ndarray:
    """Ranks [N, k] within each row of values [N, k]: 1 is best, ties (up to rounding errors) get their mean rank."""
    from scipy.stats import rankdata

    ranks: np.ndarray = rankdata(np.round(-values if best == "max" else values, 12), axis=1)
    return ranks


def friedman(values: np.ndarray, best: str = "max") -> Friedman:
    """Friedman's test on values [N, k] of k >= 2 methods on N >= 2 data sets; `best`: "max" or "min".

    Demšar, section 3.2.2, equations for chi squared, F and the critical difference.
    """
    from scipy import stats

    n, k = values.shape
    ranks = ranks_of(values, best)
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
    """Nemenyi's q for k methods: the studentised range's quantile at infinite degrees of freedom, divided by √2."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - level, k, np.inf)) / math.sqrt(2)


def neighbours(values: np.ndarray, order: Sequence[int]) -> str:
    """A sentence on values [N, k]: how many pairs of adjacent methods in this order differ by Wilcoxon's test with
    Holm's correction."""
    n = len(values)
    ps = [wilcoxon(values[:, a] - values[:, b]).p for a, b in pairwise(order)]
    apart = sum(p < LEVEL for p in holm(ps))
    said = (
        f"of {counted(len(ps), 'pair')} of neighbours {apart or 'none'} differ{'s' * (apart == 1)} by Wilcoxon's test "
        f"with Holm's correction at {LEVEL:g}"
    )
    short = least_p(n) * len(ps) >= LEVEL
    return f"{said}: {n} data sets and partitions cannot tell so many pairs apart" if short else said
