"""Tables in Parquet, written and read in parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.store import rows


def table(first: int, n: int, words: str = "ab") -> pa.Table:
    view = pa.array([words[k % len(words)] for k in range(n)], pa.string()).dictionary_encode()
    return pa.table({"x": pa.array(range(first, first + n), pa.int32()), "view": view})


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), many=st.integers(1, 400))
@settings(max_examples=30)
def test_the_rows_come_back_in_their_order(
    sizes: list[int], many: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "table.parquet"
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    # words in another order in each part: their dictionaries differ
    parts = [table(a, n, "abcd"[k % 3 :] + "ab") for k, (a, n) in enumerate(zip(starts, sizes, strict=True))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BYTES", many)
        rows.write(path, iter(parts), {b"who": b"me"})
    whole = pa.concat_tables(parts)
    read = pq.read_table(path)
    assert read.schema.metadata[b"who"] == b"me"
    assert read.to_pydict() == whole.to_pydict()
    assert pa.concat_tables(rows.read([path, path])).to_pydict() == pa.concat_tables([whole, whole]).to_pydict()


def test_no_more_is_held_than_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BYTES", 1)
    path, taken = tmp_path / "table.parquet", []

    def parts():  # type: ignore[no-untyped-def]
        for k in range(4):
            taken.append(k)
            yield table(10 * k, 10)

    rows.write(path, parts())
    assert pq.ParquetFile(path).num_row_groups == 4
    taken.clear()
    copy = tmp_path / "copy.parquet"
    seen = []
    rows.write(copy, (seen.append(len(part)) or part for part in rows.read([path])))
    assert seen == [10, 10, 10, 10]
    assert pq.read_table(copy).equals(pq.read_table(path))


def test_a_column_that_a_file_lacks_is_missing_in_its_rows(tmp_path: Path) -> None:
    rows.write(tmp_path / "1", [pa.table({"x": [1, 2]})])
    rows.write(tmp_path / "2", [pa.table({"x": [3], "y": pa.array([7], pa.uint16())})])
    both = pa.concat_tables(rows.read([tmp_path / "1", tmp_path / "2"]))
    assert both.to_pydict() == {"x": [1, 2, 3], "y": [None, None, 7]}
    assert both.schema.field("y").type == pa.uint16()
    assert list(rows.read([])) == []
