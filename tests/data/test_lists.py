"""Columns of Parquet as arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbench.data.lists import as_array, as_column, filled, values_of


@pytest.mark.parametrize(
    "chunks", [[[1, 2], [3]], [[]], [[1.5], [], [2.5]], [[True, False, True, True], [False]]], ids=str
)
def test_a_column_is_the_array_of_its_values(chunks: list[list[float]]) -> None:
    column = pa.chunked_array(chunks) if any(chunks) else pa.chunked_array(chunks, pa.int16())
    values = values_of(column)
    assert values.dtype == column.type.to_pandas_dtype()
    assert values.tolist() == [value for chunk in chunks for value in chunk]
    assert values_of(column.combine_chunks()[1:]).tolist() == values[1:].tolist()


def test_gaps_are_filled_and_elsewhere_refused() -> None:
    column = pa.chunked_array([[1.0, None], [None, 4.0]])
    np.testing.assert_array_equal(filled(column, np.nan), [1, np.nan, np.nan, 4])
    assert filled(pa.chunked_array([[7, None]], pa.uint16()), -1).tolist() == [7, -1]
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        values_of(column)


@pytest.mark.parametrize("values", [np.arange(6, dtype=np.uint8), np.arange(6, dtype=np.float32).reshape(3, 2)])
def test_an_array_comes_back_in_memory_of_its_own(values: np.ndarray) -> None:
    column = pa.table({"a": as_column(values)})["a"]
    back = as_array(column)
    np.testing.assert_array_equal(back, values)
    assert back.dtype == values.dtype
    back[:] = 0
    np.testing.assert_array_equal(as_array(column), values)


def test_pandas_is_not_imported_for_it(tmp_path: Path) -> None:
    one, many = np.arange(4), as_column(np.zeros((4, 2), np.float32))
    pq.write_table(pa.table({"one": one, "many": many}), tmp_path / "a.parquet")
    code = (
        "import sys, pyarrow.parquet as pq\n"
        "from fedbench.data.lists import as_array, filled, values_of\n"
        "table = pq.ParquetFile(sys.argv[1]).read()\n"
        "one, many = table['one'], table['many']\n"
        "values_of(one), filled(one, -1), values_of(one.is_valid()), as_array(one), as_array(many)\n"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
