"""When names of classes and groups are the same, where their numbers begin, and which files a pattern takes."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.data import Dataset, load
from fedbench.data.names import wholes
from fedbench.store import Store
from tests.support.data_makers import encoded, idx_bytes, pixels, recipe_file, written

NFC, NFD = (unicodedata.normalize(form, "pélican") for form in ("NFC", "NFD"))
IMAGES = [encoded(one) for one in pixels(8, 4, 5)]
FOLDER = '[[source]]\nname = "f"\nkind = "folder"\n{}[[source.file]]\npath = "pics"\n'


def folder(tmp_path: Path, store: Store, names: list[str], patterns: list[str], **more: Any) -> Dataset:
    written(tmp_path / "pics", {name: IMAGES[i % 8] for i, name in enumerate(names)})
    columns = 'columns = { writer = "writer" }\n' if "{writer}" in patterns[0] else ""
    members = "".join(f'[[source.file.member]]\npath = "{one}"\n' for one in patterns)
    return load(
        recipe_file(tmp_path, FOLDER.format(columns) + members, classes=more.pop("classes", (NFC, "b"))), store, **more
    )


def test_two_forms_of_a_name_are_one_class_and_one_writer(tmp_path: Path, store: Store) -> None:
    names = [f"{writer}/{label}/1.png" for writer in (NFC, NFD) for label in (NFC, NFD, "b")]
    for given in (NFC, NFD):
        got = folder(tmp_path, store, names, ["{writer}/{label}/*.png"], classes=(given, "b"))
        assert got.classes == (NFC, "b")
        assert np.bincount(got.labels).tolist() == [4, 2]
        assert set(got.columns["writer"].tolist()) == {NFC}


@pytest.mark.parametrize("kind", ["csv", "table"])
def test_two_forms_in_a_file_are_one(tmp_path: Path, store: Store, kind: str) -> None:
    rows = "".join(f"{i}.png,{i},{name},{name}\n" for i, name in enumerate((NFC, NFD, "b", "b")))
    files = {f"{i}.png": IMAGES[i] for i in range(4)}
    written(tmp_path, {**files, "t.csv": f"image,x,label,site\n{rows}".encode()})
    features = 'features = ["x"]\n' if kind == "table" else ""
    body = f'[[source]]\nname = "s"\nkind = "{kind}"\n{features}columns = {{ site = "site" }}\n'
    shape = (1,) if kind == "table" else (4, 5, 1)
    body += '[[source.file]]\npath = "t.csv"\n'
    got = load(recipe_file(tmp_path, body, shape, classes=(NFD, "b")), store)
    assert got.labels.tolist() == [0, 0, 1, 1]
    assert got.columns["site"].tolist() == [NFC, NFC, "b", "b"]


def test_two_forms_of_a_class_on_the_hub(tmp_path: Path, store: Store) -> None:
    pytest.importorskip("datasets")
    names = [f"{side}/{label}/{i}.png" for side, label in (("train", NFC), ("test", NFD)) for i in range(3)]
    names += [f"{side}/b/{i}.png" for side in ("train", "test") for i in range(2)]
    written(tmp_path / "birds", dict.fromkeys(names, IMAGES[0]))
    got = load(f"hf:{tmp_path / 'birds'}", store)
    assert sorted(got.classes) == ["b", NFC]
    assert np.bincount(got.labels).tolist() == [4 if name == "b" else 6 for name in got.classes]


def from_one(tmp_path: Path, first: int) -> dict[str, str]:
    """Data sets without a recipe of classes first, first + 1, first + 2 in turn; from kind to name."""
    labels = [first + i % 3 for i in range(6)]
    rows = "\n".join(["file_name,label", *(f"{i}.png,{y}" for i, y in enumerate(labels))])
    images = {f"{i}.png": IMAGES[i] for i in range(6)}
    for side in ("train", "test"):
        written(tmp_path / "meta" / side, {**images, "metadata.csv": rows.encode()})
        leaf = {"users": ["u"], "num_samples": [6], "user_data": {"u": {"x": [[0.5] * 16] * 6, "y": labels}}}
        written(tmp_path / "LEAF" / side, {"all.json": json.dumps(leaf).encode()})
        (tmp_path / "PFL" / side).mkdir(parents=True)
        np.savez(tmp_path / "PFL" / side / "0.npz", x=pixels(6, 1, 4, 5), y=np.array(labels))
    return {kind: str(tmp_path / kind) for kind in ("LEAF", "PFL")} | {"hub": f"hf:{tmp_path / 'meta'}"}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", ["LEAF", "PFL", "hub"])
def test_labels_that_count_from_1_make_no_class_0(tmp_path: Path, store: Store, kind: str, first: int) -> None:
    if kind == "hub":
        pytest.importorskip("datasets")
    got = load(from_one(tmp_path, first)[kind], store)
    assert got.classes == tuple(str(first + i) for i in range(3))
    assert got.labels.tolist() == [0, 1, 2] * 4


def test_classes_that_pflibs_config_counts(tmp_path: Path, store: Store) -> None:
    place = from_one(tmp_path, 1)["PFL"]
    (Path(place) / "config.json").write_text('{"num_classes": 3}')
    assert load(place, store).labels.tolist() == [0, 1, 2] * 4


def test_letters_of_emnist_are_26(tmp_path: Path, store: Store) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    labels = np.arange(52, dtype=np.uint8) % 26 + 1
    for side in ("train", "test"):
        front = f"emnist-letters-{side}"
        images, classes = idx_bytes(pixels(52, 28, 28)), idx_bytes(labels)
        written(raw, {f"{front}-images-idx3-ubyte": images, f"{front}-labels-idx1-ubyte": classes})
    got = load("torchvision:EMNIST,split=letters", store, [tmp_path])
    assert (len(got.classes), got.classes[0], got.classes[25]) == (26, "a", "z")
    assert got.labels.tolist() == [*range(26)] * 4


def test_the_case_of_an_image_s_suffix_is_free_and_other_files_are_mentioned(tmp_path: Path, store: Store) -> None:
    names = ["b/1.png", "b/2.PNG", f"{NFC}/3.Png", "b/4.jpg", "b/Thumbs.db", "notes.txt", "b/x/5.png", "b/._6.png"]
    lines: list[str] = []
    got = folder(tmp_path, store, names, ["{label}/*.png"], notify=lines.append)
    assert len(got.labels) == 3
    (line,) = [line for line in lines if "no pattern" in line]
    assert "not read, for no pattern of the recipe matches: b/4.jpg, b/Thumbs.db, b/x/5.png and 1 more (in " in line


def test_no_file_is_mentioned_if_all_are_read(tmp_path: Path, store: Store) -> None:
    lines: list[str] = []
    folder(tmp_path, store, ["b/1.png", f"{NFC}/2.jpeg"], ["{label}/*.png", "{label}/*.JPEG"], notify=lines.append)
    assert not [line for line in lines if "no pattern" in line]


@pytest.mark.parametrize("kind", ["csv", "table"])
@pytest.mark.parametrize(
    ("classes", "values", "codes"),
    [
        (("1", "2"), ("01", "1", "2", "2.0"), [0, 0, 1, 1]),
        (("01", "02"), ("1", "01", "2", "02"), [0, 0, 1, 1]),
        (("cat", "dog"), ("0", "00", "1.0", "1"), [0, 0, 1, 1]),
    ],
)
def test_whole_numbers_are_the_same_however_written(
    tmp_path: Path, store: Store, kind: str, classes: tuple[str, ...], values: tuple[str, ...], codes: list[int]
) -> None:
    """... in the label as in a group; a value that is no number makes text of its column."""
    rows = "".join(f"{i}.png,{i},{v},{v},{v if i else 'x'}\n" for i, v in enumerate(values))
    files = {f"{i}.png": IMAGES[i] for i in range(4)}
    written(tmp_path, {**files, "t.csv": f"image,x,label,site,name\n{rows}".encode()})
    features = 'features = ["x"]\n' if kind == "table" else ""
    body = f'[[source]]\nname = "s"\nkind = "{kind}"\n{features}columns = {{ site = "site", name = "name" }}\n'
    shape = (1,) if kind == "table" else (4, 5, 1)
    got = load(recipe_file(tmp_path, f'{body}[[source.file]]\npath = "t.csv"\n', shape, classes=classes), store)
    assert got.labels.tolist() == codes
    assert got.columns["site"].tolist() == [int(float(v)) for v in values]
    assert got.columns["name"].dtype.kind == "U"


def test_a_table_without_a_recipe_has_a_class_for_each_number(tmp_path: Path, store: Store) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1,01\n2,1\n3,2.0\n4,02\n")
    got = load(f"{tmp_path / 't.csv'},label=label", store)
    assert (got.classes, got.labels.tolist()) == (("1", "2"), [0, 0, 1, 1])


def test_what_is_a_whole_number() -> None:
    assert wholes(["1", "01", " 1.0 ", "-3"]) == {"1": 1, "01": 1, " 1.0 ": 1, "-3": -3}
    for other in ("", "1.5", "x", "1e3", "1_0", "١", "9" * 19):
        assert wholes(["1", other]) is None
