"""A partition as a file of rows: client, sample, split. Read strictly from CSV or Parquet, and written as either.

`client` counts from 0 (or from 1) without gaps, `sample` is a row of the data set from 0 (training images first, then
test images, each in their official order), `split` is train, validation or test. The order of the rows does not matter:
they are sorted, and their canonical text is the CSV file that `fedbench export` writes. A spec identifies the rows by
the SHA-256 of this text, so CSV and Parquet files with the same rows are the same partition.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.data.guard import fits, readable, reading, regular
from fedbench.data.spreadsheet import decoded, form
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa

    from fedbench.partitions.artifact import Partition

COLUMNS = ("client", "sample", "split")
SPLITS = ("train", "validation", "test")
_FORM = f"its columns are {','.join(COLUMNS)}"
#: Numbers must be below this, because a partition stores them in 32 bits.
_MOST = 2**31


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows, ordered by client, split and sample."""

    client: NDArray[np.int64]  #: [R] from 0 without gaps
    sample: NDArray[np.int64]  #: [R] row of the data set
    split: NDArray[np.int64]  #: [R] index into SPLITS
    where: str = "the rows"  #: the file's name, for errors

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.client[-1]) + 1

    @cached_property
    def text(self) -> bytes:
        """The rows as canonical CSV text."""
        rows = zip(self.client.tolist(), self.sample.tolist(), self.split.tolist(), strict=True)
        lines = [f"{client},{sample},{SPLITS[split]}" for client, sample, split in rows]
        return "\n".join([",".join(COLUMNS), *lines, ""]).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical text."""
        return hashlib.sha256(self.text).hexdigest()

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        import pyarrow as pa

        return pa.table(
            {
                "client": pa.array(self.client, pa.int32()),
                "sample": pa.array(self.sample, pa.int32()),
                "split": pa.array(np.array(SPLITS)[self.split], pa.string()),
            }
        )


def read(path: Path) -> Rows:
    """Read the rows of a CSV or Parquet file.

    Raises FedbenchError, naming the line of a CSV file or the row of a Parquet file, for unexpected or missing columns,
    invalid or negative numbers, an unknown split, a sample that a client has twice, a client without training or test
    samples, and gaps between clients.
    """
    with readable(path):
        parquet = regular(path).open("rb").read(4) == b"PAR1"
    table = _parquet(path) if parquet else _csv(path)
    for name in table.column_names:
        check_known(f"column in {path}", name, COLUMNS)
        require(table.column_names.count(name) == 1, f"{path} has two columns '{name}'", _FORM)
    for name in COLUMNS:
        require(name in table.column_names, f"{path} has no column '{name}'", _FORM)
    require(len(table) > 0, f"{path} has no rows", "a row says: this client has this sample in this split")
    at = _Place(path, "row" if parquet else "line", 1 if parquet else 2)
    client, sample = (_numbers(table[name], name, at) for name in COLUMNS[:2])
    return _ordered(client, sample, _splits(table["split"], at), at)


def of(partition: Partition) -> Rows:
    """Return the rows of a partition, equal to what `read` returns for the exported file.

    Copies of unseen clients under corruptions are left out, and repeated training samples count once: command-line
    options restore both (see `fedbench.partitions.exports`). Raises FedbenchError if a client has a sample twice.
    """
    p = partition
    split = np.where(p.test, 2, 0 if p.validation is None else p.validation.astype(np.int64))
    dealt = p.client < p.spec.clients
    if p.spec.duplicates:  # a client's training rows, which come first, are the same rows so many times
        place = np.arange(len(p.client)) - np.searchsorted(p.client, p.client)
        dealt &= ~p.training | (place < p.n_train[p.client] // p.spec.duplicates)
    columns = np.stack([p.client[dealt], p.sample[dealt], split[dealt]]).astype(np.int64)
    return _ordered(columns[0], columns[1], columns[2], _Place(f"partition {p.id}", "row", 1))


@dataclass(frozen=True)
class _Place:
    """Names a row of a file in errors."""

    file: Path | str
    unit: str  #: "line" or "row"
    first: int  #: number of the first row

    def __call__(self, index: Any) -> str:
        return f"{self.file}, {self.unit} {int(index) + self.first}"


def _csv(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv as csv

    with readable(path):
        how = form(path)
        text = decoded(path, how)
    with reading(path, "is not a CSV file as it should be"):
        options = csv.ConvertOptions(column_types=dict.fromkeys(how.heads, pa.string()), strings_can_be_null=False)
        return csv.read_csv(
            pa.BufferReader(text.encode()),
            csv.ReadOptions(use_threads=False),  # so that an error names the line
            csv.ParseOptions(delimiter=how.separator, ignore_empty_lines=False),
            options,
        )


def _parquet(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    with reading(path, "is damaged or not a Parquet file"), pq.ParquetFile(path) as file:
        fits(file.metadata.num_rows * 32, path)
        return file.read()


def _numbers(column: pa.ChunkedArray, name: str, at: _Place) -> NDArray[np.int64]:
    """Parse a column of whole numbers, or of their text, as numbers >= 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    require(column.null_count == 0, f"{at.file}: column {name} has empty values", _FORM)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if any(is_one(column.type) for is_one in texts):
        stripped = pc.utf8_trim_whitespace(column.cast(pa.string()))
        wrong = pc.invert(pc.match_substring_regex(stripped, r"^-?[0-9]{1,18}$"))
        if (bad := pc.index(wrong, True).as_py()) >= 0:
            raise FedbenchError(f"{at(bad)}: {name} must be a whole number, not '{str(column[bad])[:60]}'", _FORM)
        column = stripped.cast(pa.int64())
    require(pa.types.is_integer(column.type), f"{at.file}: column {name} must hold whole numbers, not {column.type}")
    values = column.to_numpy()
    for wrong, what in ((values < 0, "cannot be negative"), (values >= _MOST, f"must be below {_MOST:,}")):
        if wrong.any():
            raise FedbenchError(f"{at(bad := wrong.argmax())}: {name} {what}: {values[bad]}", "count from 0")
    return np.asarray(values, np.int64)


def _splits(column: pa.ChunkedArray, at: _Place) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    with reading(f"{at.file}: column split", "must hold text"):
        texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    codes = pc.fill_null(pc.index_in(texts, pa.array(SPLITS)), -1).to_numpy()
    if (codes < 0).any():
        bad = int((codes < 0).argmax())
        raise unknown(f"split in {at(bad)}:", str(column[bad])[:60], SPLITS)
    return np.asarray(codes, np.int64)


def _ordered(client: NDArray[np.int64], sample: NDArray[np.int64], split: NDArray[np.int64], at: _Place) -> Rows:
    """Sort the rows, count clients from 0, and check the rows as a whole."""
    order = np.lexsort((sample, client))
    again = (np.diff(client[order]) == 0) & (np.diff(sample[order]) == 0)
    if again.any():
        bad = order[1:][again].min()
        raise FedbenchError(
            f"{at(bad)}: client {client[bad]} has sample {sample[bad]} already",
            "a client has a sample once, in one split",
        )
    first = int(client.min())
    numbers = np.unique(client)
    gaps = np.flatnonzero(numbers != np.arange(first, first + len(numbers)))
    require(
        first in (0, 1) and not len(gaps),
        f"{at.file}: clients must be counted from 0 or 1 without gaps, and client "
        f"{first + int(gaps[0]) if len(gaps) else 0} has no row",
    )
    for code, side in ((0, "training"), (2, "test")):
        lacking = np.setdiff1d(numbers, client[split == code])
        require(not len(lacking), f"{at.file}: client {lacking[:1].sum()} has no {side} sample", "give it one")
    order = np.lexsort((sample, split, client))
    return Rows(client[order] - first, sample[order], split[order], str(at.file))
