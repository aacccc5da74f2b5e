"""How far runs under way have come, noted for who looks from outside (`fedbench status`)."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.files import scratch
from fedbench.store.folder import PROGRESS

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress

#: A note is written when the last one is older than this.
SECONDS = 1.0


class Notes:
    """The notes of runs that are made together, in their work folders.

    They are a courtesy: nothing waits for the disk, and a note that cannot be written is left out. Loss and accuracy
    are means over the runs, as their observer hears them.
    """

    def __init__(self, folders: Sequence[Path], how: Mapping[str, Any]) -> None:
        self.folders = folders
        self.about = {"device": how.get("device"), "executor": how.get("executor"), "accuracy": None}
        self.first: tuple[int, float] | None = None  #: the first round heard of, and when it ended
        self.began, self.last = time.time(), 0.0

    def hear(self, now: Progress) -> None:
        """Note what an observer hears, at most once in SECONDS; and the last round."""
        if now.accuracy is not None:
            self.about["accuracy"] = now.accuracy
        at = time.time()
        if not now.doing:
            self.first = self.first or (now.round, at)
        if abs(at - self.last) < SECONDS and now.round < now.rounds:
            return
        self.last = at
        note = {**self.about, "round": now.round, "rounds": now.rounds, "loss": now.loss, "doing": now.doing}
        note |= {"time": at, "round_seconds": self._round_seconds(now.round, at), "gpu": _gpu(self.about["device"])}
        for folder in self.folders:
            path = folder / PROGRESS
            with contextlib.suppress(OSError):
                part = scratch(path)
                part.write_text(json.dumps(note))
                part.replace(path)

    def _round_seconds(self, round: int, at: float) -> float | None:
        """The mean of the rounds after the first, which pays for allocations and compilation; or of that one."""
        if self.first is None:
            return None
        first, ended = self.first
        return (at - ended) / (round - first) if round > first else ended - self.began


def _gpu(device: Any) -> dict[str, int] | None:
    """Bytes of its GPU that this process has reserved, and that there are; None on a CPU, and elsewhere (no device)."""
    if device in ("cpu", None):
        return None
    torch = sys.modules["torch"]
    own = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"reserved": torch.cuda.memory_reserved(), "bytes": own.total_memory}
