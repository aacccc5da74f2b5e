"""From a recipe to the artifact: identity, verification, `check` and the command line; unions of several data sets; and
recipes, of which the ones that come along are right and wrong ones say what is wrong."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import string
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedbench.cli import context
from fedbench.cli.data import app
from fedbench.data import check, class_counts, declared, fetchable, info, load, locate, places, recipe, recipes, resolve
from fedbench.data.images import fit
from fedbench.errors import FedbenchError
from fedbench.specs import DatasetSpec
from fedbench.store import Store
from tests.support import data_makers as make
from tests.support.frames import refused


def test_official_training_images_come_first(tmp_path: Path) -> None:
    path, images = make.idx_toy(tmp_path)
    # The recipe may name the test files first: the order of the data set stays.
    front, *files = path.read_text().split("[[source.file]]")
    path.write_text("[[source.file]]".join([front, *reversed(files)]))
    stores = [Store(tmp_path / home) for home in ("one", "two")]
    got, again = (load(str(path), store) for store in stores)
    make.holds(got, images, labels=[0, 1, 2] * 3, split=[0] * 6 + [1] * 3)
    assert (got.images.dtype, got.labels.dtype, got.split.dtype) == (np.uint8, np.int64, np.uint8)
    assert got.partition_labels is got.labels
    assert got.partition_classes == 3
    assert got.images.flags.writeable
    assert got.labels.flags.writeable
    assert got.spec == again.spec  # one spec is one artifact, and the same bytes anywhere
    for name in ("data.parquet", "classes.parquet"):
        one, two = (store.open("dataset", got.spec.id).file(name).read_bytes() for store in stores)
        assert one == two


def test_built_data_sets_need_no_source_files(tmp_path: Path, store: Store) -> None:
    """The newest artifact of a name is taken."""
    for seed in (2, 1, 3):
        path, images = make.idx_toy(tmp_path, seed)
        spec = load(str(path), store).spec
    shutil.rmtree(tmp_path / "toy")
    assert resolve(str(path), store) == spec
    make.holds(load(spec, store), images)
    path.unlink()
    assert resolve("toy", store) == spec  # by name alone, from the store


def test_files_are_the_identity_where_no_checksums_are_declared(tmp_path: Path, store: Store) -> None:
    for path, changed, same in (
        (make.with_checksums(tmp_path / "one"), "one/toy/train-images.gz", True),
        (make.idx_toy(tmp_path / "two")[0], "two/toy/test-labels.gz", False),
    ):
        before = resolve(str(path), store)
        assert resolve(str(path), store) == before
        make.write_idx(tmp_path / changed, np.array([1, 1, 1], np.uint8))
        assert (resolve(str(path), store) == before) == same


def test_a_folders_identity_is_its_images(tmp_path: Path, store: Store) -> None:
    image = make.encoded(make.pixels(1, 4, 5)[0])
    folder = make.written(tmp_path / "pics", {"a/1.png": image, "b/1.png": image})
    body = '[[source]]\nname = "f"\nkind = "folder"\n[[source.file]]\npath = "pics"\n'
    path = make.recipe_file(tmp_path, body + 'member = [{ path = "{label}/*.png" }]\n')
    first = resolve(path, store)
    assert resolve(path, store) == first
    (folder / "b/1.png").rename(folder / "a/2.png")
    moved = resolve(path, store)
    (folder / "a/2.png").write_bytes(make.encoded(make.pixels(1, 4, 5, seed=1)[0]))
    assert len({one.id for one in (first, moved, resolve(path, store))}) == 3


@pytest.mark.parametrize("kind", ["csv", "list"])
def test_listed_images_are_the_identity_too(tmp_path: Path, store: Store, kind: str) -> None:
    """... also of a union that has them as a part, and only those that are listed."""
    heads, mark = ("image,label\n", ",") if kind == "csv" else ("", " ")
    images = {name: make.encoded(one) for name, one in zip(("1.png", "2.png"), make.pixels(2, 4, 5), strict=True)}
    lines = "".join(f"{name}{mark}a\n" for name in images)
    folder = make.written(tmp_path / "pics", {**images, "all.txt": (heads + lines).encode(), "3.png": b"unlisted"})
    body = f'[[source]]\nname = "l"\nkind = "{kind}"\n[[source.file]]\npath = "pics/all.txt"\n'
    path = make.recipe_file(tmp_path, body, name="one")
    of_two = '[[source]]\nname = "u"\nkind = "union"\nparts = ["one", "two"]\ncolumns = { domain = "domain" }\n'
    make.recipe_file(tmp_path, body.replace('"l"', '"other"'), name="two")
    union = make.recipe_file(tmp_path, of_two, name="both")
    before = load(path, store), load(union, store)
    (folder / "3.png").write_bytes(b"something else")
    assert (resolve(path, store), resolve(union, store)) == tuple(one.spec for one in before)
    (folder / "2.png").write_bytes(images["1.png"])
    after = load(path, store), load(union, store)
    assert [one.spec.id == new.spec.id for one, new in zip(before, after, strict=True)] == [False, False]
    assert np.array_equal(after[0].images[1], before[0].images[0])
    assert np.array_equal(after[1].images[3], before[1].images[0])
    (folder / "2.png").unlink()
    refused(r"2\.png is not there; unpack the whole data set beside", resolve, path, store)


def test_the_identity_holds_what_changes_the_data(tmp_path: Path, store: Store) -> None:
    path = make.with_checksums(tmp_path)
    before, text = resolve(str(path), store), path.read_text()
    for old, new, same in (
        ('title = "Toy"\nlicence = "none"', 'title = "Another title"\nlicence = "MIT"', True),
        ("['a', 'b', 'c']", "['a', 'b', 'd']", False),
        ("['a', 'b', 'c']", "['a', 'b', 'c', 'd']", False),
        ('role = "labels"\n', 'role = "labels"\nrows = 6\n', False),
        ('name = "idx"', 'name = "other"', False),
    ):
        path.write_text(changed := text.replace(old, new, 1))
        assert changed != text
        assert (resolve(str(path), store) == before) is same


def test_the_source_at_hand_is_chosen_in_the_recipes_order(tmp_path: Path, store: Store) -> None:
    second = make.IDX_BODY.replace('name = "idx"', 'name = "copy"').replace("toy/", "copy/")
    make.idx_toy(tmp_path)
    path = make.recipe_file(tmp_path, second + make.IDX_BODY)
    assert resolve(path, store).source == "idx"
    root = tmp_path / "root"
    make.idx_toy(root, seed=1)
    (root / "toy").rename(root / "copy")
    assert resolve(path, store, [root]).source == "copy"
    (root / "copy/test-labels.gz").unlink()  # a source is at hand only when all its files are
    assert resolve(path, store, [root]).source == "idx"


def test_data_folders_go_before_the_recipes_own_and_downloads_behind(tmp_path: Path, store: Store) -> None:
    (path, images), (_, others) = make.idx_toy(tmp_path / "beside", seed=1), make.idx_toy(tmp_path / "root", seed=2)
    make.holds(load(str(path), store, [tmp_path / "root"]), others)
    store.prepare()
    (store.home / "downloads").mkdir()
    (tmp_path / "beside/toy").rename(store.home / "downloads/toy")
    make.holds(load(str(path), store), images)


def test_a_wrong_checksum_names_file_expected_and_found(tmp_path: Path, store: Store) -> None:
    path = make.with_checksums(tmp_path)
    victim = tmp_path / "toy/train-images.gz"
    expected = hashlib.sha256(victim.read_bytes()).hexdigest()
    victim.write_bytes(victim.read_bytes()[:-5])
    found = hashlib.sha256(victim.read_bytes()).hexdigest()
    for piece in (str(victim), expected, found, f"{victim.stat().st_size} bytes"):
        refused(re.escape(piece), load, str(path), store)
    assert list(store.list("dataset")) == []
    assert not list(store.home.rglob("*.parquet"))


def test_md5_is_checked_where_it_is_all_there_is(tmp_path: Path, store: Store) -> None:
    path, _ = make.idx_toy(tmp_path)
    text, line = path.read_text(), 'path = "toy/train-images.gz"\n'
    right = hashlib.md5((tmp_path / "toy/train-images.gz").read_bytes()).hexdigest()
    path.write_text(text.replace(line, f'{line}md5 = "{"0" * 32}"\n'))
    refused("md5 should be 0000", load, str(path), store)
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
    path, _ = make.idx_toy(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    refused(message, load, str(path), store)


def test_columns_of_a_matrix_and_the_label_to_partition_by(tmp_path: Path, store: Store) -> None:
    path, _ = make.idx_toy(tmp_path)
    table = np.arange(18, dtype=np.int32).reshape(9, 2)
    make.write_idx(tmp_path / "toy/train-who.gz", table[:6])
    make.write_idx(tmp_path / "toy/test-who.gz", table)  # more rows than test images, as in QMNIST
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
    refused("did you mean 'fine'", got.column, "fin")
    for of in (str(path), got.spec):
        told = info(of, store)
        assert (told.shape, told.classes, told.partition_classes) == ((4, 5, 1), ("a", "b", "c"), 12)
    path.write_text(path.read_text().replace("partition_classes = 12", "partition_classes = 11"))
    refused(r"fine: labels must lie in 0\.\.10", load, str(path), store)


def test_what_a_built_data_set_says(tmp_path: Path, store: Store) -> None:
    """Counts and facts, without its images; and where these came from."""
    path, _ = make.idx_toy(tmp_path)
    heard: list[str] = []
    assert class_counts(resolve(str(path), store), store) is None
    for _ in range(2):
        spec = load(str(path), store, notify=heard.append).spec
    assert len(heard) == 1  # built once
    folder = store.path("dataset", spec.id)
    manifest = json.loads((folder / "artifact.json").read_text())
    assert manifest["provenance"]["files"][0] == str(tmp_path / "toy/train-images.gz")
    (folder / "data.parquet").unlink()
    assert class_counts(spec, store) == {"a": (2, 1), "b": (2, 1), "c": (2, 1)}
    assert info(spec, store).classes == ("a", "b", "c")


def test_a_spec_that_nothing_here_makes(tmp_path: Path, store: Store) -> None:
    resolve(str(make.idx_toy(tmp_path)[0]), store)
    for spec, says in (
        (DatasetSpec("strange", "idx", "0"), "no recipe for dataset strange"),
        (DatasetSpec("cifar10", "parquet", "0"), r"not available: no cifar10/train\.parquet"),
        (DatasetSpec("toy", "idx", "0" * 16), "made from other files or by another recipe"),
    ):
        refused(says, load, spec, store)


def states(name: str, store: Store, *roots: Path) -> list[str]:
    return [finding.state for finding in check(name, store, roots)]


def test_check_tells_good_missing_damaged_and_undeclared(tmp_path: Path, store: Store) -> None:
    path = str(make.with_checksums(tmp_path))
    assert states(path, store) == ["good"] * 4
    spec = load(path, store).spec
    assert states(path, store) == ["good"] * 5
    (tmp_path / "toy/test-images.gz").unlink()
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    (store.path("dataset", spec.id) / "classes.parquet").write_bytes(b"x")
    assert states(path, store) == ["good", "good", "missing", "damaged", "damaged"]
    other, _ = make.idx_toy(tmp_path / "plain")
    assert states(str(other), Store(tmp_path / "empty")) == ["no checksum"] * 4


def test_check_counts_test_images_that_are_training_images(tmp_path: Path, store: Store) -> None:
    path, images = make.idx_toy(tmp_path)
    load(str(path), store)
    assert states(str(path), store) == ["no checksum"] * 4 + ["good"]
    make.write_idx(tmp_path / "toy/test-images.gz", images[[1, 6, 1]])
    spec = load(str(path), store).spec
    found = [one for one in check(str(path), store) if one.state == "repeated"]
    assert [(one.what, one.detail) for one in found] == [
        (f"artifact {spec.id}", "2 of 3 test images are among its training images")
    ]
    assert run(store, "check", str(path)).exit_code == 0


@pytest.mark.parametrize(("old", "new"), [('"toy"', '"tox"'), ('"content": "', '"content": "0'), ('"spec"', '"spek"')])
def test_check_finds_an_altered_manifest(tmp_path: Path, store: Store, old: str, new: str) -> None:
    path = str(make.with_checksums(tmp_path))
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
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_recipe(tmp_path: Path, store: Store) -> None:
    load("digits", store)
    make.written(tmp_path / "cifar10", {"train.parquet": b"", "test.parquet": b""})
    here, there = (
        {row["name"]: row for row in json.loads(run(store, "list", "--json", root=root).stdout)}
        for root in (None, tmp_path)
    )
    assert (here["digits"]["at_hand"], len(here["digits"]["built"])) == ("scikit-learn", 1)
    assert (here["cifar10"]["at_hand"], there["cifar10"]["at_hand"]) == (None, "parquet")
    assert (here["cifar10"]["fetchable"], here["usps"]["fetchable"]) == (True, False)
    assert here["cifar20"]["classes"] == 20
    text = run(store, "list").stdout
    assert all(name in text for name in here)


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


def test_check_and_fetch_commands(tmp_path: Path, store: Store) -> None:
    """The first ends in an error if something is damaged."""
    path = str(make.with_checksums(tmp_path))
    assert run(store, "check", path).exit_code == 0
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    result = run(store, "check", path, "--json")
    assert isinstance(result.exception, FedbenchError)
    assert "1 of 4 checked are damaged: toy, idx: toy/test-labels.gz" in str(result.exception)
    assert [row["state"] for row in json.loads(result.stdout)] == ["good", "good", "good", "damaged"]
    assert json.loads(run(store, "fetch", "digits", "--json").stdout) == {"digits": []}
    with pytest.raises(FedbenchError, match="did you mean 'digits'"):
        raise run(store, "fetch", "digits", "digts").exception or AssertionError("no error")


SHAPE = (6, 6, 3)
Both = tuple[str, np.ndarray, np.ndarray]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """A union of a grey and a colour data set that lie beside it, and their images."""
    return make.union(tmp_path, "grey", "colour"), grey(tmp_path, 0), make.idx_toy(tmp_path, 1, "colour", SHAPE)[1]


def grey(folder: Path, seed: int, source: str = "idx") -> np.ndarray:
    return make.idx_toy(folder, seed, "grey", (4, 5), source)[1]


def test_parts_in_their_order_at_one_shape(both: Both, store: Store) -> None:
    name, small, colour = both
    heard: list[str] = []
    got = load(name, store, notify=heard.append)
    assert got.images.shape == (18, *SHAPE)
    make.holds(got, split=[0] * 12 + [1] * 6, domain=[0] * 6 + [1] * 6 + [0] * 3 + [1] * 3)
    first, second = (got.images[got.columns["domain"] == code] for code in (0, 1))
    np.testing.assert_array_equal(second, colour)
    for channel in range(3):
        np.testing.assert_array_equal(first[..., channel], fit(small[..., None], (6, 6, 1))[..., 0])
    for code in (0, 1):
        assert got.labels[got.columns["domain"] == code].tolist() == ((np.arange(9) + code) % 3).tolist()
    assert class_counts(got.spec, store) == {"a": (4, 2), "b": (4, 2), "c": (4, 2)}
    # A union says what it was made from.
    inputs = store.open("dataset", got.spec.id).provenance["inputs"]
    assert inputs == [resolve(part, store).id for part in ("grey", "colour")]
    load(name, store, notify=heard.append)
    assert len(heard) == 3  # the union and each part, once


def test_parts_their_order_and_their_sources_are_the_identity(both: Both, tmp_path: Path, store: Store) -> None:
    before = resolve(both[0], store)
    assert resolve(both[0], store) == before
    assert resolve(make.union(tmp_path, "colour", "grey"), store).id != before.id
    make.union(tmp_path, "grey", "colour")
    grey(tmp_path, 0, source="copy")  # the same images
    recipe(str(tmp_path / "grey.toml"))
    renamed = resolve(both[0], store)
    assert renamed != before
    make.write_idx(tmp_path / "grey/test-labels.gz", np.array([1, 1, 1], np.uint8))
    assert resolve(both[0], store) not in (before, renamed)


def test_parts_that_are_only_in_the_store_will_do(both: Both, tmp_path: Path, store: Store) -> None:
    load(both[0], store)
    for artifact in list(store.list("dataset")):
        if artifact.manifest["spec"]["name"] == "all":
            store.remove(artifact.kind, artifact.id)
    (tmp_path / "grey/train-images.gz").unlink()
    got = load(both[0], store)
    assert np.bincount(got.columns["domain"]).tolist() == [9, 9]
    (tmp_path / "colour/train-images.gz").unlink()
    assert resolve(both[0], store) == got.spec


def test_a_missing_part_is_named_with_the_way_to_get_it(both: Both, tmp_path: Path, store: Store) -> None:
    (tmp_path / "colour/test-labels.gz").unlink()
    says = r"^all lacks its part colour: the images of colour are not available: no colour/test-labels\.gz.*--data"
    refused(says, load, both[0], store)
    refused("lacks its part svhn.*'fedbench data fetch svhn'", resolve, make.union(tmp_path, "grey", "svhn"), store)
    assert list(store.list("dataset")) == []


def test_a_part_that_vanished_since_or_is_damaged(both: Both, tmp_path: Path, store: Store) -> None:
    spec = resolve(both[0], store)
    (tmp_path / "grey/train-images.gz").unlink()
    refused("all lacks its part grey", load, spec, store)
    grey(tmp_path, 7)
    refused("made from other files or by another recipe", load, spec, store)
    path = tmp_path / "colour/train-images.gz"
    path.write_bytes(path.read_bytes()[:-9])
    refused(r"colour/train-images\.gz is truncated or damaged", load, both[0], store)
    assert [a.spec.name for a in store.list("dataset")] == ["grey"]  # type: ignore[union-attr]


def test_wrong_parts(both: Both, tmp_path: Path, store: Store) -> None:
    for other, told in (
        ("gray", "unknown dataset 'gray'; did you mean 'grey'"),
        ("digit3", "digit3 is a union and cannot be a part of another"),
        ("digits", "digits, a part of all, has other classes"),
    ):
        refused(told, load, make.union(tmp_path, "grey", other), store)
    make.idx_toy(tmp_path, 0, "mnist")  # a user's recipe beside the union does not hide one of ours
    says = r"the images of mnist are not available: no mnist/train-images-idx3"
    refused(says, resolve, make.union(tmp_path, "mnist", "digits"), store)


def test_what_is_at_hand_is_told_from_the_parts(both: Both, tmp_path: Path, store: Store) -> None:
    found = recipe(both[0])
    folders = places(found, store, [])
    paths = locate(found.sources[0], folders)
    assert paths is not None
    assert [path.parent.name for path in paths] == ["grey"] * 4 + ["colour"] * 4
    assert declared(found, folders) == 18
    assert declared(recipe("femnist"), folders) == 0
    assert declared(recipe(make.union(tmp_path, "grey", "femnist")), folders) == 0  # one of them does not say
    (tmp_path / "grey/test-images.gz").unlink()
    assert locate(found.sources[0], folders) is None
    assert not fetchable(found.sources[0])
    assert fetchable(recipe(make.union(tmp_path, "svhn", "mnist_m")).sources[0])


def test_check_looks_at_every_part(both: Both, tmp_path: Path, store: Store) -> None:
    load(both[0], store)
    (tmp_path / "grey/train-images.gz").unlink()
    files = {("grey", "missing"): 1, ("grey", "no checksum"): 3, ("colour", "no checksum"): 4}
    artifacts = [(name, "good") for name in ("grey", "colour", "all")]
    found = check(both[0], store)
    assert Counter((f.dataset, f.state) for f in found) == {**files, **dict.fromkeys(artifacts, 1)}
    assert [(f.dataset, f.state) for f in found if f.what.startswith("artifact")] == artifacts


def test_the_command_line_knows_unions(both: Both, tmp_path: Path, store: Store) -> None:
    rows = {row["name"]: row for row in json.loads(run(store, "list", "--json").stdout)}
    for told in (rows["digit5"], json.loads(run(store, "show", "digit5", "--json").stdout)):
        assert (told["at_hand"], told["fetchable"], told["built"]) == (None, False, [])
    parts = ("mnist", "svhn", "usps", "synth_digits", "mnist_m")
    assert rows["digit5"]["images"] == sum(rows[part]["images"] for part in parts) == 735542
    (tmp_path / "grey/test-images.gz").unlink()
    lines = run(store, "show", make.union(tmp_path, "grey", "colour", "svhn")).stdout.splitlines()
    assert [" ".join(line.split()) for line in lines[-3:]] == [
        "grey not available: bring your own",
        "colour available (idx)",
        "svhn not available: 'fedbench data fetch svhn'",
    ]


def test_the_fetch_command_looks_for_parts_in_the_data_folders(both: Both, tmp_path: Path, store: Store) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("grey.toml", "colour.toml"):
        (tmp_path / name).rename(elsewhere / name)
    told = run(store, "fetch", make.union(elsewhere, "grey", "colour"), "--json", root=tmp_path).stdout
    assert list(json.loads(told).values()) == [[]]


NAMES = {
    "digits",
    "mnist",
    "fashion_mnist",
    "mnist_writers",
    "cifar10",
    "cifar20",
    "cifar100",
    "usps",
    "tinyimagenet",
    "femnist",
    "svhn",
    "synth_digits",
    "mnist_m",
    "digit5",
    "digit3",
    "chexpert",
    "office_home",
    "retina",
    "breast_cancer",
    "har",
    "synth_cover",
}
#: Sources that are handed round without a checksum that we know: the files themselves are their identity.
BRING_YOUR_OWN = {
    ("femnist", "parquet"),
    ("femnist", "leaf"),
    ("synth_digits", "mat"),
    ("synth_digits", "parquet"),
    ("mnist_m", "folder"),
    ("chexpert", "small"),
    ("office_home", "archive"),
    ("office_home", "folder"),
    ("retina", "archive"),
    ("retina", "folder"),
    ("har", "text"),
}


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
            assert found.vectors == (found.name in ("breast_cancer", "har", "synth_cover"))
            assert found.multi_label == (found.name == "chexpert")


def test_shapes_sources_and_parts_of_ours() -> None:
    told = {
        "mnist_writers": (28, 1, 10, 10),
        "cifar20": (32, 3, 20, 100),
        "femnist": (28, 1, 62, 62),
        "usps": (16, 1, 10, 10),
        "digit5": (32, 3, 10, 10),
        "tinyimagenet": (64, 3, 200, 200),
    }
    for name, (side, channels, *classes) in told.items():
        found = recipe(name)
        assert found.shape == (side, side, channels)
        assert [len(found.classes), found.partition_classes] == classes
    for name in ("cifar10", "cifar20", "cifar100"):  # exact pixels are preferred to encoded ones
        assert [source.name for source in recipe(name).sources] == ["binary", "parquet"]
    assert [source.name for source in recipe("tinyimagenet").sources] == ["folder", "subset"]
    assert "SUBSET" in recipe("tinyimagenet").sources[1].title
    assert [(s.name, s.train, s.test) for s in recipe("mnist_m").sources] == [
        ("archive", 59001, 9001),
        ("folder", 59001, 9001),
        ("regenerated", 5000, 1000),
    ]
    assert "SUBSET, regenerated" in recipe("mnist_m").sources[2].title
    assert "".join(recipe("femnist").classes) == string.digits + string.ascii_uppercase + string.ascii_lowercase
    assert recipe("digit5").sources[0].parts == ("mnist", "svhn", "usps", "synth_digits", "mnist_m")
    assert recipe("digit3").sources[0].parts == ("mnist", "usps", "mnist_m")
    for coarse, fine in zip(recipe("cifar20").sources, recipe("cifar100").sources, strict=True):
        assert coarse.file == fine.file
        assert coarse.label != fine.label


def test_a_users_file_is_a_recipe(tmp_path: Path) -> None:
    path, _ = make.idx_toy(tmp_path)
    found = recipe(str(path))
    assert (found.name, found.folder, found.classes) == ("toy", tmp_path, ("a", "b", "c"))
    assert recipe("toy") is found  # a spec names the recipe, not its file
    other = path.rename(tmp_path / "cifar10.toml")  # and hides none of ours
    assert (recipe(str(other)).title, recipe("cifar10").title) == ("Toy", "CIFAR-10")


GOOD_FILE = 'path = "toy/train-images.gz"\n'
SECOND = '[[source]]\nname = "two"\nkind = "parquet"\ncolumns = {who = "w"}\n[[source.file]]\npath = "a.parquet"\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "idx"', 'kind = "idxx"', "unknown kind .*did you mean 'idx'"),
        ('kind = "idx"', 'kindd = "idx"', "unknown key in .*source 1 'kindd'.*did you mean 'kind'"),
        ('kind = "idx"', 'kind = "idx"\nresize = true', "kind idx has no resize"),
        ('kind = "idx"', 'kind = "idx"\nparts = ["mnist"]', "kind union, and only it, has parts"),
        ('kind = "idx"', 'kind = "union"', "kind union, and only it, has parts"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist", "mnist"]', "parts holds a name twice"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist", "toy"]', "cannot be a part of itself"),
        ('kind = "idx"', 'kind = "union"\nparts = ["mnist"]', r"has \[\[source.file\]\]"),
        ("shape = [4, 5, 1]", "shape = [4, 5, 2]", "1 or 3 channels"),
        ("shape = [4, 5, 1]", "shape = [4, 5]", "shape must be"),
        ("['a', 'b', 'c']", "['a', 'a']", "a name twice"),
        ("['a', 'b', 'c']", "['a']", "at least 2 classes"),
        (GOOD_FILE, 'path = "../train-images.gz"\n', "stay below the data folder"),
        (GOOD_FILE, 'path = "/etc/passwd"\n', "stay below the data folder"),
        (GOOD_FILE, GOOD_FILE + 'sha256 = "abc"\n', "sha256 must be 64 hexadecimal digits"),
        (GOOD_FILE, GOOD_FILE + 'urls = ["https://x.org/a"]\n', "needs a checksum"),
        (GOOD_FILE, GOOD_FILE + f'urls = ["file:///etc/passwd"]\nmd5 = "{"0" * 32}"\n', r"not an http\(s\) address"),
        (GOOD_FILE, GOOD_FILE + "rows = 0\n", "rows must be at least 1"),
        (GOOD_FILE, GOOD_FILE + 'split = "val"\n', "split must be train or test"),
        ('split = "test"\n', "", "two files have the same role and split"),
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
    text, path = make.recipe_text(make.IDX_BODY), tmp_path / "toy.toml"
    assert old in text
    path.write_text(text.replace(old, new, 1))
    for says in (message, re.escape(str(path))):
        refused(says, recipe, str(path))


def test_what_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.csv").write_text("file,label\na.png,1\n")
    for name, told in (
        ("./toy.csv", r"the file \./toy\.csv is no data set; give a name of .*, a recipe \(\./mine\.toml"),
        ("toy.csv", r"the file toy\.csv is no data set; give a name"),
        ("cifr10", "unknown dataset 'cifr10'; did you mean 'cifar10'"),
        ("./nowhere.toml", "no recipe file"),
    ):
        refused(told, recipe, name)


def test_absent_images_say_where_and_what(store: Store, tmp_path: Path) -> None:
    for piece in ("cifar-10-binary.tar.gz", "train.parquet", str(tmp_path / "here"), "data fetch cifar10", "--data"):
        refused(re.escape(piece), resolve, "cifar10", store, [tmp_path / "here"])
    refused("^(?!.*fetch)", resolve, "usps", store, [])  # there is no address to fetch it from
