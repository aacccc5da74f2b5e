"""A job: everything that is needed to train one run."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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
from fedbench.plugins.source import read
from fedbench.resources import PAPERS
from fedbench.results.own_code import NONE, Code, parts
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
    """A run to train: its spec, its method, and the hyper-parameters that differ from their defaults (`overrides`)."""

    spec: RunSpec
    method: Method
    overrides: Mapping[str, Any]
    #: Set by `--again`: digest of the artifact that this run replaces ("" if there is none). The old artifact stays
    #: until the new one is complete. If this is not None, images and partitions of other code are also made again.
    replaces: str | None = None
    #: What the run stores besides its predictions (engine/keep.py); not part of its id.
    keep: frozenset[str] = frozenset()
    #: The method as the user named it: its name, or FILE.py:Class.
    named: str = ""
    #: Lines on values of the protocol that the setting does not allow, in place of which are the method's defaults.
    set_aside: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, setting: Setting, name: str, overrides: Mapping[str, Any]) -> Job:
        """Create the job of a method (name, or FILE.py:Class) with these hyper-parameters in a setting.

        Raises FedbenchError for an unknown method, hyper-parameter or model, a value out of range, and a setting
        that the method does not support.
        """
        models.check(setting.model)
        kind, source = methods.load(name)
        with reported():
            method = kind.create(overrides)
            method.check_setting(setting)
        if setting.partition.unseen and UNSEEN not in kind.serves:
            raise FedbenchError(
                f"{kind.name} has no procedure for clients that did not train",
                "take a partition without unseen clients, or a method of 'fedbench methods --serves unseen'",
            )
        if setting.votes and not kind.takes_votes:
            raise FedbenchError(
                f"{kind.name} answers with several models at once, so its clients cannot vote",
                "take a protocol without votes, such as flux or pfedfda",
            )
        if setting.weighting and not method.streams:
            raise FedbenchError(
                f"{kind.name} weights clients by its own rule and does not accept --weighting {setting.weighting}",
                "leave it out, or choose a method that averages as FedAvg does",
            )
        declared = of_class(kind, source)
        spec = declared.run(setting, overrides)
        return cls(spec, method, declared.differing(spec.params), named=name)

    @classmethod
    def of_spec(cls, spec: RunSpec, hint: str = "", code: Code = NONE) -> Job:
        """Create the job that repeats a run; users' code comes from the files in `code`. Raises FedbenchError if a file
        is not there, and with this hint if the current code would train a run with another id."""
        if why := code.lacks(spec):
            raise FedbenchError(
                f"run {spec.id} cannot be made again: {why}", f"name the folder of a paper that has it in {PAPERS}"
            )
        method = spec.method
        for part in parts(spec):
            file = code.file(part)
            if part.what == "method":
                method = _method_in(file, part.name) if file else method
            else:
                (models if part.what == "network" else schemes).named(f"{file}:{part.name}")
        job = cls.of(spec.setting, method, spec.params)
        if job.spec.id != spec.id:
            raise FedbenchError(f"run {spec.id} is of another version of {spec.method} than this fedbench has", hint)
        return job

    @classmethod
    def under(cls, rules: Protocol, budget: str, setting: Setting, name: str, own: Mapping[str, Any]) -> Job:
        """Create the job of a method under a protocol's budget. Values in `own` override the protocol's for the method;
        names that are not its hyper-parameters are ignored. A value of the protocol that the setting does not allow is
        set aside (`set_aside`). The error about an invalid default of the method says that it is one."""
        kind, _ = methods.load(name)
        usual = dict(rules.method_params(kind.name, budget, setting.partition.dataset.name))
        named = {k: v for k, v in own.items() if k in kind.hyperparameters()}
        unsaid = {option_of(k): k for k in kind.hyperparameters() if k not in named}
        set_aside: list[str] = []
        while True:
            try:
                return replace(cls.of(setting, name, {**usual, **named}), set_aside=tuple(set_aside))
            except FedbenchError as error:
                option = error.message.partition(" ")[0]
                if option not in unsaid:
                    raise
                if unsaid[option] not in usual:
                    line = f"{error.message} ({kind.name}'s default)"
                    raise FedbenchError(line, error.hint or f"give {option}") from error
                del usual[unsaid[option]]
                whose = f"protocol {rules.name}'s value is set aside"
                set_aside.append(f"{whose}: {error.message}; the method's default holds")

    def again(self, store: Store, *, only_changed: bool = False) -> Job:
        """Return the job that replaces the stored run and stores at least the same extras (`keep`). If `only_changed`,
        it replaces the run only if other code made it or if an extra of this job is missing there."""
        before = store.get(self.spec)
        if before is None or (only_changed and not other_code(before.provenance) and self.keep <= keeping.of(before)):
            return replace(self, replaces="")
        return replace(self, replaces=before.digest, keep=self.keep | keeping.of(before))

    def done(self, store: Store) -> Artifact | None:
        """The stored run if it need not be trained, else None."""
        artifact = store.get(self.spec)
        return None if artifact is not None and artifact.digest == self.replaces else artifact

    def check_kept(self, store: Store) -> None:
        """Raise FedbenchError if the run need not be trained but lacks an extra in `keep`."""
        if self.keep and (there := self.done(store)) is not None:
            keeping.require(there)

    @property
    def parts(self) -> list[str]:
        """The files of the package that this run's numbers depend on. (User files are part of the run's id instead.)"""
        method = (methods.file_of(self.spec.method),) if self.spec.source is None else ()
        model, imported = models.code_of(self.spec.setting.model)
        scheme = schemes.code_of(self.spec.setting.partition.scheme)
        own = (*statements(type(self.method)), *imported)
        return closure("engine/training.py", *model, *method, *scheme, statements=own)

    @property
    def code(self) -> str:
        """Fingerprint of `parts`, and the versions of torch, NumPy and SciPy."""
        versions = [f"{name} {libraries().get(name)}" for name in ("torch", "numpy", "scipy")]
        return " ".join([fingerprint(*self.parts), *versions])


# The work folder of an unfinished run: its spec, its checkpoint, and why it failed.


def announce(job: Job, store: Store) -> None:
    """Write the spec of the run into its work folder, where `fedbench status` reads it."""
    folder = store.work(job.spec.id)
    with disk_errors("starting a run", folder):
        write_json(folder / SPEC, {"run": job.spec.to_dict(), **_recorded_fields(job)})


def _recorded_fields(job: Job) -> dict[str, Any]:
    """The fields of a job that are recorded with its spec."""
    return {"overrides": dict(job.overrides), "keep": sorted(job.keep)}


def saved_round(job: Job, store: Store) -> int:
    """The round after which the run would resume; 0 if it would start from the beginning."""
    try:
        saved = read_json(store.work(job.spec.id) / CHECKPOINT)
    except FileNotFoundError:
        return 0
    round = saved.get("round")
    return round if isinstance(round, int) and saved.get("code") == job.code else 0


def leave(job: Job, store: Store) -> None:
    """Clean up the work folder: delete it if the run is complete; if it has no checkpoint, delete all but the claim."""
    folder = store.work(job.spec.id)
    if job.done(store) is not None:
        (folder / CHECKPOINT).unlink(missing_ok=True)  # first: a checkpoint without its files would look damaged
        shutil.rmtree(folder, ignore_errors=True)
        store.forget_failure(job.spec.id)
    elif not (folder / CHECKPOINT).exists():
        for path in folder.iterdir():
            if path.name != "claim.json":
                path.unlink(missing_ok=True)


def record_failure(job: Job, store: Store, error: Exception) -> None:
    """Record why the run failed."""
    run = {"spec": job.spec.to_dict(), "diverged": isinstance(error, DivergedError), **_recorded_fields(job)}
    with contextlib.suppress(FedbenchError):  # a full disk, which the error raised already reports
        store.record_failure(job.spec.id, reason(error), "".join(traceback.format_exception(error)), **run)


def _method_in(file: Path, name: str) -> str:
    """The method of this name in a user's file, as FILE.py:Class. Raises FedbenchError if none is called so."""
    for cls in sorted(read(file).classes()):
        with contextlib.suppress(FedbenchError):
            if methods.load(f"{file}:{cls}")[0].name == name:
                return f"{file}:{cls}"
    raise FedbenchError(f"{file} has no method called {name}")
