"""Recipes: the ones that come along are right, wrong ones say what is wrong."""

from __future__ import annotations

import re
import string
from pathlib import Path

import numpy as np
import pytest

from fedbench.data import recipe, recipes, resolve
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import IDX_BODY, idx_toy, recipe_text

NAMES = {
    "digits", "mnist", "fashion_mnist", "mnist_writers", "cifar10", "cifar20", "cifar100", "usps", "tinyimagenet",
    "femnist", "svhn", "synth_digits", "mnist_m", "digit5", "digit3", "chexpert", "office_home",
    "retina",
}  # fmt: skip
#: Sources that are handed round without a checksum that we know: the files themselves are their identity.
BRING_YOUR_OWN = {
    ("femnist", "parquet"), ("femnist", "leaf"), ("synth_digits", "mat"), ("synth_digits", "parquet"),
    ("mnist_m", "folder"), ("chexpert", "small"), ("office_home", "archive"), ("office_home", "folder"),
    ("retina", "archive"), ("retina", "folder"),
}  # fmt: skip


def test_every_dataset_has_a_valid_recipe() -> None:
    assert set(recipes()) == NAMES
    for found in recipes().values():
        assert found.partition_classes >= len(found.classes) or found.partition_label
        for source in found.sources:
            if source.kind == "union":
                assert set(source.parts) < NAMES
                continue
            declared = source.kind == "builtin" or all(file.checksum for file in source.file)
            assert declared != ((found.name, source.name) in BRING_YOUR_OWN)
            assert source.train or not declared
            assert found.multi_label == (found.name == "chexpert")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "partition_classes"),
    [
        ("digits", (8, 8, 1), 10, 10),
        ("mnist_writers", (28, 28, 1), 10, 10),
        ("cifar20", (32, 32, 3), 20, 100),
        ("cifar100", (32, 32, 3), 100, 100),
        ("usps", (16, 16, 1), 10, 10),
        ("femnist", (28, 28, 1), 62, 62),
        ("svhn", (32, 32, 3), 10, 10),
        ("digit5", (32, 32, 3), 10, 10),
        ("tinyimagenet", (64, 64, 3), 200, 200),
    ],
)
def test_shapes_and_classes(name: str, shape: tuple[int, ...], classes: int, partition_classes: int) -> None:
    found = recipe(name)
    assert (found.shape, len(found.classes), found.partition_classes) == (shape, classes, partition_classes)


def test_sources_and_parts_of_ours() -> None:
    for name in ("cifar10", "cifar20", "cifar100"):  # exact pixels are preferred to encoded ones
        assert [source.name for source in recipe(name).sources] == ["binary", "parquet"]
    assert [source.name for source in recipe("tinyimagenet").sources] == ["folder", "subset"]
    assert "SUBSET" in recipe("tinyimagenet").sources[1].title
    assert [(s.name, s.train, s.test) for s in recipe("mnist_m").sources] == [
        ("archive", 59001, 9001), ("folder", 59001, 9001), ("regenerated", 5000, 1000),
    ]  # fmt: skip
    assert "SUBSET, regenerated" in recipe("mnist_m").sources[2].title
    assert "".join(recipe("femnist").classes) == string.digits + string.ascii_uppercase + string.ascii_lowercase
    assert recipe("digit5").sources[0].parts == ("mnist", "svhn", "usps", "synth_digits", "mnist_m")
    assert recipe("digit3").sources[0].parts == ("mnist", "usps", "mnist_m")
    for coarse, fine in zip(recipe("cifar20").sources, recipe("cifar100").sources, strict=True):
        assert coarse.file == fine.file
        assert coarse.label != fine.label


def test_a_users_file_is_a_recipe(tmp_path: Path) -> None:
    path, _, _ = idx_toy(tmp_path)
    found = recipe(str(path))
    assert (found.name, found.folder, found.classes) == ("toy", tmp_path, ("a", "b", "c"))
    assert recipe("toy") is found  # a spec names the recipe, not its file
    other = path.rename(tmp_path / "cifar10.toml")  # and hides none of ours
    assert recipe(str(other)).title == "Toy"
    assert recipe("cifar10").title == "CIFAR-10"


GOOD_FILE = 'path = "toy/train-images.gz"\n'
SECOND = '[[source]]\nname = "two"\nkind = "parquet"\ncolumns = {who = "w"}\n[[source.file]]\npath = "a.parquet"\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "idx"', 'kind = "idxx"', "unknown kind .*did you mean 'idx'"),
        ('kind = "idx"', 'kindd = "idx"', "unknown key in .*source 1 'kindd'.*did you mean 'kind'"),
        ('kind = "idx"', "", "lacks 'kind'"),
        ("train = 6", 'train = "6"', "train must be a whole number, not '6'"),
        ("train = 6", "train = true", "train must be a whole number, not True"),
        ('kind = "idx"', 'kind = "parquet"\nresize = 1', "resize must be true or false, not 1"),
        ('kind = "idx"', 'kind = "idx"\nresize = true', "kind idx has no resize"),
        ('kind = "idx"', 'kind = "idx"\nparts = ["mnist"]', "kind union, and only it, has parts"),
        ('kind = "idx"', 'kind = "union"', "kind union, and only it, has parts"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist", "mnist"]', "parts holds a name twice"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist", "toy"]', "cannot be a part of itself"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist"]', r"has \[\[source.file\]\]"),
        ('title = "Toy"', "title = 3", "title must be text"),
        ("shape = [4, 5, 1]", "shape = [4, 5, 2]", "1 or 3 channels"),
        ("shape = [4, 5, 1]", "shape = [4, 5]", "shape must be"),
        ("shape = [4, 5, 1]", "shape = 4", "shape must be a list"),
        ("['a', 'b', 'c']", "['a', 'a']", "a name twice"),
        ("['a', 'b', 'c']", "['a']", "at least 2 classes"),
        (GOOD_FILE, 'path = "../train-images.gz"\n', "stay below the data folder"),
        (GOOD_FILE, 'path = "/etc/passwd"\n', "stay below the data folder"),
        (GOOD_FILE, GOOD_FILE + 'sha256 = "abc"\n', "sha256 must be 64 hexadecimal digits"),
        (GOOD_FILE, GOOD_FILE + 'urls = ["https://x.org/a"]\n', "needs a checksum"),
        (GOOD_FILE, GOOD_FILE + f'urls = ["file:///etc/passwd"]\nmd5 = "{"0" * 32}"\n', r"not an http\(s\) address"),
        (GOOD_FILE, GOOD_FILE + "rows = 0\n", "rows must be at least 1"),
        (GOOD_FILE, GOOD_FILE + 'split = "val"\n', "split must be train or test"),
        (GOOD_FILE, GOOD_FILE + 'member = [{ path = "a" }]\n', "has no members"),
        ('name = "idx"', 'name = "idx"\ncolumns = { label = "x" }', "cannot be called 'label'"),
        ('name = "idx"', 'name = "idx"\nloader = "digits"', "has a loader"),
        ('title = "Toy"', 'title = "Toy"\npartition_label = "fine"', "go together"),
        ('title = "Toy"', 'title = "Toy"\npartition_label = "fine"\npartition_classes = 4', "no column 'fine'"),
        ('title = "Toy"', 'title = "Toy"\nname = "x"', "unknown key 'name'"),
        ('title = "Toy"', 'title = "Toy', "not valid TOML"),
        ('kind = "idx"', 'kind = "csv"\nlabel_values = { "1" = 1 }', "label_values go with label_columns"),
        ("[[source]]", f"{SECOND}[[source]]", "same columns"),
    ],
)
def test_a_wrong_recipe_is_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = recipe_text(IDX_BODY)
    assert old in text
    path = tmp_path / "toy.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FedbenchError, match=message) as caught:
        recipe(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, f"the file {name} is no data set; give a name of 'fedbench data list', a recipe (./mine.toml")
          for name in ("./toy.npz", "./toy.csv", "toy.csv")),
        ("cifr10", "unknown dataset 'cifr10'; did you mean 'cifar10'"),
        ("./nowhere.toml", "no recipe file"),
    ],
)  # fmt: skip
def test_what_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("toy.npz", x=np.zeros(3))
    Path("toy.csv").write_text("file,label\na.png,1\n")
    with pytest.raises(FedbenchError, match=re.escape(told)):
        recipe(name)


def test_absent_images_say_where_and_what(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FedbenchError) as caught:
        resolve("cifar10", store, [tmp_path / "here"])
    text = str(caught.value)
    for piece in ("cifar-10-binary.tar.gz", "train.parquet", str(tmp_path / "here"), "data fetch cifar10", "--data"):
        assert piece in text
    with pytest.raises(FedbenchError) as caught:
        resolve("usps", store, [])
    assert "fetch" not in str(caught.value)  # there is no address to fetch it from
