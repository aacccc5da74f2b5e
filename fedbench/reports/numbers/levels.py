"""Statistic "levels": what clients draw at a level of a protocol's shifts, counted in their distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.schemes.equal import Equal
from fedbench.reports.numbers.measured import Value
from fedbench.reports.table.spec import Column, Row, Table
from fedbench.specs import DatasetSpec, PartitionSpec

#: Clients whose draws show all that a level has: more than ten times as many as the largest bank (15).
_MANY = 200
#: The budget whose seeds "distributions" is a mean over.
_BUDGET = "paper"

#: Metric -> the number of different ... in the distributions of a level.
COUNTS: Mapping[str, Callable[[Sequence[Distribution]], int]] = {
    "angles": lambda drawn: len({one.rotation.angle for one in drawn}),
    "colours": lambda drawn: len({one.rotation.colour for one in drawn}),
    "classes": lambda drawn: max(len(one.classes or ()) for one in drawn),  # that a client keeps
    "swapped": lambda drawn: len({k for one in drawn for k, _ in one.labels}),
    "turned": lambda drawn: len({k for one in drawn for k, rotation in one.rotations if rotation.angle}),
}


def number(table: Table, row: Row, column: Column) -> Value:
    """A cell: of the shift of the column's partition at the row's level, on data of the row's classes.

    "distributions" is how many different ones the protocol's clients draw; ± is its standard deviation (ddof 0) over
    the seeds of the paper's budget. Raises FedbenchError for a partition that has no levels.
    """
    if (metric := str(column.metric)) in COUNTS:
        return Value(COUNTS[metric](_drawn(_spec(table, row, column, clients=_MANY), row.classes)))
    seeds = protocol.load(table.protocol).seeds(_BUDGET)
    counts = [len(_drawn(_spec(table, row, column, seed=seed), row.classes)) for seed in seeds]
    return Value(
        float(np.mean(counts)), float(np.std(counts)) if len(counts) > 1 else None, len(counts), seeds=len(counts)
    )


def _spec(table: Table, row: Row, column: Column, **chosen: int) -> PartitionSpec:
    """The partition, on no data set in particular."""
    rules = protocol.load(table.protocol)
    return rules.partition_spec(DatasetSpec("", "", ""), row.classes, **column.partition, level=row.level, **chosen)


@cache
def _drawn(spec: PartitionSpec, classes: int) -> tuple[Distribution, ...]:
    """The different distributions that its clients draw."""
    from fedbench.partitions import schemes

    scheme = schemes.of(spec)
    drawn = scheme.drawn(spec, classes) if isinstance(scheme, Equal) else None
    if drawn is None:
        raise FedbenchError(f"a {spec.scheme} partition with shift {spec.shift} has no levels to count")
    return drawn.distributions
