"""Progress bars with the time left (rich) for a run's rounds and a sweep's runs; plain lines if standard error is not a
terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedbench.observers import Observer, Training

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress as RoundProgress

#: Minimum number of seconds between two lines if standard error is not a terminal.
QUIET_SECONDS = 30.0
#: Window, in seconds, of the speed from which the time left is estimated.
SPEED_SECONDS = 3600.0


@dataclass
class _Total:
    """Progress of a sweep, in the unit of its runs' costs; all twins of an observer share one object."""

    ended: int = 0
    spent: float = 0.0
    under_way: dict[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def completed(self) -> float:
        return self.spent + sum(self.under_way.copy().values())


class Bars(Observer):
    """Progress display: on a terminal, a bar of the run's rounds and one of the sweep's runs; else plain lines.

    `costs` maps ids of the sweep's runs to costs in any unit; the sweep's bar advances by these costs. A bar fits in 80
    columns, because long titles are shortened.
    """

    def __init__(self, console: Console, costs: Mapping[str, float] = MappingProxyType({})) -> None:
        self.console, self.costs = console, costs
        self.total = _Total()
        title = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False, table_column=title),
            BarColumn(bar_width=12),
            *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "loss", "accuracy")),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.sweep: TaskID | None = None
        self.run: TaskID | None = None
        self.training = Training((), "", 0, {})
        self.line: Callable[[RoundProgress], None] = lambda now: None

    def __enter__(self) -> Bars:
        if self.console.is_terminal and len(self.costs) > 1:
            self.sweep = self._bar(f"all {len(self.costs)} runs", sum(self.costs.values()), len(self.costs))
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def _bar(self, title: str, total: float, count: int) -> TaskID:
        return self.progress.add_task(title, total=total, count=f"0/{count}", loss="", accuracy="")

    def end(self, cost: float) -> None:
        """Count a run of the sweep as ended, whether complete or failed; `cost` is its share of the sweep's bar."""
        self.total.ended += 1
        self.total.spent += cost
        if self.sweep is not None:
            count = f"{self.total.ended}/{len(self.costs)}"
            self.progress.update(self.sweep, completed=self.total.completed, count=count)

    def on_start(self, training: Training) -> None:
        self.training = training
        if self.console.is_terminal:
            self.progress.start()
            self.run = self._bar(training.title, training.rounds, training.rounds)
        else:
            self.line = _lines(self.console, training.title)

    def on_round(self, now: RoundProgress) -> None:
        title = self.training.title
        if self.run is None:
            self.line(now)
        elif now.doing:
            self.progress.update(self.run, description=f"{title}, {now.doing}")
        else:
            texts: dict[str, Any] = {"count": f"{now.round}/{now.rounds}", "loss": _loss(now)}
            if now.accuracy is not None:
                texts["accuracy"] = f"{now.accuracy:.1%}"
            self.progress.update(self.run, description=title, completed=now.round, **texts)
            if self.sweep is not None:
                cost = sum(self.costs.get(id, 1.0) for id in self.training.ids)
                self.total.under_way[self.training.ids] = cost * now.round / now.rounds
                self.progress.update(self.sweep, completed=self.total.completed)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        self.total.under_way.pop(self.training.ids, None)
        if self.run is None or self.sweep is None:  # a single run keeps its final bar
            return
        texts = self.progress.tasks[self.progress.task_ids.index(self.run)].fields
        self.progress.remove_task(self.run)
        self.run = None
        if results is not None:
            end = f"{texts['count']} rounds, {texts['loss']}, accuracy {texts['accuracy']}"
            self.console.print(f"{self.training.title}: {end}")


def _loss(now: RoundProgress) -> str:
    return "no client took part" if now.loss is None else f"loss {now.loss:.3f}"


def _lines(console: Console, title: str) -> Callable[[RoundProgress], None]:
    last = time.perf_counter()
    accuracy = ""

    def observe(now: RoundProgress) -> None:
        nonlocal last, accuracy
        if now.doing:
            console.print(f"{title}: {now.doing}")
            return
        if now.accuracy is not None:
            accuracy = f", accuracy {now.accuracy:.1%}"
        if now.round == now.rounds or time.perf_counter() - last > QUIET_SECONDS:
            last = time.perf_counter()
            console.print(f"{title}: round {now.round} of {now.rounds}, {_loss(now)}{accuracy}")

    return observe
