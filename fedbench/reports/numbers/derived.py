"""Columns that are means over other columns of their table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from fedbench.reports.numbers.measured import Value
from fedbench.reports.table.spec import RELATIONS, Column


def derived(column: Column, values: Sequence[Value], base: Sequence[Value] | None) -> Value | None:
    """The number of a row in a column `of` others: the mean over `values`, the row's in these columns.

    With `base`, another row's values in them, each is first set against that row's by the column's relation; None where
    there is no such number. The ± is the column's `spread`, if it has one.
    """
    if base and column.relation == "percent" and not all(other.mean for other in base):
        return None
    numbers = _against(column, [v.mean for v in values], [v.mean for v in base] if base else None)
    std = None
    if column.spread:
        from fedbench.metrics.statistics import spread_of_mean

        std = spread_of_mean(column.spread, numbers, [value.std for value in values])
    seeds = min(value.seeds for value in values)
    per_seed = _per_seed(column, values, base or ())
    seed_std = stdev(per_seed.values()) if len(per_seed) > 1 else None
    return Value(sum(numbers) / len(numbers), std, len(numbers), seeds=seeds, seed_std=seed_std, per_seed=per_seed)


def _against(column: Column, numbers: Sequence[float], base: Sequence[float] | None) -> list[float]:
    """The numbers, each set against that of the base."""
    return [RELATIONS[column.relation](n, b) for n, b in zip(numbers, base, strict=True)] if base else list(numbers)


def _per_seed(column: Column, values: Sequence[Value], base: Sequence[Value]) -> dict[int, float]:
    """Seed -> the mean of its runs, where all parts are of the same seeds."""
    seeds = values[0].per_seed.keys()
    if any(v.per_seed.keys() != seeds for v in (*values, *base)):
        return {}
    if base and column.relation == "percent" and not all(all(v.per_seed.values()) for v in base):
        return {}
    return {
        seed: fmean(_against(column, [v.per_seed[seed] for v in values], [v.per_seed[seed] for v in base] or None))
        for seed in seeds
    }
