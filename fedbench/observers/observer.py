"""The one protocol of who watches runs while they are trained."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.specs import Plain


@dataclass(frozen=True)
class Training:
    """What is being trained: a run, or runs at the same time that differ in their seeds alone."""

    ids: tuple[str, ...]
    title: str  #: in print
    rounds: int
    values: Mapping[str, Plain]  #: what was decided of the (first) run: method, data, setting, hyper-parameters


class Observer:
    """Watches training; override what you need. The defaults do nothing.

    One observer may watch trainings one after another; of trainings at the same time each has a twin of it. What it
    raises is reported in one line and ends its watch over that training, never the run.
    """

    def twin(self) -> Observer:
        """An observer for one of the trainings at the same time: a copy, which shares what this one was made
        with."""
        return copy(self)

    def on_start(self, training: Training) -> None:
        """Before the first round; for a run that goes on, before the next. Not called for a run that is there."""

    def on_round(self, now: Progress) -> None:
        """After a round (of more than one run: their means); `now.doing` says what goes on before the first one."""

    def on_end(self, results: Mapping[str, float] | None) -> None:
        """At the end: metric -> value, as `fedbench evaluate` prints it; None where the training was stopped or
        failed."""
