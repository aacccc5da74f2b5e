"""Samples of natural groups: who draws what, the released code's leak, and partitions of several labels; CheXpert's
files, in the release's layout: what is read, and bad lines in one line each."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedbench import data
from fedbench.data import catalogue
from fedbench.data.dataset import Dataset
from fedbench.errors import FedbenchError
from fedbench.partitions import make, read
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.tables import write
from fedbench.partitions.view import render
from fedbench.planner import table as tables
from fedbench.protocol import load
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support.data_makers import encoded, pixels, recipe_text
from tests.support.rays_lab import LABELS, VALUES, Row, made_rows, small_recipe, write_release

DATASET = DatasetSpec("chexpert", "made", "0")
ROWS, TRAIN = 600, 400


def rays(rows: int = ROWS, train: int = TRAIN, labels: int = 14) -> Dataset:
    """Images that know their row, of patients with five images each; a patient stands on both sides of the split."""
    rng = np.random.default_rng(0)
    images = np.zeros((rows, 4, 4, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(rows), 256)
    columns = {
        "view": np.where(rng.random(rows) < 0.5, "Frontal", "Lateral"),
        "age": rng.integers(20, 90, rows),
        "sex": np.where(rng.random(rows) < 0.5, "Female", "Male"),
        "patient": np.array([f"patient{(i + 2) // 5:05}" for i in range(rows)]),
    }
    columns["sex"][7] = "Unkno"
    return Dataset(
        spec=DATASET,
        images=images,
        labels=rng.integers(0, 2, (rows, labels), dtype=np.uint8),
        split=(np.arange(rows) >= train).astype(np.uint8),
        columns=columns,
        classes=tuple(f"finding {u}" for u in range(labels)),
    )


def spec(**changes: Any) -> PartitionSpec:
    values: dict[str, Any] = {
        "scheme": "sampled", "clients": 8, "seed": 42, "by": "view+age", "threshold": 50.0, "size": 20, "test_size": 12,
        "disjoint_by": "patient", "validation": 0.2,
    }  # fmt: skip
    return partition_spec(DATASET, **{**values, **changes})


@settings(max_examples=15)
@given(seed=st.integers(0, 50), by=st.sampled_from(["view", "view+age", "view+age+sex"]))
def test_clients_hold_samples_of_their_group(seed: int, by: str) -> None:
    data = rays()
    p = make(spec(seed=seed, by=by, clients=5, size=10, test_size=5), data)
    assert (p.n_train.tolist(), p.n_validation.tolist(), p.n_test.tolist()) == ([8] * 5, [2] * 5, [5] * 5)
    told = {"view": data.column("view"), "age": data.column("age") >= 50, "sex": data.column("sex")}
    held = [[told[name][p.sample[p.rows(c)]].tolist() for name in by.split("+")] for c in range(5)]
    kinds = []
    for columns in held:
        assert all(len(set(column)) == 1 for column in columns)
        kinds.append(tuple(column[0] for column in columns))
    assert [kinds.index(k) for k in kinds] == [p.groups.index(g) for g in p.groups]
    training = p.sample[~p.test]
    assert len(set(training.tolist())) == len(training)  # of each client alone
    assert (training < TRAIN).all()
    assert (p.sample[p.test] >= TRAIN).all()
    assert all(len(np.unique(tested := p.sample[p.rows(c, True)])) == len(tested) for c in range(5))
    patients = data.column("patient")
    assert not set(patients[training]) & set(patients[p.sample[p.test]])


def test_every_group_is_drawn_alike_and_tiny_ones_never() -> None:
    """Leaky clients of a group hold the same and are tested on it."""
    data = rays()
    drawn = [make(spec(seed=s, by="view+sex", size=5, test_size=3), data) for s in range(60)]
    names = [p.distributions[g].name for p in drawn for g in p.groups]
    counts = {name: names.count(name) for name in set(names)}
    assert set(counts) == {f"view {v}, sex {s}" for v in ("Frontal", "Lateral") for s in ("Female", "Male")}
    assert min(counts.values()) > 80  # of 480, 120 each; three standard deviations are 28
    assert len(set(map(tuple, (p.groups for p in drawn)))) > 10
    data = rays()
    p = make(spec(leak_test=True, disjoint_by=None, test_size=30, by="view", clients=4, seed=3), data)
    for c in range(4):
        view = p.distributions[p.groups[c]].name
        assert view is not None
        first = np.flatnonzero((data.column("view") == view.split()[1]) & (data.split == 0))
        trained = np.concatenate([p.sample[p.rows(c, False)], p.sample[p.validation_rows(c)]])
        assert sorted(trained.tolist()) == first[:20].tolist()
        assert p.sample[p.rows(c, True)].tolist() == first[:30].tolist()


def test_seeds_labels_and_the_cut() -> None:
    """... and no patient is on both sides, even if the training image is held by nobody."""
    data = rays()
    a, b, other = (make(spec(seed=s), data) for s in (1, 1, 2))
    assert np.array_equal(a.sample, b.sample)
    assert not np.array_equal(a.sample, other.sample)
    assert np.array_equal(a.label, data.labels[a.sample])
    counts = a.class_counts(test=False)
    assert counts.tolist() == [data.labels[a.sample[a.rows(c, False)]].sum(0).tolist() for c in range(8)]
    assert a.class_counts().sum() == a.label.sum()
    images, index = a.distinct(data)
    assert np.array_equal(images[index], data.images[a.sample])
    assert a.densities.train.shape == (8, 1)
    data = rays()
    data.column("age")[:] = np.where(np.arange(ROWS) % 2, 49, 50)
    p = make(spec(by="age", threshold=50.0), data)
    names = {p.distributions[g].name for g in p.groups}
    assert names == {"age below 50", "age 50 or more"}
    for c in range(p.clients):
        age = 49 if p.distributions[p.groups[c]].name == "age below 50" else 50
        assert set(data.column("age")[p.sample[p.rows(c)]].tolist()) == {age}
    assert {d.name for d in make(spec(by="age", threshold=60.0), data).distributions} == {"age below 60"}
    data = rays()
    split_patient = data.column("patient")[TRAIN - 1]
    assert split_patient == data.column("patient")[TRAIN]
    seen = {apart: make(spec(by="view", disjoint_by=apart, test_size=60), data) for apart in ("patient", None)}
    of = {apart: data.column("patient")[p.sample[p.test]] for apart, p in seen.items()}
    assert split_patient not in of["patient"]
    assert split_patient in of[None]


def test_written_read_and_seen(store: Store) -> None:
    made = make(spec(clients=6), rays())
    with store.writing(made.spec) as writer:
        write(writer, made)
    artifact = store.get(made.spec)
    assert artifact is not None
    again = read(artifact)
    assert again.label.dtype == np.uint8
    assert np.array_equal(again.label, made.label)
    assert again.distributions == made.distributions
    assert again.groups == made.groups
    console = Console(width=120, record=True, file=io.StringIO())
    for part in render(again, 120):
        console.print(part)
    text = console.export_text()
    assert "by view+age, drawn" in text
    assert "20 training and 12 test images a client; threshold 50; every patient in one split only" in " ".join(
        text.split()
    )
    assert "view Frontal, age below 50" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 300}, r"no group by view\+age of chexpert has 300 training and 12 test images"),
        ({"size": 40, "clients": 30}, r"training images of view .* cannot give \d+ clients 40 each"),
        ({"by": "view+height"}, "column of chexpert.*'height'"),
        ({"disjoint_by": "person"}, "column of chexpert.*'person'"),
        ({"by": None}, "a sampled partition needs by"),
        ({"test_size": None}, "a sampled partition needs test size"),
        ({"size": 1}, "a size of 2 at least"),
        ({"leak_test": True}, "cannot be disjoint by a column"),
        ({"scheme": "iid", "train_fraction": 0.5, "size": None}, "partitioner iid has no"),
        ({"train_fraction": 0.5}, "a sampled partition has no training share"),
    ],
)
def test_what_cannot_be_drawn(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(FedbenchError, match=told):
        make(spec(**changes), rays())


def test_schemes_that_go_by_classes_refuse_multi_label() -> None:
    data = rays()
    plain = dict.fromkeys(("by", "threshold", "size", "test_size", "disjoint_by", "validation"))
    for changes in (
        {"scheme": "dirichlet", "alpha": 1.0, "train_fraction": 0.5},
        {"scheme": "shards", "shards": 2, "train_fraction": 0.5},
        {"scheme": "equal", "shift": "py", "level": 3},
    ):
        with pytest.raises(FedbenchError, match="is multi-label, so it cannot be dealt out"):
            make(spec(**{**plain, **changes}), data)
    for changes in (
        {"scheme": "iid", "train_fraction": 0.5},
        {"scheme": "natural", "by": "view", "clients": 2, "train_fraction": 0.5},
        {"scheme": "equal", "shift": "px", "level": 2},
    ):
        p = make(spec(**{**plain, **changes}), data)
        assert np.array_equal(p.label, data.labels[p.sample])
        assert len(p.transformed_images(data)) == len(p.sample)


@pytest.mark.parametrize("name", ["flux/59", "flux/1"])
def test_the_tables_ask_for_these_partitions(name: str) -> None:
    """Sizes of the protocol, of a data set large enough; three levels with at most 2, 4 and 8 groups."""
    data = replace(rays(40_000, 30_000), spec=DATASET)
    columns = [c for c in tables.load(name).columns if c.dataset == "chexpert"]
    assert len(columns) == 6
    seen = []
    for column in columns[:3]:
        made = make(load("flux").partition_spec(DATASET, 14, **column.partition), data)
        assert made.clients == 20
        assert {*made.n_train.tolist()} == {120}
        assert {*made.n_validation.tolist()} == {30}
        assert {*made.n_test.tolist()} == {280}
        assert made.spec.options.get("cut") == 50
        seen.append(len(made.distributions))
    assert seen[0] == 2
    assert 2 < seen[1] <= 4 < seen[2] <= 8
    assert [c.partition for c in columns[:3]] == [c.partition for c in columns[3:]]
    # The protocol's layouts are these, and the same with the released code's leak.
    rules = load("flux")
    for level, column in zip(("low", "medium", "high"), columns, strict=False):
        chosen = dict(column.partition)
        plain = rules.partition_spec(DATASET, 14, preset=f"chexpert_{level}")
        assert plain == rules.partition_spec(DATASET, 14, **chosen)
        del chosen["disjoint_by"]
        chosen["threshold"] = 60
        leaky = rules.partition_spec(DATASET, 14, preset=f"chexpert_leak_{level}")
        assert leaky == rules.partition_spec(DATASET, 14, **chosen, leak_test=True)


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
