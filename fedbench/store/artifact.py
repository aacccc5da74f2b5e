"""An artifact: its verified manifest, its spec, and its Parquet tables on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.files import digest, intact, read_json, sha256_of
from fedbench.specs import SCHEMA, SPECS, Spec
from fedbench.store.manifest import readable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


MANIFEST = "artifact.json"
#: Rows per batch of a table that is read in batches.
ROWS = 4096


class DamagedError(FedbenchError):
    """An artifact that exists but is altered or incomplete."""

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
        """SHA-256 of its files' checksums, which identifies this build among builds of the same spec."""
        return digest(self.manifest["files"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.manifest["provenance"]  # type: ignore[no-any-return]

    def file(self, name: str) -> Path:
        """Path of a file of the artifact; verified against the manifest the first time. Raises DamagedError."""
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

        # Not read_table: it imports pyarrow.dataset and thereby pandas (50 MB and half a second).
        with self._reading(name) as path, pq.ParquetFile(path, memory_map=True) as file:
            if missing := set(columns or ()) - {*file.schema_arrow.names}:
                raise ValueError(f"it has no column {', '.join(sorted(missing))}")
            return file.read(columns)

    def schema(self, name: str) -> pa.Schema:
        """The columns of `name`.parquet, and its metadata."""
        import pyarrow.parquet as pq

        with self._reading(name) as path:
            return pq.read_schema(path)

    def batches(self, name: str, column: str) -> Iterator[pa.Array]:
        """A column of `name`.parquet in batches of ROWS; memory holds one batch at a time."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._reading(name) as path, pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            for part in file.iter_batches(ROWS, columns=[column], use_threads=False):
                yield part.column(0)
        pa.default_memory_pool().release_unused()  # the pool keeps its buffers: 50 MB for CIFAR-10

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """The path of `name`.parquet. Raises FedbenchError if it cannot be read."""
        path = self.file(f"{name}.parquet")
        try:
            yield path
        except (OSError, ValueError) as error:
            raise FedbenchError(f"cannot read {path} ({next(iter(str(error).splitlines()), '')})") from error

    def frame(self, name: str) -> pd.DataFrame:
        """`table` as a data frame, for a notebook."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame


def opened(path: Path, kind: str, id: str) -> Artifact:
    """The artifact in this folder, with the expected kind and id.

    Raises FedbenchError if it is missing or has a newer schema, DamagedError if it was altered.
    """
    try:
        manifest = read_json(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_dir():
            raise DamagedError(kind, id, "it has no manifest") from None
        home = path.parent.parent
        raise FedbenchError(f"no {kind} {id} in {home}", "'fedbench list' shows the contents of the store") from None
    except FedbenchError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, IsADirectoryError):
            raise  # perhaps intact, but not readable for this user
        raise DamagedError(kind, id, error.message) from error
    schema = manifest.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise FedbenchError(f"{kind} {id} was written by a newer fedbench", "upgrade fedbench")
    if not intact(manifest) or not readable(manifest):
        raise DamagedError(kind, id, f"{path / MANIFEST} was altered after it was written")
    if manifest["id"] != id or manifest["kind"] != kind:
        raise DamagedError(kind, id, f"{path / MANIFEST} describes {manifest['kind']} {manifest['id']}")
    try:
        spec = SPECS[kind].shared(manifest["spec"])
    except FedbenchError as error:
        raise DamagedError(kind, id, f"its spec cannot be read ({error.message})") from error
    if spec.id != id:
        raise DamagedError(kind, id, f"the spec in {path / MANIFEST} is that of {kind} {spec.id}")
    return Artifact(path, manifest, spec)
