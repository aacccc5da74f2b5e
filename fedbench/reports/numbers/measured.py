"""From a run's metrics to the number that a table prints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.planner.table.noise import SeedNoise
from fedbench.planner.table.spec import OVER_CLIENTS, OVER_SEEDS, SOME_CLIENTS, UNITS, Column
from fedbench.specs import Setting

if TYPE_CHECKING:
    from fedbench.metrics.read import Metrics
    from fedbench.metrics.statistics import Summary


@dataclass(frozen=True)
class Value:
    """A cell's number, in the column's unit."""

    mean: float
    std: float | None = None  #: over rounds, clients or seeds, as the column's statistic says
    count: int = 1  #: the number of these rounds, clients or seeds
    weighted: float | None = None  #: statistics over clients: the mean weighted by test images
    unweighted: float | None = None  #: ... and the unweighted mean
    seeds: int = 1
    seed_std: float | None = None  #: standard deviation of the means over seeds (ddof 1); None for one seed
    per_seed: Mapping[int, float] = field(default_factory=dict)  #: seed -> the mean of its run

    @property
    def noise(self) -> SeedNoise | None:
        """The noise of the mean over seeds; None for one seed."""
        return None if self.seed_std is None else SeedNoise(self.seed_std, self.seeds)


def measure(metrics: Metrics, setting: Setting, column: Column, view: str) -> tuple[Value, str]:
    """The column's number in one run, and the view of the test images that it is about ("" if it is about none).

    A run without crops has only the view "plain", which replaces the requested view. A run with crops has "plain" only
    after the last round, so that its number has no ±. `spec.STATISTICS` lists the statistics. Raises FedbenchError if
    the metric or a required round is missing.
    """
    from fedbench.metrics.statistics import last_rounds, warm_rounds

    metric, factor = str(column.metric), UNITS[str(column.unit)][0]
    if column.statistic == "whole_run":
        value = metrics.whole_run(metric)
        if value is None:
            raise _lacks(metrics, f"{metric} of the whole run")
        return Value(value * factor), ""
    if column.statistic == "rounds":
        summary = warm_rounds(metrics.series(metric))
        if not summary.count:
            raise _lacks(metrics, f"{metric} of any round")
        return _of_summary(summary, factor), ""
    by_method = metric not in METRICS  # declared by the method: per round, or per client of the last evaluation
    seen = "" if by_method else view if view in metrics.views else "plain"
    if column.statistic in SOME_CLIENTS and not by_method:
        return Value(_of_some_clients(metrics, setting, column, seen) * factor), seen
    if column.statistic in OVER_CLIENTS:
        return _over_clients(metrics, setting, column, seen), seen
    series = metrics.series(metric, seen)
    if column.statistic in OVER_SEEDS:
        number = _best_round(metrics, seen or "plain", setting) if column.statistic == "best_round" else setting.rounds
        if by_method and number not in series:
            number = 0  # measured once, for the whole run
        return Value(_after(metrics, metric, seen, number, column.client) * factor), seen
    summary, expected = last_rounds(series, setting.window), min(setting.window, setting.rounds)
    if seen == "plain" and setting.augment != "none" and summary.count == 1 and setting.rounds in series:
        return Value(summary.mean * factor), seen  # with crops, plain images are evaluated only once
    whole = summary.count if by_method else summary.count == expected and setting.rounds in series
    if not whole:
        raise _lacks(metrics, f"{metric} of the last {setting.window if by_method else expected} rounds")
    return _of_summary(summary, factor), seen


def _of_summary(summary: Summary, factor: float) -> Value:
    std = None if math.isnan(summary.std) else summary.std * factor
    return Value(summary.mean * factor, std, summary.count)


def _over_clients(metrics: Metrics, setting: Setting, column: Column, view: str) -> Value:
    """Over the column's clients, or all that train: a metric after the last round, or (view "") a method's metric."""
    from fedbench.metrics.statistics import across_clients, weighted_mean

    metric, factor = str(column.metric), UNITS[str(column.unit)][0]
    after = f" after round {setting.rounds}" if view else ""
    values = metrics.per_client(metric, view, setting.rounds if view else None)
    first, last = column.clients or (1, min(len(values), setting.partition.trainees))
    if not len(values) or last > len(values):
        raise _lacks(metrics, f"{metric} of {f'client {last}' if len(values) else 'any client'}{after}")
    has, sizes = ~np.isnan(values[first - 1 : last]), metrics.per_client("test_images")  # not every client has an AUC
    images = sizes[first - 1 : last][has] if len(sizes) >= last else None
    numbers = values[first - 1 : last][has]
    if not len(numbers):
        raise _lacks(metrics, f"{metric} of any of the clients {first} to {last}{after}")
    summary, weighted = across_clients(numbers), None if images is None else weighted_mean(numbers, images) * factor
    mean = summary.mean * factor if column.statistic == "clients" else weighted
    if mean is None:
        raise _lacks(metrics, f"the test images of the clients that have {metric}")
    std = None if math.isnan(summary.std) else summary.std * factor
    return Value(mean, std, summary.count, weighted, summary.mean * factor)


def _of_some_clients(metrics: Metrics, setting: Setting, column: Column, view: str) -> float:
    """The mean after the last round over the worst tenth of the clients that train, or over those that never train."""
    from fedbench.metrics.statistics import worst_tenth

    values, trainees = metrics.per_client(str(column.metric), view, setting.rounds), setting.partition.trainees
    some = values[trainees : setting.partition.clients] if column.statistic == "unseen" else values[:trainees]
    some = some[~np.isnan(some)]
    if not len(some):
        raise _lacks(metrics, f"{column.metric} of {column.statistic.replace('_', ' ')} clients")
    return float(some.mean()) if column.statistic == "unseen" else worst_tenth(some)


def _best_round(metrics: Metrics, view: str, setting: Setting) -> int:
    """The round of the best mean client accuracy among those that the setting evaluates, the same for all columns that
    read the run."""
    from fedbench.metrics.statistics import best_round

    asked = set(setting.evaluated_rounds())
    series = metrics.series("client_accuracy_mean", view)
    number = best_round({round: value for round, value in series.items() if round in asked})
    if number is None:
        raise _lacks(metrics, "client_accuracy_mean of any round")
    return number


def _after(metrics: Metrics, metric: str, view: str, round: int, client: int | None) -> float:
    """The metric after a round: of the federation, or of a client (from 1)."""
    if client is None:
        series = metrics.series(metric, view)
        if round not in series:
            raise _lacks(metrics, f"{metric} after round {round}")
        return series[round]
    values = metrics.per_client(metric, view, round)
    if client > len(values) or math.isnan(values[client - 1]):
        raise _lacks(metrics, f"{metric} of client {client} after round {round}")
    return float(values[client - 1])


def _lacks(metrics: Metrics, what: str) -> FedbenchError:
    return FedbenchError(f"metrics {metrics.id} lack {what}", "'fedbench evaluate --again' makes them again")


def over_seeds(runs: Sequence[tuple[int, Value]], ddof: int | None = None) -> Value:
    """One number from runs (seed, value): the mean of their means, and of their ± (which are over rounds or clients).

    With `ddof`, the ± is the standard deviation over the seeds (None for one seed). `per_seed` is empty if runs share a
    seed, on different draws of the partition.
    """
    values, means = [value for _, value in runs], [value.mean for _, value in runs]
    per_seed = {seed: value.mean for seed, value in runs}
    per_seed = per_seed if len(per_seed) == len(runs) else {}
    if len(values) == 1:
        return dataclasses.replace(values[0], per_seed=per_seed)
    from fedbench.metrics.statistics import across_seeds

    seeds = across_seeds(means)
    if ddof is not None:
        std = across_seeds(means, ddof).std
        return Value(seeds.mean, std, seeds.count, None, None, seeds.count, seeds.std, per_seed)
    return Value(
        seeds.mean,
        _mean_of([v.std for v in values]),
        values[0].count,
        _mean_of([v.weighted for v in values]),
        _mean_of([v.unweighted for v in values]),
        seeds.count,
        seeds.std,
        per_seed,
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
