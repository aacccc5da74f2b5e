"""Methods ranked over several data sets and partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.reports.compare.comparison import VIEW
from fedbench.reports.compare.numbers import Number, of_metric
from fedbench.reports.compare.significance import Friedman, friedman
from fedbench.reports.groups import grouped
from fedbench.reports.layout.grid import Grid
from fedbench.reports.runs import SEEDS, Run, differing
from fedbench.reports.table.spec import Table


@dataclass(frozen=True, eq=False)
class Ranks:
    """k methods (or whatever else runs differ in) on N data sets and partitions."""

    number: Number
    lines: Sequence[str]  #: [k]
    places: Sequence[str]  #: [N]
    values: np.ndarray  #: [N, k], each the mean over the seeds of a line there, as stored
    result: Friedman
    left_out: Sequence[str] = ()  #: places that lack some of the lines, and which
    mixed: Sequence[str] = ()  #: keys that runs of one line differ in at some place, besides their seeds


def ranked(runs: Sequence[Run], metric: str | None = None, by: Sequence[str] = (), view: str = VIEW) -> Ranks:
    """The lines of these runs (`groups.grouped`) by a metric's mean over seeds, on the places that have all lines.

    Raises FedbenchError for an unknown metric or key, for a metric of which neither more nor less is better, and with
    fewer than two lines or two such places.
    """
    number = of_metric(metric or "average_accuracy", runs)
    if number.best == "none":
        raise FedbenchError(
            f"neither more nor less {number.name} is better, so there is no rank", "take another metric"
        )
    panels = grouped(runs, by)
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    if len(lines) < 2:
        raise FedbenchError(f"there is nothing to rank {lines[0]} against", "choose runs of two methods at least")
    values, places, left_out, mixed = [], [], [], set[str]()
    for panel in panels:
        means = {name: _mean(number, group, view) for name, group in panel.lines.items()}
        lacking = [name for name in lines if means.get(name) is None]
        if lacking:
            left_out.append(f"{panel.title} has no {number.name} of {', '.join(lacking)}")
        else:
            places.append(panel.title)
            mixed |= {key for group in panel.lines.values() for key in differing(group) if key not in SEEDS}
            values.append([means[name] for name in lines])
    if len(places) < 2:
        hint = left_out[0] if left_out else "train them on others, too"
        raise FedbenchError(
            f"ranks need two data sets or partitions that have all of {', '.join(lines)}, not {len(places)}",
            f"{hint}; filters and --by KEY choose what is ranked",
        )
    matrix = np.array(values, np.float64)
    return Ranks(number, lines, places, matrix, friedman(matrix, number.best), left_out, sorted(mixed))


def of_tables(grids: Sequence[tuple[Table, Grid]]) -> Ranks:
    """The rows of tables by their first table's metric, on those columns that have it; rows that lack a number in one
    of them are left out.

    Raises FedbenchError with fewer than two such rows or columns.
    """
    metric = grids[0][0].metric
    number = of_metric(metric, [])
    places: list[str] = []
    rows: dict[str, list[float | None]] = {}
    for table, grid in grids:
        of_metric_here = [k for k, c in enumerate(table.printed) if c.metric == metric and not c.of]
        places += [f"{table.printed[k].dataset}, {table.printed[k].label}" for k in of_metric_here]
        for line in (line for line in grid.lines if line.asked):
            values = (line.entries[k].value for k in of_metric_here)
            rows.setdefault(line.label, []).extend(None if value is None else value.mean for value in values)
    whole = {name: values for name, values in rows.items() if None not in values and len(values) == len(places)}
    if len(whole) < 2 or len(places) < 2:
        raise FedbenchError(
            f"ranks need two rows with a number in each of two columns, and {len(whole)} of {len(rows)} rows have one "
            f"in all {len(places)}", f"fedbench train --table {grids[0][0].id}",
        )  # fmt: skip
    matrix = np.array(list(whole.values()), np.float64).T
    lacking = [f"{name} has no number in all columns" for name in rows if name not in whole]
    return Ranks(number, list(whole), places, matrix, friedman(matrix, number.best), lacking)


def _mean(number: Number, group: Sequence[Run], view: str) -> float | None:
    """None unless every run of the group has the number."""
    values = [number.read(run, run.metrics, view) for run in group]
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None
