"""Columns that are means over other columns of their table."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.reports.numbers.measured import Value
from fedbench.reports.table.spec import RELATIONS, Column


def derived(column: Column, values: Sequence[Value], base: Sequence[Value] | None) -> Value | None:
    """The number of a row in a column `of` others: the mean over `values`, the row's in these columns.

    With `base`, another row's values in them, each is first set against that row's by the column's relation; None where
    there is no such number. The ± is the column's `spread`, if it has one.
    """
    numbers = [value.mean for value in values]
    if base:
        if column.relation == "percent" and not all(other.mean for other in base):
            return None
        numbers = [RELATIONS[column.relation](n, other.mean) for n, other in zip(numbers, base, strict=True)]
    std = None
    if column.spread:
        from fedbench.metrics.statistics import spread_of_mean

        std = spread_of_mean(column.spread, numbers, [value.std for value in values])
    return Value(sum(numbers) / len(numbers), std, len(numbers), seeds=min(value.seeds for value in values))
