"""Writing an artifact: into a hidden folder, then by rename. An artifact that exists is complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.files import alone, disk_errors, erase, scratch, scratched, sealed, sha256_of, write_json
from fedbench.specs import SCHEMA, Spec
from fedbench.store.artifact import MANIFEST, DamagedError, opened
from fedbench.store.provenance import libraries, provenance

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes per row group: tables are written and read in groups, so that memory holds one at a time.
BYTES = 4 << 20
#: Most rows per row group.
ROWS = 1 << 20


def write(path: Path, tables: Iterable[pa.Table], about: Mapping[bytes, bytes] | None = None) -> None:
    """Write one or more tables of one schema as one file; `about` is added to the first one's metadata."""
    import pyarrow.parquet as pq

    groups = _gathered(tables)
    first = next(groups)
    schema = first.schema.with_metadata({**(first.schema.metadata or {}), **(about or {})})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in chain([first], groups):
            writer.write_table(group.cast(schema), row_group_size=ROWS)


def read(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of these files in order, one row group at a time, with the columns of all files; a column that a file
    lacks is null in its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(path) for path in paths]
    if not schemas:
        return
    empty = pa.unify_schemas(schemas).empty_table()
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield pa.concat_tables([empty, file.read_row_group(group)], promote_options="default")


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in larger tables, of BYTES or a little more."""
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        pending.append(table)
        size += table.nbytes
        if size >= BYTES:
            yield _joined(pending)
            pending, size = [], 0
    if pending:
        yield _joined(pending)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


#: Uses of a scratch name: an artifact that is being replaced, or removed.
ASIDE, REMOVED = "aside", "removed"


class Writer:
    """Collects an artifact's files in a hidden folder, which is then renamed."""

    def __init__(self, folder: Path, spec: Spec, inputs: Mapping[str, str]) -> None:
        self.folder, self.spec, self.inputs, self.started = folder, spec, inputs, time.time()
        #: What may differ between two builds: machine, times. Recorded in the manifest only.
        self.provenance: dict[str, Any] = {}

    def table(self, name: str, table: pa.Table | Iterable[pa.Table]) -> None:
        """Add `name`.parquet, with spec, inputs and library versions in its schema metadata.

        A large table is given in parts: an iterable of tables of one schema.
        """
        import pyarrow as pa

        stable = {
            "schema": SCHEMA,
            "kind": self.spec.kind,
            "id": self.spec.id,
            "spec": self.spec.to_dict(),
            "inputs": dict(self.inputs),
            "libraries": libraries(),
        }
        about = {b"fedbench": json.dumps(stable, sort_keys=True).encode()}
        path = self.folder / f"{name}.parquet"
        write(path, [table] if isinstance(table, pa.Table) else table, about)
        flush(path)

    def file(self, name: str, source: Path) -> None:
        """Add a copy of a file."""
        shutil.copyfile(source, self.folder / name)
        flush(self.folder / name)

    def finish(self) -> None:
        """Add the manifest."""
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(self.folder.iterdir())}
        manifest = {
            "schema": SCHEMA,
            "kind": self.spec.kind,
            "id": self.spec.id,
            "spec": self.spec.to_dict(),
            "inputs": dict(self.inputs),
            "files": files,
            "provenance": {**provenance(self.started), **self.provenance},
        }
        write_json(self.folder / MANIFEST, sealed(json.loads(json.dumps(manifest))))


def flush(path: Path) -> None:
    """Flush a file to the disk (fsync)."""
    with path.open("rb+") as f:
        os.fsync(f.fileno())


@contextlib.contextmanager
def placing(home: Path, kind: str, id: str, replaces: str | None) -> Iterator[Path]:
    """A hidden folder that becomes the artifact if the block succeeds, and is deleted otherwise."""
    final = home / kind / id
    folder = scratch(final)
    with disk_errors(f"writing {kind} {id}", home):
        folder.mkdir(parents=True)
        try:
            yield folder
            _install(home, folder, final, replaces)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _install(home: Path, folder: Path, final: Path, replaces: str | None) -> None:
    """Rename a complete artifact's folder to its final path, unless an artifact exists that it does not replace."""
    with alone(home):
        aside = None
        if final.exists():
            with contextlib.suppress(DamagedError):
                if opened(final, final.parent.name, final.name).digest != replaces:
                    return
            aside = scratch(final, ASIDE)
            final.rename(aside)
        folder.rename(final)
    if aside is not None and aside.is_symlink():
        erase(aside)
    elif aside is not None:
        (aside / MANIFEST).unlink(missing_ok=True)  # so that it is never restored half deleted
        shutil.rmtree(aside, ignore_errors=True)


def restored(home: Path, final: Path) -> bool:
    """Restore an artifact that a process set aside before it died, and return whether one exists now."""
    hidden = f".{final.name}.*"
    if not any(scratched(path, ASIDE) == final.name for path in final.parent.glob(hidden)):
        return False
    with alone(home):
        for path in final.parent.glob(hidden):
            if scratched(path, ASIDE) == final.name and not final.exists() and (path / MANIFEST).exists():
                path.rename(final)
        return final.exists()
