"""Execute a run here: load its inputs, train it under a claim, write its artifact."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import methods, models
from fedbench.core.who import UNSEEN
from fedbench.declaration import of_class
from fedbench.engine.training import prepared, write
from fedbench.errors import FedbenchError, unknown
from fedbench.files import disk_errors, read_json, write_json
from fedbench.imports import closure
from fedbench.plugins.load import statements
from fedbench.plugins.mistakes import reported
from fedbench.specs import RunSpec, Setting
from fedbench.store import CHECKPOINT, Artifact, Store
from fedbench.store.provenance import fingerprint, libraries

if TYPE_CHECKING:
    import torch

    from fedbench.core.trainer import Progress
    from fedbench.methods.base import Method


@dataclass(frozen=True)
class Job:
    """A run to be made: its spec, its method, and the hyper-parameters that are not at their defaults."""

    spec: RunSpec
    method: Method
    overrides: Mapping[str, Any]
    #: With `--again`: digest of the artifact that this run is to take the place of ("": of none), while inputs that
    #: older code made are drawn anew. It stays until the new one is done; one of another digest is somebody else's.
    replaces: str | None = None

    def done(self, store: Store) -> Artifact | None:
        """The run as it is in the store, if it need not be made."""
        artifact = store.get(self.spec)
        return None if artifact is not None and artifact.digest == self.replaces else artifact

    @classmethod
    def of(cls, setting: Setting, name: str, overrides: Mapping[str, Any]) -> Job:
        """The job of a method (by name, or FILE.py:Class) with these hyper-parameters in a setting.

        Raises FedbenchError for an unknown method, hyper-parameter or model, a value out of range, and a setting
        that the method does not fit.
        """
        models.check(setting.model)
        kind, source = methods.load(name)
        with reported():
            method = kind.create(overrides)
            method.check_setting(setting)
        if setting.partition.newcomers and UNSEEN not in kind.serves:
            raise FedbenchError(
                f"{kind.name} has no procedure for clients that did not train",
                "take a partition without newcomers, or a method like fedavgft, fedbabu, fedpac or pfedfda",
            )
        if setting.votes and not kind.takes_votes:
            raise FedbenchError(
                f"{kind.name} answers with several models at once, so its clients cannot vote",
                "take a protocol without votes, such as flux or pfedfda",
            )
        declared = of_class(kind, source)
        spec = declared.run(setting, overrides)
        return cls(spec, method, declared.differing(spec.params))

    @property
    def parts(self) -> list[str]:
        """The files of the package that this run's numbers depend on. (A user's own are part of its identity.)"""
        method = (methods.file_of(self.spec.method),) if self.spec.source is None else ()
        model, imported = models.code_of(self.spec.setting.model)
        own = (*statements(type(self.method)), *imported)
        return closure("engine/training.py", *model, *method, statements=own)

    @property
    def code(self) -> str:
        """Fingerprint of that code and of the libraries that compute."""
        return (
            fingerprint(*self.parts) + " " + " ".join(f"{k} {libraries().get(k)}" for k in ("torch", "numpy", "scipy"))
        )


DEVICES = ("auto", "cpu", "cuda")


def check_place(device: str, executor: str, precision: str) -> None:
    """Raise FedbenchError unless this machine has the device, it can compute so, and there is such an executor."""
    place = choose_device(device)
    from fedbench.core import precision as precisions
    from fedbench.core.executors import EXECUTORS

    precisions.check(precision, place)
    if executor not in ("auto", *EXECUTORS):
        raise unknown("executor", executor, ("auto", *EXECUTORS))


def saved_round(job: Job, store: Store) -> int:
    """The round after which a restart of the run goes on; 0 if it would begin anew."""
    try:
        saved = read_json(store.work(job.spec.id) / CHECKPOINT)
    except FileNotFoundError:
        return 0
    round = saved.get("round")
    return round if isinstance(round, int) and saved.get("code") == job.code else 0


def choose_device(name: str) -> torch.device:
    """'auto' (a GPU if there is one), 'cpu' or 'cuda'."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise FedbenchError("no CUDA device here", "use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def execute(
    job: Job,
    store: Store,
    roots: list[Path],
    *,
    device: str = "auto",
    executor: str = "auto",
    observe: Callable[[Progress], None] = lambda _: None,
) -> Artifact:
    """Make the run and return its artifact, or return it as it is there.

    Raises FedbenchError on bad input, claim.HeldError if another process holds the run, core.trainer.Interrupted on
    Ctrl-C. A failure is recorded with its reason and log.
    """
    done = job.done(store)
    if done is not None:
        return done
    check_place(device, executor, job.spec.setting.precision)
    from fedbench.core.precision import arithmetic

    with store.claim(job.spec.id) as claim:
        done = job.done(store)  # finished by another process just now
        if done is not None:
            return done
        announce(job, store)

        def heard(progress: Progress) -> None:
            claim.beat()
            observe(progress)

        try:
            place = choose_device(device)
            precision = job.spec.setting.precision
            with (
                reported(),
                arithmetic(precision, place),
                prepared([job], [claim], store, roots, place, executor) as ready,
            ):
                ready.trainers[0].run(heard)
                artifact = write(job, store, ready.trainers[0], ready.how)
        except BaseException as error:
            if claim.held():
                _record(job, store, error)
                tidy(job, store)
            raise
        if claim.held():  # or else another process works there now
            clear(job, store)
    return artifact


def announce(job: Job, store: Store) -> None:
    """Say in the run's work folder which run is under way."""
    folder = store.work(job.spec.id)
    with disk_errors("starting a run", folder):
        write_json(folder / "spec.json", {"run": job.spec.to_dict(), "overrides": dict(job.overrides)})


def clear(job: Job, store: Store) -> None:
    """Forget how a run that is complete came about."""
    folder = store.work(job.spec.id)
    (folder / CHECKPOINT).unlink(missing_ok=True)  # before what it lists: killed in between, it would seem damaged
    shutil.rmtree(folder, ignore_errors=True)
    store.forget_failure(job.spec.id)


def tidy(job: Job, store: Store) -> None:
    """Keep the folder of a run that stopped only for a checkpoint."""
    folder = store.work(job.spec.id)
    if not (folder / CHECKPOINT).exists():
        for path in folder.iterdir():
            if path.name != "claim.json":
                path.unlink(missing_ok=True)


def _record(job: Job, store: Store, error: BaseException) -> None:
    """Record why the run failed; an interrupt is no failure."""
    from fedbench.core.trainer import Interrupted

    if isinstance(error, Exception) and not isinstance(error, Interrupted):
        reason = str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"
        told = {"spec": job.spec.to_dict(), "overrides": dict(job.overrides)}
        with contextlib.suppress(FedbenchError):  # a full disk: what is raised already says so
            store.record_failure(job.spec.id, reason, "".join(traceback.format_exception(error)), **told)
