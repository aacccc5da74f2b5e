"""CheXpert's files, in the release's layout: what is read, and bad lines in one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbench import data
from fedbench.data import catalogue
from fedbench.data.dataset import Dataset
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, pixels, recipe_text
from tests.support.rays_lab import LABELS, VALUES, Row, made_rows, small_recipe, write_release


@pytest.fixture(autouse=True)
def _no_user_recipes() -> Iterator[None]:
    """Keeps one test's own recipes from the next."""
    yield
    catalogue._users.clear()


def loaded(folder: Path, store: Store, train: int, test: int) -> Dataset:
    return data.load(str(small_recipe(folder, train, test, side=16)), store)


def test_images_labels_and_columns(tmp_path: Path, store: Store) -> None:
    rows = made_rows(40)
    write_release(tmp_path, rows)
    found = loaded(tmp_path, store, 24, 10)
    assert found.images.shape == (34, 16, 16, 1)
    assert found.classes == tuple(LABELS)
    rows = rows[:34]  # lines behind the last are read by nobody
    assert found.split.tolist() == [0] * 24 + [1] * 10
    # Uncertain counts as there, not mentioned as not.
    meaning = dict(zip(VALUES, (1, 0, 1, 0), strict=True))
    assert found.labels.tolist() == [[meaning[row[name]] for name in LABELS] for row in rows]
    assert found.labels.dtype == np.uint8
    assert found.multi_label
    bright = found.images.reshape(34, -1).mean(1) > 140
    assert bright.tolist() == [row["Fracture"] == "1.0" for row in rows]  # each image has its own labels
    assert found.column("view").tolist() == [row["Frontal/Lateral"] for row in rows]
    assert found.column("age").tolist() == [int(row["Age"]) for row in rows]
    assert found.column("patient").tolist() == [row["Path"].split("/")[2] for row in rows]
    assert loaded(tmp_path, store, 20, 10).spec.id != found.spec.id, "other numbers in the recipe"
    # Read back from the artifact, and counted there.
    again = data.load(found.spec, store)
    assert np.array_equal(again.labels, found.labels)
    counts = data.class_counts(found.spec, store)
    assert counts is not None
    train, test = found.labels[:24].sum(0), found.labels[24:].sum(0)
    assert counts == {name: (train[k], test[k]) for k, name in enumerate(LABELS)}


def changed(name: str, value: str) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        rows[4][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed("Edema", "2.0"), "train.csv, line 6: Edema is '2.0', which is no label"),
        (changed("Edema", "yes"), "train.csv, line 6: Edema is 'yes', which is no label"),
        (changed("Path", "other/train/patient1/study1/a.jpg"), "line 6: the image 'other/train"),
        (changed("Path", "CheXpert-v1.0-small/train/../study1/a.jpg"), "does not lie below the file's folder"),
        (lambda rows: rows.__delitem__(slice(20, None)), "lists no image behind its first 24"),
        (lambda rows: rows.__delitem__(slice(30, None)), "holds 6 test images; its recipe says 10"),
    ],
)
def test_bad_lines(tmp_path: Path, store: Store, change: Callable[[list[Row]], None], told: str) -> None:
    rows = made_rows(40)
    change(rows)
    write_release(tmp_path, rows)
    with pytest.raises(FedbenchError) as error:
        loaded(tmp_path, store, 24, 10)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(store.list("dataset"))


def test_images_and_tables_with_faults(tmp_path: Path, store: Store) -> None:
    rows = made_rows(40)
    gone = rows[26]["Path"]
    table = write_release(tmp_path, rows, without=lambda row: row["Path"] == gone)
    with pytest.raises(FedbenchError, match=r"train\.csv, line 28: the image .*study26.*\.jpg is not there"):
        loaded(tmp_path, store, 24, 10)
    (table.parent / gone.removeprefix("CheXpert-v1.0-small/")).write_bytes(b"no JPEG")
    with pytest.raises(FedbenchError, match=r"study26.*\(train\.csv, line 28\) is not a readable image"):
        loaded(tmp_path, store, 24, 10)
    table = write_release(tmp_path / "2", made_rows(40))
    text = table.read_text()
    table.write_text(text.replace("Frontal/Lateral", "View", 1))
    with pytest.raises(FedbenchError, match=r"column of .*train\.csv.* 'Frontal/Lateral'"):
        loaded(tmp_path / "2", store, 24, 10)
    first, *others = text.splitlines()
    table.write_text("\n".join([first, others[0] + ",", *others[1:]]))
    with pytest.raises(FedbenchError, match=r"line 2: 20 values under 19 column names"):
        loaded(tmp_path / "2", store, 24, 10)
    with pytest.raises(FedbenchError, match=r"no chexpert/CheXpert-v1\.0-small/train\.csv in") as error:
        data.resolve("chexpert", store, [tmp_path / "3"])
    assert "FEDBENCH_DATA" in error.value.hint


ONE_CLASS = """
[[source]]
name = "list"
kind = "csv"
image = "file"
label = "{label}"
pattern = "{{folder}}/*.png"
[[source.file]]
path = "list.csv"
rows = 4
[[source.file]]
path = "list.csv"
split = "test"
skip = 4
"""


def one_class(folder: Path, cells: list[str], label: str = "kind", classes: tuple[str, ...] = ("cat", "dog")) -> str:
    """A recipe of images `x/I.png` that a CSV lists with these values of one column of classes; returns its path."""
    (folder / "x").mkdir()
    for i, image in enumerate(pixels(len(cells), 4, 5)):
        (folder / f"x/{i}.png").write_bytes(encoded(image))
    lines = [f'"x/{i}.png",{cell}' for i, cell in enumerate(cells)]
    (folder / "list.csv").write_text("\n".join(['"file","kind"', *lines, ""]))
    (folder / "toy.toml").write_text(recipe_text(ONE_CLASS.format(label=label), classes=classes))
    return str(folder / "toy.toml")


@pytest.mark.parametrize(
    ("cells", "label", "classes", "codes"),
    [
        (["dog", "cat", '"dog"', "cat", "dog"], "kind", ("cat", "dog"), [1, 0, 1, 0, 1]),
        (["1", "0", "1", "0", " 1"], "kind", ("cat", "dog"), [1, 0, 1, 0, 1]),
        (["7", "3", "7", "3", "7"], "kind", ("7", "3"), [0, 1, 0, 1, 0]),
        (["?", "?", "?", "?", "?"], "folder", ("x", "y"), [0, 0, 0, 0, 0]),
    ],
)
def test_one_column_of_classes(
    tmp_path: Path, store: Store, cells: list[str], label: str, classes: tuple[str, ...], codes: list[int]
) -> None:
    got = data.load(one_class(tmp_path, cells, label, classes), store)
    assert (got.multi_label, got.labels.tolist(), got.split.tolist()) == (False, codes, [0, 0, 0, 0, 1])
    assert np.array_equal(got.images[..., 0], pixels(5, 4, 5))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"x/1.png",cat', '"x/1.png",catt', r"unknown class in .*list\.csv, line 3: 'catt'; did you mean 'cat'"),
        ('"x/1.png",cat', '"x/1.png",1', r"unknown class in .*list\.csv, line 3: '1'"),
        ('"x/1.png",cat', '"x/1.png",', r"unknown class in .*list\.csv, line 3: ''"),
        (
            '"x/1.png",cat',
            '"x/0.png",cat',
            r"list\.csv, line 3: x/0\.png has another class than in .*csv, line 2; list",
        ),
        (
            '"x/4.png",dog',
            '"x/1.png",dog',
            r"list\.csv, line 6: x/1\.png has another class than in .*csv, line 3; list",
        ),
        ('"kind"', '"kinds"', r"unknown column of .*list\.csv 'kind'; did you mean 'kinds'"),
    ],
)
def test_a_wrong_class_names_its_line(tmp_path: Path, store: Store, old: str, new: str, told: str) -> None:
    path = one_class(tmp_path, ["dog", "cat", "dog", "cat", "dog"])
    table = tmp_path / "list.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(FedbenchError, match=told):
        data.load(path, store)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('label_values = { "1" = 1', 'label_values = { "1" = 2', "which values of a label are 0 and which are 1"),
        ("label_columns = [", 'label_columns = [ "Extra",', "label_columns must name 14 columns"),
        ('kind = "csv"', 'kind = "parquet"', "kind parquet has no label_columns"),
        ("skip = 24", "skip = 0", "skip must be at least 1"),
    ],
)
def test_recipes_that_make_no_sense(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = small_recipe(tmp_path, 24, 10)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(FedbenchError, match=told):
        data.recipe(str(path))
