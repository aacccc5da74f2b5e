"""The engine `here`: one run after another in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.engines.engine import Engine

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.engine.run import Observer
    from fedbench.store import Artifact, Store


@dataclass(frozen=True)
class Here(Engine):
    """This process."""

    store: Store
    roots: list[Path]
    device: str = "auto"
    executor: str = "auto"
    stopping: threading.Event = field(default_factory=threading.Event, compare=False)

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        from fedbench.engine.run import execute_all

        def watched(now: Progress) -> None:
            observe(now)
            if self.stopping.is_set():  # by another thread
                raise KeyboardInterrupt

        return execute_all(jobs, self.store, self.roots, device=self.device, executor=self.executor, observe=watched)

    def stop(self) -> None:
        self.stopping.set()
