"""Vectors in place of images: their files, what is normalised by what, and every method on them."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedbench import partitions, protocol
from fedbench.data import Dataset, catalogue, load, resolve
from fedbench.data import build as data_build
from fedbench.data.dataset import info
from fedbench.data.vectors import offsets
from fedbench.engine.export import _moments
from fedbench.engine.training import data_of
from fedbench.errors import FedbenchError
from fedbench.models import build
from fedbench.partitions.exports import ClientImages
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.tables import read
from fedbench.resources import RECIPES
from fedbench.specs import PartitionSpec
from fedbench.store import Store
from fedbench.vision import torchvision
from tests.support.cli_user import bad, good, runs
from tests.support.data_makers import encoded, holds, pixels, recipe_file, written
from tests.support.frames import refused
from tests.support.lab import method, setting, trainer, vectors

CSV = 'kind = "table"\nlabel = "y"\ncolumns = { site = "site" }'


def recipe(folder: Path, source: str, shape: tuple[int, ...] = (3,)) -> str:
    """The path of a recipe of this one source."""
    return recipe_file(folder, f'[[source]]\nname = "s"\n{source}\n', shape, classes=("ill", "well"))


def table(folder: Path, name: str = "t.csv", text: str = "", source: str = CSV, **more: Any) -> str:
    """The path of a recipe of one table, with this text as its file."""
    if text:
        written(folder, {name: text.encode()})
    return recipe(folder, f'{source}\nfile = [{{ path = "{name}" }}]', **more)


ROWS = [
    (1.5, 2.0, -3.0, "ill", "n"),
    (4.0, 5.25, 6.0, "well", "s"),
    (7.0, 8.0, 9.0, "well", "n"),
    (0, 1, 0, "ill", "s"),
]
TEXT = "\n".join(["a,b,c,y,site", *(",".join(map(str, row)) for row in ROWS)])


def written_as(folder: Path, ending: str, rows: list[tuple[Any, ...]]) -> str:
    """The rows as a file of that kind: vectors beside each other, or as lists of one column."""
    columns = dict(zip(("a", "b", "c", "y", "site"), zip(*rows, strict=True), strict=True))
    x = np.array([columns[name] for name in "abc"], np.float64).T
    rest = {"y": list(columns["y"]), "site": list(columns["site"])}
    if ending == "npz":
        np.savez(folder / "t.npz", x=x, **{name: np.array(values) for name, values in rest.items()})
    elif ending == "lists.parquet":
        site = pa.array(rest["site"], pa.string_view())
        pq.write_table(pa.table({"x": list(x), **rest, "site": site}), folder / "t.lists.parquet")
    elif ending == "parquet":
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), folder / "t.parquet")
    else:
        return table(folder, "t.csv", "\n".join(["a,b,c,y,site", *(",".join(map(str, row)) for row in rows)]))
    return table(folder, f"t.{ending}")


@pytest.mark.parametrize("ending", ["csv", "parquet", "lists.parquet", "npz"])
@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (("ill", "well"), ""),
        ((0, 1), ""),
        ((0.0, 1.0), ""),
        (("M", "B"), "label_values = { M = 0, B = 1 }"),
        ((1, 2), "label_values = { 1 = 0, 2 = 1 }"),
    ],
)
def test_a_table_is_read_whatever_its_file(
    ending: str, labels: tuple[Any, Any], values: str, tmp_path: Path, store: Store
) -> None:
    path = written_as(tmp_path, ending, [(*row[:3], labels[row[3] == "well"], row[4]) for row in ROWS])
    Path(path).write_text(Path(path).read_text().replace('label = "y"', f'label = "y"\n{values}'))
    data = load(path, store)
    assert (data.images.dtype, data.images.shape, data.spec.vectors) == (np.float32, (4, 1, 1, 3), True)
    assert data.images[:, 0, 0].tolist() == [list(row[:3]) for row in ROWS]
    holds(data, labels=[0, 1, 1, 0], site=["n", "s", "n", "s"])
    assert info(data.spec, store).shape == (1, 1, 3)


def test_columns_are_chosen_and_rows_are_training_and_test_rows(tmp_path: Path, store: Store) -> None:
    files = '{ path = "t.csv", rows = 3 }, { path = "t.csv", skip = 3, split = "test" }'
    source = f'{CSV}\nfeatures = ["c", "a"]\nfile = [{files}]'
    lines = TEXT.splitlines()
    text = "\n".join([f"{lines[0]},note", *(f"{line},some words" for line in lines[1:])])
    written(tmp_path, {"t.csv": text.encode()})
    data = load(path := recipe(tmp_path, source, (2,)), store)
    assert data.images[:, 0, 0].tolist() == [[row[2], row[0]] for row in ROWS]
    assert data.split.tolist() == [0, 0, 0, 1]
    written(tmp_path, {"t.csv": text.replace("0,1,0,ill", "0,1,0,").encode()})
    refused("column y is empty in row 4", load, path, store)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("5.25", ""), "t.csv: column b has no number in row 2 (missing, NaN or too large); fill such values in"),
        (("5.25", "NaN"), "column b has no number in row 2"),
        (("5.25", "inf"), "column b has no number in row 2"),
        (("5.25", "1e39"), "column b has no number in row 2"),
        (("5.25", "male"), "t.csv, line 3: column b holds 'male', which is no number; write it as numbers"),
        (("5.25,", ""), "t.csv is damaged or not a CSV file"),
        ((",y,", ",z,"), "unknown column of"),
        (("a,b", "b,b"), "t.csv has two columns b"),
        (("a,b", ",b"), "has a column '', which is its rows' index; write the file without it"),
        (("well", "fine"), "class 'fine' is not among the recipe's classes"),
        (("well", ""), "column y is empty in row 2"),
        (("well", "2"), "class '2' is not among the recipe's classes"),
        (("a,b,c", "a,d,e,b,c"), "t.csv is damaged or not a CSV file"),
        ((TEXT, "a,b,c,y,site\n"), "holds no row"),
        ((TEXT, "\x00\x01"), "t.csv"),
    ],
)
def test_a_bad_table_is_one_line(change: tuple[str, str], line: str, tmp_path: Path, store: Store) -> None:
    refused(re.escape(line), load, table(tmp_path, text=TEXT.replace(*change)), store)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"x": np.zeros((3, 3))}, "t.npz has arrays of 2 and 3 rows"),
        ({name: np.zeros((0, 3)) if name == "x" else np.zeros(0) for name in ("x", "y", "site")}, "holds no row"),
        ({"x": np.zeros((2, 4))}, "vectors of 4 values; the recipe says 3"),
        ({"x": np.array([["a"] * 3] * 2)}, "t.npz: column x holds text"),
        (
            {"x": np.array([{}, {}])},
            "t.npz holds an array of Python objects, which could run any program and is not "
            "read; save it as numbers or text",
        ),
        ({"x": b"no array"}, "t.npz: x is no array"),
        ({"x": np.full((2, 3), np.nan)}, "column x has no number in row 1"),
        (
            {"x": np.zeros((2, 3)), "y": np.zeros((2, 2))},
            "y holds several values a row: it is [2, 2] and should be [n]",
        ),
        ({"x": np.zeros((2, 3)), "y": np.array([0, 7])}, "labels must lie in 0..1"),
        ({"x": np.zeros((2, 3)), "y": np.array([0.5, 1])}, "class '0.5' is not among the recipe's classes"),
        ({}, "t.npz has no column of numbers besides y, site"),
        ([[1.0, None, 2.0]] * 2, "column x has no number in row 1"),
        ([[1.0, 2.0], [3.0]], "column x holds lists of 1 and 2 values, not all as many"),
        ([1.0, None], "column x has empty values"),
        (["a", "b"], "column x holds text, such as 'a'; write it as numbers"),
        ([datetime.date(2020, 1, 1)] * 2, "column x holds date32[day], which is neither numbers nor text"),
        ([[[1.0, 2.0], [3.0, 4.0]]] * 2, "vectors of 4 values; the recipe says 3"),
    ],
)
def test_bad_columns_are_one_line(columns: Any, line: str, tmp_path: Path, store: Store) -> None:
    """Arrays of an npz file; or values of x in a Parquet file."""
    name = "t.npz" if isinstance(columns, dict) else "t.parquet"
    if isinstance(columns, dict):
        arrays = {"y": np.zeros(2, int), "site": np.zeros(2, int), **columns}
        np.savez(tmp_path / name, **{name: one for name, one in arrays.items() if not isinstance(one, bytes)})
        with zipfile.ZipFile(tmp_path / name, "a") as archive:
            for member, content in arrays.items():
                if isinstance(content, bytes):
                    archive.writestr(member, content)
    else:
        pq.write_table(pa.table({"x": columns, "y": ["ill", "well"], "site": [0, 0]}), tmp_path / name)
    refused(re.escape(line), load, table(tmp_path, name), store)


@pytest.mark.parametrize(
    ("source", "shape", "line"),
    [
        (CSV, (4, 4, 1), "kind table reads vectors, so shape is [values]"),
        ('kind = "csv"', (3,), "kind csv reads images, so shape is [height, width, channels]"),
        (CSV, (2, 2), "shape must be [height, width, channels] with 1 or 3 channels (of vectors: how many values"),
        ('kind = "text"', (3,), "kind text needs a role (features, labels, ...)"),
        (f"{CSV}\nlabel_values = {{ ill = 2 }}", (3,), "label_values must say a class by its number, 0 to 1"),
        (f'{CSV}\nfeatures = ["y"]', (3,), "features holds a label"),
        (f'{CSV}\nfeatures = ["a", "a"]', (2,), "features holds a column twice"),
        (f"{CSV}\nresize = true", (3,), "kind table has no resize"),
    ],
)
def test_a_wrong_recipe_is_one_line(
    source: str, shape: tuple[int, ...], line: str, tmp_path: Path, store: Store
) -> None:
    refused(re.escape(line), resolve, table(tmp_path, text=TEXT, source=source, shape=shape), store)


def har(folder: Path) -> None:
    """Files of UCI HAR's format, of six rows and four."""
    rng = np.random.default_rng(3)
    for side, rows in (("train", 6), ("test", 4)):
        features = "\n".join("  " + " ".join(f"{v: .7e}" for v in row) for row in rng.uniform(-1, 1, (rows, 561)))
        labels, subjects = ("\n".join(str(i % n + 1) for i in range(rows)) for n in (6, 2))
        files = {"X": features, "y": labels, "subject": subjects}
        written(folder / "UCI HAR Dataset" / side, {f"{k}_{side}.txt": f"{v}\n".encode() for k, v in files.items()})


def test_har_is_read_with_its_subjects(tmp_path: Path, store: Store) -> None:
    har(tmp_path)
    text = (RECIPES / "har.toml").read_text().replace("train = 7352", "train = 6").replace("test = 2947", "test = 4")
    (tmp_path / "small.toml").write_text(text)
    data = load(str(tmp_path / "small.toml"), store)
    assert data.images.shape == (10, 1, 1, 561)
    assert np.abs(data.images).max() <= 1
    holds(data, labels=[0, 1, 2, 3, 4, 5, 0, 1, 2, 3], subject=[1, 2] * 5, split=[0] * 6 + [1] * 4)
    cut = tmp_path / "UCI HAR Dataset/train"
    for file, wrong, line in (
        ("y_train.txt", "1\n2\n", "y_train.txt has 2 lines where the features have 6"),
        ("y_train.txt", "1 1\n" * 6, "y_train.txt has several numbers a line"),
        ("y_train.txt", "9\n" * 6, "unknown label value in har"),
        ("X_train.txt", "1 2\n3\n", "X_train.txt is no table of numbers"),
        ("X_train.txt", "", "X_train.txt holds no number"),
    ):
        har(tmp_path)
        (cut / file).write_text(wrong)
        refused(re.escape(line.replace("in har", "in small")), load, str(tmp_path / "small.toml"), store)


def test_drawn_vectors_are_the_same_everywhere_and_differ_by_area(store: Store) -> None:
    dataset = load("synth_cover", store)
    values, area = dataset.images[:, 0, 0], dataset.columns["area"]
    assert (values[:, 10:14].argmax(1) == area).all()
    assert (values[:, 10:14].sum(1) == 1).all()
    assert (values[:, 14:].sum(1) == 1).all()
    np.testing.assert_allclose(values[:3, 0], [-1.2062, -1.1049, -0.4066], atol=1e-4)
    shares = [np.bincount(dataset.labels[area == a], minlength=7) / (area == a).sum() for a in range(4)]
    assert max(np.abs(one - other).sum() for one in shares for other in shares) > 0.3


def test_a_table_without_a_recipe_says_its_classes(tmp_path: Path, store: Store) -> None:
    written(tmp_path, {"heart.csv": TEXT.encode()})
    data = load(f"{tmp_path}/heart.csv,label=y,group=site", store)
    assert (data.spec.name, data.spec.vectors, data.classes) == ("heart", True, ("ill", "well"))
    holds(data, labels=[0, 1, 1, 0], site=["n", "s", "n", "s"])
    written(tmp_path, {"codes.csv": TEXT.replace("ill", "10").replace("well", "9").replace("site", "s").encode()})
    assert load(f"{tmp_path}/codes.csv,label=y,group=s", store).classes == ("9", "10")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("heart.csv,group=site", "which column of "),
        ("none.CSV,label=y", "there is no file "),
        ("heart.csv,label=y,group=label", "a natural column cannot be called 'label'"),
        ("heart.csv,label=y,by=site", "unknown option of "),
        ("heart.csv,label=z", "unknown column of "),
        ("heart.csv,label=y", "column site holds 'n', which is no number; write it as numbers"),
        ("numbers.csv,label=a", "column a has 4 values: it holds no classes"),
        ("numbers.csv,label=c", "numbers holds one class only"),
    ],
)
def test_a_table_that_cannot_be_is_one_line(name: str, line: str, tmp_path: Path, store: Store) -> None:
    written(tmp_path, {"heart.csv": TEXT.encode(), "numbers.csv": b"a,b,c\n1.5,1,0\n2,1,0\n3,1,0\n4,1,0\n"})
    refused(re.escape(line), load, f"{tmp_path}/{name}", store)


SHEET = "a,b,c,y,site\n" + "".join(f"{a},{b},{c},{y},{site}\n" for a, b, c, y, site in ROWS)
COMMAS = SHEET.replace(",", ";").replace(".", ",")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (SHEET.encode("utf-8-sig"), ""),
        (SHEET.replace(",", ";").encode(), "t.csv has semicolons between the values"),
        (SHEET.replace(",", "\t").encode(), "t.csv has tabs between the values"),
        (SHEET.encode("utf-16"), "t.csv has UTF-16"),
        (COMMAS.encode(), "t.csv has semicolons between the values, commas as decimal points"),
        (
            COMMAS.replace("\n", "\r\n").encode("utf-16"),
            "t.csv has UTF-16, semicolons between the values, commas as decimal points",
        ),
    ],
)
def test_a_table_is_read_as_spreadsheets_of_other_countries_write_it(
    content: bytes, found: str, tmp_path: Path, store: Store
) -> None:
    written(tmp_path, {"t.csv": content})
    said: list[str] = []
    data = load(table(tmp_path), store, notify=said.append)
    assert data.images[:, 0, 0].tolist() == [list(row[:3]) for row in ROWS]
    holds(data, labels=[0, 1, 1, 0], site=["n", "s", "n", "s"])
    assert [line.partition(": ")[2] for line in said[1:]] == ([found] if found else [])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            SHEET.replace(",n", ",Zürich").encode("latin-1"),
            "t.csv, line 2 is not UTF-8 (byte 0xfc): the file may be in Latin-1 or Windows-1252; save it as UTF-8",
        ),
        ((SHEET + "1,2,3,ill,n\n" * 90_000 + "1,2,3,ill,ü\n").encode("latin-1"), "t.csv, line 90006 is not UTF-8"),
        (SHEET.encode("utf-16-le"), "t.csv is in UTF-16 without its mark; save it as UTF-8"),
        (
            COMMAS.replace("5,25", "5.25").encode(),
            "t.csv, line 3: column b holds '5.25', which is no number (the file has semicolons between the values)",
        ),
        (SHEET.replace("5.25", '"1,500"').encode(), "t.csv, line 3: column b holds '1,500', which is no number; "),
    ],
)
def test_a_table_of_another_encoding_or_two_decimal_signs_is_one_line(
    content: bytes, line: str, tmp_path: Path, store: Store
) -> None:
    written(tmp_path, {"t.csv": content})
    refused(re.escape(line), load, table(tmp_path), store)


def test_labels_may_be_one_column_of_an_array(tmp_path: Path, store: Store) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)), y=np.array([[0], [1]]), site=np.zeros((2, 1), int))
    holds(load(table(tmp_path, "t.npz"), store), labels=[0, 1], site=[0, 0])


@pytest.mark.parametrize("line", ["0,5 1,5", "1 0,5", "0,5;1,5"])
def test_decimal_commas_in_a_text_file_are_refused(line: str, tmp_path: Path, store: Store) -> None:
    """They would be twice as many numbers."""
    written(tmp_path, {"x.txt": f"{line}\n{line}\n".encode(), "y.txt": b"0\n1\n"})
    files = '{ path = "x.txt", role = "features" }, { path = "y.txt", role = "labels" }'
    path = recipe(tmp_path, f'kind = "text"\nfile = [{files}]', (4,))
    refused("a comma may be a decimal point; write 0.5 for 0,5", load, path, store)


#: Columns of which float32 merges values, with the offset that keeps them apart (their median).
TIMES = 1_760_000_000 + np.arange(60)
LARGE = [
    (TIMES, TIMES[30]),
    (2**24 + np.arange(60), 2**24 + 30),
    (1e9 + np.arange(60) / 8, 1e9 + 30 / 8),
]


@pytest.mark.parametrize(("column", "offset"), LARGE)
@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
def test_values_that_float32_cannot_tell_apart_are_stored_less_an_offset(
    column: np.ndarray, offset: float, ending: str, tmp_path: Path, store: Store
) -> None:
    """... the same for training and test rows; other columns are stored as they are."""
    other, y = np.arange(60) / 7, (np.arange(60) >= 30).astype(int)
    path = tmp_path / f"log{ending}"
    if ending == ".npz":
        np.savez(path, time=column, other=other, y=y)
    elif ending == ".parquet":
        pq.write_table(pa.table({"time": column, "other": other, "y": y}), path)
    else:
        rows = zip(column.tolist(), other.tolist(), y.tolist(), strict=True)
        path.write_text("time,other,y\n" + "".join(f"{a!r},{b!r},{c}\n" for a, b, c in rows))
    files = f'[{{ path = "{path.name}", rows = 40 }}, {{ path = "{path.name}", skip = 40, split = "test" }}]'
    data = load(recipe(tmp_path, f'kind = "table"\nlabel = "y"\nfile = {files}', (2,)), store)
    assert data.offset == (offset, 0)
    assert data.images[:, 0, 0, 0].tolist() == (column - offset).tolist()
    assert np.array_equal(data.images[:, 0, 0, 1], other.astype(np.float32))
    partition = partitions.build(partition_spec(data.spec, "iid", clients=2, seed=0, train_fraction=0.5), store)
    seen, _ = partition.distinct(data)
    assert len(np.unique(seen[:, 0, 0, 0])) == 60
    mean, _ = _moments(partition, store, [])["mean"]  # of the values as they are in the file
    rows = np.unique(partition.sample[partition.training])
    assert mean == pytest.approx(column[rows].astype(np.float64).mean(), rel=1e-12, abs=1e-3)


def test_vectors_that_float32_holds_keep_their_ids_and_bytes(tmp_path: Path, store: Store) -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=90), rng.normal(30, 1, 90), 2000.0 + np.arange(90), np.full(90, 0.1)], axis=1)
    assert offsets(x) is None
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(90) % 2, site=np.zeros(90, int))
    data = load(path := table(tmp_path, "t.npz", shape=(4,)), store)
    assert np.array_equal(data.images[:, 0, 0], x.astype(np.float32))
    np.savez(tmp_path / "t.npz", x=x + np.array([0, 0, 2.0**31, 0]), y=np.arange(90) % 2, site=np.zeros(90, int))
    assert load(path, store).offset == (0, 0, 2.0**31 + 2045, 0)


def test_parts_of_a_union_have_offsets_of_their_own(tmp_path: Path, store: Store) -> None:
    parts = []
    for moved in (0, 600):
        np.savez(tmp_path / "t.npz", x=TIMES + moved, y=np.arange(60) % 2, site=np.zeros(60, int))
        parts.append(load(path := table(tmp_path, "t.npz", shape=(1,)), store))
    assert parts[0].offset != parts[1].offset
    joined = np.concatenate([part.images.reshape(-1) for part in data_build.read_union(catalogue.recipe(path), parts)])
    assert joined.tolist() == [*TIMES, *(TIMES + 600)]


def test_numbers_of_accounts_do_not_merge(tmp_path: Path, store: Store) -> None:
    site = [decimal.Decimal(2**53), decimal.Decimal(2**53 + 1)]
    pq.write_table(pa.table({"x": [[1.0, 2.0, 3.0]] * 2, "y": ["ill", "well"], "site": site}), tmp_path / "t.parquet")
    holds(load(table(tmp_path, "t.parquet"), store), site=[2**53, 2**53 + 1])


def test_more_classes_than_predictions_hold_are_refused(tmp_path: Path, store: Store) -> None:
    y = np.repeat(np.arange(2**16 + 1), 2)
    np.savez(tmp_path / "faces.npz", x=y[:, None] / 9, y=y)
    refused("faces has 65,537 classes, and 65,536 is the most", load, f"{tmp_path}/faces.npz,label=y", store)


# -- partitions and runs ---------------------------------------------------------------------------------------


def breast_cancer(store: Store, **changes: Any) -> tuple[Dataset, PartitionSpec]:
    dataset = load("breast_cancer", store)
    values: dict[str, Any] = {"scheme": "dirichlet", "alpha": 0.5, "train_fraction": 0.7, **changes}
    return dataset, partition_spec(dataset.spec, clients=4, seed=1, **values)


def test_vectors_are_normalised_by_the_training_rows(store: Store) -> None:
    dataset, spec = breast_cancer(store, unseen=1, validation=0.1)
    made = partitions.build(spec, store)
    again = read(store.open("partition", spec.id))  # its artifact says the same
    assert np.array_equal(again.sample, made.sample)
    assert np.array_equal(again.label, made.label)
    rows = np.unique(made.sample[made.training & (made.client < 3)])
    seen = dataset.images[:, 0, 0].astype(np.float64)
    expected = (seen - seen[rows].mean(0)) / seen[rows].std(0)
    images, index = again.distinct(dataset)
    assert images.dtype == np.float32
    np.testing.assert_allclose(images[index][:, 0, 0], expected[made.sample], rtol=1e-4, atol=1e-4)
    held = data_of(spec, store, []).arrays
    assert np.array_equal(held["images"], images)
    assert np.array_equal(held["image"], made.sample)


def test_a_value_that_never_differs_is_left_at_zero(tmp_path: Path, store: Store) -> None:
    text = "a,b,c,y,site\n" + "".join(f"{i},5,{i * i},{'ill' if i % 2 else 'well'},{i // 8}\n" for i in range(16))
    dataset = load(table(tmp_path, text=text), store)
    made = partitions.make(partition_spec(dataset.spec, "natural", 2, 0, 0.5, by="site"), dataset)
    assert [set(dataset.columns["site"][made.sample[made.client == i]]) for i in (0, 1)] == [{0}, {1}]
    images, _ = made.distinct(dataset)
    assert np.isfinite(images).all()
    assert (images[..., 1] == 0).all()


@pytest.mark.parametrize(
    "changes",
    [{"shift": "low"}, {"scheme": "equal", "shift": "px", "level": 1}, {"unseen": 1, "unseen_as": ("fog-3",)}],
    ids=str,
)
def test_vectors_have_no_looks(changes: dict[str, Any], store: Store) -> None:
    if "scheme" in changes:
        changes = {"alpha": None, "train_fraction": None, **changes}
    dataset, spec = breast_cancer(store, **changes)
    refused("breast_cancer has vectors, which cannot be coloured, rotated or corrupted", partitions.make, spec, dataset)


def test_labels_of_vectors_may_shift(store: Store) -> None:
    dataset, spec = breast_cancer(store, scheme="equal", alpha=None, train_fraction=None, shift="pyx", level=2)
    assert not partitions.make(spec, dataset).alters


def test_what_is_of_images_alone_is_one_line(store: Store, tmp_path: Path) -> None:
    dataset, spec = breast_cancer(store)
    refused(
        "breast_cancer holds vectors, and these folders images", ClientImages, partitions.make(spec, dataset), dataset
    )
    refused("breast_cancer holds vectors, which have no crop", setting, partition=spec, augment="crop")
    with pytest.raises(FedbenchError, match="model lenet5 takes images, not vectors of 30 values; mlp is for vectors"):
        build("lenet5", shape=(1, 1, 30), classes=2, seed=0)
    for name in ("haccs", "grayscale"):
        with pytest.raises(FedbenchError, match=f"{name} works with the pixels of images"):
            trainer(method(name), vectors(), tmp_path, setting(model="mlp"))


def test_the_network_of_vectors_is_an_mlp(store: Store) -> None:
    _, spec = breast_cancer(store)
    assert protocol.load("plain").setting(spec, "small").model == "mlp"
    network = build("mlp", shape=(28, 28, 1), classes=10, seed=0)
    assert sum(p.numel() for p in network.parameters()) == 199_210  # McMahan et al.'s 2NN
    small = build("mlp:width=5,layers=1", shape=(1, 1, 30), classes=2, seed=0)
    assert [tuple(p.shape) for p in small.parameters()] == [(5, 30), (5,), (2, 5), (2,)]


#: The page's commands and recipe, on a made file.
PAGE = (RECIPES / "vectors.md").read_text()


def test_the_pages_example_goes_from_file_to_exported_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FEDBENCH_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [(*rng.normal(i % 2, 1, 3), ("healthy", "ill")[i % 2], f"h{i // 20}") for i in range(80)]
    text = "\n".join(["age,chol,bp,target,hospital", *(",".join(map(str, row)) for row in rows)])
    recipe_text = PAGE.partition("```toml\n")[2].partition("```")[0]
    written(tmp_path, {"heart.csv": text.encode(), "heart.toml": recipe_text.encode()})
    lines = [line.split("#")[0].split()[1:] for line in PAGE.splitlines() if line.startswith("    fedbench train ./")]
    assert len(lines) == 2
    for line in lines:
        good(*line, "--rounds", "2", "--keep", "model")
    trained = runs(home)
    assert [run.spec.setting.model for run in trained] == ["mlp", "mlp"]
    other = re.search(r"partition (\w{12}) ", good("partition", "./heart.toml", "--iid", "--clients", "4").out)
    assert other
    good("export", trained[-1].id, "-o", tmp_path / "models")
    about = json.loads((tmp_path / "models/models.json").read_text())
    assert about["build"] == 'fedbench.models.build("mlp", shape=(1, 1, 3), classes=2, seed=0)'
    assert about["input"].startswith("[B, D, 1, 1]")
    store = Store(home)
    partition = read(store.get(trained[-1].spec.setting.partition))
    mean, std = partition.moments(load(partition.spec.dataset, store))
    assert (about["mean"], about["std"]) == (mean.tolist(), std.tolist())
    assert "heart holds vectors, and these folders images" in bad("export", other[1], "-o", "x", "--format", "pflib")
    assert "heart has vectors, which cannot be drawn as images" in bad("figure", "images", other[1])


def test_the_pages_encoder_writes_the_vectors_that_its_recipe_reads(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = torchvision().models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    drawn = models.resnet18()
    drawn.fc.weight.data[:512] = torch.eye(512)  # so that its first outputs are its features
    drawn.fc.bias.data.zero_()
    checkpoints = tmp_path / "hub" / "checkpoints"  # where torchvision keeps what it has downloaded
    checkpoints.mkdir(parents=True)
    torch.save(drawn.state_dict(), checkpoints / Path(models.ResNet18_Weights.DEFAULT.url).name)
    for split, images in (("train", pixels(4, 240, 250, 3)), ("test", pixels(2, 240, 250, 3, seed=1))):
        files = {f"{('cat', 'dog')[i % 2]}/{i}.png": encoded(image) for i, image in enumerate(images)}
        written(tmp_path / "pets" / split, files)
    text = PAGE.partition("**Embeddings of a frozen encoder**")[2]
    code, recipe_text = (text.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "toml"))
    exec(code, {})
    written(tmp_path, {"pets.toml": recipe_text.encode()})
    made = load("./pets.toml", store)
    assert made.images.shape == (6, 1, 1, 512)
    holds(made, labels=[0, 0, 1, 1, 0, 1], split=[0, 0, 0, 0, 1, 1])
    first = models.ResNet18_Weights.DEFAULT.transforms()(Image.fromarray(pixels(4, 240, 250, 3)[0]))
    with torch.no_grad():
        expected = drawn.eval()(first[None])[0, :512].numpy()
    np.testing.assert_allclose(made.images[0, 0, 0], expected, rtol=1e-4, atol=1e-5)
