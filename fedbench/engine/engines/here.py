"""The engine `here`: one run after another in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.engines.engine import Engine

if TYPE_CHECKING:
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

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        from fedbench.engine.run import execute_all

        return execute_all(jobs, self.store, self.roots, device=self.device, executor=self.executor, observe=observe)
