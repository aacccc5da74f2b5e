"""From a run's metrics to the number that a table prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.report.spec import UNITS, Column, Row
from fedbench.spec import Setting

if TYPE_CHECKING:
    from fedbench.metrics.read import Metrics


@dataclass(frozen=True)
class Value:
    """A cell's number, in the column's unit."""

    mean: float
    std: float | None = None  #: over rounds or over clients, as the column's statistic says
    count: int = 1  #: how many rounds or clients that is
    weighted: float | None = None  #: statistic "clients": the mean weighted by test-set sizes
    seeds: int = 1
    seed_std: float | None = None  #: of the means over seeds (ddof 1), with more than one seed


def measure(metrics: Metrics, setting: Setting, column: Column, view: str) -> tuple[Value, str]:
    """The column's number of one run, and the view of the test images that it is about ("" if it is about none).

    A run without crops has only the view "plain", which then stands for the view asked for; a run with crops has
    it after the last round only, so that its number has no ±. Statistics are those of
    `spec.STATISTICS`. Raises FedbenchError if the metrics lack the metric, or a round that is asked for.
    """
    from fedbench.metrics.statistics import across_clients, last_rounds

    metric, factor = str(column.metric), UNITS[str(column.unit)][0]
    if column.statistic == "whole_run":
        value = metrics.whole_run(metric)
        if value is None:
            raise _lacks(metrics, f"{metric} of the whole run")
        return Value(value * factor), ""
    seen = view if view in metrics.views else "plain"
    if column.statistic == "clients":
        found = across_clients(metrics.per_client(metric, seen, setting.rounds))
        if not found.count:
            raise _lacks(metrics, f"{metric} after round {setting.rounds}")
        weighted = metrics.series(f"{metric}_weighted", seen).get(setting.rounds)
        spread = None if math.isnan(found.std) else found.std * factor
        return Value(found.mean * factor, spread, found.count, None if weighted is None else weighted * factor), seen
    series = metrics.series(metric, seen)
    found, expected = last_rounds(series, setting.window), min(setting.window, setting.rounds)
    if seen == "plain" and setting.augment != "none" and found.count == 1 and setting.rounds in series:
        return Value(found.mean * factor), seen  # beside the crops, plain images are asked for only once
    if found.count != expected or setting.rounds not in series:
        raise _lacks(metrics, f"{metric} of the last {expected} rounds")
    return Value(found.mean * factor, found.std * factor, found.count), seen


def _lacks(metrics: Metrics, what: str) -> FedbenchError:
    return FedbenchError(f"metrics {metrics.id} lack {what}", "'fedbench evaluate --again' makes them anew")


def over_seeds(values: Sequence[Value]) -> Value:
    """One number from several seeds: mean of the means, mean of the ± (which stays over rounds or clients)."""
    if len(values) == 1:
        return values[0]
    from fedbench.metrics.statistics import across_seeds

    seeds = across_seeds(v.mean for v in values)
    stds = [v.std for v in values if v.std is not None]
    weights = [v.weighted for v in values if v.weighted is not None]
    return Value(
        seeds.mean,
        sum(stds) / len(stds) if stds else None,
        values[0].count,
        sum(weights) / len(weights) if weights else None,
        seeds.count,
        seeds.std,
    )


def count(row: Row, column: Column) -> Value:
    """A counted cell: parameters of the row's model (statistic "count")."""
    from fedbench.errors import unknown
    from fedbench.models.counting import counts

    height, width, channels = row.shape
    found = counts(row.model, (height, width, channels), row.classes)
    if column.metric not in found:
        raise unknown(f"count in column {column.key}", str(column.metric), found)
    return Value(found[column.metric] * UNITS[str(column.unit)][0])
