"""The mean over clients, by their test images or unweighted: a table has one and can be asked for the other."""

from __future__ import annotations

import dataclasses

from fedbench.errors import FedbenchError, unknown
from fedbench.reports.table.spec import Table

#: How it is taken -> the statistic of a client's metric, and the metric of the federation, that take it so.
MEANS = {
    "unweighted": ("clients", "client_accuracy_mean"),
    "weighted": ("weighted_clients", "client_accuracy_weighted"),
}


def with_client_mean(table: Table, mean: str) -> Table:
    """The table with its means over clients taken in one of MEANS. What is reported and claimed stays.

    Raises FedbenchError for an unknown one, and for a table that has no such means, or has rows with another metric in
    their place.
    """
    if mean not in MEANS:
        raise unknown("mean over clients", mean, MEANS)
    new = {old: name for pair in MEANS.values() for old, name in zip(pair, MEANS[mean], strict=True)}
    present = {str(value) for c in table.measured for value in (c.statistic, c.metric)} & new.keys()
    mapped = [row.label for row in table.rows if row.metrics.keys() & present]
    if not present or mapped:
        why = f"{mapped[0]} has another metric in its place" if mapped else "it has none"
        raise FedbenchError(f"no other mean over clients for table {table.id}: {why}", "leave --client-mean out")
    columns = [
        dataclasses.replace(
            c, statistic=new.get(str(c.statistic), c.statistic), metric=new.get(str(c.metric), c.metric)
        )
        for c in table.columns
    ]
    other = dataclasses.replace(table, column=columns)
    other.__dict__["reported"] = table.reported
    return other
