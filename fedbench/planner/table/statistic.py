"""The statistics that a table's file can name, an entry each: how a cell's number follows from the metrics of a run,
which metrics it takes, and what is said of it below the table.

A statistic of the clients (`Statistic.clients`) is also a number of `compare`: METRIC_NAME, as in client_accuracy_gini.
A user's own is such a function in a file, `statistic = "./mine.py:gini"`: values of the clients [n] -> a number; the
first line of its docstring is printed below the table. Its name in a table is that of the function with the digest of
its source (`gini@0123456789ab`). `last`, `best` and `mean:10` are the rules of `--round` (`planner.rounds`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from fedbench.errors import FedbenchError, check_known
from fedbench.metrics import statistics
from fedbench.metrics.definitions import METRICS, Definition
from fedbench.metrics.read import Metrics, unseen
from fedbench.planner.rounds import BEST, MEAN, Rounds
from fedbench.plugins import reported
from fedbench.plugins.named import Named
from fedbench.specs import Setting


class Reading(NamedTuple):
    """What a number of one run is about."""

    metrics: Metrics
    setting: Setting
    metric: str
    view: str  #: of the test images; "" for a metric that a method declares
    client: int | None = None  #: counted from 1; None: the federation
    clients: Sequence[int] = ()  #: the first and the last client, counted from 1; empty: all that train


class Number(NamedTuple):
    """A number of one run, in the metric's unit."""

    mean: float
    std: float | None = None  #: over the rounds or clients of the run
    count: int = 1  #: of these
    weighted: float | None = None  #: over clients: the mean weighted by test images
    unweighted: float | None = None  #: ... and the unweighted mean


def lacks(metrics: Metrics, what: str) -> FedbenchError:
    """The error for metrics without a value."""
    return FedbenchError(f"metrics {metrics.id} lack {what}", "'fedbench evaluate --again' makes them again")


#: The values of a run's clients [n], without NaN -> a number of the run.
OfClients = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Statistic:
    """How a cell's number is computed from metrics."""

    words: str  #: sentence below a table, unless a rule gives it
    read: Callable[[Reading], Number] | None = None  #: the number of a run; None: from no metrics of runs
    rule: Rounds | None = None  #: for the rounds that count
    clients: OfClients | None = None  #: in place of `read`: of the clients that train, after the last round
    takes: Callable[[str, Definition], bool] = lambda _, __: True  #: whether it can summarise a metric
    ddof: int | None = None  #: of the ±, if it is over seeds
    one_client: bool = False  #: whether it may be of one client (`client`); else metrics of clients only need this
    range_of_clients: bool = False  #: whether it may be over some clients (`clients`)
    of_images: bool = True  #: whether it depends on a view of the test images
    unit: str = ""  #: of a statistic of clients, if not that of the metric
    best: str = ""  #: ... "max" or "min", if not that of the metric
    row: str = ""  #: if it needs no run: the fields of its rows, in words
    metrics: tuple[str, ...] = ()  #: its metrics, if it does not use those of runs

    def of(self, reading: Reading) -> Number:
        """The number of a run. Raises FedbenchError if the metric or a required round is missing."""
        if self.clients is not None:
            return Number(_of_clients(reading, self.clients))
        assert self.read is not None, "from no metrics of runs"
        return self.read(reading)


def _each_client(name: str, metric: Definition) -> bool:
    """Whether it has a value per client after a round, or (of a method's own) after the last evaluation."""
    return metric.clients != "no" and (metric.by_view or name not in METRICS)


def _each_clients_images(_: str, metric: Definition) -> bool:
    return metric.clients != "no" and metric.by_view


def _of_summary(summary: statistics.Summary) -> Number:
    return Number(summary.mean, None if math.isnan(summary.std) else summary.std, summary.count)


def _whole_run(r: Reading) -> Number:
    value = r.metrics.whole_run(r.metric)
    if value is None:
        raise lacks(r.metrics, f"{r.metric} of the whole run")
    return Number(value)


def _warm_rounds(r: Reading) -> Number:
    summary = statistics.warm_rounds(r.metrics.series(r.metric))
    if not summary.count:
        raise lacks(r.metrics, f"{r.metric} of any round")
    return _of_summary(summary)


def _last_rounds(r: Reading) -> Number:
    """A run with crops has the view "plain" only after the last round, so that its number has no ±."""
    setting, series = r.setting, r.metrics.series(r.metric, r.view)
    summary, expected = statistics.last_rounds(series, setting.window), min(setting.window, setting.rounds)
    if r.view == "plain" and setting.augment != "none" and summary.count == 1 and setting.rounds in series:
        return Number(summary.mean)
    by_method = not r.view
    whole = summary.count if by_method else summary.count == expected and setting.rounds in series
    if not whole:
        raise lacks(r.metrics, f"{r.metric} of the last {setting.window if by_method else expected} rounds")
    return _of_summary(summary)


def _last(r: Reading) -> Number:
    return _after(r, r.setting.rounds)


def _best_tested(r: Reading) -> Number:
    """The round of the best mean client accuracy among those that the setting evaluates, the same for all columns that
    read the run."""
    asked = set(r.setting.evaluated_rounds())
    series = r.metrics.series("client_accuracy_mean", r.view or "plain")
    number = statistics.best_round({round: value for round, value in series.items() if round in asked})
    if number is None:
        raise lacks(r.metrics, "client_accuracy_mean of any round")
    return _after(r, number)


def _after(r: Reading, round: int) -> Number:
    """The metric after a round: of the federation, or of a client. What a method measured once is the whole run's."""
    series = r.metrics.series(r.metric, r.view)
    if not r.view and round not in series:
        round = 0
    if r.client is None:
        if round not in series:
            raise lacks(r.metrics, f"{r.metric} after round {round}")
        return Number(series[round])
    values = r.metrics.per_client(r.metric, r.view, round)
    if r.client > len(values) or math.isnan(values[r.client - 1]):
        raise lacks(r.metrics, f"{r.metric} of client {r.client} after round {round}")
    return Number(float(values[r.client - 1]))


def _across_clients(r: Reading) -> Number:
    """Over the column's clients: a metric after the last round, or a method's own."""
    after = f" after round {r.setting.rounds}" if r.view else ""
    values = r.metrics.per_client(r.metric, r.view, r.setting.rounds if r.view else None)
    first, last = r.clients or (1, min(len(values), r.setting.partition.trainees))
    if not len(values) or last > len(values):
        raise lacks(r.metrics, f"{r.metric} of {f'client {last}' if len(values) else 'any client'}{after}")
    has, sizes = ~np.isnan(values[first - 1 : last]), r.metrics.per_client("test_images")  # not every client has an AUC
    images = sizes[first - 1 : last][has] if len(sizes) >= last else None
    numbers = values[first - 1 : last][has]
    if not len(numbers):
        raise lacks(r.metrics, f"{r.metric} of any of the clients {first} to {last}{after}")
    mean, std, count = _of_summary(statistics.across_clients(numbers))[:3]
    return Number(mean, std, count, None if images is None else statistics.weighted_mean(numbers, images), mean)


def _weighted_across_clients(r: Reading) -> Number:
    number = _across_clients(r)
    if number.weighted is None:
        raise lacks(r.metrics, f"the test images of the clients that have {r.metric}")
    return number._replace(mean=number.weighted)


def _of_clients(r: Reading, number: OfClients) -> float:
    """A number of the clients that train, after the last round."""
    values = r.metrics.per_client(r.metric, r.view, r.setting.rounds)[: r.setting.partition.trainees]
    values = values[~np.isnan(values)]
    if not len(values):
        raise lacks(r.metrics, f"{r.metric} of any client that trains")
    return number(values)


def _unseen(r: Reading) -> Number:
    mean = unseen(r.metrics, r.setting, r.view, r.setting.rounds, r.metric)
    if mean is None:
        raise lacks(r.metrics, f"{r.metric} of unseen clients")
    return Number(mean)


def gini(values: np.ndarray) -> float:
    """Gini coefficient of values [n] of at least 0: their mean absolute difference over all n² pairs, divided by twice
    their mean. 0: all are equal, also if all are 0; at most 1 - 1/n: one has everything."""
    total = float(values.sum())
    ranks = 2 * np.arange(1, len(values) + 1) - len(values) - 1
    return float(ranks @ np.sort(values)) / (len(values) * total) if total else 0.0


def _of_rounds(rule: Rounds) -> Statistic:
    """The statistic of the rounds that a rule chooses."""

    def read(r: Reading) -> Number:
        chosen = rule.chosen(r.metrics, r.setting, f"the run of metrics {r.metrics.id}")
        return Number(float(np.mean([_after(r, t).mean for t in chosen])))

    return Statistic(str(rule), read, rule=rule, ddof=1, one_client=True)


STATISTICS: dict[str, Statistic] = {
    "last_rounds": Statistic(
        "± is the standard deviation (ddof 0) over the last {window} rounds of a run",
        _last_rounds,
        takes=lambda _, metric: metric.clients != "only",
    ),
    "clients": Statistic(
        "± is the standard deviation (ddof 1) across clients after the last round",
        _across_clients,
        takes=_each_client,
        range_of_clients=True,
    ),
    "weighted_clients": Statistic(
        "Means over clients are weighted by their test images; ± is the standard deviation (ddof 1, unweighted) across "
        "clients after the last round",
        _weighted_across_clients,
        takes=_each_client,
        range_of_clients=True,
    ),
    "rounds": Statistic(
        "± is the standard deviation (ddof 1) over a run's rounds, of three or more without the first",
        _warm_rounds,
        takes=lambda _, metric: not metric.by_view,
        of_images=False,
    ),
    "whole_run": Statistic("One number a run", _whole_run, takes=lambda _, metric: not metric.by_view, of_images=False),
    "last": Statistic("Value after the last round", _last, ddof=1, one_client=True),
    "best_tested": Statistic(  # the best unweighted one
        "Value at the evaluated round of the best mean client accuracy (selected on test data)",
        _best_tested,
        ddof=1,
        one_client=True,
    ),
    "best": _of_rounds(Rounds(BEST)),
    "folds": Statistic("Value after the last round", _last, ddof=0, one_client=True),  # as over folds
    "worst_tenth": Statistic(
        "Mean over the worst tenth of the clients after the last round",
        clients=statistics.worst_tenth,
        takes=_each_clients_images,
        ddof=1,
    ),
    "gini": Statistic(
        "Gini coefficient of the clients' values after the last round (0: all clients are equal)",
        clients=gini,
        takes=_each_clients_images,
        ddof=1,
        unit="index",
        best="min",
    ),
    "unseen": Statistic(
        "Mean over the clients that never train, after the last round", _unseen, takes=_each_clients_images, ddof=1
    ),
    "pairs": Statistic(  # pools all seeds
        "Over all pairs of a run's snapshots; ± is the standard deviation (ddof 0) over the pairs",
        metrics=("xi_max", "xi_min", "xi_mean"),
    ),
    #: Parameters of a network, or a method's costs per round with it.
    "count": Statistic("Counted from layer shapes", row="model, shape and classes, or everywhere a method with costs"),
    #: The clients' data by a preset of a protocol.
    "preset": Statistic(
        "Follows from preset '{preset}'",
        row="a client (from 1) and side = 'train' or 'test'",
        metrics=("class_count", "class_probability", "flip_probability"),
    ),
    #: Numbers at a level of a protocol's shifts: of angles, of colours, of classes that a client keeps, of classes with
    #: swapped labels, of classes with turned images, and of distributions.
    "levels": Statistic(
        "Counted in the distributions that clients draw",
        row="a level and classes",
        metrics=("angles", "colours", "classes", "swapped", "turned", "distributions"),
    ),
    #: Marks that the columns declare.
    "marks": Statistic("✓ yes, ○ on a condition, – no, as the table's file says", row="a method", metrics=("mark",)),
}


def over_clients() -> dict[str, Statistic]:
    """The statistics of the clients, by name."""
    return {name: statistic for name, statistic in STATISTICS.items() if statistic.clients is not None}


_own = Named("statistic", "statistic =", functions=True)
named = _own.name


def find(name: str) -> Statistic:
    """The statistic with this name in a table: an entry, or a user's function (`named`). Raises FedbenchError for an
    unknown one and for a file that cannot be loaded."""
    if name.startswith(f"{MEAN}:"):
        return _of_rounds(Rounds.of(name))
    return _of_file(name) if _own.is_plugin(name) else STATISTICS[name]


@cache
def _of_file(name: str) -> Statistic:
    function, place = _own.function(name)
    words = next(iter((inspect.getdoc(function) or place.reference).splitlines())).strip().rstrip(".")

    def number(values: np.ndarray) -> float:
        with reported(f"cannot compute statistic {name}"):
            found = float(function(values.copy()))
        if not math.isfinite(found):
            raise FedbenchError(f"statistic {name} gives {found}, which is no number")
        return found

    return Statistic(f"{words} ({name}, after the last round)", clients=number, takes=_each_clients_images, ddof=1)


@dataclass(frozen=True)
class Known:
    """Rule of a table's file: a text is the name of a statistic."""

    def check(self, value: str, where: str) -> None:
        if _own.is_plugin(value) or value.startswith(f"{MEAN}:"):
            try:
                find(value)
            except FedbenchError as error:
                raise error.at(where) from error
        else:
            check_known(f"statistic in {where.rpartition(', ')[0]}", value, STATISTICS)
