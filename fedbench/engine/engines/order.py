"""Messages between driver and worker processes: orders of runs, with users' classes, and their results."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.models import registry as networks
from fedbench.partitions import schemes
from fedbench.plugins.load import Place, is_file, place
from fedbench.plugins.source import Plugin, give, read
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.store import Store


# Users' classes for another process, with their source: the file may be missing there, or edited meanwhile.


@dataclass(frozen=True)
class UserClass:
    """A user's class; `kind`: "method", "network" or "partitioner"."""

    kind: str
    reference: str  #: FILE.py:Class, or FILE.py
    source: Plugin

    @classmethod
    def of(cls, kind: str, at: Place, source: Plugin) -> UserClass:
        return cls(kind, f"{at.file}:{at.name}" if at.name else str(at.file), source)

    def taken(self) -> str:
        """Let this process load the class from its source, and return its FILE.py:Class."""
        give(self.source)
        if self.kind == "network":
            networks.own_name(self.reference)
        elif self.kind == "partitioner":
            schemes.named(self.reference)
        return self.reference


def of_run(method: str, spec: RunSpec) -> Iterator[UserClass]:
    """The users' classes that a run needs; `method`: a name, or FILE.py:Class. A partitioner is left out if its file is
    missing: the stored partition is then used."""
    if is_file(method):
        at = place(method, "method")
        yield UserClass.of("method", at, read(at.file))
    if networks.is_plugin(model := spec.setting.model):
        yield UserClass.of("network", *networks.known(model))
    if (known := schemes.file_of(spec.setting.partition.scheme)) is not None:
        yield UserClass.of("partitioner", *known)


# Jobs for another process, and its results, as values that can be pickled.


@dataclass(frozen=True)
class Order:
    """Jobs that are trained together, and where."""

    jobs: Sequence[Mapping[str, Any]]
    user_classes: Sequence[UserClass]
    roots: Sequence[Path]
    device: str
    executor: str

    @classmethod
    def of(cls, jobs: Sequence[Job], roots: Sequence[Path], device: str, executor: str) -> Order:
        users = tuple(of_run(jobs[0].named, jobs[0].spec))
        sent = [
            {
                "run": job.spec.to_dict(),
                "named": job.named,
                "overrides": dict(job.overrides),
                "replaces": job.replaces,
                "keep": job.keep,
            }
            for job in jobs
        ]
        return cls(sent, users, [root.absolute() for root in roots], device, executor)

    def opened(self) -> list[Job]:
        """Create the jobs in this process. Raises FedbenchError if a user's file does not load here, or if a job would
        have another run id here."""
        from fedbench.engine.job import Job

        users = {one.kind: one.taken() for one in self.user_classes}
        jobs = []
        for one in self.jobs:
            spec = RunSpec.shared(one["run"])
            job = Job.of(spec.setting, users.get("method", one["named"]), one["overrides"])
            if job.spec.id != spec.id:
                raise FedbenchError(
                    f"run {spec.id} would be {job.spec.id} for the worker", "its fedbench is not that of the driver"
                )
            jobs.append(replace(job, replaces=one["replaces"], keep=one["keep"]))
        return jobs


@dataclass(frozen=True)
class Result:
    """The result of an order."""

    process: str  #: id of the worker process
    ids: Sequence[str] = ()  #: of the runs that are now in the store
    error: Exception | None = None

    def checked(self) -> Result:
        """Return the result, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


def executed(order: Order, store: Store, observe: Callable[[Progress], None], **more: Any) -> Result:
    """Train the runs of an order in this process and compute their metrics. All exceptions are returned in the result;
    an interrupt is returned as core.trainer.Interrupted."""
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
    """The exception with the worker's traceback as a note; a RuntimeError with its text if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
