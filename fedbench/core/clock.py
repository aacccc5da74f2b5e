"""One clock for everything that takes time: seconds by phase."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch


class Clock:
    """Accumulates wall seconds by phase; on a GPU it waits for the device at a phase's ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`."""
        started = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def reset(self) -> dict[str, float]:
        """The seconds so far; the counts start again at zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds
