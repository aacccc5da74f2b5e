"""Groups of runs that differ only in seeds, and the numbers of each group: mean and standard deviation over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.read import VIEW, Metrics
from fedbench.planner.rounds import AFTER_LAST, Rounds
from fedbench.planner.runs import (
    SEEDS,
    by_seed,
    differing,
    distinguishing,
    grouped,
    keys_of_places,
    label,
    names_of_methods,
    rank_among,
    unknown_key,
)
from fedbench.reports.compare.numbers import USUAL, Locals, Quantity, RunAt, of_metric, run_at
from fedbench.reports.layout import references
from fedbench.reports.numbers.measured import Value, over_seeds
from fedbench.results.reached import NEVER
from fedbench.results.run import Run


def keys_of(groups: Sequence[Sequence[Run]], shown: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """(Keys that distinguish the groups of runs, those of their data first; keys that differ only between data sets or
    partitions), both without `shown`."""
    runs = [group[0] for group in groups]
    data, different = keys_of_places(runs), [key for key in differing(runs) if key not in (*SEEDS, *shown)]
    on_same_data = ([line[0] for line in panel.lines.values()] for panel in grouped(runs))
    within = {"row", "method"} | {key for runs_ in on_same_data for key in differing(runs_)}
    places = distinguishing(runs, (key for key in different if key in data))
    keys = [*places, *(key for key in different if key not in data and key in within)]
    return keys, [key for key in different if key not in keys]


#: Runs that differ only in seeds.
Group = Sequence[Run]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups of runs with their numbers."""

    groups: Sequence[Group]
    keys: Sequence[str]  #: keys that distinguish the groups, those of their data first
    others: Sequence[str]  #: keys that differ only between data sets or partitions
    numbers: Sequence[Quantity]
    view: str
    rounds: Rounds  #: the rule for the rounds that count
    runs_at: Mapping[str, RunAt]  #: run's id -> what its numbers are read from, for runs with metrics
    values: Mapping[tuple[str, str], float | None]  #: (run's id, number's name) -> stored value; None if it has none
    problems: Sequence[str] = ()  #: why metrics of runs are unavailable

    @cached_property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group]

    @cached_property
    def metrics(self) -> Mapping[str, Metrics]:
        """Run's id -> its metrics, for runs with metrics."""
        return {id: one.metrics for id, one in self.runs_at.items()}

    @cached_property
    def places(self) -> Mapping[str, list[Group]]:
        """Data set and partition in words -> the groups on it."""
        return {panel.title: list(panel.lines.values()) for panel in grouped(self.runs)}

    @cached_property
    def contests(self) -> list[list[Group]]:
        """The groups among which a best one is marked: on one data set and partition, over as many rounds. (A budget's
        name will not do: with another learning rate it is one's own.)"""
        at = (
            ((place, group[0].spec.setting.rounds), group) for place, groups in self.places.items() for group in groups
        )
        return list(by_key(at).values())

    @cached_property
    def names_of_methods(self) -> Mapping[str, str]:
        """Run's id -> printed name of its method."""
        return names_of_methods(self.runs)

    def value(self, group: Group, number: Quantity) -> Value | None:
        """Mean and standard deviation (ddof 1) over the runs of the group that have the number; None if none has, or
        one never reaches the value that it is about (`never`)."""
        if self.never(group, number):
            return None
        every = [(run.spec.setting.seed, self.values.get((run.id, number.name))) for run in group]
        present = [(seed, Value(value)) for seed, value in every if value is not None]
        return over_seeds(present, ddof=1) if present else None

    def never(self, group: Group, number: Quantity) -> int:
        """The number of runs of the group that never reach the value that the number is about."""
        return sum(self.values.get((run.id, number.name)) == NEVER for run in group)

    def label(self, group: Group) -> str:
        """The values that distinguish the group from all others, its method first and its data last."""
        places = [key for key in self.keys if key in self._data]
        return label(group[0], [*self._there, *places] or ["method"], self.names_of_methods)

    def label_there(self, group: Group) -> str:
        """The values that distinguish the group from others on the same data set and partition, its method first."""
        return label(group[0], self._there or ["method"], self.names_of_methods)

    @cached_property
    def _data(self) -> set[str]:
        return keys_of_places(self.runs)

    @cached_property
    def _there(self) -> list[str]:
        """The keys that are not about the data."""
        return [key for key in self.keys if key not in self._data]


def compare(
    runs: Sequence[Run],
    metrics: Sequence[str] = (),
    *,
    sort: str | None = None,
    view: str = VIEW,
    rounds: Rounds = AFTER_LAST,
    named: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Comparison:
    """A comparison of the runs by these metrics (empty: by those of `USUAL` that any run has).

    `sort`: the name of one of the numbers (best first), or a key in which the runs differ. Without it the rows stand as
    `named` (`runs.named_values`) has their values, else methods by family, rows of tables as `runs` has them, numbers
    from the smallest and other texts by the alphabet; one's own runs come first. Raises FedbenchError for an unknown
    metric or `sort`, and for a run of which the rule chooses no round.
    """
    numbers = [of_metric(metric, runs) for metric in dict.fromkeys(metrics)] or USUAL
    by_run, errors = measured(runs)
    runs, left_out = _with_rounds(runs, by_run, rounds)
    problems = [*dict.fromkeys(map(str, errors)), *left_out]
    runs_at = {run.id: run_at(run, by_run[run.id], view, rounds) for run in runs if run.id in by_run}
    locals = Locals(runs_at.values())
    values = {(id, one.name): one.of(of, locals) for one in numbers for id, of in runs_at.items()}
    keys, others = keys_of(by_seed(runs), {"rounds"} & {number.name for number in numbers})
    groups = _in_order(by_seed(runs), keys, runs, named)
    groups.sort(key=lambda group: all(run.shipped for run in group))  # the user's runs first
    side = Comparison(groups, keys, others, numbers, view, rounds, runs_at, values, problems)
    side = side if metrics else _measured(side)
    return side if sort is None else _sorted(side, sort)


def measured(runs: Iterable[Run]) -> tuple[dict[str, Metrics], list[FedbenchError]]:
    """(Run's id -> metrics, the errors of runs whose metrics are unavailable)."""
    found: dict[str, Metrics] = {}
    errors: list[FedbenchError] = []
    for run in runs:
        try:
            found[run.id] = run.metrics
        except FedbenchError as error:
            errors.append(error)
    return found, errors


def _with_rounds(runs: Sequence[Run], by_run: Mapping[str, Metrics], rounds: Rounds) -> tuple[list[Run], Iterable[str]]:
    """(The runs without those that have metrics and none of the rounds that count, a line on these). Raises
    FedbenchError if no run is left."""
    refused = {id: rounds.refuses(run.spec.setting, by_run[id]) for run in runs if (id := run.id) in by_run}
    names = by_key((no, f"run {run.id} ({run.title})") for run in runs if (no := refused.get(run.id)))
    left = [run for run in runs if not refused.get(run.id)]
    if not any(run.id in by_run for run in left) and names:
        no, of = next(iter(names.items()))
        raise no.of(*of)
    return left, [f"Left out: {no.of(*of).message}." for no, of in names.items()]


def _measured(side: Comparison) -> Comparison:
    """The comparison without numbers that no run has, and without the worst tenth of clients if this is one client."""
    most = max(run.spec.setting.partition.trainees for run in side.runs)
    present = {name for (_, name), value in side.values.items() if value is not None}
    one_client = {"client_accuracy_worst_tenth"} if most <= 10 else set()
    return dataclasses.replace(side, numbers=[one for one in side.numbers if one.name in present - one_client])


def _in_order(
    groups: Sequence[Group], keys: Sequence[str], runs: Sequence[Run], named: Mapping[str, Sequence[str]]
) -> list[Group]:
    """The groups in the order of rows (`compare`)."""
    if "id" in named:
        place = {run.id: at for at, run in enumerate(runs)}
        return sorted(groups, key=lambda group: min(place[run.id] for run in group))
    by_family = references.by_family(declarations.built_in().values()).values()
    known = {one.name: at for at, one in enumerate(one for family in by_family for one in family)}
    rows = {row: at for at, row in reversed([*enumerate(run.row for run in runs)])}

    def order(group: Group) -> list[tuple[int, int, tuple[int, float, str]]]:
        ranks = {"method": known.get(group[0].spec.method, len(known)), "row": rows[group[0].row]}
        values = ((key, group[0].values.get(key)) for key in keys)
        place = {key: rank_among(of, group[0].values.get(key)) for key, of in named.items()}
        place |= {"row": place["method"]} if "method" in place and "row" not in place else {}
        return [(place.get(key, 0), ranks.get(key, 0), _order(value)) for key, value in values]

    return sorted(groups, key=order)


def _order(value: Any) -> tuple[int, float, str]:
    """The sort key of a value: None first, then numbers, then texts."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, str(value))


def _sorted(side: Comparison, by: str) -> Comparison:
    """The comparison sorted by a number (best, or else smallest, first; groups without it last) or by a key."""
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
