"""Runs in groups that differ in nothing but seeds, and the numbers of each: mean and standard deviation over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.metrics.statistics import across_seeds
from fedbench.reports.compare.numbers import USUAL, Number, of_metric
from fedbench.reports.compare.places import Place, by_place, keys_of, names_of_places
from fedbench.reports.numbers.measured import Value
from fedbench.reports.runs import SEEDS, Run, by_seed, keys_of_places, label, names_of_methods, unknown_key

#: The view of the test images that every run has after its last round.
VIEW = "plain"
#: Runs that differ in nothing but seeds.
Group = Sequence[Run]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups of runs side by side."""

    groups: Sequence[Group]
    keys: Sequence[str]  #: in what they differ, those of their data first
    others: Sequence[str]  #: in what they differ only from one data set or partition to another
    numbers: Sequence[Number]
    view: str
    metrics: Mapping[str, Metrics]  #: by the run's id
    values: Mapping[tuple[str, str], float | None]  #: (run, number) -> as stored; None if the run has none
    problems: Sequence[str] = ()  #: of runs whose metrics cannot be had

    @cached_property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group]

    @cached_property
    def places(self) -> Mapping[Place, list[Group]]:
        """The groups by their data."""
        return by_place(self.groups)

    @cached_property
    def names_of_places(self) -> Mapping[Place, str]:
        return names_of_places(self.places)

    @cached_property
    def names_of_methods(self) -> Mapping[str, str]:
        """By the run's id."""
        return names_of_methods(self.runs)

    def value(self, group: Group, number: Number) -> Value | None:
        """Its mean over the runs of a group that have it, and the standard deviation (ddof 1) of more than one."""
        every = [(run.spec.setting.seed, self.values.get((run.id, number.name))) for run in group]
        there = [(seed, value) for seed, value in every if value is not None]
        if not there:
            return None
        over = across_seeds(value for _, value in there)
        std = over.std if over.count > 1 else None
        # Runs of one seed on several draws of the partition have no one number a seed.
        per_seed = dict(there) if len(dict(there)) == over.count else {}
        return Value(over.mean, std, over.count, seeds=over.count, seed_std=std, per_seed=per_seed)

    def label(self, group: Group) -> str:
        """What tells the group from the others."""
        return label(group[0], self.keys or ["method"], self.names_of_methods)

    def label_there(self, group: Group) -> str:
        """What tells the group from the others on its data."""
        data = keys_of_places(self.runs)
        return label(group[0], [key for key in self.keys if key not in data] or ["method"], self.names_of_methods)


def compare(
    runs: Sequence[Run], metrics: Sequence[str] = (), *, sort: str | None = None, view: str = VIEW
) -> Comparison:
    """The runs side by side, with these metrics in the place of the usual numbers.

    `sort` is one of the numbers, the best first, or a key in which runs differ. Raises FedbenchError for an unknown
    metric and for a `sort` that is neither.
    """
    numbers = [of_metric(metric, runs) for metric in dict.fromkeys(metrics)] or USUAL
    by_run: dict[str, Metrics] = {}
    problems: dict[str, None] = {}
    for run in runs:
        try:
            by_run[run.id] = run.metrics
        except FedbenchError as error:
            problems[str(error)] = None
    evaluated = [run for run in runs if run.id in by_run]
    values = {(run.id, one.name): one.read(run, by_run[run.id], view) for one in numbers for run in evaluated}
    keys, others = keys_of(by_seed(runs), {"rounds"} & {number.name for number in numbers})
    groups = sorted(by_seed(runs), key=lambda group: _order_of(group, keys))
    side = Comparison(groups, keys, others, numbers, view, by_run, values, list(problems))
    side = side if metrics else _measured(side)
    return side if sort is None else _sorted(side, sort)


def _measured(side: Comparison) -> Comparison:
    """Without the numbers that no run has, and the worst tenth of the clients where that is one client."""
    most = max(run.spec.setting.partition.trainees for run in side.runs)
    there = {name for (_, name), value in side.values.items() if value is not None}
    empty = {"client_accuracy_worst_tenth"} if most <= 10 else set()
    return dataclasses.replace(side, numbers=[one for one in side.numbers if one.name in there - empty])


def _order_of(group: Group, keys: Sequence[str]) -> tuple[bool, Sequence[tuple[int, float, str]]]:
    """Where a group stands: one's own before shipped ones, then by the keys."""
    return all(run.shipped for run in group), [_order(group[0].values.get(key)) for key in keys]


def _order(value: Any) -> tuple[int, float, str]:
    """Where a value stands among those of its key: none, numbers, texts."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, str(value))


def _sorted(side: Comparison, by: str) -> Comparison:
    """By a number, the best first (the least where none is best) and groups without it last; or by a key."""
    number = next((one for one in side.numbers if one.name == by), None)
    keys = {*side.keys, *side.others, *SEEDS, "rounds"}
    if number is None and by not in keys:
        raise unknown_key("key to sort by", by, {*keys, *(one.name for one in side.numbers)})

    def order(group: Group) -> tuple[int, float, str]:
        if number is None:
            return _order(group[0].values.get(by))
        value = side.value(group, number)
        return (1, 0.0, "") if value is None else (0, value.mean * (-1 if number.best == "max" else 1), "")

    return dataclasses.replace(side, groups=sorted(side.groups, key=order))
