"""JSON lines: one object an event, appended to a file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.observers.observer import Observer, Training
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress


class JsonLines(Observer):
    """Appends {"event": "start" | "round" | "end", "time": Unix seconds, "runs": [ids], ...}; losses in nats,
    accuracies as fractions. Raises FedbenchError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: tuple[str, ...] = ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise FedbenchError(f"cannot write {path} ({error.strerror})", "choose another file") from error

    def on_start(self, training: Training) -> None:
        self.ids = training.ids
        self._write("start", title=training.title, rounds=training.rounds, values=dict(training.values))

    def on_round(self, now: Progress) -> None:
        if not now.doing:
            self._write("round", round=now.round, loss=now.loss, accuracy=now.accuracy)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        self._write("end", complete=results is not None, results=dict(results or {}))

    def _write(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), "runs": self.ids, **more})
        with self.path.open("a") as file:
            file.write(f"{line}\n")


def observer(where: str) -> JsonLines:
    """The observer of `--observe jsonl:FILE`."""
    return JsonLines(path_of(where, "--observe"))
