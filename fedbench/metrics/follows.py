"""Metrics that follow from others of the same run: a mean over clients from the clients, the value of a whole run from
its rounds. Whoever brings metrics that were not computed here (a result pack) is held to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedbench.measure import CLIENT, FEDERATION, ROUND, Measure
from fedbench.metrics.read import Metrics
from fedbench.metrics.statistics import warm_rounds

#: Tolerance of two values of which one follows from the other: rounding of sums.
ROUNDING = 1e-9
#: Relative tolerance of what follows from times of rounds, of which a pack keeps five digits (results/pack.py).
DIGITS = 1e-4


def _mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.nanmean(values, axis=1))


def _least(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.nanmin(values, axis=1))


def _most(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.nanmax(values, axis=1))


def _by_rule(rule: Callable[[Sequence[float]], float], values: np.ndarray) -> np.ndarray:
    return np.array([rule(one.tolist()) for one in values])


#: Metric -> (metric of the clients, function from its values [G, clients] to the federation's [G]).
_OF_CLIENTS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "client_accuracy_mean": ("client_accuracy", _mean),
    "client_accuracy_min": ("client_accuracy", _least),
    "client_accuracy_max": ("client_accuracy", _most),
    "client_accuracy_std": ("client_accuracy", lambda values: np.nanstd(values, axis=1, ddof=1)),
    "test_phase_accuracy_mean": ("test_phase_accuracy", _mean),
    "client_auc_mean": ("client_auc", _mean),
    "test_phase_auc_mean": ("test_phase_auc", _mean),
}
#: Metrics that are the clients' accuracies weighted by test sizes; the oracle's answers are those of the owners.
_BY_TEST_SIZES = ("client_accuracy_weighted", "system_accuracy_oracle")
#: Metric -> the clients' metric of which it is a weighted mean whose weights the metrics lack.
_WITHIN = {"average_accuracy": "client_accuracy", "routing_accuracy": "routing_accuracy"}
#: The value of a whole run as the sum over its rounds, as the mean of the warm ones, or as the largest.
_SUMS = ("bytes_up", "bytes_down", "server_seconds", "evaluation_seconds")
_WARM = ("local_training_seconds", "round_seconds")
_LARGEST = ("peak_memory",)
#: Their sums are the run's seconds.
_TOTAL = ("round_seconds", "evaluation_seconds")


@dataclass(frozen=True)
class _Series:
    """The rows of a metric by view and round: of the federation, and of the clients that train."""

    whole: Mapping[tuple[int, int], float]
    clients: Mapping[tuple[int, int], np.ndarray]  #: [trainees]; NaN for a client without a value


def contradiction(metrics: Metrics, trainees: int, measures: Iterable[Measure] = ()) -> str:
    """The first metric that is not what others of the run say, in words; "" if there is none.

    `trainees`: the number of clients that train (clients met later count in no mean); `measures`: those of the run's
    method. What a metric follows from may be missing: then nothing is compared.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN for a group without clients, or with one
        for name, view, round, given, expected, slack in _pairs(metrics, trainees, measures):
            if not abs(given - expected) <= slack:
                where = f" of the {metrics.views[view]} images" if metrics.views[view] else ""
                when = f" after round {round}" if round else ""
                return f"its {name}{where}{when} is {given:.6g}, but {expected:.6g} follows from its other metrics"
    return ""


#: (metric, view, round, its value, what follows from others, the tolerance)
_Pair = tuple[str, int, int, float, float, float]


def _pairs(metrics: Metrics, trainees: int, measures: Iterable[Measure]) -> Iterator[_Pair]:
    every = {name: _series(metrics, code, trainees) for code, name in enumerate(metrics.names)}
    for name, (of, rule) in _OF_CLIENTS.items():
        yield from _compared(every, name, of, rule)
    sizes = every.get("test_images", _Series({}, {})).clients.get((0, 0))
    if sizes is not None and np.nansum(sizes) > 0:
        weights = np.nan_to_num(sizes / np.nansum(sizes))
        for name in _BY_TEST_SIZES:
            yield from _compared(every, name, "client_accuracy", lambda values: np.nan_to_num(values) @ weights)
        yield from _compared(every, "test_images", "test_images", lambda values: np.nansum(values, axis=1))
    for name, of in _WITHIN.items():
        low, high = (_compared(every, name, of, rule) for rule in (_least, _most))
        for (_, view, round, given, least, slack), (*_, most, _) in zip(low, high, strict=True):
            yield name, view, round, given, float(np.clip(given, least, most)), slack
    yield from _same_answers(every)
    yield from _of_rounds(metrics, measures)
    for measure in measures:
        if measure.of == CLIENT:
            yield from _compared(every, measure.name, measure.name, partial(_by_rule, FEDERATION[measure.federation]))


def _series(metrics: Metrics, code: int, trainees: int) -> _Series:
    """The values of the metric with this code."""
    rows = np.flatnonzero(metrics.metric == code)
    client, value = metrics.client[rows], metrics.value[rows]
    places = [*zip(metrics.view[rows].tolist(), metrics.round[rows].tolist(), strict=True)]
    whole: dict[tuple[int, int], float] = {}
    clients: dict[tuple[int, int], np.ndarray] = {}
    for place, owner, one in zip(places, client.tolist(), value.tolist(), strict=True):
        if owner < 0:
            whole[place] = one
        elif owner < trainees:
            if place not in clients:
                clients[place] = np.full(trainees, np.nan)
            clients[place][owner] = one
    return _Series(whole, clients)


def _compared(
    every: Mapping[str, _Series], name: str, of: str, rule: Callable[[np.ndarray], np.ndarray]
) -> Iterator[_Pair]:
    """A metric of the federation beside what `rule` makes of the clients' metric `of`."""
    if name not in every or of not in every:
        return
    places = [place for place in every[name].whole if place in every[of].clients]
    if places:
        follows = rule(np.stack([every[of].clients[place] for place in places])).tolist()
        for place, expected in zip(places, follows, strict=True):
            given = every[name].whole[place]
            yield name, *place, given, expected, ROUNDING * max(1.0, abs(expected))


def _same_answers(every: Mapping[str, _Series]) -> Iterator[_Pair]:
    """System accuracy is one of its forms; and no client of all is better than the best."""
    names = ("system_accuracy_probability", "system_accuracy_vote")
    of = next((name for name in names if name in every), None)
    if of is not None and "system_accuracy" in every:
        for place, given in every["system_accuracy"].whole.items():
            if place in every[of].whole:
                yield "system_accuracy", *place, given, every[of].whole[place], ROUNDING
    best, mean = (every.get(f"system_accuracy_{name}", _Series({}, {})).whole for name in ("best_client", "random"))
    for place in best.keys() & mean.keys():
        yield "system_accuracy_random", *place, mean[place], min(mean[place], best[place]), ROUNDING


def _of_rounds(metrics: Metrics, measures: Iterable[Measure]) -> Iterator[_Pair]:
    """The value of a whole run beside what its rounds give. Of a long run a pack has only some of the noisy values."""
    last = int(metrics.round.max(initial=0))
    for name in (*_SUMS, *_WARM, *_LARGEST):
        series = metrics.series(name)
        given = series.pop(0, None)
        if given is None or len(series) != last:
            continue
        values = [*series.values()]
        expected = sum(values) if name in _SUMS else max(values) if name in _LARGEST else warm_rounds(series).mean
        yield name, 0, 0, given, expected, DIGITS * abs(expected) if name.endswith("_seconds") else ROUNDING
    training, evaluation = ({t: v for t, v in metrics.series(name).items() if t} for name in _TOTAL)
    given = metrics.whole_run("total_runtime_seconds")
    if given is not None and len(training) == len(evaluation) == last:
        expected = sum(training.values()) + sum(evaluation.values())
        yield "total_runtime_seconds", 0, 0, given, expected, DIGITS * expected
    for measure in measures:
        series = metrics.series(measure.name) if measure.of == ROUND and measure.name in metrics.names else {}
        # For the whole run, clusters are those of the clients at its end (metrics/evaluate.py).
        if 0 in series and len(series) > 1 and measure.name != "clusters":
            given = series.pop(0)
            yield measure.name, 0, 0, given, series[max(series)], ROUNDING * max(1.0, abs(given))
