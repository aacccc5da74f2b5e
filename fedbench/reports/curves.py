"""Learning curves of any runs: a metric against rounds, bytes or seconds, as mean and spread over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.definitions import all_metrics
from fedbench.metrics.read import Metrics
from fedbench.planner.runs import SEEDS, Run, differing, grouped

#: What a curve can lie along -> the metrics whose sum by round, from the first on, that is; a round is itself.
AXES: Mapping[str, tuple[str, ...]] = {
    "round": (),
    "bytes": ("bytes_up", "bytes_down"),
    "seconds": ("local_training_seconds", "server_seconds"),  # evaluation is ours, not the method's
}
#: Of the test images; the first where they are equal otherwise.
VIEWS = ("plain", "crop")
#: What a curve shows unless a metric is named: the first that is measured.
DEFAULTS = ("average_accuracy", "client_auc_mean")


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of R runs after the T rounds in which all of them measured it."""

    runs: tuple[Run, ...]
    rounds: NDArray[np.int64]  #: [T]
    x: NDArray[np.float64]  #: [T] mean over runs: the round, or bytes or seconds up to its end
    mean: NDArray[np.float64]  #: [T] fractions, not percent
    std: NDArray[np.float64] | None  #: [T] over runs (ddof 1); None for one run
    mixed: tuple[str, ...]  #: keys that the runs differ in besides their seeds


@dataclass(frozen=True)
class CurvePanel:
    """The curves of one partition by their labels."""

    title: str
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Curves:
    """What `curves` returns."""

    metric: str
    unit: str
    view: str  #: of the test images; "" where the metric does not depend on it
    panels: Sequence[CurvePanel]
    problems: tuple[str, ...]  #: why runs have no curve, a line a run


def curves(
    runs: Sequence[Run],
    metric: str | None = None,
    against: str = "round",
    by: Sequence[str] = (),
    view: str | None = None,
) -> Curves:
    """The curves of runs, in groups as `groups.grouped` makes them.

    Arguments:
        metric: any that is measured by round; default: average accuracy, or the area under the ROC curve.
        against: one of AXES.
        by: keys to group by, in place of all that the runs differ in.
        view: of the test images, "plain" or "crop"; default: the one that most of the runs, and then most of their
            rounds, are evaluated with.

    Raises FedbenchError for an unknown metric, axis, key or view, and if no run has the metric by round.
    """
    if against not in AXES:
        raise unknown("axis", against, AXES)
    if view not in (None, *VIEWS):
        raise unknown("test augmentation", str(view), VIEWS)
    measured, problems = _measured(runs)
    chosen = metric or next((m for m in DEFAULTS if any(m in one.names for one in measured.values())), DEFAULTS[0])
    by_view = {
        one: {id: _by_round(own, chosen, one) for id, own in measured.items()} for one in ([view] if view else VIEWS)
    }
    view = max(by_view, key=lambda one: _much(by_view[one].values()))
    series = by_view[view]
    left = [run for run in runs if series.get(run.id)]
    if not left:
        there = sorted({name for one in measured.values() for name in one.names if _by_round(one, name, view)})
        raise FedbenchError(f"no run has {chosen} by round ({view} test images)", f"by round: {', '.join(there)}")
    at = {run.id: _along(measured[run.id], against, series[run.id]) for run in left}
    panels = [
        CurvePanel(panel.title, {name: _curve(group, series, at, by) for name, group in panel.lines.items()})
        for panel in grouped(left, by)
    ]
    problems += [f"run {id} has no {chosen} by round ({view} test images)" for id, own in series.items() if not own]
    known = all_metrics().get(chosen)
    unit, view = (known.unit, view if known.by_view else "") if known else ("", "")
    return Curves(chosen, unit, view, panels, tuple(problems))


def _much(series: Collection[Mapping[int, float]]) -> tuple[int, int]:
    """How many runs are evaluated, and after how many rounds in all."""
    return sum(map(bool, series)), sum(map(len, series))


def _measured(runs: Sequence[Run]) -> tuple[dict[str, Metrics], list[str]]:
    """The metrics of runs by their ids, and why others have none. Raises FedbenchError if none has any."""
    measured: dict[str, Metrics] = {}
    problems: list[FedbenchError] = []
    for run in runs:
        try:
            measured[run.id] = run.metrics
        except FedbenchError as error:
            problems.append(error)
    if problems and not measured:
        raise problems[0]
    return measured, [str(problem) for problem in problems]


def _by_round(metrics: Metrics, metric: str, view: str) -> dict[int, float]:
    """Without round 0, which stands for the whole run."""
    return {t: value for t, value in metrics.series(metric, view).items() if t}


def _along(metrics: Metrics, against: str, rounds: Mapping[int, float]) -> dict[int, float]:
    """Where these rounds lie on the axis."""
    total = dict.fromkeys(rounds, 0.0)
    if not AXES[against]:
        return {t: float(t) for t in rounds}
    for name in AXES[against]:
        each = _by_round(metrics, name, "")
        sums = np.cumsum([each[t] for t in sorted(each)])
        ends = np.searchsorted(sorted(each), list(rounds), side="right")
        for t, end in zip(rounds, ends.tolist(), strict=True):
            total[t] += float(sums[end - 1]) if end else 0.0
    return total


def _curve(
    runs: Sequence[Run],
    series: Mapping[str, Mapping[int, float]],
    at: Mapping[str, Mapping[int, float]],
    by: Sequence[str],
) -> Curve:
    """Raises FedbenchError for runs that have no evaluated round in common."""
    rounds = sorted(set.intersection(*(set(series[run.id]) for run in runs)))
    if not rounds:
        ids = f"{runs[0].id} and {runs[1].id}"
        raise FedbenchError(f"runs such as {ids} are one group, but have no evaluated round in common", "name --by KEY")
    values = np.array([[series[run.id][t] for t in rounds] for run in runs])
    x = np.array([[at[run.id][t] for t in rounds] for run in runs])
    std = values.std(axis=0, ddof=1) if len(runs) > 1 else None
    mixed = tuple(key for key in differing(runs) if key not in SEEDS) if by else ()  # else they differ in seeds only
    return Curve(tuple(runs), np.array(rounds), x.mean(axis=0), values.mean(axis=0), std, mixed)
