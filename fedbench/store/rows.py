"""Tables in Parquet that are written and read part by part, so that memory holds one part of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of rows that are written together.
BYTES = 4 << 20
#: ... and how many of them at most.
ROWS = 1 << 20


def write(
    path: Path, tables: Iterable[pa.Table], about: Mapping[bytes, bytes] | None = None, compression: str = "zstd"
) -> None:
    """Write tables of one schema (one at least) as one file; `about` is added to the metadata of the first."""
    import pyarrow.parquet as pq

    groups = _gathered(tables)
    first = next(groups)
    schema = first.schema.with_metadata({**(first.schema.metadata or {}), **(about or {})})
    with pq.ParquetWriter(path, schema, compression=compression) as writer:
        for group in chain([first], groups):
            writer.write_table(group.cast(schema), row_group_size=ROWS)


def read(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of files one after another, a group of rows at a time, with the columns of all; what a file lacks is
    missing in its rows."""
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
    """The rows of tables in tables of BYTES or a little more."""
    some: list[pa.Table] = []
    size = 0
    for table in tables:
        some.append(table)
        size += table.nbytes
        if size >= BYTES:
            yield _one(some)
            some, size = [], 0
    if some:
        yield _one(some)


def _one(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
