"""Groups of runs that differ only in seeds, and the numbers of each group: mean and standard deviation over seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.definitions import METRICS, Definition, all_metrics, defined
from fedbench.metrics.evaluate import measures_of
from fedbench.metrics.read import UNSEEN, VIEW, Metrics, unseen
from fedbench.metrics.statistics import worst_tenth
from fedbench.planner.runs import (
    SEEDS,
    by_seed,
    differing,
    distinguishing,
    grouped,
    keys_of_places,
    label,
    names_of_methods,
    unknown_key,
)
from fedbench.reports.numbers.measured import Value, over_seeds
from fedbench.results.frame import Run

# -- numbers ---------------------------------------------------------------------------------------------------
# The numbers of a run that a comparison can print.


#: (run, its metrics, view of the test images) -> the run's number, or None if it has none.
Reader = Callable[[Run, Metrics, str], float | None]


@dataclass(frozen=True)
class Number:
    """A number that each run may have."""

    name: str
    label: str
    unit: str  #: of stored values: see `SCALES`
    best: str  #: "max", "min" or "none"
    what: str  #: explanation for the notes
    read: Reader
    group: str = ""  #: heading above adjacent columns
    each: str = ""  #: the per-client metric of which it is a mean


def _federation(metric: str) -> Reader:
    """A reader of the federation's metric: its value for the whole run, if any, else after the last round."""

    def read(run: Run, metrics: Metrics, view: str) -> float | None:
        series = metrics.series(metric, view if view in metrics.views else "plain")
        return series.get(0, series.get(run.spec.setting.rounds))

    return read


def clients(run: Run, metrics: Metrics, view: str, metric: str = "client_accuracy") -> np.ndarray:
    """The metric of the clients that train, after the last round, as `Metrics.per_client` gives it."""
    seen = view if view in metrics.views else "plain"
    definition = METRICS.get(metric)
    after = run.spec.setting.rounds if definition is not None and definition.by_view else None
    return metrics.per_client(metric, seen, after)[: run.spec.setting.partition.trainees]


def _over_clients(statistic: Callable[[np.ndarray], float], metric: str = "client_accuracy") -> Reader:
    def read(run: Run, metrics: Metrics, view: str) -> float | None:
        values = clients(run, metrics, view, metric)
        values = values[~np.isnan(values)]
        number = statistic(values) if len(values) else math.nan
        return None if math.isnan(number) else float(number)

    return read


def _std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _bytes(run: Run, metrics: Metrics, view: str) -> float | None:
    parts = [metrics.whole_run(metric) for metric in ("bytes_up", "bytes_down")]
    return sum(part for part in parts if part is not None) if None not in parts else None


def _unseen(run: Run, metrics: Metrics, view: str) -> float | None:
    setting = run.spec.setting
    return unseen(metrics, setting, view if view in metrics.views else "plain", setting.rounds)


#: The default numbers; those that no run has are omitted.
USUAL = (
    Number(
        "average_accuracy", "Average accuracy", "fraction", "max",
        "average accuracy: of each client's model on its own test images, weighted by training sizes",
        _federation("average_accuracy"), each="client_accuracy",
    ),
    Number(
        "client_auc_mean", "Average AUC", "fraction", "max", "average AUC: macro ROC AUC of each client's model on its "
        "own test images, unweighted", _federation("client_auc_mean"), each="client_auc",
    ),
    Number(
        "client_accuracy_std", "std", "fraction", "none", "std: standard deviation (ddof 1) of the clients' accuracies",
        _over_clients(_std), "Over clients",
    ),
    Number(
        "client_accuracy_worst_tenth", "worst 10 %", "fraction", "max",
        "worst 10 %: mean of the worst tenth of clients", _over_clients(worst_tenth), "Over clients",
    ),
    Number(
        "client_accuracy_min", "worst", "fraction", "max", "worst: the worst client", _over_clients(np.min),
        "Over clients",
    ),
    Number(
        UNSEEN, "Unseen clients", "fraction", "max", "unseen clients: mean accuracy of the clients that never train, "
        "each on its own test images", _unseen,
    ),
    Number(
        "system_accuracy", "System accuracy", "fraction", "max", "system accuracy: of the federation as a whole on all "
        "test images", _federation("system_accuracy"),
    ),
    Number(
        "total_runtime_seconds", "Time", "seconds", "min", "time: all rounds with their evaluation",
        _federation("total_runtime_seconds"),
    ),
    Number("bytes", "Sent", "bytes", "min", "sent: bytes up and down in all rounds", _bytes),
    Number("rounds", "Rounds", "count", "none", "", lambda run, _, __: float(run.spec.setting.rounds)),
)  # fmt: skip

#: Units of metrics for which less is better.
_LESS = ("seconds", "bytes", "nats")


def of_metric(metric: str, runs: Sequence[Run]) -> Number:
    """The number with this metric's name. Raises FedbenchError for an unknown one."""
    usual = {number.name: number for number in USUAL}
    if metric in usual:
        return usual[metric]
    definition = METRICS.get(metric) or _declared(metric, runs)
    less = definition.unit in _LESS or metric.endswith("_std")
    best = "min" if less else "max" if "accuracy" in metric or "auc" in metric else "none"
    if definition.clients == "only":
        what = f"{metric}: mean over clients of the {definition.description}"
        return Number(metric, metric, definition.unit, best, what, _over_clients(np.mean, metric), each=metric)
    each = _EACH.get(metric, metric if definition.clients == "too" else "")
    what = f"{metric}: {definition.description}"
    return Number(metric, metric, definition.unit, best, what, _federation(metric), each=each)


#: Metric that is a mean over clients -> the per-client metric.
_EACH = {
    **dict.fromkeys(("client_accuracy_mean", "client_accuracy_weighted"), "client_accuracy"),
    "test_phase_accuracy_mean": "test_phase_accuracy",
    "test_phase_auc_mean": "test_phase_auc",
}


def _declared(metric: str, runs: Sequence[Run]) -> Definition:
    """The definition of a metric that a method declares: a built-in method, or a user's method of one of the runs."""
    known: Mapping[str, Definition] = all_metrics()
    if metric not in known:
        by_method = {run.spec.method: run for run in runs}
        known = {**known, **defined(m for run in by_method.values() for m in measures_of(run.artifact).values())}
    if metric not in known:
        raise unknown("metric", metric, {*known, *(number.name for number in USUAL)}, "fedbench metrics")
    return known[metric]


def why_not(number: Number, run: Run, metrics: Metrics) -> str:
    """Why a run lacks this number, as a predicate after the name of its method."""
    name, setting = number.name, run.spec.setting
    if name not in METRICS and name not in {usual.name for usual in USUAL}:
        return "has no finite value of it" if name in metrics.names else "does not measure it"
    multi_label = "client_auc" in metrics.names
    if ("auc" in name) != multi_label and ("auc" in name or "accuracy" in name):
        return f"was tested on images of {'several labels' if multi_label else 'one label each'}"
    if name == UNSEEN:
        return "has no clients that never train"
    if name.startswith("test_phase"):
        return "serves no clients without labels"
    if name.endswith(("_probability", "_density_ratio")) or name == "routing_accuracy":
        return "does not route"
    if name.startswith("system_accuracy") and not setting.votes:
        return "ran without the votes of all clients on all test images"
    if name in METRICS and (needs := METRICS[name].needs) and f"{needs}.parquet" not in run.artifact.manifest["files"]:
        return f"has kept no {needs} (train --keep {needs})"
    return "has one client" if setting.partition.trainees == 1 else "has none after the last round"


#: Unit -> its scales, largest first: (smallest stored value, factor, printed unit, decimals).
SCALES: Mapping[str, Sequence[tuple[float, float, str, int]]] = {
    "fraction": [(0, 100, "%", 2)],
    "seconds": [(36e3, 1 / 3600, "h", 1), (600, 1 / 60, "min", 1), (0, 1, "s", 1)],
    "bytes": [(1e10, 1e-9, "GB", 1), (1e7, 1e-6, "MB", 1), (1e4, 1e-3, "kB", 1), (0, 1, "B", 0)],
    "count": [(0, 1, "", 0)],
}


def scale(unit: str, values: Sequence[float]) -> tuple[float, str, int]:
    """(factor, printed unit, decimals) for stored values in this unit."""
    size = max(map(abs, values), default=0)
    steps = SCALES.get(unit, [(0, 1, "" if unit in ("index", "ratio") else unit, 3)])
    factor, name, decimals = next(step[1:] for step in steps if size >= step[0])
    return factor, name, decimals if unit != "count" or all(map(float.is_integer, values)) else 1


# -- comparison ------------------------------------------------------------------------------------------------


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
    numbers: Sequence[Number]
    view: str
    metrics: Mapping[str, Metrics]  #: run's id -> its metrics
    values: Mapping[tuple[str, str], float | None]  #: (run's id, number's name) -> stored value; None if it has none
    problems: Sequence[str] = ()  #: why metrics of runs are unavailable

    @cached_property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group]

    @cached_property
    def places(self) -> Mapping[str, list[Group]]:
        """Data set and partition in words -> the groups on it."""
        return {panel.title: list(panel.lines.values()) for panel in grouped(self.runs)}

    @cached_property
    def names_of_methods(self) -> Mapping[str, str]:
        """Run's id -> printed name of its method."""
        return names_of_methods(self.runs)

    def value(self, group: Group, number: Number) -> Value | None:
        """Mean and standard deviation (ddof 1) over the runs of the group that have the number; None if none has."""
        every = [(run.spec.setting.seed, self.values.get((run.id, number.name))) for run in group]
        present = [(seed, Value(value)) for seed, value in every if value is not None]
        return over_seeds(present, ddof=1) if present else None

    def label(self, group: Group) -> str:
        """The values that distinguish the group from all others."""
        return label(group[0], self.keys or ["method"], self.names_of_methods)

    def label_there(self, group: Group) -> str:
        """The values that distinguish the group from others on the same data set and partition."""
        data = keys_of_places(self.runs)
        return label(group[0], [key for key in self.keys if key not in data] or ["method"], self.names_of_methods)


def compare(
    runs: Sequence[Run], metrics: Sequence[str] = (), *, sort: str | None = None, view: str = VIEW
) -> Comparison:
    """A comparison of the runs by these metrics (empty: by those of `USUAL` that any run has).

    `sort`: the name of one of the numbers (best first), or a key in which the runs differ. Raises FedbenchError for an
    unknown metric or `sort`.
    """
    numbers = [of_metric(metric, runs) for metric in dict.fromkeys(metrics)] or USUAL
    by_run, errors = measured(runs)
    problems = list(dict.fromkeys(map(str, errors)))
    evaluated = [run for run in runs if run.id in by_run]
    values = {(run.id, one.name): one.read(run, by_run[run.id], view) for one in numbers for run in evaluated}
    keys, others = keys_of(by_seed(runs), {"rounds"} & {number.name for number in numbers})
    groups = sorted(by_seed(runs), key=lambda group: [_order(group[0].values.get(key)) for key in keys])
    groups.sort(key=lambda group: all(run.shipped for run in group))  # the user's runs first
    side = Comparison(groups, keys, others, numbers, view, by_run, values, problems)
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


def _measured(side: Comparison) -> Comparison:
    """The comparison without numbers that no run has, and without the worst tenth of clients if this is one client."""
    most = max(run.spec.setting.partition.trainees for run in side.runs)
    present = {name for (_, name), value in side.values.items() if value is not None}
    one_client = {"client_accuracy_worst_tenth"} if most <= 10 else set()
    return dataclasses.replace(side, numbers=[one for one in side.numbers if one.name in present - one_client])


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
