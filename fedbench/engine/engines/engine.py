"""What every engine offers: groups of jobs become artifacts of one store, wherever they are computed."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedbench.files import process
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.engine.run import Observer
    from fedbench.store import Artifact, Store


class Engine:
    """Makes jobs; a context, whose end closes it. `make` is called by as many threads at a time as there are slots."""

    store: Store
    slots: int = 1
    processes: Collection[str] = ()  #: those that it has had work for it
    #: What the same command does after an interrupt.
    goes_on: str = "The same command goes on from the rounds that are saved."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Before any of these runs is made, of methods as they were named: begin what takes its time. Raises
        FedbenchError where they cannot be made."""

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        """The artifacts of a run, or of several that differ in nothing but their seeds, as `engine.run.execute_all`
        says, which also says what is raised."""
        raise NotImplementedError

    def complete(self, jobs: Sequence[Job]) -> list[Artifact]:
        """The artifacts of those of the jobs that need not be made."""
        return [run for job in jobs if (run := job.done(self.store)) is not None]

    def ours(self, artifact: Artifact) -> bool:
        """Whether this engine has made an artifact, and not another process on the same store."""
        return artifact.provenance.get("process") in {process(), *self.processes}

    def stop(self) -> None:
        """End what is under way in other threads, each run saved as after an interrupt; `make` raises Interrupted
        there."""

    def close(self) -> None:
        """Let go of processes and connections."""


# -- here ------------------------------------------------------------------------------------------------------
# The engine `here`: one run after another in this process.


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
