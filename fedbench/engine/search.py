"""Hyper-parameters looked for by Optuna: each trial is scored on images held back from training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.engine.grid import Grid, Point
from fedbench.errors import FedbenchError
from fedbench.protocol import Protocol
from fedbench.store import Store

#: Digits of a number that is tried: what another trial tries again is there already.
DIGITS = 3


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, on a logarithmic scale where that is a decade or more; `whole` ones only."""

    low: float
    high: float
    whole: bool

    @classmethod
    def of(cls, option: str, text: str) -> Range | None:
        """A range such as 0.001:0.1, or None for what is none. Raises FedbenchError for one that holds nothing."""
        low, colon, high = text.partition(":")
        try:
            ends = float(low), float(high)
        except ValueError:
            return None
        if not colon or not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
            raise FedbenchError(f"--{option} takes a range from low to high, such as 0.001:0.1, not '{text}'")
        whole = all(end.strip().lstrip("-").isdigit() for end in (low, high))
        return cls(*ends, whole)

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= 10 * self.low


def search(
    grid: Grid,
    ranges: dict[str, Range],
    trials: int,
    rules: Protocol,
    budget: str,
    store: Store,
    roots: Sequence[Path],
    score: Callable[[Point, str], float | None],
) -> list[Point]:
    """So many trials for each method and partition of the grid, and their points. `score` makes a point's runs and
    returns its validation accuracy, or None if they failed.

    Raises FedbenchError where Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise FedbenchError("--search optuna needs Optuna", "pip install 'fedbench-fl[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tried: list[Point] = []
    for method in grid.methods:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        for number in range(trials):
            trial = study.ask()
            values = {name: (_suggested(trial, name, one),) for name, one in ranges.items()}
            for point in _at(grid, method, values).points(rules, budget, store, roots):
                tried.append(point)
                value = score(point, f"trial {number + 1}/{trials}")
            study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
    return tried


def _at(grid: Grid, method: str, values: dict[str, tuple[str]]) -> Grid:
    """The grid of one method at these values."""

    def with_values(axes: dict[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        return {name: values.get(name, texts) for name, texts in axes.items()}

    return dataclasses.replace(
        grid, methods=(method,), setting=with_values(dict(grid.setting)), params=with_values(dict(grid.params))
    )


def _suggested(trial: object, name: str, of: Range) -> str:
    if of.whole:
        return str(trial.suggest_int(name, int(of.low), int(of.high), log=of.log))  # type: ignore[attr-defined]
    return f"{trial.suggest_float(name, of.low, of.high, log=of.log):.{DIGITS}g}"  # type: ignore[attr-defined]
