"""How soon a run reaches a value: metrics such as rounds_to:0.8, from the rounds that it stores.

`rounds_to:0.8` is the first evaluated round with an average accuracy of at least 0.8 (images with several labels: an
average AUC), `bytes_to:0.8` and `seconds_to:0.8` are what all rounds up to it sent and took. Another metric of the
federation stands before the value: `rounds_to:system_accuracy:0.8`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedbench.errors import FedbenchError, check_known
from fedbench.metrics.definitions import METRICS, Definition
from fedbench.metrics.read import USUAL, VIEW, Metrics

#: What is counted -> (in words, unit, metrics of rounds of which it is the sum; none: the number of rounds).
COUNTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "rounds": ("rounds", "count", ()),
    "bytes": ("bytes up and down in all rounds", "bytes", ("bytes_up", "bytes_down")),
    "seconds": ("wall seconds of all rounds, without their evaluation,", "seconds", ("round_seconds",)),
}
#: The value of a run that never reaches it.
NEVER = math.inf


@dataclass(frozen=True)
class Goal:
    """A metric that says how soon a run reaches a value."""

    name: str
    counted: str  #: a key of COUNTED
    metric: str  #: that reaches the value; "": one of USUAL
    value: float  #: as stored, that is, a fraction

    @property
    def definition(self) -> Definition:
        what, unit, _ = COUNTED[self.counted]
        of = self.metric or "average_accuracy (of several labels: client_auc_mean)"
        reached = f"until the first evaluated round with {of} of at least {self.value:g}"
        return Definition(f"{what} {reached}", unit, "fedbench", by_view=False)

    @property
    def title(self) -> str:
        """The heading of its column, such as "Rounds to 80 %"."""
        counted = {"rounds": "Rounds", "bytes": "Sent", "seconds": "Time"}[self.counted]
        of = f" {self.metric.replace('_', ' ')}" if self.metric else ""
        return f"{counted} to {100 * self.value:g} %{of}"

    def of(self, metrics: Metrics, view: str = VIEW) -> float | None:
        """The number of a run, NEVER if it does not reach the value; None if a round that it sums up was not kept."""
        seen = view if view in metrics.views else VIEW
        metric = self.metric or next((name for name in USUAL if name in metrics.names), USUAL[0])
        by_round = {t: value for t, value in metrics.series(metric, seen).items() if t > 0}
        if not by_round:
            return None
        first = min((t for t, value in by_round.items() if value >= self.value), default=None)
        if first is None:
            return NEVER
        parts = COUNTED[self.counted][2]
        if not parts:
            return float(first)
        every = [metrics.series(part) for part in parts]
        if any(t not in series for series in every for t in range(1, first + 1)):
            return None
        return float(sum(series[t] for series in every for t in range(1, first + 1)))


def goal(name: str) -> Goal | None:
    """The goal that a metric's name gives; None for the name of another metric. Raises FedbenchError for a goal with an
    unknown metric or an impossible value."""
    counted, joint, rest = name.partition("_to:")
    if not joint or counted not in COUNTED:
        return None
    metric, _, number = rest.rpartition(":")
    known = [name for name, one in METRICS.items() if one.by_view and one.unit == "fraction" and one.clients != "only"]
    if metric:
        check_known(f"metric in {name}", metric, known)
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise FedbenchError(f"{name} does not end in a value above 0, at most 1", f"such as {counted}_to:0.8")
    return Goal(name, counted, metric, value)


def names() -> list[str]:
    """Examples of such metrics."""
    return [f"{counted}_to:0.8" for counted in COUNTED]
