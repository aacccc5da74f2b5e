"""Jobs as they are sent to another process, and what comes back: plain values that can be pickled."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.engine.engines import own
from fedbench.engine.engines.own import Own
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.store import Store


@dataclass(frozen=True)
class Order:
    """Jobs that go together, and how they are to be computed."""

    jobs: Sequence[Mapping[str, Any]]
    own: Sequence[Own]
    roots: Sequence[Path]
    device: str
    executor: str

    @classmethod
    def of(cls, jobs: Sequence[Job], roots: Sequence[Path], device: str, executor: str) -> Order:
        files = tuple(own.of_run(jobs[0].named, jobs[0].spec))
        sent = [
            {"run": job.spec.to_dict(), "named": job.named, "overrides": dict(job.overrides),
             "replaces": job.replaces, "keep": job.keep}
            for job in jobs
        ]  # fmt: skip
        return cls(sent, files, [root.absolute() for root in roots], device, executor)

    def opened(self) -> list[Job]:
        """The jobs again, in this process. Raises FedbenchError if a user's file does not load here, or if a job would
        be another run here."""
        from fedbench.engine.job import Job

        places = {one.kind: own.taken(one) for one in self.own}
        jobs = []
        for one in self.jobs:
            spec = RunSpec.shared(one["run"])
            job = Job.of(spec.setting, places.get("method", one["named"]), one["overrides"])
            if job.spec.id != spec.id:
                raise FedbenchError(
                    f"run {spec.id} would be {job.spec.id} for the worker", "its fedbench is not that of the driver"
                )
            jobs.append(replace(job, replaces=one["replaces"], keep=one["keep"]))
        return jobs


@dataclass(frozen=True)
class Result:
    """What became of an order."""

    process: str  #: who was at it
    ids: Sequence[str] = ()  #: of the runs that are there now
    error: Exception | None = None

    def checked(self) -> Result:
        """Itself. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self


def executed(order: Order, store: Store, observe: Callable[[Progress], None], **more: Any) -> Result:
    """Make the runs of an order in this process, with their metrics. Nothing is raised, an interrupt neither: the
    result says it as core.trainer.Interrupted."""
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.run import execute_all
    from fedbench.metrics.evaluate import evaluate

    try:
        made = execute_all(
            order.opened(), store, [*order.roots], device=order.device, executor=order.executor, observe=observe, **more
        )
        for artifact in made:
            evaluate(artifact, store)
        return Result(process(), [artifact.id for artifact in made])
    except KeyboardInterrupt:
        return Result(process(), error=Interrupted(0))
    except Exception as error:
        return Result(process(), error=sendable(error))


def sendable(error: Exception) -> Exception:
    """The exception, with the worker's stack as a note, or one that says the same where it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
