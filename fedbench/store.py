"""Artifacts on disk: written once, atomic, verified, listed, and claimed by one worker at a time.

Layout of a store (its home is --home, else FEDBENCH_HOME, else ~/.fedbench):

    store.json                 schema version
    current.json               which partition and run the next command means
    executors.json             how fast each executor was, by network, shapes and device
    dataset/ID/                an artifact: artifact.json (manifest) and Parquet files
    partition/ID/  run/ID/  metrics/ID/
    work/ID/                   a run under way: claim, checkpoint, log; gone when the run is complete
    failed/ID.json             why a run failed last time
    downloads/                 a data folder that `data fetch` fills

An artifact is built in a hidden folder beside its final place and renamed: existence means complete. The
manifest is sealed (it holds a checksum of itself), its spec must hash to the artifact's id, and it holds the SHA-256
of every file, checked when the file is first read: whatever was altered or truncated is one clear error. What may
differ between two makings of the same artifact (times, machine) stands only in the manifest; the Parquet files of one
spec are the same bytes wherever and however often they are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.claim import Claim, hold, holder
from fedbench.errors import FedbenchError
from fedbench.files import (
    abandoned,
    alone,
    digest,
    disk_errors,
    intact,
    read_json,
    scratch,
    scratched,
    sealed,
    sha256_of,
    write_json,
)
from fedbench.manifest import readable
from fedbench.specs import SCHEMA, SPECS, Spec
from fedbench.words import path_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

KINDS = tuple(SPECS)
MANIFEST = "artifact.json"
#: The file of a work folder that a restart looks for.
CHECKPOINT = "checkpoint.json"
#: Use of a scratch name: an artifact that makes room for its successor.
_ASIDE = "aside"


def default_home() -> Path:
    """FEDBENCH_HOME, else ~/.fedbench."""
    return path_of(os.environ.get("FEDBENCH_HOME") or "~/.fedbench", "FEDBENCH_HOME")


class DamagedError(FedbenchError):
    """An artifact that is there but cannot be trusted."""

    def __init__(self, kind: str, id: str, why: str) -> None:
        super().__init__(f"{kind} {id} is damaged: {why}", f"remove it with 'fedbench remove {id}' and make it again")
        self.kind, self.id, self.why = kind, id, why


@dataclass(frozen=True)
class Artifact:
    """A complete artifact: its manifest and spec, and its Parquet tables on demand."""

    path: Path
    manifest: Mapping[str, Any]
    spec: Spec
    _verified: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @cached_property
    def digest(self) -> str:
        """What tells this making of the artifact from another of the same spec: SHA-256 of its files' checksums."""
        return digest(self.manifest["files"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.manifest["provenance"]  # type: ignore[no-any-return]

    def file(self, name: str) -> Path:
        """Path of one of the artifact's files, verified against the manifest the first time."""
        path = self.path / name
        entry = self.manifest["files"].get(name)
        if entry is None or not path.is_file():
            raise DamagedError(self.kind, self.id, f"it has no file {name}")
        if name not in self._verified:
            if path.stat().st_size != entry["bytes"]:
                why = f"{path} is truncated ({path.stat().st_size} of {entry['bytes']} bytes)"
                raise DamagedError(self.kind, self.id, why)
            if sha256_of(path) != entry["sha256"]:
                why = f"{path} was altered after it was written (checksum differs)"
                raise DamagedError(self.kind, self.id, why)
            self._verified.add(name)
        return path

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Read `name`.parquet (optionally only some columns)."""
        import pyarrow.parquet as pq

        path = self.file(f"{name}.parquet")
        try:
            return pq.read_table(path, columns=columns, memory_map=True)
        except (OSError, ValueError) as error:
            raise FedbenchError(f"cannot read {path} ({next(iter(str(error).splitlines()), '')})") from error

    def frame(self, name: str) -> pd.DataFrame:
        """`table` as a data frame, for a notebook."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame


class Writer:
    """Collects an artifact's files in a hidden folder until `Store.writing` renames it into place."""

    def __init__(self, folder: Path, spec: Spec, inputs: Mapping[str, str]) -> None:
        self.folder, self.spec, self.inputs = folder, spec, inputs
        #: What may differ between two makings: machine, times. Goes into the manifest only.
        self.provenance: dict[str, Any] = {}

    def table(self, name: str, table: pa.Table, compression: str = "zstd") -> None:
        """Add `name`.parquet, with spec, inputs and library versions in its schema metadata."""
        import pyarrow.parquet as pq

        from fedbench.provenance import libraries

        stable = {
            "schema": SCHEMA, "kind": self.spec.kind, "id": self.spec.id, "spec": self.spec.to_dict(),
            "inputs": dict(self.inputs), "libraries": libraries(),
        }  # fmt: skip
        metadata = {**(table.schema.metadata or {}), b"fedbench": json.dumps(stable, sort_keys=True).encode()}
        path = self.folder / f"{name}.parquet"
        pq.write_table(table.replace_schema_metadata(metadata), path, compression=compression)
        with path.open("rb+") as f:
            os.fsync(f.fileno())


class Store:
    """A folder of artifacts shared by any number of processes."""

    def __init__(self, home: Path | None = None) -> None:
        # Whole, since Arrow takes a path that begins with "word:" for the address of a server.
        self.home = (Path(home) if home else default_home()).absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            schema = read_json(self.home / "store.json").get("schema", 0)
            if not isinstance(schema, int):
                raise FedbenchError(f"{self.home / 'store.json'} is damaged (schema {schema!r})", "delete that file")
            if schema > SCHEMA:
                raise FedbenchError(
                    f"the store {self.home} was written by a newer fedbench (schema {schema}, this one reads {SCHEMA})",
                    "upgrade fedbench or choose another --home",
                )

    def prepare(self) -> None:
        """Create the store's folder and marker if need be."""
        with disk_errors("preparing the store", self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            if not (self.home / "store.json").exists():
                write_json(self.home / "store.json", {"schema": SCHEMA})

    # -- artifacts ---------------------------------------------------------------------------------------

    def path(self, kind: str, id: str) -> Path:
        return self.home / kind / id

    def has(self, spec: Spec) -> bool:
        return (self.path(spec.kind, spec.id) / MANIFEST).exists() or self._restored(spec.kind, spec.id)

    def get(self, spec: Spec) -> Artifact | None:
        """The artifact of a spec, or None if it has not been made."""
        return self.open(spec.kind, spec.id) if self.has(spec) else None

    def whole(self, spec: Spec) -> Artifact | None:
        """The artifact of a spec, or None if it has not been made or is damaged."""
        try:
            return self.get(spec)
        except DamagedError:
            return None

    def open(self, kind: str, id: str) -> Artifact:
        """The artifact of that kind and id. Raises FedbenchError if missing or of a newer schema, DamagedError if it
        is not as it was written."""
        path = self.path(kind, id)
        try:
            manifest = read_json(path / MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            if path.is_dir():
                raise DamagedError(kind, id, "it has no manifest") from None
            if self._restored(kind, id):
                return self.open(kind, id)
            raise FedbenchError(f"no {kind} {id} in {self.home}", "'fedbench list' shows what is there") from None
        except FedbenchError as error:
            if isinstance(error.__cause__, OSError):  # it may well be whole, only not for us
                raise
            raise DamagedError(kind, id, error.message) from error
        schema = manifest.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise FedbenchError(f"{kind} {id} was written by a newer fedbench", "upgrade fedbench")
        if not intact(manifest) or not readable(manifest):
            raise DamagedError(kind, id, f"{path / MANIFEST} was altered after it was written")
        if manifest["id"] != id or manifest["kind"] != kind:
            raise DamagedError(kind, id, f"{path / MANIFEST} describes {manifest['kind']} {manifest['id']}")
        try:
            spec = SPECS[kind].from_dict(manifest["spec"])
        except FedbenchError as error:
            raise DamagedError(kind, id, f"its spec cannot be read ({error.message})") from error
        if spec.id != id:
            raise DamagedError(kind, id, f"the spec in {path / MANIFEST} is that of {kind} {spec.id}")
        return Artifact(path, manifest, spec)

    def list(self, kind: str) -> Iterator[Artifact]:
        """All complete artifacts of a kind, oldest first."""
        return (one for one in self.scan(kind) if isinstance(one, Artifact))

    def scan(self, kind: str) -> Iterator[Artifact | FedbenchError]:
        """All artifacts of a kind, oldest first, with an error in place of each that cannot be trusted or read."""
        folder = self.home / kind
        if not folder.is_dir():
            return
        for path in folder.glob(".*"):
            if name := scratched(path, _ASIDE):
                self._restored(kind, name)
        for path in sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=_age):
            try:
                yield self.open(kind, path.name)
            except FedbenchError as error:
                if path.exists():  # or else it has been removed meanwhile
                    yield error

    def locate(self, prefix: str, kinds: tuple[str, ...] = KINDS) -> tuple[str, str]:
        """Kind and id of the one artifact, damaged or not, whose id starts with `prefix`."""
        hits = [
            (kind, path.name)
            for kind in kinds
            if (self.home / kind).is_dir()
            for path in (self.home / kind).iterdir()
            if path.name.startswith(prefix) and not path.name.startswith(".")
        ]
        what = " or ".join(kinds)
        if not prefix or not hits:
            raise FedbenchError(f"no {what} '{prefix}' in {self.home}", "'fedbench list' shows what is there")
        if len(hits) > 1:
            raise FedbenchError(f"'{prefix}' is ambiguous: {', '.join(f'{k} {i}' for k, i in sorted(hits))}")
        return hits[0]

    def find(self, prefix: str, kinds: tuple[str, ...] = KINDS) -> Artifact:
        """The one artifact whose id starts with `prefix`."""
        return self.open(*self.locate(prefix, kinds))

    @contextlib.contextmanager
    def writing(
        self, spec: Spec, inputs: Mapping[str, str] | None = None, replaces: str | None = None
    ) -> Iterator[Writer]:
        """Make the artifact of `spec`: fill the writer inside the block; on a clean exit it is there, complete.

        An artifact of that spec that is there already stays (same spec, same bytes; another process may have finished
        it meanwhile), unless it is the one whose digest is `replaces`: until its successor is complete that one is
        there, then it is gone.
        """
        from fedbench.provenance import provenance

        self.prepare()
        folder = scratch(self.path(spec.kind, spec.id))
        started = time.time()
        with disk_errors(f"writing {spec.kind} {spec.id}", self.home):
            folder.mkdir(parents=True)
            try:
                writer = Writer(folder, spec, inputs or {})
                yield writer
                files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(folder.iterdir())}
                manifest = {
                    "schema": SCHEMA, "kind": spec.kind, "id": spec.id, "spec": spec.to_dict(),
                    "inputs": dict(writer.inputs), "files": files,
                    "provenance": {**provenance(started), **writer.provenance},
                }  # fmt: skip
                write_json(folder / MANIFEST, sealed(json.loads(json.dumps(manifest))))
                self._install(folder, spec, replaces)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _install(self, folder: Path, spec: Spec, replaces: str | None) -> None:
        """Put a complete artifact into its place."""
        final = self.path(spec.kind, spec.id)
        with alone(self.home):
            aside = None
            if final.exists():
                with contextlib.suppress(DamagedError):
                    if self.open(spec.kind, spec.id).digest != replaces:
                        return
                aside = scratch(final, _ASIDE)
                final.rename(aside)
            folder.rename(final)
        if aside is not None:
            (aside / MANIFEST).unlink(missing_ok=True)  # so that half of it is never put back
            shutil.rmtree(aside, ignore_errors=True)

    def _restored(self, kind: str, id: str) -> bool:
        """Put back what a process had set aside that died before the successor was in its place."""
        folder, final = self.home / kind, self.path(kind, id)
        if not any(scratched(path, _ASIDE) == id for path in folder.glob(f".{id}.*")):
            return False
        with alone(self.home):
            for path in folder.glob(f".{id}.*"):
                if scratched(path, _ASIDE) == id and not final.exists() and (path / MANIFEST).exists():
                    path.rename(final)
            return final.exists()

    def remove(self, kind: str, id: str) -> None:
        """Delete an artifact, damaged or not. What was made from it stays, with its id in the provenance."""
        path = self.path(kind, id)
        hidden = scratch(path, "removed")
        with disk_errors(f"removing {kind} {id}", self.home):
            try:
                with alone(self.home):
                    path.rename(hidden)
            except FileNotFoundError:
                raise FedbenchError(f"no {kind} {id} in {self.home}", "another process has just removed it") from None
            if hidden.is_dir():
                shutil.rmtree(hidden)
            else:
                hidden.unlink()

    def clean(self) -> tuple[Path, ...]:
        """Delete what processes that are gone have left behind, and return what it was; artifacts, checkpoints and
        downloads stay."""
        gone: tuple[Path, ...] = ()
        for kind in KINDS:
            for _ in self.scan(kind):  # puts back what was set aside
                pass
        folders = (self.home, *(self.home / name for name in (*KINDS, "failed", "work")), *self.home.glob("work/*"))
        for path in (path for folder in folders if folder.is_dir() for path in folder.glob(".*")):
            if abandoned(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                gone += (path,)
        for path in self.home.glob("work/*"):
            if path.is_dir() and self._over(path) and holder(path) is None:
                shutil.rmtree(path)
                gone += (path,)
        return gone

    def _over(self, work: Path) -> bool:
        """Whether a work folder is of no more use: it has no checkpoint, or its run was completed after that."""
        try:
            saved = (work / CHECKPOINT).stat().st_mtime_ns
            return (self.path("run", work.name) / MANIFEST).stat().st_mtime_ns > saved
        except OSError:
            return not (work / CHECKPOINT).exists()

    # -- the current partition and run -------------------------------------------------------------------

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
        """There is no such current one any more."""
        if self.current.keys() & set(names):
            with disk_errors("noting the current partition", self.home), alone(self.home):
                write_json(self.home / "current.json", {k: v for k, v in self.current.items() if k not in names})

    # -- runs under way ----------------------------------------------------------------------------------

    def work(self, id: str) -> Path:
        """The folder of a run under way (checkpoint, claim)."""
        return self.home / "work" / id

    def claimed(self, id: str) -> dict[str, Any] | None:
        """Who works on this run now (host, pid, age of the heartbeat in seconds), or None."""
        return holder(self.work(id))

    @contextlib.contextmanager
    def claim(self, id: str) -> Iterator[Claim]:
        """Hold the run `id` for this process. Raises HeldError if somebody else holds it."""
        self.prepare()
        with hold(self.work(id), f"run {id}") as claim:
            yield claim

    def record_failure(self, id: str, reason: str, log: str, **what: Any) -> Path:
        """Keep why a run failed (`what`: its spec and overrides); never taken for a result."""
        folder = self.home / "failed"
        with disk_errors("recording a failure", self.home):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{id}.json", {"reason": reason, "log": log, "time": time.time(), **what})
        return folder / f"{id}.json"

    def failure(self, id: str) -> dict[str, Any] | None:
        """The recorded failure of a run that has not succeeded since."""
        try:
            return read_json(self.home / "failed" / f"{id}.json")
        except FileNotFoundError:
            return None

    def forget_failure(self, id: str) -> None:
        (self.home / "failed" / f"{id}.json").unlink(missing_ok=True)


def _age(path: Path) -> tuple[int, str]:
    """By which artifacts are listed: when they were made; what has no manifest comes first."""
    try:
        return (path / MANIFEST).stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
