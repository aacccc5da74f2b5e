"""A job: what one run is made from."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbench import methods, models
from fedbench.core.client import UNSEEN
from fedbench.declaration import of_class
from fedbench.engine import keep as keeping
from fedbench.errors import DivergedError, FedbenchError, reason
from fedbench.files import disk_errors, read_json, write_json
from fedbench.imports import closure
from fedbench.partitions import schemes
from fedbench.plugins import reported
from fedbench.plugins.load import statements
from fedbench.specs import RunSpec, Setting
from fedbench.store import CHECKPOINT, Artifact, Store
from fedbench.store.folder import SPEC
from fedbench.store.provenance import fingerprint, libraries, other_code
from fedbench.words import option_of

if TYPE_CHECKING:
    from fedbench.methods.base import Method
    from fedbench.protocol import Protocol


@dataclass(frozen=True)
class Job:
    """A run to be made: its spec, its method, and the hyper-parameters that are not at their defaults."""

    spec: RunSpec
    method: Method
    overrides: Mapping[str, Any]
    #: With `--again`: digest of the artifact that this run is to take the place of ("": of none), while inputs of other
    #: code are drawn anew. It stays until the new one is done; one of another digest is somebody else's.
    replaces: str | None = None
    #: What the run keeps beyond its predictions (engine/keep.py); no part of its id.
    keep: frozenset[str] = frozenset()
    #: The method as the user named it: its name, or FILE.py:Class.
    named: str = ""

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
        if setting.partition.unseen and UNSEEN not in kind.serves:
            raise FedbenchError(
                f"{kind.name} has no procedure for clients that did not train",
                "take a partition without unseen clients, or a method like fedavgft, fedbabu, fedpac or pfedfda",
            )
        if setting.votes and not kind.takes_votes:
            raise FedbenchError(
                f"{kind.name} answers with several models at once, so its clients cannot vote",
                "take a protocol without votes, such as flux or pfedfda",
            )
        declared = of_class(kind, source)
        spec = declared.run(setting, overrides)
        return cls(spec, method, declared.differing(spec.params), named=name)

    @classmethod
    def of_spec(cls, spec: RunSpec, hint: str = "") -> Job:
        """The job that makes a run of fedbench's own method again. Raises FedbenchError, which ends in the hint, if
        today's code would make another run."""
        job = cls.of(spec.setting, spec.method, spec.params)
        if job.spec.id != spec.id:
            raise FedbenchError(f"run {spec.id} is of another version of {spec.method} than this fedbench has", hint)
        return job

    @classmethod
    def under(cls, rules: Protocol, budget: str, setting: Setting, name: str, own: Mapping[str, Any]) -> Job:
        """The job of a method under a protocol's budget: with what the protocol sets for the method, and over it those
        of these hyper-parameters that the method has. An error about a value that none of these gave says whose it is.
        """
        kind, _ = methods.load(name)
        usual = rules.method_params(kind.name, budget, setting.partition.dataset.name)
        named = {k: v for k, v in own.items() if k in kind.hyperparameters()}
        try:
            return cls.of(setting, name, {**usual, **named})
        except FedbenchError as error:  # about a value that nobody gave, perhaps
            unsaid = {option_of(k): k for k in kind.hyperparameters() if k not in named}
            option = error.message.partition(" ")[0]
            if option not in unsaid:
                raise
            whose = f"protocol {rules.name}'s, budget {budget}" if unsaid[option] in usual else f"{kind.name}'s default"
            raise FedbenchError(f"{error.message} ({whose})", error.hint or f"give {option}") from error

    def again(self, store: Store, *, only_changed: bool = False) -> Job:
        """The job that takes the place of the run in the store (if `only_changed`, of one that other code made or
        that lacks what this keeps), and keeps what that has kept."""
        before = store.get(self.spec)
        if before is None or (only_changed and not other_code(before.provenance) and self.keep <= keeping.of(before)):
            return replace(self, replaces="")
        return replace(self, replaces=before.digest, keep=self.keep | keeping.of(before))

    def done(self, store: Store) -> Artifact | None:
        """The run as it is in the store, if it need not be made."""
        artifact = store.get(self.spec)
        return None if artifact is not None and artifact.digest == self.replaces else artifact

    def check_kept(self, store: Store) -> None:
        """Raise FedbenchError if the run need not be made and lacks what it is to keep."""
        if self.keep and (there := self.done(store)) is not None:
            keeping.require(there, self.keep)

    @property
    def parts(self) -> list[str]:
        """The files of the package that this run's numbers depend on. (A user's own are part of its identity.)"""
        method = (methods.file_of(self.spec.method),) if self.spec.source is None else ()
        model, imported = models.code_of(self.spec.setting.model)
        scheme = schemes.code_of(self.spec.setting.partition.scheme)
        own = (*statements(type(self.method)), *imported)
        return closure("engine/training.py", *model, *method, *scheme, statements=own)

    @property
    def code(self) -> str:
        """Fingerprint of that code and of the libraries that compute."""
        versions = [f"{name} {libraries().get(name)}" for name in ("torch", "numpy", "scipy")]
        return " ".join([fingerprint(*self.parts), *versions])


# -- work ------------------------------------------------------------------------------------------------------
# The folder of a run under way: which run it is, how far it has come, and why it failed.


def announce(job: Job, store: Store) -> None:
    """Say in the run's work folder which run is under way."""
    folder = store.work(job.spec.id)
    with disk_errors("starting a run", folder):
        write_json(folder / SPEC, {"run": job.spec.to_dict(), **_wishes(job)})


def _wishes(job: Job) -> dict[str, Any]:
    """What else of a job is recorded with its spec."""
    return {"overrides": dict(job.overrides), "keep": sorted(job.keep)}


def saved_round(job: Job, store: Store) -> int:
    """The round after which a restart of the run goes on; 0 if it would begin anew."""
    try:
        saved = read_json(store.work(job.spec.id) / CHECKPOINT)
    except FileNotFoundError:
        return 0
    round = saved.get("round")
    return round if isinstance(round, int) and saved.get("code") == job.code else 0


def leave(job: Job, store: Store) -> None:
    """Leave of the work folder what is of further use: nothing of a run that is complete, else a checkpoint."""
    folder = store.work(job.spec.id)
    if job.done(store) is not None:
        (folder / CHECKPOINT).unlink(missing_ok=True)  # before what it lists: killed in between, it would seem damaged
        shutil.rmtree(folder, ignore_errors=True)
        store.forget_failure(job.spec.id)
    elif not (folder / CHECKPOINT).exists():
        for path in folder.iterdir():
            if path.name != "claim.json":
                path.unlink(missing_ok=True)


def record_failure(job: Job, store: Store, error: Exception) -> None:
    """Record why the run failed."""
    run = {"spec": job.spec.to_dict(), "diverged": isinstance(error, DivergedError), **_wishes(job)}
    with contextlib.suppress(FedbenchError):  # a full disk: what is raised already says so
        store.record_failure(job.spec.id, reason(error), "".join(traceback.format_exception(error)), **run)
