"""Messages between driver and worker processes: orders of runs, their results, and users' files."""

from __future__ import annotations

import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.files import process, write_whole
from fedbench.models import registry as networks
from fedbench.partitions import schemes
from fedbench.plugins.load import Plugin, is_file, place, read
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.store import Store


# -- users' classes --------------------------------------------------------------------------------------------
# Users' files for another process: their paths here, and their contents for a machine that does not have them.


@dataclass(frozen=True)
class UserClass:
    """A user's class; `kind`: "method", "network" or "partitioner"."""

    kind: str
    file: Path
    name: str | None
    digest: str  #: of the file and of the files that it imports from its folder
    texts: Mapping[str, bytes]  #: relative path -> content of these files

    @classmethod
    def of(cls, kind: str, file: Path, name: str | None, plugin: Plugin) -> UserClass:
        modules = [one for one in plugin.modules.values() if one.file.is_file()]
        texts = {one.file.relative_to(file.parent).as_posix(): one.text for one in modules}
        return cls(kind, file, name, plugin.digest, texts)

    def reference(self) -> str:
        """FILE.py:Class on this machine: the user's file if it exists here with the same content, else a copy.

        Raises FedbenchError if the copy cannot be written.
        """
        file = self.file
        if not file.is_file() or read(file).digest != self.digest:
            try:
                folder = Path(_copies().name) / self.digest
                for place, text in self.texts.items():
                    path = folder / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if not path.exists():
                        write_whole(path, text)
            except OSError as error:
                where = tempfile.gettempdir()
                raise FedbenchError(f"cannot copy {file.name} into {where} ({error.strerror})", "set TMPDIR") from error
            file = folder / self.file.name
        return f"{file}:{self.name}" if self.name else str(file)


@cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """A private folder of this process, deleted at its end. It must be private, because code from it is executed."""
    return tempfile.TemporaryDirectory(prefix="fedbench-own-")


def of_run(method: str, spec: RunSpec) -> Iterator[UserClass]:
    """The users' classes that a run needs; `method`: a name, or FILE.py:Class. A partitioner is left out if its file is
    missing: the stored partition is then used."""
    if is_file(method):
        at = place(method, "method")
        yield UserClass.of("method", at.file, at.name, read(at.file))
    if networks.is_plugin(model := spec.setting.model):
        at, source = networks.known(model)
        yield UserClass.of("network", at.file, at.name, source)
    if (known := schemes.file_of(spec.setting.partition.scheme)) is not None:
        at, source = known
        yield UserClass.of("partitioner", at.file, at.name, source)


def of_runs(runs: Iterable[tuple[str, RunSpec]]) -> list[UserClass]:
    """The distinct users' classes of several runs."""
    return list({(one.kind, one.digest, one.name): one for run in runs for one in of_run(*run)}.values())


def loaded_here(user_class: UserClass) -> str:
    """Load a user's class in this process, and return its FILE.py:Class on this machine.

    Raises FedbenchError if the file does not load here.
    """
    reference = user_class.reference()
    if user_class.kind == "method":
        from fedbench import methods

        methods.load(reference)
        return reference
    name = networks.own_name(reference) if user_class.kind == "network" else schemes.named(reference)
    if user_class.kind == "network":
        networks.own_class(name)
    else:
        schemes.load(name)
    return reference


# -- order -----------------------------------------------------------------------------------------------------
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
        files = tuple(of_run(jobs[0].named, jobs[0].spec))
        sent = [
            {"run": job.spec.to_dict(), "named": job.named, "overrides": dict(job.overrides),
             "replaces": job.replaces, "keep": job.keep}
            for job in jobs
        ]  # fmt: skip
        return cls(sent, files, [root.absolute() for root in roots], device, executor)

    def opened(self) -> list[Job]:
        """Create the jobs in this process. Raises FedbenchError if a user's file does not load here, or if a job would
        have another run id here."""
        from fedbench.engine.job import Job

        places = {one.kind: loaded_here(one) for one in self.user_classes}
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
