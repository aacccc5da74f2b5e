"""Methods ranked by their average rank over data sets and partitions, with significance tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.metrics.read import VIEW
from fedbench.planner.runs import SEEDS, differing, grouped
from fedbench.planner.table.spec import Table
from fedbench.reports.compare.numbers import Quantity, of_metric, run_at
from fedbench.reports.compare.significance import Friedman, friedman
from fedbench.reports.layout.grid import Grid
from fedbench.results.reached import NEVER
from fedbench.results.run import Run


@dataclass(frozen=True, eq=False)
class Ranks:
    """k lines (methods, or other groups of runs) ranked on N places (data sets with partitions)."""

    number: Quantity
    lines: Sequence[str]  #: [k]
    places: Sequence[str]  #: [N]
    values: np.ndarray  #: [N, k], means over a line's seeds at a place, in the stored unit
    result: Friedman
    left_out: Sequence[str] = ()  #: sentences on omitted places, or on omitted rows of tables
    mixed: Sequence[str] = ()  #: keys other than seeds in which runs of one line at one place differ

    @property
    def order(self) -> list[int]:
        """Indices of the lines, from the best average rank to the worst."""
        return [int(j) for j in np.argsort(self.result.average, kind="stable")]

    @property
    def critical(self) -> bool:
        """Whether the critical difference is meaningful: there are more places than lines."""
        return len(self.places) > len(self.lines)


def ranked(runs: Sequence[Run], metric: str | None = None, by: Sequence[str] = (), view: str = VIEW) -> Ranks:
    """The ranks of the lines of these runs (`runs.grouped`) by a metric's mean over seeds, at places with all lines.

    Raises FedbenchError for an unknown metric or key, for a metric without a better direction, and for fewer than two
    lines or two such places.
    """
    number = _with_best(of_metric(metric or "average_accuracy", runs))
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
    """The ranks of tables' rows by the first table's metric and its `best`, over all columns with this metric. Omits
    rows without a number in one of them.

    Raises FedbenchError for fewer than two such rows or columns, and for a `best` of "none".
    """
    metric = grids[0][0].metric
    number = _with_best(dataclasses.replace(of_metric(metric, []), best=grids[0][0].best))
    places: list[str] = []
    rows: dict[str, list[float | None]] = {}
    for table, grid in grids:
        of_metric_here = [k for k, c in enumerate(table.printed) if c.metric == metric and not c.of]
        places += [f"{table.printed[k].dataset}, {table.printed[k].label}" for k in of_metric_here]
        for line in (line for line in grid.lines if line.in_table):
            values = (line.entries[k].value for k in of_metric_here)
            rows.setdefault(line.label, []).extend(None if value is None else value.mean for value in values)
    whole = {name: values for name, values in rows.items() if None not in values and len(values) == len(places)}
    if len(whole) < 2 or len(places) < 2:
        raise FedbenchError(
            f"ranks need two rows with a number in each of two columns, and {len(whole)} of {len(rows)} rows have one "
            f"in all {len(places)}",
            next((f"make them: {grid.command}" for _, grid in grids if grid.command), ""),
        )
    matrix = np.array(list(whole.values()), np.float64).T
    lacking = [f"{name} has no number in all columns" for name in rows if name not in whole]
    return Ranks(number, list(whole), places, matrix, friedman(matrix, number.best), lacking)


def _with_best(number: Quantity) -> Quantity:
    """The number. Raises FedbenchError if neither direction is better."""
    if number.beside:
        raise FedbenchError(f"{number.name} compares two runs itself, so it has no rank", "take another metric")
    if number.best == "none":
        what = f"neither more nor less {number.name} is better, so there is no rank"
        raise FedbenchError(what, "take another metric")
    return number


def _mean(number: Quantity, group: Sequence[Run], view: str) -> float | None:
    """The mean of a number over the runs of the group; None if a run lacks it."""
    values = [number.read(run_at(run, run.metrics, view)) for run in group]
    present = [value for value in values if value is not None and value != NEVER]
    return sum(present) / len(present) if len(present) == len(values) else None
