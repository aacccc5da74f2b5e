"""A store: a folder of artifacts, of runs in progress, and of the current partition, protocol and run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import abandoned, alone, disk_errors, erase, read_json, scratch, scratched, write_json
from fedbench.options import checked
from fedbench.specs import SCHEMA, SPECS, Spec
from fedbench.store.artifact import MANIFEST, Artifact, DamagedError, opened
from fedbench.store.claim import Hold, hold, holder
from fedbench.store.provenance import MADE_FROM, code_of, origin, other_code
from fedbench.store.writing import ASIDE, REMOVED, Writer, flush, placing, restored
from fedbench.words import path_of

KINDS = tuple(SPECS)
#: Files of a work folder: the run's spec, its progress, and the checkpoint from which a restart continues.
SPEC, PROGRESS, CHECKPOINT = "spec.json", "progress.json", "checkpoint.json"
#: The file in a store that says its schema.
MARKER = "store.json"


def default_home() -> Path:
    """FEDBENCH_HOME, else ~/.fedbench."""
    return path_of(os.environ.get("FEDBENCH_HOME") or "~/.fedbench", "FEDBENCH_HOME")


def schema_of(home: Path) -> int | None:
    """The schema of the store in this folder; None if there is no store. Raises FedbenchError for a newer one."""
    try:
        schema = read_json(home / MARKER).get("schema", 0)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(schema, int):
        raise FedbenchError(f"{home / MARKER} is damaged (schema {schema!r})", "delete that file")
    if schema > SCHEMA:
        raise FedbenchError(
            f"the store {home} was written by a newer fedbench (schema {schema}, this one reads {SCHEMA})",
            "upgrade fedbench or choose another --home",
        )
    return schema


class Store:
    """A folder of artifacts shared by any number of processes."""

    @checked
    def __init__(self, home: Path | str | None = None) -> None:
        # Absolute, since Arrow reads a path that begins with "word:" as a server's address.
        self.home = (default_home() if home is None else path_of(str(home), "store")).absolute()
        if (schema_of(self.home) or SCHEMA) < SCHEMA:
            raise FedbenchError(
                f"the store {self.home} was written by an older fedbench (schema {schema_of(self.home)}, now {SCHEMA})",
                "'fedbench store upgrade' upgrades it in seconds",
            )

    def prepare(self) -> None:
        """Create the store's folder and marker if missing."""
        with disk_errors("preparing the store", self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            if not (self.home / MARKER).exists():
                write_json(self.home / MARKER, {"schema": SCHEMA})

    def path(self, kind: str, id: str) -> Path:
        return self.home / kind / id

    def has(self, spec: Spec) -> bool:
        return (self.path(spec.kind, spec.id) / MANIFEST).exists() or restored(self.home, self.path(spec.kind, spec.id))

    def get(self, spec: Spec) -> Artifact | None:
        """The artifact of a spec, or None if it does not exist."""
        return self.open(spec.kind, spec.id) if self.has(spec) else None

    def whole(self, spec: Spec) -> Artifact | None:
        """The artifact of a spec, or None if it does not exist or is damaged."""
        try:
            return self.get(spec)
        except DamagedError:
            return None

    def open(self, kind: str, id: str) -> Artifact:
        """The artifact of this kind and id. Raises FedbenchError if it is missing or has a newer schema, DamagedError
        if it was altered."""
        path = self.path(kind, id)
        if not path.exists():
            restored(self.home, path)
        return opened(path, kind, id)

    def list(self, kind: str) -> Iterator[Artifact]:
        """All complete artifacts of a kind, oldest first."""
        return (artifact for artifact in self.scan(kind) if isinstance(artifact, Artifact))

    def scan(self, kind: str) -> Iterator[Artifact | FedbenchError]:
        """All artifacts of a kind, oldest first, with an error in place of each damaged or unreadable one."""
        folder = self.home / kind
        for name in _names(folder):
            if name.startswith(".") and (aside := scratched(folder / name, ASIDE)):
                restored(self.home, folder / aside)
        artifacts = (name for name in _names(folder) if not name.startswith("."))
        for name in sorted(artifacts, key=partial(_age, f"{folder}")):
            try:
                yield self.open(kind, name)
            except FedbenchError as error:
                if (folder / name).exists():  # else another process has removed it
                    yield error

    def locate(self, prefix: str, kinds: tuple[str, ...] = KINDS) -> tuple[str, str]:
        """Kind and id of the artifact, damaged or not, whose id starts with `prefix`. Raises FedbenchError for none or
        more than one."""
        hits = [
            (kind, path.name)
            for kind in kinds
            if (self.home / kind).is_dir()
            for path in (self.home / kind).iterdir()
            if path.name.startswith(prefix) and not path.name.startswith(".")
        ]
        what = " or ".join(kinds)
        if not prefix or not hits:
            raise FedbenchError(
                f"no {what} '{prefix}' in {self.home}", "'fedbench list' shows the contents of the store"
            )
        if len(hits) > 1:
            raise FedbenchError(f"'{prefix}' is ambiguous: {', '.join(f'{k} {i}' for k, i in sorted(hits))}")
        return hits[0]

    def find(self, prefix: str, kinds: tuple[str, ...] = KINDS) -> Artifact:
        """The artifact whose id starts with `prefix`. Raises FedbenchError as `locate` and `open` do."""
        return self.open(*self.locate(prefix, kinds))

    @contextlib.contextmanager
    def writing(
        self, spec: Spec, inputs: Mapping[str, str] | None = None, replaces: str | None = None
    ) -> Iterator[Writer]:
        """Make the artifact of `spec`: fill the writer inside the block; on a clean exit the artifact exists.

        An existing artifact of this spec stays (same spec, same bytes; another process may have finished it meanwhile),
        unless its digest is `replaces`: then the new one replaces it as soon as it is complete.
        """
        self.prepare()
        with placing(self.home, spec.kind, spec.id, replaces) as folder:
            writer = Writer(folder, spec, inputs or {})
            yield writer
            writer.finish()

    def take_in(self, kind: str, id: str, files: Mapping[str, bytes], replaces: str | None = None) -> None:
        """Add an artifact of another store: `files` maps names to contents, manifest included. An existing artifact
        stays, as in `writing`.

        Raises DamagedError unless the files match their manifest.
        """
        self.prepare()
        with placing(self.home, kind, id, replaces) as folder:
            for name, content in files.items():
                path = folder / Path(name).name
                path.write_bytes(content)
                flush(path)
            arrived = opened(folder, kind, id)
            for name in arrived.manifest["files"]:
                arrived.file(name)

    def remove(self, kind: str, id: str) -> None:
        """Delete an artifact, damaged or not. Artifacts made from it stay. Raises FedbenchError if it is missing."""
        final = self.path(kind, id)
        hidden = scratch(final, REMOVED)
        with disk_errors(f"removing {kind} {id}", self.home):
            try:
                with alone(self.home):
                    final.rename(hidden)
            except FileNotFoundError:
                raise FedbenchError(f"no {kind} {id} in {self.home}", "another process has just removed it") from None
            erase(hidden)

    def clean(self) -> tuple[Path, ...]:
        """Delete temporary files and folders of ended processes and return their paths; artifacts, checkpoints and
        downloads stay."""
        deleted: tuple[Path, ...] = ()
        for kind in KINDS:
            for _ in self.scan(kind):  # restores artifacts that were set aside
                pass
        folders = (self.home, *(self.home / name for name in (*KINDS, "failed", "work")), *self.home.glob("work/*"))
        for path in (path for folder in folders if folder.is_dir() for path in folder.glob(".*")):
            if abandoned(path):
                erase(path)
                deleted += (path,)
        for path in self.home.glob("work/*"):
            if path.is_dir() and self._over(path) and holder(path) is None:
                erase(path)
                deleted += (path,)
        return deleted

    def _over(self, work: Path) -> bool:
        """Whether a work folder is obsolete: it has no checkpoint, or the run's artifact is newer."""
        try:
            saved = (work / CHECKPOINT).stat().st_mtime_ns
            return (self.path("run", work.name) / MANIFEST).stat().st_mtime_ns > saved
        except OSError:
            return not (work / CHECKPOINT).exists()

    @property
    def current(self) -> dict[str, str]:
        path = self.home / "current.json"
        try:
            values = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        if not all(isinstance(value, str) for value in values.values()):
            raise FedbenchError(f"{path} is damaged (its values must be texts)", "delete that file")
        return values

    def set_current(self, **values: str) -> None:
        """Make these the current partition, protocol or run."""
        self.prepare()
        with disk_errors("noting the current partition", self.home), alone(self.home):
            write_json(self.home / "current.json", {**self.current, **values})

    def forget_current(self, *names: str) -> None:
        """Unset these of the current partition, protocol or run."""
        if self.current.keys() & set(names):
            with disk_errors("noting the current partition", self.home), alone(self.home):
                write_json(self.home / "current.json", {k: v for k, v in self.current.items() if k not in names})

    def work(self, id: str) -> Path:
        """The folder of a run in progress (checkpoint, claim)."""
        return self.home / "work" / id

    def claimed(self, id: str) -> dict[str, Any] | None:
        """The process that holds this run (host, pid, age of the heartbeat in seconds), or None."""
        return holder(self.work(id))

    @contextlib.contextmanager
    def claim(self, id: str) -> Iterator[Hold]:
        """Hold the run `id` for this process. Raises HeldError if another process holds it."""
        self.prepare()
        with hold(self.work(id), f"run {id}") as claim:
            yield claim

    def record_failure(self, id: str, reason: str, log: str, **what: Any) -> Path:
        """Record why a run failed (`what`: its spec and overrides) and return the file's path. It is no result."""
        folder = self.home / "failed"
        with disk_errors("recording a failure", self.home):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{id}.json", {"reason": reason, "log": log, "time": time.time(), **what})
        return folder / f"{id}.json"

    def failed_step(self, id: str) -> Path:
        """The file with the step at which a client failed (core/failed_step.py), written by commands with --debug."""
        return self.home / "failed" / f"{id}.pt"

    def forget_failure(self, id: str) -> None:
        for path in (self.home / "failed" / f"{id}.json", self.failed_step(id)):
            path.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    """Names of a folder's entries; empty if the folder does not exist."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _age(folder: str, name: str) -> tuple[int, str]:
    """Sort key of artifacts: the time when they were made (0 without manifest), then the name."""
    try:
        return os.stat(f"{folder}/{name}/{MANIFEST}").st_mtime_ns, name
    except OSError:
        return 0, name


@dataclass(frozen=True)
class Contents:
    """The contents of a new artifact."""

    write: Callable[[Writer], None]
    made_from: Mapping[str, Artifact]  #: name in the provenance -> artifact
    inputs: Mapping[str, str] = field(default_factory=dict)  #: ids that the manifest and every table record


def artifact_of(
    spec: Spec, store: Store, code: Sequence[str], make: Callable[[], Contents], again: bool = False
) -> Artifact:
    """The artifact of `spec`: `make` gives its contents if the store lacks it, or (`again`) if other code made it.

    `code`: the files of the package that make it, such as "data/build.py". A failed attempt leaves nothing behind.
    """
    before = store.get(spec)
    if before is not None and not (again and other_code(before.provenance)):
        return before
    made_by = code_of(*code)  # before `make`, since the code may change meanwhile
    contents = make()
    with store.writing(spec, contents.inputs, replaces=before.digest if before else None) as writer:
        writer.provenance |= {
            **made_by,
            MADE_FROM: {name: origin(source) for name, source in contents.made_from.items()},
        }
        contents.write(writer)
    return store.open(spec.kind, spec.id)
