"""Tests of methods against each other, on examples that others have worked out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedbench.reports.compare.significance import critical_value, friedman, holm, least_p, wilcoxon

#: Demšar (JMLR 2006), Table 6: the area under the curve of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets.
#: (The last two of the data set voting are printed as 0.975 both and ranked 2 and 3, as they were before rounding.)
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970],
    ]
)  # fmt: skip


def test_friedman_as_demsar_works_it_out() -> None:
    """Section 3.2.2: average ranks, chi squared 9.28, F 3.69 and the critical difference of four methods."""
    all_four = friedman(DEMSAR)
    assert np.round(all_four.average, 3).tolist() == [3.143, 2.0, 2.893, 1.964]
    assert all_four.chi2 == pytest.approx(9.28, abs=0.01)
    assert all_four.f == pytest.approx(3.69, abs=0.01)
    assert all_four.p == pytest.approx(stats.f.sf(3.69, 3, 39), abs=1e-3)
    assert all_four.difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=0.001)
    # Nobody is further from another than 1.25, so one bar joins all, as in Figure 1 a at this level.
    assert all_four.alike == [(3, 1, 2, 0)]


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_values_are_those_of_demsars_table_5(k: int, q: float) -> None:
    assert critical_value(k) == pytest.approx(q, abs=0.001)


def test_critical_values_at_another_level() -> None:
    assert critical_value(4, 0.10) == pytest.approx(2.291, abs=0.001)


def test_friedman_is_scipys_where_nothing_is_tied() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4))
    theirs = stats.friedmanchisquare(*values.T)
    assert friedman(values).chi2 == pytest.approx(theirs.statistic)
    assert friedman(-values, "min").ranks.tolist() == friedman(values).ranks.tolist()


def test_friedman_of_one_order_everywhere() -> None:
    values = np.tile([0.9, 0.8, 0.7], (12, 1))
    same = friedman(values)
    assert same.average.tolist() == [1, 2, 3]
    assert math.isinf(same.f)
    assert same.p == pytest.approx(math.exp(-24 / 2))  # chi squared 24 of two degrees of freedom
    assert same.alike == []  # 0.96 apart is enough: 2.343 * sqrt(12 / 72) = 0.957
    assert friedman(values[:3]).alike == [(0, 1), (1, 2)]  # 1.913


def test_wilcoxon_as_demsar_works_it_out() -> None:
    """Section 3.1.3: C4.5+m against C4.5, whose two ties are shared between the rank sums 93 and 12."""
    signed = wilcoxon(DEMSAR[:, 1] - DEMSAR[:, 0])
    assert signed.n == 14
    assert signed.effect == pytest.approx((93 - 12) / 105)
    assert signed.p < 0.05  # 12 is below 21, the critical value for 14 data sets


def test_wilcoxon_of_few_pairs_by_hand() -> None:
    """All of one sign: two of the 2^n signs are as far out."""
    for n in (3, 5, 6):
        assert wilcoxon(np.arange(1, n + 1) / 100).p == pytest.approx(least_p(n)) == 2 / 2**n
    assert least_p(1) == 1
    # Ranks 1 to 4, the least against the others: R- = 1, as far out as {}, {1} and their mirrors of 16.
    signed = wilcoxon(np.array([-0.01, 0.02, 0.03, 0.04]))
    assert signed.p == pytest.approx(4 / 16)
    assert signed.effect == pytest.approx((9 - 1) / 10)


def test_wilcoxon_of_equals() -> None:
    assert wilcoxon(np.array([0.0, 1e-15, 0.0])).p == 1


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1, never below one before."""
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
