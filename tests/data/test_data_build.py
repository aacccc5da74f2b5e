"""Identity, verification and the artifact; `check` and the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedbench.cli import context
from fedbench.cli.data import data_app
from fedbench.data import check, class_counts, info, load, resolve
from fedbench.errors import FedbenchError
from fedbench.specs import DatasetSpec
from fedbench.store import Store
from tests.support.data_makers import IDX_BODY, encoded, idx_toy, pixels, recipe_text, with_checksums, write_idx


def test_official_training_images_come_first(tmp_path: Path, store: Store) -> None:
    path, images, labels = idx_toy(tmp_path)
    # The recipe may name the test files first: the order of the data set stays.
    front, *files = path.read_text().split("[[source.file]]")
    path.write_text("[[source.file]]".join([front, *reversed(files)]))
    got = load(str(path), store)
    np.testing.assert_array_equal(got.images[..., 0], images)
    np.testing.assert_array_equal(got.labels, labels)
    assert (got.images.dtype, got.labels.dtype, got.split.dtype) == (np.uint8, np.int64, np.uint8)
    assert got.split.tolist() == [0] * 6 + [1] * 3
    assert got.partition_labels is got.labels
    assert got.partition_classes == 3
    assert got.images.flags.writeable
    assert got.labels.flags.writeable


def test_one_spec_is_one_artifact_and_the_same_bytes_anywhere(tmp_path: Path) -> None:
    path, _, _ = idx_toy(tmp_path)
    made = []
    for home in ("one", "two"):
        store = Store(tmp_path / home)
        spec = load(str(path), store).spec
        artifact = store.get(spec)
        assert artifact is not None
        made.append((spec.id, {n: artifact.file(n).read_bytes() for n in ("data.parquet", "classes.parquet")}))
    assert made[0] == made[1]


# -- which one it is --------------------------------------------------------------------------------------------


def test_built_data_sets_need_no_source_files(tmp_path: Path, store: Store) -> None:
    """The newest artifact of a name is taken."""
    for seed in (2, 1, 3):
        path, images, _ = idx_toy(tmp_path, seed)
        spec = load(str(path), store).spec
    for file in (tmp_path / "toy").iterdir():
        file.unlink()
    assert resolve(str(path), store) == spec
    np.testing.assert_array_equal(load(spec, store).images[..., 0], images)
    path.unlink()
    assert resolve("toy", store) == spec  # by name alone, from the store


def test_files_are_the_identity_where_no_checksums_are_declared(tmp_path: Path, store: Store) -> None:
    path = with_checksums(tmp_path / "one")
    before = resolve(str(path), store)
    (tmp_path / "one/toy/train-images.gz").write_bytes(b"damaged")
    assert resolve(str(path), store) == before
    path, _, _ = idx_toy(tmp_path / "two")
    before = resolve(str(path), store)
    assert resolve(str(path), store) == before
    write_idx(tmp_path / "two/toy/test-labels.gz", np.array([1, 1, 1], np.uint8))
    assert resolve(str(path), store) != before


def test_a_folders_identity_is_its_images(tmp_path: Path, store: Store) -> None:
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "pics" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pics" / name).write_bytes(encoded(pixels(1, 4, 5)[0]))
    path = tmp_path / "mine.toml"
    body = '[[source]]\nname = "f"\nkind = "folder"\n[[source.file]]\npath = "pics"\n'
    body += 'member = [{ path = "{label}/*.png" }]\n'
    path.write_text(recipe_text(body))
    first = resolve(str(path), store)
    assert resolve(str(path), store) == first
    (tmp_path / "pics/b/1.png").rename(tmp_path / "pics/a/2.png")
    assert resolve(str(path), store) != first


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('title = "Toy"', 'title = "Another title"', True),
        ('licence = "none"', 'licence = "MIT"', True),
        ("['a', 'b', 'c']", "['a', 'b', 'd']", False),
        ("['a', 'b', 'c']", "['a', 'b', 'c', 'd']", False),
        ('role = "labels"\n', 'role = "labels"\nrows = 6\n', False),
        ('name = "idx"', 'name = "other"', False),
    ],
)
def test_the_identity_holds_what_changes_the_data(tmp_path: Path, store: Store, old: str, new: str, same: bool) -> None:
    path = with_checksums(tmp_path)
    before = resolve(str(path), store)
    path.write_text(path.read_text().replace(old, new, 1))
    assert (resolve(str(path), store) == before) is same


def test_the_source_at_hand_is_chosen_in_the_recipes_order(tmp_path: Path, store: Store) -> None:
    second = IDX_BODY.replace('name = "idx"', 'name = "copy"').replace("toy/", "copy/")
    path, _, _ = idx_toy(tmp_path)
    path.write_text(recipe_text(second + IDX_BODY))
    assert resolve(str(path), store).source == "idx"
    root = tmp_path / "root"
    idx_toy(root, seed=1)
    (root / "toy").rename(root / "copy")
    assert resolve(str(path), store, [root]).source == "copy"
    (root / "copy/test-labels.gz").unlink()  # a source is at hand only when all its files are
    assert resolve(str(path), store, [root]).source == "idx"


def test_data_folders_go_before_the_recipes_own_and_downloads_behind(tmp_path: Path, store: Store) -> None:
    path, images, _ = idx_toy(tmp_path / "beside", seed=1)
    _, others, _ = idx_toy(tmp_path / "root", seed=2)
    np.testing.assert_array_equal(load(str(path), store, [tmp_path / "root"]).images[..., 0], others)
    store.prepare()
    (store.home / "downloads").mkdir()
    (tmp_path / "beside/toy").rename(store.home / "downloads/toy")
    np.testing.assert_array_equal(load(str(path), store).images[..., 0], images)


# -- verification -----------------------------------------------------------------------------------------------


def test_a_wrong_checksum_names_file_expected_and_found(tmp_path: Path, store: Store) -> None:
    path = with_checksums(tmp_path)
    victim = tmp_path / "toy/train-images.gz"
    expected = hashlib.sha256(victim.read_bytes()).hexdigest()
    victim.write_bytes(victim.read_bytes()[:-5])
    with pytest.raises(FedbenchError) as caught:
        load(str(path), store)
    found = hashlib.sha256(victim.read_bytes()).hexdigest()
    for piece in (str(victim), expected, found, f"{victim.stat().st_size} bytes"):
        assert piece in caught.value.message
    assert list(store.list("dataset")) == []
    assert not list(store.home.rglob("*.parquet"))


def test_md5_is_checked_where_it_is_all_there_is(tmp_path: Path, store: Store) -> None:
    path, _, _ = idx_toy(tmp_path)
    text, line = path.read_text(), 'path = "toy/train-images.gz"\n'
    right = hashlib.md5((tmp_path / "toy/train-images.gz").read_bytes()).hexdigest()
    path.write_text(text.replace(line, f'{line}md5 = "{"0" * 32}"\n'))
    with pytest.raises(FedbenchError, match="md5 should be 0000"):
        load(str(path), store)
    path.write_text(text.replace(line, f'{line}md5 = "{right}"\n'))
    assert len(load(str(path), store).labels) == 9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("train = 6", "train = 7", "holds 6 train images; its recipe says 7"),
        ("test = 3", "test = 2", "holds 3 test images; its recipe says 2"),
        ("shape = [4, 5, 1]", "shape = [5, 4, 1]", r"images of shape \[4, 5, 1\]; the recipe says \[5, 4, 1\]"),
        ("['a', 'b', 'c']", "['a', 'b']", r"labels must lie in 0\.\.1"),
        ('role = "labels"\n', 'role = "labels"\nrows = 5\n', "6 images but 5 values of label"),
        ('role = "labels"\n', 'role = "lables"\n', "one with role labels"),
        ('name = "idx"', 'name = "idx"\ncolumns = { who = "writer[2]" }', "unknown column of .* 'writer'"),
    ],
)
def test_data_other_than_the_recipe_says(tmp_path: Path, store: Store, old: str, new: str, message: str) -> None:
    path, _, _ = idx_toy(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(FedbenchError, match=message):
        load(str(path), store)


def test_columns_of_a_matrix_and_the_label_to_partition_by(tmp_path: Path, store: Store) -> None:
    path, _, _ = idx_toy(tmp_path)
    table = np.arange(18, dtype=np.int32).reshape(9, 2)
    write_idx(tmp_path / "toy/train-who.gz", table[:6])
    write_idx(tmp_path / "toy/test-who.gz", table)  # more rows than test images, as in QMNIST
    extra = """
[[source.file]]
path = "toy/train-who.gz"
role = "who"
[[source.file]]
path = "toy/test-who.gz"
role = "who"
split = "test"
rows = 3
"""
    text = path.read_text().replace('name = "idx"', 'name = "idx"\ncolumns = { fine = "who[1]" }') + extra
    path.write_text(text.replace('title = "Toy"', 'title = "Toy"\npartition_label = "fine"\npartition_classes = 12'))
    got = load(str(path), store)
    assert got.partition_labels.tolist() == [1, 3, 5, 7, 9, 11, 1, 3, 5]
    assert got.partition_labels.dtype == np.int64
    assert got.partition_classes == 12
    with pytest.raises(FedbenchError, match="did you mean 'fine'"):
        got.column("fin")
    for of in (str(path), got.spec):
        told = info(of, store)
        assert (told.shape, told.classes, told.partition_classes) == ((4, 5, 1), ("a", "b", "c"), 12)
    path.write_text(path.read_text().replace("partition_classes = 12", "partition_classes = 11"))
    with pytest.raises(FedbenchError, match=r"fine: labels must lie in 0\.\.10"):
        load(str(path), store)


def test_class_counts_and_info_without_images(tmp_path: Path, store: Store) -> None:
    path, _, _ = idx_toy(tmp_path)
    assert class_counts(resolve(str(path), store), store) is None
    spec = load(str(path), store).spec
    (store.path("dataset", spec.id) / "data.parquet").unlink()
    assert class_counts(spec, store) == {"a": (2, 1), "b": (2, 1), "c": (2, 1)}
    assert info(spec, store).classes == ("a", "b", "c")


def test_a_spec_that_nothing_here_makes(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FedbenchError, match="no recipe for dataset strange"):
        load(DatasetSpec("strange", "idx", "0"), store)
    with pytest.raises(FedbenchError, match=r"not at hand: no cifar10/train\.parquet"):
        load(DatasetSpec("cifar10", "parquet", "0"), store)
    path, _, _ = idx_toy(tmp_path)
    resolve(str(path), store)
    with pytest.raises(FedbenchError, match="made from other files or by another recipe"):
        load(DatasetSpec("toy", "idx", "0" * 16), store)


def test_the_manifest_says_where_the_images_came_from(tmp_path: Path, store: Store) -> None:
    path, _, _ = idx_toy(tmp_path)
    heard: list[str] = []
    spec = load(str(path), store, notify=heard.append).spec
    manifest = json.loads((store.path("dataset", spec.id) / "artifact.json").read_text())
    assert manifest["provenance"]["files"][0] == str(tmp_path / "toy/train-images.gz")
    assert len(heard) == 1
    load(str(path), store, notify=heard.append)
    assert len(heard) == 1  # built once


# -- check, list, show ------------------------------------------------------------------------------------------


def states(name: str, store: Store, *roots: Path) -> list[str]:
    return [finding.state for finding in check(name, store, roots)]


def test_check_tells_good_missing_damaged_and_undeclared(tmp_path: Path, store: Store) -> None:
    path = str(with_checksums(tmp_path))
    assert states(path, store) == ["good"] * 4
    spec = load(path, store).spec
    assert states(path, store) == ["good"] * 5
    (tmp_path / "toy/test-images.gz").unlink()
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    (store.path("dataset", spec.id) / "classes.parquet").write_bytes(b"x")
    assert states(path, store) == ["good", "good", "missing", "damaged", "damaged"]
    other, _, _ = idx_toy(tmp_path / "plain")
    assert states(str(other), Store(tmp_path / "empty")) == ["no checksum"] * 4


@pytest.mark.parametrize(("old", "new"), [('"toy"', '"tox"'), ('"content": "', '"content": "0'), ('"spec"', '"spek"')])
def test_check_finds_an_altered_manifest(tmp_path: Path, store: Store, old: str, new: str) -> None:
    path = str(with_checksums(tmp_path))
    spec = load(path, store).spec
    load("digits", store)
    manifest = store.path("dataset", spec.id) / "artifact.json"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))
    assert states(path, store) == ["good"] * 4 + ["damaged"]
    assert check(path, store)[-1].what == f"artifact {spec.id}"
    assert states("digits", store) == ["good", "damaged"]  # whose it is cannot be told any more
    manifest.write_text(manifest.read_text().replace(new, old).replace('"files"', '"filed"'))
    assert states(path, store) == ["good"] * 4 + ["damaged"]
    assert states("digits", store) == ["good"]


def run(store: Store, *arguments: str, root: Path | None = None) -> Result:
    context.configure(store.home, str(root) if root else "", False)
    return CliRunner().invoke(data_app, list(arguments))


def test_list_names_every_recipe(tmp_path: Path, store: Store) -> None:
    load("digits", store)
    for name in ("train", "test"):
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        (tmp_path / f"cifar10/{name}.parquet").touch()
    rows = {row["name"]: row for row in json.loads(run(store, "list", "--json").stdout)}
    assert rows["digits"]["at_hand"] == "scikit-learn"
    assert len(rows["digits"]["built"]) == 1
    assert rows["cifar10"]["at_hand"] is None
    assert rows["cifar10"]["fetchable"] is True
    assert rows["usps"]["fetchable"] is False
    assert rows["cifar20"]["classes"] == 20
    text = run(store, "list").stdout
    assert all(name in text for name in rows)
    rows = {row["name"]: row for row in json.loads(run(store, "list", "--json", root=tmp_path).stdout)}
    assert rows["cifar10"]["at_hand"] == "parquet"


def test_show_before_and_after_building(store: Store) -> None:
    assert json.loads(run(store, "show", "digits", "--json").stdout)["class_counts"] is None
    load("digits", store)
    shown = json.loads(run(store, "show", "digits", "--json").stdout)
    assert shown["class_counts"]["0"] == {"train": 178, "test": 0}
    assert shown["id"] == shown["built"][0]
    text = run(store, "show", "digits").stdout
    assert "CC BY 4.0" in text
    assert "178 train" in text
    assert "cifar-10-binary.tar.gz" in run(store, "show", "cifar10").stdout


def test_check_command_ends_in_an_error_if_something_is_damaged(tmp_path: Path, store: Store) -> None:
    path = str(with_checksums(tmp_path))
    assert run(store, "check", path).exit_code == 0
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    result = run(store, "check", path, "--json")
    assert isinstance(result.exception, FedbenchError)
    assert "1 of 4 checked are damaged: toy, idx: toy/test-labels.gz" in str(result.exception)
    assert [row["state"] for row in json.loads(result.stdout)] == ["good", "good", "good", "damaged"]


def test_fetch_command(store: Store) -> None:
    assert json.loads(run(store, "fetch", "digits", "--json").stdout) == {"digits": []}
    with pytest.raises(FedbenchError, match="did you mean 'digits'"):
        raise run(store, "fetch", "digits", "digts").exception or AssertionError("no error")
