"""Weights & Biases: a run each, in a project; offline or online as WANDB_MODE says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import wandb

from fedbench.observers.observer import Observer, Training

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress


class WandB(Observer):
    """What was decided as config, `loss` and `accuracy` by round, the results as summary."""

    def __init__(self, project: str = "fedbench") -> None:
        self.project = project
        self.run: Any = None

    def on_start(self, training: Training) -> None:
        config = {**training.values, "fedbench_runs": " ".join(training.ids)}
        self.run = wandb.init(project=self.project, name=training.title, config=config, reinit="create_new")

    def on_round(self, now: Progress) -> None:
        if not now.doing:
            accuracy = {} if now.accuracy is None else {"accuracy": now.accuracy}
            self.run.log({"loss": now.loss, **accuracy}, step=now.round)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        self.run.summary.update(dict(results or {}))
        self.run.finish(exit_code=1 if results is None else 0)


def observer(where: str) -> WandB:
    """The observer of `--observe wandb[:PROJECT]`."""
    return WandB(where or "fedbench")
