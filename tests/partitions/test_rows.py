"""Partitions in files: what is read is what was written, and a file that says no partition ends in one line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.partitions import exports, rows, schemes
from fedbench.specs import DatasetSpec, PartitionSpec

MADE = DatasetSpec("made", "here", "now")
GOOD = "client,sample,split\n0,5,train\n0,7,test\n1,5,train\n1,2,validation\n1,0,test\n"


def dataset(count: int = 40, channels: int = 1) -> data.Dataset:
    """Images of four pixels, all different, of two classes in turn."""
    numbers = np.arange(count * 4 * channels, dtype=np.uint32) % 251
    return data.Dataset(
        spec=MADE,
        images=numbers.astype(np.uint8).reshape(count, 2, 2, channels),
        labels=np.arange(count) % 2,
        split=(np.arange(count) >= count // 2).astype(np.uint8),
        columns={},
        classes=("even", "odd"),
    )


def file(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def from_file(path: Path, **more: object) -> PartitionSpec:
    own = rows.read(path)
    return schemes.spec(MADE, "file", own.clients, 1, rows=str(path), **more)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[int, int, str]]:
    """Rows of a partition in any order: every client has a training and a test sample, none has a sample twice."""
    out = []
    for client in range(draw(st.integers(1, 5))):
        samples = draw(st.lists(st.integers(0, 39), min_size=2, max_size=12, unique=True))
        more = draw(st.lists(st.sampled_from(rows.SPLITS), min_size=len(samples) - 2, max_size=len(samples) - 2))
        out += [(client, sample, side) for sample, side in zip(samples, ["train", "test", *more], strict=True)]
    return draw(st.permutations(out))


@given(tables())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_the_same_in_any_order_form_and_count(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    client, sample, split = (list(column) for column in zip(*table, strict=True))
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    csv = rows.read(file(tmp_path, f"client,sample,split\n{text}"))
    from_one = "".join(f"{side},{c + 1} , {s}\r\n" for c, s, side in table)
    other = rows.read(file(tmp_path, f"\ufeffsplit,client,sample\r\n{from_one}", "other.csv"))
    quoted = "".join(f'"{c}",{s},"{side}"\n' for c, s, side in table)
    assert rows.read(file(tmp_path, f'"client",sample,"split"\n{quoted}', "quoted.csv")).digest == csv.digest
    kinds = {"sample": pa.array(sample, pa.uint16()), "client": pa.array(client, pa.int8())}
    pq.write_table(pa.table({"split": pa.array(split).dictionary_encode(), **kinds}), tmp_path / "rows.parquet")
    parquet = rows.read(tmp_path / "rows.parquet")
    assert csv.digest == other.digest == parquet.digest == hashlib.sha256(csv.text).hexdigest()
    back = [f"{c},{s},{rows.SPLITS[k]}" for c, s, k in zip(csv.client, csv.sample, csv.split, strict=True)]
    assert sorted(back) == sorted(text.split())


@given(tables())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_partition_comes_back_as_it_was_written(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    p = partitions.make(from_file(file(tmp_path, f"client,sample,split\n{text}")), dataset())
    assert {(c, s, side) for c, s, side in table} == _content(p)
    for name in ("again.csv", "again.parquet"):
        exports.write(p, exports.format_of(Path(name), None), tmp_path / name, dataset)
        again = partitions.make(from_file(tmp_path / name), dataset())
        assert again.id == p.id
        assert np.array_equal(again.sample, p.sample)


def _content(p: partitions.Partition) -> set[tuple[int, int, str]]:
    back = np.zeros(len(p.test), bool) if p.validation is None else p.validation
    side = np.where(p.test, "test", np.where(back, "validation", "train"))
    return set(zip(p.client.tolist(), p.sample.tolist(), side.tolist(), strict=True))


def test_the_partition_has_what_its_rows_say(tmp_path: Path) -> None:
    p = partitions.make(from_file(file(tmp_path, GOOD)), dataset())
    assert [p.n_train.tolist(), p.n_validation.tolist(), p.n_test.tolist()] == [[1, 1], [0, 1], [1, 1]]
    assert p.sample.tolist() == [5, 7, 5, 2, 0]
    assert p.label.tolist() == [1, 1, 1, 0, 0]
    assert p.spec.options == {"rows": rows.read(tmp_path / "rows.csv").digest}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a CSV file"),
        ("client,sample,split\n", r"rows\.csv has no rows"),
        ("clent,sample,split\n0,1,train\n", r"unknown column in .*rows\.csv 'clent'; did you mean 'client'\?"),
        ("client,sample\n0,1\n", r"rows\.csv has no column 'split'; its columns are client,sample,split"),
        ("client,sample,split,split\n0,1,train,test\n", "has two columns 'split'"),
        ("client,sample,split\n0,1,train\n0,2\n", r"rows\.csv is not a CSV file as it should be .*#3"),
        ("client,sample,split\n0,1,train\n0,-2,test\n", r"rows\.csv, line 3: sample cannot be negative: -2"),
        ("client,sample,split\n-1,1,train\n0,2,test\n", r"rows\.csv, line 2: client cannot be negative: -1"),
        ("client,sample,split\n0,1,train\n0,x,test\n", r"line 3: sample must be a whole number, not 'x'"),
        ("client,sample,split\n0,1.0,train\n", r"line 2: sample must be a whole number, not '1\.0'"),
        ("client,sample,split\n0,,train\n", r"line 2: sample must be a whole number, not ''"),
        ("client,sample,split\n0,9999999999,train\n", r"line 2: sample must be below 2,147,483,648"),
        ("client,sample,split\n0,1,train\n0,2,tset\n", r"unknown split in .*line 3: 'tset'; did you mean 'test'\?"),
        (GOOD + "0,7,train\n", r"rows\.csv, line 7: client 0 has sample 7 already"),
        (GOOD + "3,7,train\n3,8,test\n", "counted from 0 or 1 without gaps, and client 2 has no row"),
        ("client,sample,split\n2,1,train\n2,2,test\n", "counted from 0 or 1 without gaps, and client 0 has no row"),
        (GOOD + "2,7,test\n", "client 2 has no training sample"),
        (GOOD + "2,7,train\n", "client 2 has no test sample"),
        ('"clent",sample,split\n0,1,train\n', r"unknown column in .*rows\.csv 'clent'; did you mean 'client'\?"),
        ('client,sample,split\n0,1,"train\n0,2,test"\n', r"rows\.csv"),
        ("client,sample,split\n0,1,train\n0,2,test\n\n", "must be a whole number|is not a CSV file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FedbenchError, match=message) as error:
        rows.read(file(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_wrong_parquet_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for columns, message in (
        ({"client": [0, 0], "sample": [1.0, 2.0], "split": ["train", "test"]}, "must hold whole numbers, not double"),
        ({"client": [0, None], "sample": [1, 2], "split": ["train", "test"]}, "column client has empty values"),
        ({"client": [0, 0], "sample": [1, -2], "split": ["train", "test"]}, r"row 2: sample cannot be negative: -2"),
        ({"client": [0, 0], "sample": [1, 2], "split": ["train", None]}, r"unknown split in .*row 2"),
        ({"client": [0, 0], "sample": [1, 2], "split": [[1], [2]]}, "column split must hold text"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(FedbenchError, match=message):
            rows.read(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(FedbenchError, match="is damaged or not a Parquet file"):
        rows.read(path)


@given(st.binary(max_size=200))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_end_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(FedbenchError) as error:
        rows.read(path)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_the_data(tmp_path: Path) -> None:
    path = file(tmp_path, "client,sample,split\n0,1,train\n0,40,test\n")
    with pytest.raises(FedbenchError, match=r"client 0 has sample 40, and made has 40 images \(0 to 39\)"):
        partitions.make(from_file(path), dataset())
    own = schemes.spec(MADE, "file", 3, 1, rows=str(file(tmp_path, GOOD)))
    with pytest.raises(FedbenchError, match="has 2 clients, not 3; leave --clients out"):
        partitions.make(own, dataset())
    with pytest.raises(FedbenchError, match="has validation samples of its own; leave --validation out"):
        partitions.make(from_file(file(tmp_path, GOOD), validation=0.5), dataset())
    with pytest.raises(FedbenchError, match="are a file that is not at hand; give it with --from FILE"):
        partitions.make(schemes.spec(MADE, "file", 2, 1, rows="0" * 64), dataset())


def test_modifiers_are_said_beside_the_file(tmp_path: Path) -> None:
    images, more = dataset(), {"duplicates": 2, "unseen": 1, "unseen_as": ("fog-3",), "shift": "low"}
    p = partitions.make(schemes.spec(MADE, "iid", 4, 3, train_fraction=0.5, **more), images)  # type: ignore[arg-type]
    (line,) = exports.write(p, "csv", tmp_path / "rows.csv", dataset)
    assert line.endswith("rows.csv --shift low --duplicates 2 --unseen 1 --unseen-as fog-3")
    again = partitions.make(from_file(tmp_path / "rows.csv", **more), images)
    assert again.transforms == p.transforms
    assert _content(again) == _content(p)
    assert np.array_equal(again.n_train, p.n_train)


def test_what_rows_cannot_say_is_refused(tmp_path: Path) -> None:
    images = dataset(400)
    drawn = schemes.spec(MADE, "equal", 4, 3, shift="px", level=3)
    with pytest.raises(FedbenchError, match=r"more than who holds which sample .* csv says no more than that"):
        exports.write(partitions.make(drawn, images), "csv", tmp_path / "rows.csv", dataset)
    assert not (tmp_path / "rows.csv").exists()


def test_the_format_is_given_or_the_ending() -> None:
    assert exports.format_of(Path("a.pq"), None) == "parquet"
    assert exports.format_of(Path("a.txt"), "csv") == "csv"
    with pytest.raises(FedbenchError, match="does not say in which format"):
        exports.format_of(Path("a.txt"), None)
    with pytest.raises(FedbenchError, match="did you mean 'parquet'"):
        exports.format_of(Path("a"), "parqet")
