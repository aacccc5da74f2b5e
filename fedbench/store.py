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
manifest holds the SHA-256 of every file, checked when the file is first read, so a truncated or altered file
is one clear error. What may differ between two makings of the same artifact (times, machine) stands only in
the manifest; the Parquet files of one spec are the same bytes wherever and however often they are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.claim import Claim, hold, holder
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, read_json, sha256_of, write_json
from fedbench.spec import SCHEMA, SPECS, Spec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

KINDS = tuple(SPECS)
MANIFEST = "artifact.json"


def default_home() -> Path:
    """FEDBENCH_HOME, else ~/.fedbench."""
    return Path(os.environ.get("FEDBENCH_HOME") or Path.home() / ".fedbench").expanduser()


@dataclass(frozen=True)
class Artifact:
    """A complete artifact: its manifest, and its Parquet tables on demand."""

    path: Path
    manifest: Mapping[str, Any]
    _verified: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def spec(self) -> Spec:
        return SPECS[self.kind].from_dict(self.manifest["spec"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.manifest["provenance"]  # type: ignore[no-any-return]

    def file(self, name: str) -> Path:
        """Path of one of the artifact's files, verified against the manifest the first time."""
        path = self.path / name
        entry = self.manifest["files"].get(name)
        remedy = f"remove it with 'fedbench remove {self.id}' and make it again"
        if entry is None or not path.is_file():
            raise FedbenchError(f"{self.kind} {self.id} has no file {name}", remedy)
        if name not in self._verified:
            if path.stat().st_size != entry["bytes"]:
                raise FedbenchError(f"{path} is truncated ({path.stat().st_size} of {entry['bytes']} bytes)", remedy)
            if sha256_of(path) != entry["sha256"]:
                raise FedbenchError(f"{path} was altered after it was written (checksum differs)", remedy)
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
        self.home = Path(home) if home else default_home()
        marker = self.home / "store.json"
        if marker.exists():
            schema = read_json(marker).get("schema", 0)
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
        return (self.path(spec.kind, spec.id) / MANIFEST).exists()

    def get(self, spec: Spec) -> Artifact | None:
        """The artifact of a spec, or None if it has not been made."""
        return self.open(spec.kind, spec.id) if self.has(spec) else None

    def open(self, kind: str, id: str) -> Artifact:
        """The artifact of that kind and id. Raises FedbenchError if missing, damaged or of a newer schema."""
        path = self.path(kind, id)
        if not (path / MANIFEST).exists():
            raise FedbenchError(f"no {kind} {id} in {self.home}", "'fedbench list' shows what is there")
        manifest = read_json(path / MANIFEST)
        if manifest.get("schema", 0) > SCHEMA:
            raise FedbenchError(f"{kind} {id} was written by a newer fedbench", "upgrade fedbench")
        complete = {"spec", "files", "inputs", "provenance"} <= manifest.keys()
        if not complete or manifest.get("id") != id or manifest.get("kind") != kind:
            raise FedbenchError(
                f"{path / MANIFEST} does not describe {kind} {id}", "delete that folder and make it again"
            )
        return Artifact(path, manifest)

    def list(self, kind: str) -> Iterator[Artifact]:
        """All complete artifacts of a kind, oldest first."""
        folder = self.home / kind
        if not folder.is_dir():
            return
        found = [p for p in folder.iterdir() if not p.name.startswith(".") and (p / MANIFEST).exists()]
        for path in sorted(found, key=lambda p: ((p / MANIFEST).stat().st_mtime_ns, p.name)):
            yield self.open(kind, path.name)

    def find(self, prefix: str, kinds: tuple[str, ...] = KINDS) -> Artifact:
        """The one artifact whose id starts with `prefix`."""
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
        return self.open(*hits[0])

    @contextlib.contextmanager
    def writing(self, spec: Spec, inputs: Mapping[str, str] | None = None) -> Iterator[Writer]:
        """Make the artifact of `spec`: fill the writer inside the block; on a clean exit it is there, complete.

        If another process finished the same artifact meanwhile, that one stays (same spec, same bytes).
        """
        from fedbench.provenance import provenance

        self.prepare()
        final = self.path(spec.kind, spec.id)
        folder = final.parent / f".{spec.id}.{os.getpid()}.{time.monotonic_ns()}"
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
                write_json(folder / MANIFEST, manifest)
                try:
                    folder.rename(final)
                except OSError:
                    if not (final / MANIFEST).exists():
                        raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self, artifact: Artifact) -> None:
        """Delete an artifact. What was made from it stays, with its id in the provenance."""
        hidden = artifact.path.with_name(f".{artifact.id}.removed.{os.getpid()}")
        with disk_errors(f"removing {artifact.kind} {artifact.id}", self.home):
            artifact.path.rename(hidden)
            shutil.rmtree(hidden)

    # -- the current partition and run -------------------------------------------------------------------

    @property
    def current(self) -> dict[str, str]:
        path = self.home / "current.json"
        return dict(read_json(path)) if path.exists() else {}

    def set_current(self, **values: str) -> None:
        """Make these the current partition, protocol or run."""
        self.prepare()
        with disk_errors("noting the current partition", self.home):
            write_json(self.home / "current.json", {**self.current, **values})

    # -- runs under way ----------------------------------------------------------------------------------

    def work(self, id: str) -> Path:
        """The folder of a run under way (checkpoint, claim)."""
        return self.home / "work" / id

    def claimed(self, id: str) -> dict[str, Any] | None:
        """Who works on this run now (host, pid, age of the heartbeat in seconds), or None."""
        return holder(self.work(id))

    @contextlib.contextmanager
    def claim(self, id: str) -> Iterator[Claim]:
        """Hold the run `id` for this process. Raises FedbenchError if somebody else holds it."""
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
        path = self.home / "failed" / f"{id}.json"
        return dict(read_json(path)) if path.exists() else None

    def forget_failure(self, id: str) -> None:
        (self.home / "failed" / f"{id}.json").unlink(missing_ok=True)
