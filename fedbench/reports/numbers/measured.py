"""From a run's metrics to the number that a table prints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.planner.table.claims import Noise
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
    count: int = 1  #: how many rounds, clients or seeds that is
    weighted: float | None = None  #: statistics over clients: the mean weighted by their test images
    unweighted: float | None = None  #: ... and the one that is not
    seeds: int = 1
    seed_std: float | None = None  #: of the means over seeds (ddof 1), with more than one seed
    per_seed: Mapping[int, float] = field(default_factory=dict)  #: seed -> the mean of its run

    @property
    def noise(self) -> Noise | None:
        """What its seeds say of it; None of one seed."""
        return None if self.seed_std is None else Noise(self.seed_std, self.seeds)


def measure(metrics: Metrics, setting: Setting, column: Column, view: str) -> tuple[Value, str]:
    """The column's number of one run, and the view of the test images that it is about ("" if it is about none).

    A run without crops has only the view "plain", which then stands for the view asked for; a run with crops has
    it after the last round only, so that its number has no ±. Statistics are those of
    `spec.STATISTICS`. Raises FedbenchError if the metrics lack the metric, or a round that is asked for.
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
    own = metric not in METRICS  # declared by the method: of the rounds, or of the clients as the last evaluation found
    seen = "" if own else view if view in metrics.views else "plain"
    if column.statistic in SOME_CLIENTS and not own:
        return Value(_of_some_clients(metrics, setting, column, seen) * factor), seen
    if column.statistic in OVER_CLIENTS:
        return _over_clients(metrics, setting, column, seen), seen
    series = metrics.series(metric, seen)
    if column.statistic in OVER_SEEDS:
        number = _best_round(metrics, seen or "plain") if column.statistic == "best_round" else setting.rounds
        if own and number not in series:
            number = 0  # measured once, for the whole run
        return Value(_after(metrics, metric, seen, number, column.client) * factor), seen
    summary, expected = last_rounds(series, setting.window), min(setting.window, setting.rounds)
    if seen == "plain" and setting.augment != "none" and summary.count == 1 and setting.rounds in series:
        return Value(summary.mean * factor), seen  # beside the crops, plain images are asked for only once
    whole = summary.count if own else summary.count == expected and setting.rounds in series
    if not whole:
        raise _lacks(metrics, f"{metric} of the last {setting.window if own else expected} rounds")
    return _of_summary(summary, factor), seen


def _of_summary(summary: Summary, factor: float) -> Value:
    std = None if math.isnan(summary.std) else summary.std * factor
    return Value(summary.mean * factor, std, summary.count)


def _over_clients(metrics: Metrics, setting: Setting, column: Column, view: str) -> Value:
    """Over the column's clients, or all that train: a metric after the last round in a view, or a method's own ("")."""
    from fedbench.metrics.statistics import across_clients, weighted_mean

    metric, factor = str(column.metric), UNITS[str(column.unit)][0]
    after = f" after round {setting.rounds}" if view else ""
    values = metrics.per_client(metric, view, setting.rounds if view else None)
    first, last = column.clients or (1, min(len(values), setting.partition.trainees))
    if not len(values) or last > len(values):
        raise _lacks(metrics, f"{metric} of {f'client {last}' if len(values) else 'any client'}{after}")
    sizes = metrics.per_client("test_images")
    # Not every client has an area under a curve, and which ones lack it is not said.
    images = sizes[first - 1 : last] if len(sizes) == len(values) else None
    numbers = values[first - 1 : last]
    summary, weighted = across_clients(numbers), None if images is None else weighted_mean(numbers, images) * factor
    mean = summary.mean * factor if column.statistic == "clients" else weighted
    if mean is None:
        raise _lacks(metrics, f"the test images of the clients that have {metric}")
    std = None if math.isnan(summary.std) else summary.std * factor
    return Value(mean, std, summary.count, weighted, summary.mean * factor)


def _of_some_clients(metrics: Metrics, setting: Setting, column: Column, view: str) -> float:
    """Of the worst tenth of the clients that train, or the mean of those that never do, after the last round."""
    from fedbench.metrics.statistics import worst_tenth

    values, trainees = metrics.per_client(str(column.metric), view, setting.rounds), setting.partition.trainees
    if len(values) < setting.partition.clients or (column.statistic == "unseen" and not setting.partition.unseen):
        raise _lacks(metrics, f"{column.metric} of {column.statistic.replace('_', ' ')} clients")
    if column.statistic == "unseen":
        return float(values[trainees : setting.partition.clients].mean())
    return worst_tenth(values[:trainees])


def _best_round(metrics: Metrics, view: str) -> int:
    """The evaluated round of the best mean client accuracy: one for all columns that read the run."""
    from fedbench.metrics.statistics import best_round

    number = best_round(metrics.series("client_accuracy_mean", view))
    if number is None:
        raise _lacks(metrics, "client_accuracy_mean of any round")
    return number


def _after(metrics: Metrics, metric: str, view: str, round: int, client: int | None) -> float:
    """The metric after a round: the federation's, or that of a client counted from 1."""
    if client is None:
        series = metrics.series(metric, view)
        if round not in series:
            raise _lacks(metrics, f"{metric} after round {round}")
        return series[round]
    values = metrics.per_client(metric, view, round)
    if client > len(values):
        raise _lacks(metrics, f"{metric} of client {client} after round {round}")
    return float(values[client - 1])


def _lacks(metrics: Metrics, what: str) -> FedbenchError:
    defined = METRICS.get(what.split(" ")[0])
    if defined is not None and defined.needs and what.split(" ")[0] not in metrics.names:
        remedy = f"train it once more with --keep {defined.needs} --again; its predictions stay as they are"
        return FedbenchError(f"{what} needs the run's {defined.needs}, which metrics {metrics.id} come without", remedy)
    return FedbenchError(f"metrics {metrics.id} lack {what}", "'fedbench evaluate --again' makes them anew")


def over_seeds(runs: Sequence[tuple[int, Value]], ddof: int | None = None) -> Value:
    """One number from several runs (seed, value): mean of means, mean of the ± (which stays over rounds or clients).

    With `ddof` the ± is the standard deviation over the seeds (none of one seed). Runs of one seed on several draws of
    the partition have no one number a seed.
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
