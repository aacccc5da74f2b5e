"""The numbers of a run that a comparison can print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbench.errors import unknown
from fedbench.groups import by_key
from fedbench.metrics.definitions import METRICS, Definition, all_metrics, defined
from fedbench.metrics.evaluate import measures_of
from fedbench.metrics.read import UNSEEN, VIEW, Metrics, unseen
from fedbench.metrics.statistics import worst_tenth
from fedbench.planner.rounds import AFTER_LAST, Rounds
from fedbench.planner.runs import SEEDS
from fedbench.planner.table.statistic import OfClients, over_clients
from fedbench.results import beside_local
from fedbench.results.reached import goal, names
from fedbench.results.run import Run


@dataclass(frozen=True)
class RunAt:
    """A run at the rounds that count: what its quantities are read from."""

    run: Run
    metrics: Metrics
    view: str  #: of the test images
    rounds: Sequence[int]  #: those that count: a quantity is the mean over its values after these

    @property
    def seen(self) -> str:
        """The view that the run has."""
        return self.view if self.view in self.metrics.views else "plain"


#: The run's value, or None if it has none.
Reader = Callable[[RunAt], float | None]


@dataclass(frozen=True)
class Quantity:
    """What a comparison can print of a run, such as its average accuracy; each run may have a value of it."""

    name: str
    label: str
    unit: str  #: of stored values: see `SCALES`
    best: str  #: "max", "min" or "none"
    what: str  #: explanation for the notes
    read: Reader
    group: str = ""  #: heading above adjacent columns
    each: str = ""  #: the per-client metric of which it is a mean
    #: Instead of `read`: from what its clients lose against Local's (`Locals.lost`).
    beside: Callable[[np.ndarray], float] | None = None

    def of(self, run: RunAt, locals: Locals) -> float | None:
        """The run's value; None if it has none."""
        if self.beside is None:
            return self.read(run)
        lost = locals.lost(run)
        return None if lost is None else self.beside(lost)


def run_at(run: Run, metrics: Metrics, view: str = VIEW, rule: Rounds = AFTER_LAST) -> RunAt:
    """The run at the rounds that the rule chooses. Raises FedbenchError if it chooses none (`Rounds`)."""
    return RunAt(run, metrics, view, rule.chosen(metrics, run.spec.setting, f"run {run.id} ({run.title})"))


def _federation(metric: str) -> Reader:
    """A reader of the federation's metric: its value for the whole run, if any, else after the rounds that count."""

    def read(of: RunAt) -> float | None:
        series = of.metrics.series(metric, of.seen)
        return series[0] if 0 in series else _mean(series.get(t) for t in of.rounds)

    return read


def _mean(values: Iterable[float | None]) -> float | None:
    """None if a value is missing."""
    every = list(values)
    present = [value for value in every if value is not None]
    return sum(present) / len(present) if present and len(present) == len(every) else None


def clients(of: RunAt, metric: str = "client_accuracy") -> np.ndarray:
    """The metric of each client that trains [clients] (`beside_local.clients`)."""
    return beside_local.clients(of.metrics, of.run.spec.setting, of.seen, of.rounds, metric)


def _over_clients(statistic: OfClients, metric: str = "client_accuracy") -> Reader:
    def after(of: RunAt, round: int) -> float | None:
        values = beside_local.clients(of.metrics, of.run.spec.setting, of.seen, [round], metric)
        values = values[~np.isnan(values)]
        number = statistic(values) if len(values) else math.nan
        return None if math.isnan(number) else float(number)

    return lambda of: _mean(after(of, t) for t in of.rounds)


def _std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _bytes(of: RunAt) -> float | None:
    parts = [of.metrics.whole_run(metric) for metric in ("bytes_up", "bytes_down")]
    return sum(part for part in parts if part is not None) if None not in parts else None


def _unseen(of: RunAt) -> float | None:
    return _mean(unseen(of.metrics, of.run.spec.setting, of.seen, t) for t in of.rounds)


#: The default numbers; those that no run has are omitted.
USUAL = (
    Quantity(
        "average_accuracy",
        "Average accuracy",
        "fraction",
        "max",
        "average accuracy: of each client's model on its own test images, weighted by training sizes",
        _federation("average_accuracy"),
        each="client_accuracy",
    ),
    Quantity(
        "client_auc_mean",
        "Average AUC",
        "fraction",
        "max",
        "average AUC: macro ROC AUC of each client's model on its own test images, unweighted",
        _federation("client_auc_mean"),
        each="client_auc",
    ),
    Quantity(
        "client_accuracy_std",
        "std",
        "fraction",
        "none",
        "std: standard deviation (ddof 1) of the clients' accuracies",
        _over_clients(_std),
        "Over clients",
    ),
    Quantity(
        "client_accuracy_worst_tenth",
        "worst 10 %",
        "fraction",
        "max",
        "worst 10 %: mean of the worst tenth of clients",
        _over_clients(worst_tenth),
        "Over clients",
    ),
    Quantity(
        "client_accuracy_min",
        "worst",
        "fraction",
        "max",
        "worst: the worst client",
        _over_clients(np.min),
        "Over clients",
    ),
    Quantity(
        UNSEEN,
        "Unseen clients",
        "fraction",
        "max",
        "unseen clients: mean accuracy of the clients that never train, each on its own test images",
        _unseen,
    ),
    Quantity(
        "system_accuracy",
        "System accuracy",
        "fraction",
        "max",
        "system accuracy: of the federation as a whole on all test images",
        _federation("system_accuracy"),
    ),
    Quantity(
        "total_runtime_seconds",
        "Time",
        "seconds",
        "min",
        "time: all rounds with their evaluation",
        _federation("total_runtime_seconds"),
    ),
    Quantity("bytes", "Sent", "bytes", "min", "sent: bytes up and down in all rounds", _bytes),
    Quantity("rounds", "Rounds", "count", "none", "", lambda of: float(of.run.spec.setting.rounds)),
)

#: Units of metrics for which less is better.
_LESS = ("seconds", "bytes", "nats")


def of_metric(metric: str, runs: Sequence[Run]) -> Quantity:
    """The number with this metric's name. Raises FedbenchError for an unknown one."""
    usual = {number.name: number for number in USUAL}
    if metric in usual:
        return usual[metric]
    if (number := _of_clients(metric) or _beside_local(metric) or _soon(metric)) is not None:
        return number
    definition = METRICS.get(metric) or _declared(metric, runs)
    less = definition.unit in _LESS or metric.endswith("_std")
    best = "min" if less else "max" if "accuracy" in metric or "auc" in metric else "none"
    if definition.clients == "only":
        what = f"{metric}: mean over clients of the {definition.description}"
        return Quantity(metric, metric, definition.unit, best, what, _over_clients(np.mean, metric), each=metric)
    each = _EACH.get(metric, metric if definition.clients == "too" else "")
    what = f"{metric}: {definition.description}"
    return Quantity(metric, metric, definition.unit, best, what, _federation(metric), each=each)


def _of_clients(name: str) -> Quantity | None:
    """The number of a statistic of the clients: METRIC_STATISTIC, such as client_accuracy_gini; None if it is none."""
    for called, statistic in over_clients().items():
        metric = name.removesuffix(f"_{called}")
        definition = METRICS.get(metric) if metric != name else None
        if statistic.clients is not None and definition is not None and statistic.takes(metric, definition):
            what = f"{name}: {statistic.words}; each one's: {definition.description}"
            read = _over_clients(statistic.clients, metric)
            return Quantity(name, name, statistic.unit or definition.unit, statistic.best or "max", what, read)
    return None


def _soon(name: str) -> Quantity | None:
    """The number that says how soon a run reaches a value: rounds_to:0.8."""
    if (soon := goal(name)) is None:
        return None
    what = f"{name}: {soon.definition.description}"
    return Quantity(name, soon.title, soon.definition.unit, "min", what, lambda of: soon.of(of.metrics, of.seen))


class Locals:
    """Local's runs among those that are compared, and what the others' clients lose against them."""

    def __init__(self, every: Iterable[RunAt]) -> None:
        self._at = by_key((self._place(of), of) for of in every if of.run.spec.method == beside_local.LOCAL)
        self._lost: dict[str, np.ndarray | None] = {}

    def lost(self, of: RunAt) -> np.ndarray | None:
        """By how much each client's value is below that of Local's model [clients]; None without Local's run, which is
        the one in the same setting or the only one on the same partition with the same seeds."""
        if of.run.id not in self._lost:
            self._lost[of.run.id] = self._compared(of)
        return self._lost[of.run.id]

    def _compared(self, of: RunAt) -> np.ndarray | None:
        there = self._at.get(self._place(of), []) if of.run.spec.method != beside_local.LOCAL else []
        same = [one for one in there if one.run.spec.setting == of.run.spec.setting]
        chosen = same if len(same) == 1 else there
        metric = beside_local.compared(of.metrics)
        return beside_local.lost(clients(of, metric), clients(chosen[0], metric)) if len(chosen) == 1 else None

    @staticmethod
    def _place(of: RunAt) -> tuple[Any, ...]:
        return (of.run.values["partition"], *(of.run.values.get(name) for name in SEEDS))


def _beside_local(name: str) -> Quantity | None:
    """The number of a comparison with Local; None if it is none."""
    if name not in beside_local.NUMBERS:
        return None
    definition, number = beside_local.NUMBERS[name]
    what = f"{name}: {definition.description}"
    label = "Worse than Local" + (" by" if name.endswith("_by") else "")
    return Quantity(name, label, definition.unit, "min", what, lambda _: None, beside=number)


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
        more = (*(number.name for number in USUAL), *beside_local.NUMBERS, *names())
        raise unknown("metric", metric, {*known, *more}, "fedbench metrics")
    return known[metric]


def why_not(number: Quantity, of: RunAt) -> str:
    """Why a run lacks this number, as a predicate after the name of its method."""
    name, setting, metrics = number.name, of.run.spec.setting, of.metrics
    if number.beside:
        is_local = of.run.spec.method == beside_local.LOCAL
        return "is Local" if is_local else f"has not {beside_local.OF_LOCAL} beside it: -m local trains it"
    if goal(name):
        return "has not all rounds up to it"
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
    return "has one client" if setting.partition.trainees == 1 else f"has none after {_named(of)}"


def _named(of: RunAt) -> str:
    """The rounds that count, in words."""
    first, last = of.rounds[0], of.rounds[-1]
    if first < last:
        return f"rounds {first} to {last}"
    return "the last round" if last == of.run.spec.setting.rounds else f"round {last}"


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
