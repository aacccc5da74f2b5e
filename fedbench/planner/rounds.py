"""Which rounds of a run count for its numbers (`--round`): the last one, the one of the best validation accuracy, or
the last ones, whose mean is taken. Test images choose nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.metrics.statistics import best_round
from fedbench.partitions import schemes
from fedbench.specs import Setting

LAST, BEST, MEAN = "last", "best", "mean"
#: Most rounds of a mean.
MOST = 10**6


@dataclass(frozen=True)
class Rounds:
    """A rule that chooses rounds of a run."""

    rule: str = LAST
    last: int = 1  #: of MEAN: the number of rounds

    @classmethod
    def of(cls, text: str) -> Self:
        """The rule of an option: last, best or mean:10. Raises FedbenchError for another text."""
        kind, _, number = text.partition(":")
        if text in (LAST, BEST):
            return cls(text)
        if kind == MEAN and number.isdecimal() and 1 <= int(number[:9]) <= MOST:
            return cls(MEAN, int(number))
        raise FedbenchError(f"a rule for rounds is last, best or mean:10, not '{text}'")

    def __str__(self) -> str:
        return f"{MEAN}:{self.last}" if self.rule == MEAN else self.rule

    @property
    def words(self) -> str:
        """The rule as the beginning of a sentence on numbers."""
        means = {LAST: "After the last round", BEST: "After the evaluated round of the best validation accuracy"}
        return means.get(self.rule) or f"Mean over the last {self.last} rounds"

    def chosen(self, metrics: Metrics, setting: Setting, who: str) -> list[int]:
        """The rounds of a run, whose mean counts; of equal validation accuracies the earliest round. Raises
        FedbenchError, which begins with `who`, for a run without validation images or whose last rounds were not all
        evaluated."""
        self.check(setting, who)
        if self.rule != BEST:
            return [*self._last_ones(setting)]
        by_round, evaluated = metrics.series("validation_accuracy"), set(setting.evaluated_rounds())
        best = best_round({t: value for t, value in by_round.items() if t in evaluated})
        if best is None:
            raise self._no_images(who)
        return [best]

    def check(self, setting: Setting, who: str) -> None:
        """Raise FedbenchError, which begins with `who`, if no run in the setting can have such rounds."""
        may_hold_back = setting.partition.scheme == "file" or schemes.is_users(setting.partition.scheme)
        if self.rule == BEST and setting.partition.validation is None and not may_hold_back:
            raise self._no_images(who)
        wanted = self._last_ones(setting)
        there = len(set(wanted) & set(setting.evaluated_rounds()))
        if self.rule == MEAN and there < len(wanted):
            raise FedbenchError(
                f"{who} is evaluated after {there} of its last {len(wanted)} rounds",
                "train with --every 1, or take the last round",
            )

    def _no_images(self, who: str) -> FedbenchError:
        return FedbenchError(
            f"{who} holds no images back to choose a round by, and test images choose nothing",
            "train with --validation 0.1 --every 1, or take the last round, or mean:10",
        )

    def _last_ones(self, setting: Setting) -> range:
        return range(max(1, setting.rounds - self.last + 1), setting.rounds + 1)


AFTER_LAST = Rounds()
