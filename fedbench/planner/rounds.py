"""Which rounds of a run count for its numbers (`--round`): the last one, the one of the best validation accuracy, or
the last ones, whose mean is taken. Test images choose nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.metrics.statistics import best_round
from fedbench.partitions import schemes
from fedbench.specs import Setting
from fedbench.words import counted

LAST, BEST, MEAN = "last", "best", "mean"
#: Most rounds of a mean.
MOST = 10**6


class Refusal(NamedTuple):
    """Why runs have no rounds that count."""

    why: str  #: a predicate
    hint: str

    def of(self, *who: str) -> FedbenchError:
        """The error about these runs."""
        return FedbenchError(f"{', '.join(who)}{': each' if who[1:] else ''} {self.why}", self.hint)


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

    def words(self, settings: Iterable[Setting]) -> str:
        """The rule as the beginning of a sentence on numbers of runs in these settings."""
        means = {LAST: "After the last round", BEST: "After the evaluated round of the best validation accuracy"}
        if self.rule in means:
            return means[self.rule]
        lengths = {min(self.last, setting.rounds) for setting in settings}
        fewer = f", of a run with fewer over all (from {min(lengths)})" if len(lengths) > 1 else ""
        return f"Mean over the last {counted(max(lengths), 'round')}{fewer}"

    def chosen(self, metrics: Metrics, setting: Setting, who: str) -> list[int]:
        """The rounds of a run, whose mean counts; of equal validation accuracies the earliest round. Raises
        FedbenchError, which begins with `who`, for a run that has none (`refuses`)."""
        if no := self.refuses(setting, metrics):
            raise no.of(who)
        return [*self._last_ones(setting)] if self.rule != BEST else [self._best(setting, metrics) or 0]

    def check(self, setting: Setting, who: str) -> None:
        """Raise FedbenchError, which begins with `who`, if no run in the setting can have such rounds."""
        if no := self.refuses(setting):
            raise no.of(who)

    def refuses(self, setting: Setting, metrics: Metrics | None = None) -> Refusal | None:
        """Why a run has no such rounds, or (without its metrics) no run in the setting: no validation images, or its
        last rounds were not all evaluated. None if it has them."""
        may_hold_back = setting.partition.scheme == "file" or schemes.is_users(setting.partition.scheme)
        without = setting.partition.validation is None and not may_hold_back
        if self.rule == BEST and (without or (metrics and self._best(setting, metrics) is None)):
            return Refusal(
                "has no validation images to choose a round by; test images must not choose",
                "train with --validation 0.1 --every 1, or take the last round, or mean:10",
            )
        wanted = self._last_ones(setting)
        there = len(set(wanted) & set(setting.evaluated_rounds()))
        if self.rule == MEAN and there < len(wanted):
            return Refusal(
                f"is evaluated after {there} of its last {len(wanted)} rounds",
                "train with --every 1, or take the last round",
            )
        return None

    def _best(self, setting: Setting, metrics: Metrics) -> int | None:
        by_round, evaluated = metrics.series("validation_accuracy"), set(setting.evaluated_rounds())
        return best_round({t: value for t, value in by_round.items() if t in evaluated})

    def _last_ones(self, setting: Setting) -> range:
        return range(max(1, setting.rounds - self.last + 1), setting.rounds + 1)


AFTER_LAST = Rounds()
