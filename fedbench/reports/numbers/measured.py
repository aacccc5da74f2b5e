"""From a run's metrics to the number that a table prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedbench.metrics.definitions import METRICS
from fedbench.planner.table import statistic
from fedbench.planner.table.noise import SeedNoise
from fedbench.planner.table.spec import UNITS, Column
from fedbench.results.reached import goal
from fedbench.specs import Setting

if TYPE_CHECKING:
    from fedbench.metrics.read import Metrics


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

    A run without crops has only the view "plain", which replaces the requested view. Raises FedbenchError if the metric
    or a required round is missing.
    """
    entry, metric, factor = statistic.find(str(column.statistic)), str(column.metric), UNITS[str(column.unit)][0]
    if (soon := goal(metric)) is not None:
        seen = view if view in metrics.views else "plain"
        if (found := soon.of(metrics, seen)) is None:
            raise statistic.lacks(metrics, metric)
        return Value(found * factor), seen
    by_method = metric not in METRICS  # declared by the method: per round, or per client of the last evaluation
    seen = "" if by_method or not entry.of_images else view if view in metrics.views else "plain"
    number = entry.of(statistic.Reading(metrics, setting, metric, seen, column.client, column.clients))
    scaled = {name: one and one * factor for name, one in number._asdict().items() if name != "count"}
    return Value(count=number.count, **scaled), seen


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
