"""The interface of engines, which train groups of jobs and put the artifacts into one store; the engine `here`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedbench.files import process

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.engine.run import Observer
    from fedbench.engine.training import Data
    from fedbench.store import Artifact, Store


class Engine:
    """Trains jobs; a context manager that closes the engine at its end. Up to `slots` threads call `make` at a time."""

    store: Store
    slots: int = 1
    processes: Collection[str] = ()  #: ids of the worker processes that have trained runs
    #: Sentence for the user after an interrupt.
    goes_on: str = "The same command continues from the saved rounds."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_ready(self, runs: int) -> None:
        """Start slow preparations for so many runs. Raises FedbenchError if none can be trained."""

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        """Train one run, or several that differ only in their seeds, and return the artifacts. Results and errors are
        those of `engine.run.execute_all`."""
        raise NotImplementedError

    def complete(self, jobs: Sequence[Job]) -> list[Artifact]:
        """The artifacts of the jobs that need not be trained."""
        return [run for job in jobs if (run := job.done(self.store)) is not None]

    def ours(self, artifact: Artifact) -> bool:
        """Whether this engine made an artifact, not another process on the same store."""
        return artifact.provenance.get("process") in {process(), *self.processes}

    def stop(self) -> None:
        """Stop the runs of other threads, saved as after an interrupt; `make` raises Interrupted in those threads."""

    def close(self) -> None:
        """End worker processes and connections."""


# The engine `here`: one run after another in this process.


@dataclass(frozen=True)
class Here(Engine):
    """Trains in this process."""

    store: Store
    roots: list[Path]
    device: str = "auto"
    executor: str = "auto"
    data: Mapping[str, Data] | None = None  #: partition's id -> inputs; by default they are from the store

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        from fedbench.engine.run import execute_all

        return execute_all(
            jobs,
            self.store,
            self.roots,
            device=self.device,
            executor=self.executor,
            observe=observe,
            data=self.data,
        )
