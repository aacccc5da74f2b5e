"""Cells that need no run (a network's parameters, a round's costs, clients' data in a preset, what clients draw at a
level of a shift, a table's marks), and means over other columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

import numpy as np

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.models.counts import counts
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.schemes.equal import Equal
from fedbench.planner.table import cost
from fedbench.planner.table.spec import MARKED, RELATIONS, UNITS, Column, Row, Table
from fedbench.reports.numbers.measured import Value
from fedbench.specs import DatasetSpec, PartitionSpec

#: So many clients draw everything that a level has: more than ten times as many as the largest bank (15).
_MANY = 200
#: The metric "distributions" is a mean over the seeds of this budget.
_BUDGET = "paper"

#: Metric -> a count over the distributions of a level: of different angles, colours, ...
COUNTS: Mapping[str, Callable[[Sequence[Distribution]], int]] = {
    "angles": lambda drawn: len({one.rotation.angle for one in drawn}),
    "colours": lambda drawn: len({one.rotation.colour for one in drawn}),
    "classes": lambda drawn: max(len(one.classes or ()) for one in drawn),  # of one client
    "swapped": lambda drawn: len({k for one in drawn for k, _ in one.labels}),
    "turned": lambda drawn: len({k for one in drawn for k, rotation in one.rotations if rotation.angle}),
}


def level_number(table: Table, row: Row, column: Column) -> Value:
    """Statistic "levels": counts in the distributions that clients draw in the column's partition at the row's level,
    on data with the row's number of classes.

    "distributions" is the number of different ones that the protocol's clients draw; its ± is the standard deviation
    (ddof 0) over the seeds of the paper's budget. Raises FedbenchError for a partition that has no levels.
    """
    if (metric := str(column.metric)) in COUNTS:
        return Value(COUNTS[metric](_drawn(_spec(table, row, column, clients=_MANY), row.classes)))
    seeds = protocol.load(table.protocol).seeds(_BUDGET)
    counts = [len(_drawn(_spec(table, row, column, seed=seed), row.classes)) for seed in seeds]
    return Value(
        float(np.mean(counts)), float(np.std(counts)) if len(counts) > 1 else None, len(counts), seeds=len(counts)
    )


def _spec(table: Table, row: Row, column: Column, **chosen: int) -> PartitionSpec:
    """The spec of the cell's partition, without a data set."""
    rules = protocol.load(table.protocol)
    return rules.partition_spec(DatasetSpec("", "", ""), row.classes, **column.partition, level=row.level, **chosen)


@cache
def _drawn(spec: PartitionSpec, classes: int) -> tuple[Distribution, ...]:
    """The different distributions that the partition's clients draw."""
    from fedbench.partitions import schemes

    scheme = schemes.of(spec)
    drawn = scheme.drawn(spec, classes) if isinstance(scheme, Equal) else None
    if drawn is None:
        raise FedbenchError(f"a {spec.scheme} partition with shift {spec.shift} has no levels to count")
    return drawn.distributions


def counted(table: Table, row: Row, column: Column) -> Value:
    """The number of a cell that needs no run. Raises FedbenchError if a preset or a partition has no such number."""
    if table.statistic == "levels":
        return level_number(table, row, column)
    if table.statistic == "marks":
        return Value(next((MARKED[name] for name, rows in column.marks.items() if row.label in rows), 0.0))
    if table.statistic == "preset":
        number = _of_preset(table, row, column)
    else:
        number = _costs(table, row, column) if row.method else _parameters(row, column)
    return Value(number * UNITS[str(column.unit)][0])


def _parameters(row: Row, column: Column) -> float:
    height, width, channels = row.shape
    network = counts(row.model, (height, width, channels), row.classes)
    gaussian = row.classes * network.features + network.features * (network.features + 1) // 2
    computed = {"gaussian": gaussian, "overhead": (gaussian - network.head) / network.total}
    return computed[metric] if (metric := str(column.metric)) in computed else float(getattr(network, metric))


def _costs(table: Table, row: Row, column: Column) -> float:
    """A cost of one round of the row's method, in the column's case."""
    if column.costs is None:
        raise FedbenchError(f"{table.path}, column {column.key} does not say what costs are counted for")
    return float(getattr(cost.cost(row.method, column.costs), str(column.metric)))


def _of_preset(table: Table, row: Row, column: Column) -> float:
    """A number of one client and side; for class counts, all classes have the size of the data set's smallest one."""
    from fedbench.partitions import schemes
    from fedbench.partitions.distribution import normalised
    from fedbench.partitions.schemes.colored import Colored
    from fedbench.partitions.schemes.mixture import Mixture, counts, kept

    spec, side = _preset(table), ("train", "test").index(row.side)
    scheme = schemes.of(spec)
    if row.client > spec.clients:
        raise FedbenchError(f"{table.path}, row {row.label}: preset {table.preset} has {spec.clients} clients")
    if column.metric == "flip_probability":
        if not isinstance(scheme, Colored):
            raise FedbenchError(f"{table.path}: preset {table.preset} is no colored one, so nothing is flipped")
        return scheme.flips[row.client - 1][side]
    if not isinstance(scheme, Mixture):
        raise FedbenchError(f"{table.path}: preset {table.preset} is no mixture, so it has no class weights")
    mix = (scheme.train_mix, scheme.test_mix)[side]
    group, label = (row.client - 1) * len(mix) // spec.clients, column.category or 0
    if label >= len(mix[0]):
        raise FedbenchError(f"{table.path}, column {column.key}: preset {table.preset} has {len(mix[0])} classes")
    if column.metric == "class_probability":
        return float(normalised(mix)[group, label])
    whole = counts(mix, [table.smallest[row.side]] * len(mix[0]))
    return float((whole if side else kept(whole, scheme.keep))[group, label])


def _preset(table: Table) -> PartitionSpec:
    """The spec of the table's preset, without a data set."""
    return protocol.load(table.protocol).partition_spec(DatasetSpec("", "", ""), 1, preset=table.preset, seed=0)


def derived(column: Column, values: Sequence[Value], base: Sequence[Value]) -> Value | None:
    """The number of a row in a column `of` others: the mean over `values`, the row's values in these columns.

    With `base` (another row's values there), each value is first related to its base by the column's relation; None if
    a relation is undefined. The ± is the column's `spread`, if it has one.
    """
    numbers = _against(column, [v.mean for v in values], [v.mean for v in base])
    if numbers is None:
        return None
    std = None
    if column.spread:
        from fedbench.metrics.statistics import spread_of_mean

        std = spread_of_mean(column.spread, numbers, [value.std for value in values])
    each = {}  # seed -> the numbers of its runs, if all columns have the same seeds
    if all(v.per_seed.keys() == values[0].per_seed.keys() for v in (*values, *base)):
        for seed in values[0].per_seed:
            each[seed] = _against(column, [v.per_seed[seed] for v in values], [v.per_seed[seed] for v in base])
    per_seed = {seed: fmean(of_seed) for seed, of_seed in each.items() if of_seed} if None not in each.values() else {}
    seed_std = stdev(per_seed.values()) if len(per_seed) > 1 else None
    seeds = min(value.seeds for value in values)
    return Value(sum(numbers) / len(numbers), std, len(numbers), seeds=seeds, seed_std=seed_std, per_seed=per_seed)


def _against(column: Column, numbers: Sequence[float], base: Sequence[float]) -> list[float] | None:
    """The numbers, each related to its base, if there is one; None for a percentage of zero."""
    if base and column.relation == "percent" and not all(base):
        return None
    return [RELATIONS[column.relation](n, b) for n, b in zip(numbers, base, strict=True)] if base else list(numbers)
