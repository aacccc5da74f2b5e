"""TensorBoard: a folder of event files a run, all in one log folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter

from fedbench.observers.observer import Observer, Training
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress


class TensorBoard(Observer):
    """Scalars `loss` and `accuracy` by round, the results as `end/METRIC`, what was decided as text."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.writer: Any = None
        self.rounds = 0

    def on_start(self, training: Training) -> None:
        self.rounds = training.rounds
        self.writer = SummaryWriter(f"{self.folder}/{training.values['method']}-{'-'.join(training.ids)}")
        rows = "\n".join(f"| {name} | {value} |" for name, value in training.values.items())
        self.writer.add_text("run", f"{training.title}\n\n| | |\n|---|---|\n{rows}")

    def on_round(self, now: Progress) -> None:
        if now.doing:
            return
        self.writer.add_scalar("loss", now.loss, now.round)
        if now.accuracy is not None:
            self.writer.add_scalar("accuracy", now.accuracy, now.round)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        for name, value in (results or {}).items():
            self.writer.add_scalar(f"end/{name}", value, self.rounds)
        self.writer.close()


def observer(where: str) -> TensorBoard:
    """The observer of `--observe tensorboard:DIR`."""
    return TensorBoard(str(path_of(where, "--observe")))
