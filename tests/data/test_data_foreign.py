"""Data sets without a recipe file: repositories of the Hugging Face hub, torchvision's, and clients of other tools."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from fedbench import data, protocol
from fedbench.data import foreign, hub, load, torchvision_files
from fedbench.data.foreign import SETS
from fedbench.data.readers import _EITHER, _SIGNED, _pixels, _signed, read_pflib
from fedbench.data.recipe import File, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.partition_options import spec_of
from fedbench.partitions import build
from fedbench.store import Store
from fedbench.vision import torchvision
from tests.support.data_makers import encoded as png
from tests.support.data_makers import holds, pixels, recipe_file, write_idx, written
from tests.support.frames import few, refused

RNG = np.random.default_rng(3)


def pictures(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, *shape), np.uint8)


def image_folder(folder: Path, images: dict[str, np.ndarray]) -> Path:
    """A repository of images in folders: SPLIT/CLASS/I.png, from 'SPLIT/CLASS' -> images."""
    return written(folder, {f"{at}/{i}.png": png(one) for at, those in images.items() for i, one in enumerate(those)})


FEATURES = {
    "img": {"_type": "Image"},
    "digit": {"names": ["zero", "one", "two"], "_type": "ClassLabel"},
    "writer": {"dtype": "string", "_type": "Value"},
    "caption": {"dtype": "string", "_type": "Value"},
}


def parquet(folder: Path, splits: dict[str, np.ndarray], features: dict[str, Any] = FEATURES) -> Path:
    """A repository of Parquet files as the hub has them: images, classes in turn, four writers in turn."""
    (folder / "data").mkdir(parents=True)
    for split, images in splits.items():
        n = len(images)
        columns = {
            "img": pa.array([{"bytes": png(one), "path": f"{i}.png"} for i, one in enumerate(images)]),
            "digit": pa.array([i % 3 for i in range(n)], pa.int64()),
            "writer": pa.array([f"w{i % 4}" for i in range(n)]),
            "caption": pa.array(["x" * 1001] * n),
        }
        table = pa.table({name: columns[name] for name in features})
        schema = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        pq.write_table(table.replace_schema_metadata(schema), folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:", "names no data set"),
        ("hf:a b", "'a b' is no name of a repository of the hub"),
        ("hf:../../etc", "there is no folder"),
        ("hf:a/../b", "is no name of a repository"),
        ("hf:mnist,lable=x", r"unknown option of hf:mnist,lable=x 'lable'; did you mean 'label'\?"),
        ("hf:mnist,label", "option label of hf:mnist,label needs a column"),
        ("hf:mnist,label=a,label=b", "has the option label twice"),
        ("hf:mnist,size=big", "size of hf:mnist,size=big must be pixels, not 'big'"),
        ("hf:mnist,features=a+b,size=8", "hf:mnist has features: it holds vectors, which have no size"),
        ("torchvision:FashonMNIST", r"unknown data set of torchvision 'FashonMNIST'; did you mean 'FashionMNIST'\?"),
        ("torchvision:EMNIST", "torchvision:EMNIST needs a split, one of balanced, byclass"),
        ("torchvision:MNIST,split=letters", "has no variants to split by"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # from which ../../etc is none, wherever the checkout lies
    refused(message, data.recipe, name)


def test_what_is_not_here_can_be_fetched(store: Store) -> None:
    assert foreign.recipe("mnist") is foreign.recipe("./mine.toml") is None  # names of recipes are none of these
    for name in ("hf:someone/something", "torchvision:KMNIST"):
        refused(f"'fedbench data fetch {name}'", data.resolve, name, store)


@pytest.fixture
def _datasets() -> None:
    pytest.importorskip("datasets")


hub_test = pytest.mark.usefixtures("_datasets")


@hub_test
def test_image_folder(tmp_path: Path, store: Store) -> None:
    """What the path names is read, whatever the data folders hold."""
    images = {f"{split}/{name}": pictures(3, 6, 5, 3) for split in ("train", "test") for name in ("cat", "dog")}
    folder = image_folder(tmp_path / "mine/pets", images)
    image_folder(tmp_path / "root/pets", {"train/cat": pictures(1, 6, 5), "train/dog": pictures(1, 6, 5)})
    loaded = data.load(f"hf:{folder}", store, [tmp_path / "root"])
    assert (loaded.spec.name, loaded.classes, loaded.images.shape) == ("hf:pets", ("cat", "dog"), (12, 6, 5, 3))
    holds(loaded, np.concatenate(list(images.values())), labels=[0, 0, 0, 1, 1, 1] * 2, split=[0] * 6 + [1] * 6)


@hub_test
def test_parquet_with_writers(tmp_path: Path, store: Store) -> None:
    images = {"train": pictures(12, 8, 8), "test": pictures(8, 8, 8)}
    loaded = data.load(f"hf:{parquet(tmp_path / 'digits', images)}", store)
    assert loaded.classes == ("zero", "one", "two")
    holds(loaded, np.concatenate(list(images.values())), writer=[f"w{i % 4}" for i in (*range(12), *range(8))])
    assert set(loaded.columns) == {"writer"}  # a text of 1,001 characters is no group
    assert data.groups(loaded.spec, store, "writer") == {f"w{i}": 5 for i in range(4)}
    refused(r"unknown column of hf:digits 'writr'; did you mean 'writer'\?", data.groups, loaded.spec, store, "writr")


@hub_test
def test_columns_and_size_are_options_and_part_of_the_identity(tmp_path: Path, store: Store) -> None:
    folder = parquet(tmp_path / "digits", {"train": pictures(12, 8, 8)})
    plain, chosen = (data.load(f"hf:{folder}{more}", store) for more in ("", ",label=writer,size=4x6,image=img"))
    assert (chosen.classes, chosen.images.shape) == (("w0", "w1", "w2", "w3"), (12, 4, 6, 1))
    assert chosen.spec.name == plain.spec.name
    assert chosen.spec.id != plain.spec.id
    refused(r"unknown column of hf:digits 'digt'; did you mean 'digit'\?", data.load, f"hf:{folder},label=digt", store)
    refused("unknown split of hf:digits 'tests'", data.load, f"hf:{folder},test=tests", store)


@hub_test
def test_the_content_is_the_identity_not_the_place(tmp_path: Path, store: Store) -> None:
    folder = parquet(tmp_path / "digits", {"train": pictures(6, 8, 8)})
    shutil.copytree(folder, tmp_path / "elsewhere/digits")
    specs = [data.resolve(f"hf:{place}/digits", store) for place in (tmp_path, tmp_path / "elsewhere")]
    assert specs[0] == specs[1]
    (folder / "data/test-00000-of-00001.parquet").write_bytes(b"another")
    assert data.resolve(f"hf:{folder}", store) != specs[0]


Make = Callable[[Path], object]


@pytest.mark.usefixtures("_datasets")
def test_columns_of_numbers_are_vectors(tmp_path: Path, store: Store) -> None:
    columns: dict[str, Any] = {"age": [50, 60, 70], "x": [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]}
    columns |= {"ward": ["a", "b", "a"], "y": ["ill", "well", "ill"]}
    (tmp_path / "own").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), tmp_path / f"own/{split}.parquet")
    named = f"hf:{tmp_path}/own,label=y"
    loaded = data.load(f"{named},features=all", store)
    assert loaded.spec.vectors
    assert loaded.images[:3, 0, 0].tolist() == [[50, 0.5, 1], [60, 1.5, 2], [70, 2.5, 3]]
    assert loaded.classes == ("ill", "well")
    holds(loaded, labels=[0, 1, 0] * 2, ward=["a", "b", "a"] * 2, split=[0, 0, 0, 1, 1, 1])
    one = data.load(f"{named},features=x", store)
    assert (one.images.shape, one.columns["age"].tolist()) == ((6, 1, 1, 2), [50, 60, 70] * 2)
    refused("if it holds numbers, which are the vectors: hf:own,features=all", data.load, named, store)
    refused("unknown column of hf:own 'z'", data.load, f"{named},features=z+x", store)
    refused("features of hf:own hold y, which is its label", data.load, f"{named},features=x+y", store)
    refused("features of hf:own hold a column twice", data.load, f"{named},features=x+x", store)
    refused("could not convert string to float: 'a'", data.load, f"{named},features=ward", store)
    pq.write_table(pa.table(columns | {"x": [[0.5], [1.5, 2.0], None]}), tmp_path / "own/train.parquet")
    refused("holds text, gaps or lists of different lengths", data.load, f"{named},features=x", store)
    shutil.rmtree(tmp_path / "own")
    written(tmp_path, {"own/train.csv": b"age,y,ward\n50,ill,a\n60,well,b\n"})  # the library tells no kinds of columns
    holds(data.load(f"{named},features=all", store), labels=[0, 1], ward=["a", "b"])


def of_parquet(splits: tuple[str, ...], *features: str) -> Make:
    return lambda folder: parquet(folder, {s: pictures(3, 4, 4) for s in splits}, {n: FEATURES[n] for n in features})


def of_folders(**images: tuple[int, ...]) -> Make:
    """A folder of images for each shape."""
    return lambda folder: image_folder(folder, {f"train/{name}": pictures(*shape) for name, shape in images.items()})


def listed(form: str) -> Make:
    """A list of files that gives one of them two classes."""
    rows = [("0.png", "cat"), ("1.png", "dog"), ("0.png", "dog")]
    csv = ["file_name,label", *map(",".join, rows)]
    lines = csv if form == "csv" else [json.dumps({"file_name": name, "label": label}) for name, label in rows]
    text = "".join(f"{line}\n" for line in lines).encode()
    return lambda folder: written(image_folder(folder, {"train": pictures(2, 6, 6)}), {f"train/metadata.{form}": text})


def damaged(content: bytes) -> Make:
    images = {"train/cat": pictures(2, 6, 6), "train/dog": pictures(1, 6, 6)}
    return lambda folder: written(image_folder(folder, images), {"train/cat/1.png": content})


def bare(*folders: str, packed: bool = False) -> Make:
    """Images in these folders; packed as one archive."""

    def make(folder: Path) -> None:
        inside = folder.with_name("unpacked") if packed else folder
        image_folder(inside, {name: pictures(2, 6, 6) for name in folders})
        if packed:
            shutil.make_archive(str(folder / "train"), "zip", inside)

    return make


NO_CLASSES = r"hf:own.*: the classes of its images cannot be told; it holds \S+\.png.*; unpack .*class folders"
TWICE = r"hf:own, train, train/0\.png, row 2 has another class than .*row 0; list a file once"


@hub_test
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (of_folders(a=(1, 6, 6), b=(1, 5, 6)), r"6 x 5 pixels.*; bring all to one size: hf:own,size=6"),
        (of_parquet(("train",), "writer", "caption"), "hf:own has 0 columns of images among writer, caption"),
        (of_parquet(("train",), "img", "writer"), r"no column of classes .* say which: hf:own,label=COLUMN"),
        (of_parquet(("test",), *FEATURES), "has no split 'train' but test"),
        (Path.mkdir, "is no repository that the library datasets reads"),
        *((bare(*names), NO_CLASSES) for names in ((".",), ("train", "test"), ("train/a",))),
        (bare("a", "b", packed=True), r"the classes of its images .*; it holds train\.zip; unpack archives"),
        (listed("csv"), TWICE),
        (listed("jsonl"), TWICE),
        (damaged(b"no picture"), r"train/cat/1\.png, row 1 is not a readable image .* file\); get the file again"),
        (damaged(png(np.full((6, 6), 300, np.uint16))), r"row 1 has pixels of more than 8 bits \(mode I;16\); scale"),
    ],
)
def test_repositories_that_cannot_be_read(tmp_path: Path, store: Store, make: Make, says: str) -> None:
    make(tmp_path / "own")
    refused(says, data.load, f"hf:{tmp_path / 'own'}", store)


@hub_test
def test_labels_of_the_hub_may_be_whole_floating_point_numbers(tmp_path: Path, store: Store) -> None:
    """As pandas writes a column of integers that once had a gap."""

    def repository(*labels: str) -> str:
        text = "file_name,label\n" + "".join(f"{i}.png,{label}\n" for i, label in enumerate(labels))
        folder = image_folder(tmp_path / "own", {"train": pictures(len(labels), 6, 6)})
        written(folder, {"train/metadata.csv": text.encode()})
        return f"hf:{folder}"

    loaded = data.load(repository("1.0", "0.0", "2.0"), store)
    assert (loaded.labels.tolist(), loaded.classes) == ([1, 0, 2], ("0", "1", "2"))
    refused(
        "column label is empty in row 1; leave rows without a class out", data.load, repository("1.0", "", "2.0"), store
    )
    refused("column label holds 0.5, which is no class", data.load, repository("1.0", "0.5", "2.0"), store)


@hub_test
def test_images_are_brought_to_one_size_and_depth(tmp_path: Path, store: Store) -> None:
    of_folders(a=(1, 6, 6), b=(1, 5, 6))(tmp_path / "sizes")
    assert data.load(f"hf:{tmp_path / 'sizes'},size=6", store).images.shape == (2, 6, 6, 1)
    grey, colour = pictures(1, 6, 6), pictures(2, 6, 6, 3)
    folder = image_folder(tmp_path / "pets", {"train/cat": grey, "train/dog": colour})
    lines: list[str] = []
    loaded = data.load(f"hf:{folder}", store, notify=lines.append)
    assert np.array_equal(loaded.images, np.concatenate([grey[..., None].repeat(3, 3), colour]))
    assert lines[1:] == [
        "hf:pets: 1 of 3 images are grey and are read as colour like the others",
        "hf:pets: 3 colour images of 6 x 6 pixels, 2 classes",
    ]


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(r"datasets is not installed; pip install 'fedbench-fl\[hf\]'", hub.library, "datasets")


@hub_test
def test_fetch_pins_the_revision(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's answers are made here; what comes is read as any folder."""
    there = parquet(tmp_path / "there", {"train": pictures(6, 8, 8), "test": pictures(3, 8, 8)})
    questions: list[tuple[str, str | None]] = []
    commits = ["0a1b2c", "3d4e5f"]

    class HfApi:
        def dataset_info(self, name: str, revision: str | None) -> SimpleNamespace:
            questions.append((name, revision))
            return SimpleNamespace(sha=commits[len(questions) - 1])

    def snapshot_download(name: str, repo_type: str, revision: str, local_dir: Path) -> None:
        assert (name, repo_type, revision) == ("someone/digits", "dataset", commits[len(questions) - 1])
        shutil.copytree(there, local_dir, dirs_exist_ok=True)
        (local_dir / ".cache").mkdir()

    fake = SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)  # type: ignore[arg-type]
    (folder,) = data.fetch("hf:someone/digits@v2", store)
    before = data.resolve("hf:someone/digits@v2", store)
    data.fetch("hf:someone/digits", store)
    assert questions == [("someone/digits", "v2"), ("someone/digits", None)]
    other = data.resolve("hf:someone/digits", store)
    monkeypatch.undo()
    assert other.content != before.content  # the same files at another revision
    assert (folder / ".revision").read_text() == "0a1b2c\n"
    assert not (folder / ".cache").exists()
    loaded = data.load("hf:someone/digits@v2", store)
    assert (loaded.spec.name, len(loaded.images)) == ("hf:someone/digits@v2", 9)


def idx(folder: Path, front: str = "", test: str = "t10k") -> np.ndarray:
    """MNIST's files as torchvision lays them, of classes in turn; returns the images."""
    images = {"train": pictures(12, 28, 28), test: pictures(11, 28, 28)}
    for side, those in images.items():
        write_idx(folder / f"{front}{side}-images-idx3-ubyte", those)
        write_idx(folder / f"{front}{side}-labels-idx1-ubyte", np.arange(len(those), dtype=np.uint8) % 10)
    return np.concatenate(list(images.values()))


def test_torchvision_reads_its_own_files(tmp_path: Path, store: Store) -> None:
    images = idx(tmp_path / "FashionMNIST/raw")
    got, small = (data.load(f"torchvision:FashionMNIST{more}", store, [tmp_path]) for more in ("", ",size=14"))
    assert (got.spec.name, got.classes[9]) == ("torchvision:FashionMNIST", "Ankle boot")
    holds(got, images, labels=[i % 10 for i in (*range(12), *range(11))], split=[0] * 12 + [1] * 11)
    assert small.images.shape == (23, 14, 14, 1)
    assert small.spec.id != got.spec.id
    idx(tmp_path / "EMNIST/raw", "emnist-digits-", "test")
    variant = data.load("torchvision:EMNIST,split=digits", store, [tmp_path])
    assert (len(variant.classes), variant.images.shape) == (10, (23, 28, 28, 1))


@pytest.mark.parametrize("first", [0, 1])
def test_torchvision_in_grey_and_colour(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    grey, colour = pictures(1, 6, 5), pictures(2, 6, 5, 3)
    items = [Image.fromarray(grey[0]), *map(Image.fromarray, colour)]
    sides = {"train": [*items[first:], *items[:first]], "test": items[:1]}  # the test images are grey alone
    content = {side: [(one, i % 2) for i, one in enumerate(images)] for side, images in sides.items()}
    monkeypatch.setattr(torchvision_files, "_opened", lambda source, root, side, download: content[side])
    idx(tmp_path / "MNIST/raw")
    lines: list[str] = []
    loaded = data.load("torchvision:MNIST", store, [tmp_path], lines.append)
    expected = np.roll(np.concatenate([grey[..., None].repeat(3, 3), colour]), -first, axis=0)
    assert np.array_equal(loaded.images[:3], expected)
    assert np.array_equal(loaded.images[3], grey[0, ..., None].repeat(3, 2))
    assert lines[1] == "torchvision:MNIST: 2 of 4 images are grey and are read as colour like the others"


def test_damaged_files_of_torchvision_are_one_line(tmp_path: Path, store: Store) -> None:
    """SVHN: torchvision checks its files' checksums before it reads them, so made ones are refused."""
    for side in ("train", "test"):
        savemat(tmp_path / f"{side}_32x32.mat", {"X": pictures(32, 32, 3, 4), "y": np.array([1, 2, 3, 10])})
    idx(tmp_path / "MNIST/raw")
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    for name in ("SVHN", "MNIST"):
        with pytest.raises(FedbenchError, match=rf"torchvision:{name}, train, in .* is damaged or not as torchvision"):
            data.load(f"torchvision:{name}", store, [tmp_path])


def test_reading_never_downloads(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def opened(source: Any, root: Path, side: str, download: bool) -> Any:
        asked.append((root, side, download))
        raise RuntimeError("nothing there")

    monkeypatch.setattr(torchvision_files, "_opened", opened)
    idx(tmp_path / "MNIST/raw")
    refused("", data.load, "torchvision:MNIST", store, [tmp_path])
    refused("torchvision:MNIST cannot be downloaded", data.fetch, "torchvision:MNIST", store)
    assert asked == [(tmp_path, "train", False), (data.downloads(store), "train", True)]


def test_every_set_is_one_of_torchvisions() -> None:
    for name, one in SETS.items():
        cls = getattr(torchvision().datasets, name)
        known = {p for base in cls.__mro__[:2] for p in inspect.signature(base.__init__).parameters}
        assert {"root", "download", *(key for key, _ in one.sides)} <= known, name


# -- clients: FEMNIST by writer, in LEAF's JSON and in Parquet; PFLlib's folders, whose pickles are refused ---


BODY = """
[[source]]
name = "leaf"
kind = "leaf"
columns = { writer = "writer" }
[[source.file]]
path = "leaf"
"""


def held(sizes: dict[str, int], seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    """One LEAF file's content for users with so many images of 4 x 5, and the pixels it means."""
    images = pixels(sum(sizes.values()), 4, 5, seed=seed)
    rows, at, data = (images.reshape(-1, 20) / 255).tolist(), 0, {}
    for user, size in sizes.items():
        data[user] = {"x": rows[at : at + size], "y": [(at + i) % 3 for i in range(size)]}
        at += size
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}, images


def write(folder: Path, name: str, content: Any) -> Path:
    """A file of this text, or of this content as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def leaf(folder: Path, *contents: Any, names: Sequence[str] = ("all_data_0.json",)) -> str:
    """The path of a recipe of LEAF's files with these contents."""
    for name, content in zip(names, contents, strict=True):
        write(folder / "leaf", name, content)
    return recipe_file(folder, BODY)


def test_files_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    names = ["all_data_0.json", "all_data_2.json", "all_data_10.json"]
    contents, images = zip(*(held({f"f{i}_a": 2, f"f{i}_none": 0, f"f{i}_b": 3}, i) for i in range(3)), strict=True)
    toy = leaf(tmp_path, *contents, names=names)
    (tmp_path / "leaf/notes.json").write_text("not one of them")
    got = load(toy, store)
    writers = [f"f{i}_{who}" for i in range(3) for who in "aabbb"]
    holds(got, np.concatenate(images), labels=[0, 1, 2, 0, 1] * 3, writer=writers)
    assert got.split.max() == 0  # a partition splits each client's own images


def test_a_folder_is_data_set_and_clients(tmp_path: Path, store: Store) -> None:
    """LEAF's own train/ and test/, of square images: a user is a client with its own split."""
    levels = {"train": np.arange(80).reshape(5, 16), "test": np.arange(100, 164).reshape(4, 16)}
    for side, sizes in {"train": {"f_a": 2, "f_b": 3}, "test": {"f_a": 1, "f_b": 3}}.items():
        rows, ends = (levels[side] / 255).tolist(), {"f_a": sizes["f_a"], "f_b": sum(sizes.values())}
        data = {u: {"x": rows[ends[u] - n : ends[u]], "y": [0, 1, 1][:n]} for u, n in sizes.items()}
        content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}
        write(tmp_path / "fed" / side, "all_data_0.json", content)
    spec = spec_of(None, {"from": str(tmp_path / "fed")}, protocol.load("feddrm"), store)
    p, images = build(spec, store), load(spec.dataset, store).images
    assert (spec.scheme, p.n_train.tolist(), p.n_test.tolist()) == ("presplit", [2, 3], [1, 3])
    for client, rows in ((0, slice(0, 2)), (1, slice(2, 5))):
        mine = images[p.sample[p.rows(client, test=False)]].reshape(-1, 16).tolist()
        assert sorted(mine) == levels["train"][rows].tolist()


def leaf_folder(place: Path, **sides: dict[str, tuple[list[list[float]], list[float]]]) -> str:
    """A folder of LEAF: side -> user -> x and y."""
    for side, users in sides.items():
        data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
        sizes = [len(y) for _, y in users.values()]
        write(place / side, "all_data.json", {"users": [*users], "num_samples": sizes, "user_data": data})
    return str(place)


def test_rows_of_numbers_are_vectors(tmp_path: Path, store: Store) -> None:
    """As LEAF's synthetic(1, 1): sixty values, and classes as 0.0 and 1.0. What is no vector among them is named."""
    rows = np.random.default_rng(0).normal(size=(12, 60)).round(3)
    users = {f"f_{i}": (rows[4 * i : 4 * i + 4].tolist(), [0.0, 1.0, 2.0, 1.0]) for i in range(3)}
    place = leaf_folder(tmp_path / "synthetic", train=users, test=users)
    spec = spec_of(None, {"from": place}, protocol.load("plain"), store)
    got = load(spec.dataset, store)
    assert (spec.scheme, spec.clients, got.classes) == ("presplit", 3, ("0", "1", "2"))
    assert got.images.dtype == np.float32
    np.testing.assert_array_equal(got.images.reshape(24, 60), np.tile(rows.astype(np.float32), (2, 1)))
    assert got.labels.tolist() == [0, 1, 2, 1] * 6
    users["f_2"][0][3][7] = float("nan")
    refused(
        "user f_2: column x has no number in row 4", load, leaf_folder(tmp_path / "nan", train=users, test=users), store
    )
    users["f_2"][0][3].pop()
    refused(
        "user f_2: the vectors are not rows of 60", load, leaf_folder(tmp_path / "few", train=users, test=users), store
    )


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (np.linspace(0, 1, 64), (8, 8, 1)),
        (np.linspace(-0.5, 2, 64), (1, 1, 64)),  # as many values as a square image, and no grey levels
        (np.linspace(0, 1, 60), (1, 1, 60)),  # the reverse
        (np.linspace(0, 1, 48), (4, 4, 3)),
    ],
)
def test_which_rows_are_images(tmp_path: Path, store: Store, row: np.ndarray, shape: tuple[int, ...]) -> None:
    users = {"a": ([row.tolist()] * 2, [0.0, 1.0])}
    got = load(leaf_folder(tmp_path / "fed", train=users, test=users), store)
    assert got.images.shape == (4, *shape)
    assert bool(got.spec.vectors) == (shape[0] == 1)


def test_grey_levels_that_nobody_scaled_are_refused_and_a_recipe_makes_them_vectors(
    tmp_path: Path, store: Store
) -> None:
    users = {"a": ([list(range(16)), list(range(16, 32))], [0.0, 1.0])}
    place = leaf_folder(tmp_path / "fed", train=users, test=users)
    says = r"grey levels must lie in 0\.\.1; divide bytes by 255; of vectors, a recipe of kind leaf says shape = \[16\]"
    refused(says, load, place, store)
    toy = leaf(tmp_path, {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": users["a"][0], "y": [0, 1]}}})
    text = Path(toy).read_text()
    Path(toy).write_text(re.sub(r"shape = .*", "shape = [16]", text))
    got = load(toy, store)
    assert (got.images.shape, got.images.sum()) == ((2, 1, 1, 16), sum(range(32)))


def test_users_of_the_test_side_are_unseen(tmp_path: Path, store: Store) -> None:
    """LEAF's split by user. Who has a single image is left out; some of each side, if fewer are asked for."""

    def users(*sizes: int, first: int) -> dict[str, tuple[list[list[float]], list[float]]]:
        return {
            f"u{first + i}": ([[0.1 * (first + i)] * 16] * n, [0.0, 1.0] * (n // 2) or [1.0])
            for i, n in enumerate(sizes)
        }

    # Their names do not tell the sides apart: u2 and u3 are tests, u4 to u6 train.
    place = leaf_folder(tmp_path / "fed", test=users(4, 6, first=2), train=users(10, 1, 8, first=4))
    lines: list[str] = []
    spec = spec_of(None, {"from": place}, protocol.load("plain"), store, remark=lines.append)
    assert lines[-1].startswith("No client of fed is in both train and test: the 2 of test are unseen clients, and")
    assert (spec.scheme, spec.clients, spec.unseen) == ("natural", 4, 2)
    p, writer = build(spec, store), load(spec.dataset, store).column("client")
    assert [sorted({*writer[p.sample[p.client == i]].tolist()}) for i in range(4)] == [["u4"], ["u6"], ["u2"], ["u3"]]
    assert (p.n_train + p.n_test).tolist() == [10, 8, 4, 6]
    assert min(*p.n_train, *p.n_test) >= 1
    some = spec_of(None, {"from": place, "unseen": "u3", "split": 0.5}, protocol.load("plain"), store)
    assert (some.clients, some.unseen, some.options["order"]) == (4, 1, ("u2", "u4", "u6", "u3"))
    says = "--clients draws some clients, and those of test in .* are unseen; leave it out"
    refused(says, spec_of, None, {"from": place, "clients": 3}, protocol.load("plain"), store)


def test_natural_groups_are_the_clients(tmp_path: Path, store: Store) -> None:
    """Of a data set of one's own, where the user says natural; one with a single image cannot be one."""
    toy = leaf(tmp_path, held({"a": 4, "b": 1, "c": 2, "d": 3})[0])
    rules = protocol.load(protocol.default_for(toy))
    assert rules.name == "plain"
    assert [spec_of(toy, {"by": "writer", **own}, rules, store).clients for own in ({}, {"clients": "2"})] == [3, 2]
    assert build(spec_of(toy, {"by": "writer"}, rules, store), store).class_counts().sum(1).tolist() == [4, 2, 3]
    refused("unknown column of toy 'writers'; did you mean 'writer'", spec_of, toy, {"by": "writers"}, rules, store)


def test_white_paper_stays_white_and_greys_are_rounded(tmp_path: Path, store: Store) -> None:
    """... and every level survives four digits."""
    content, _ = held({"a": 14})
    some = [1.0, 0.0, 1, 0, 0.5, 0.499, 0.0019, 0.002, 254.4 / 255, 254.6 / 255] * 2
    every = [float(f"{level % 256 / 255:.4g}") for level in range(260)]
    content["user_data"]["a"]["x"] = np.reshape([*some, *every], (14, 20)).tolist()
    got = load(leaf(tmp_path, content), store).images.ravel().tolist()
    assert got == [255, 0, 255, 0, 128, 127, 0, 1, 254, 255] * 2 + [level % 256 for level in range(260)]


def user(**change: object) -> Any:
    return lambda content: content["user_data"]["a"].update(change)


ROW = [0.5] * 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("users"), "it lacks 'users'"),
        (lambda c: c.pop("num_samples"), "it lacks 'num_samples'"),
        (lambda c: c.update(user_data=[1]), "it lacks 'user_data' or that is no dict"),
        (lambda c: c.update(users=[], num_samples=[]), "there are no users"),
        (lambda c: c.update(users=[3, 4]), "the name of a user must be text, not 3"),
        (lambda c: c.update(users=["\ud800", "b"]), "not Unicode"),
        (lambda c: c["user_data"].pop("b"), "user b has no x and y in user_data"),
        (lambda c: c["user_data"]["b"].pop("y"), "user b has no x and y in user_data"),
        (lambda c: c["users"].append("c"), "3 users but 2 num_samples"),
        (lambda c: c.update(num_samples=[2, 3]), "user b has 2 images, 2 labels, num_samples 3"),
        (lambda c: c.update(held({"a": 0})[0]), "no user has an image"),
        (user(y=[0]), "user a has 2 images, 1 labels, num_samples 2"),
        (user(x=[ROW]), "user a has 1 images, 2 labels, num_samples 2"),
        (user(x=[ROW, [*ROW[1:], 1.01]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, [*ROW[1:], float("nan")]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, ROW[1:]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [*ROW[1:], "white"]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [10**400] * 20]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW[1:]] * 2), r"user a: images of shape \[19\], not 20 numbers a row"),
        (user(x=[0.5, 0.5]), r"user a: images of shape \[\], not 20 numbers a row"),
        (user(y=[0, 3]), r"labels must lie in 0\.\.2"),
        (user(y=[0, -1]), r"labels must lie in 0\.\.2"),
        (user(y=[0, 1.5]), "user a: labels must be whole numbers"),
        (user(y=[0, float("inf")]), "user a: labels must be whole numbers"),
        (user(y=[0, True]), "user a: labels must be whole numbers"),
        (user(y=[0, 10**30]), "user a: labels must be whole numbers"),
        ("[]", "is not a LEAF file"),
        pytest.param("[" * 100_000, "is truncated or not JSON", id="deep"),
        pytest.param("9" * 10_000, "is truncated or not JSON", id="long"),
        *((keep, "is truncated or not JSON") for keep in (0, 1, 40, 300, -1)),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, store: Store, change: Any, message: str) -> None:
    content, _ = held({"a": 2, "b": 2})
    if callable(change):
        change(content)
    text = json.dumps(content)[:change] if isinstance(change, int) else change if isinstance(change, str) else content
    toy = leaf(tmp_path, text)
    for says in (message, re.escape(str(tmp_path / "leaf/all_data_0.json"))):
        refused(says, load, toy, store)


def test_folders_that_are_not_one_of_leafs(tmp_path: Path, store: Store) -> None:
    toy = leaf(tmp_path, held({"a": 2})[0], names=["data_0.json"])
    refused(r"leaf has no file like all_data\*\.json", load, toy, store)
    # LEAF's sampled and split files hold the same images again: together they would count twice.
    write(tmp_path / "leaf/all_data", "all_data_0.json", held({"a": 2, "b": 1})[0])
    write(tmp_path / "leaf/sampled_data", "all_data_0_niid_0.json", held({"b": 1})[0])
    refused(r"user b is in all_data/all_data_0\.json too; give one of LEAF's folders", load, toy, store)


def test_both_forms_of_femnist_give_the_same_images(tmp_path: Path, store: Store) -> None:
    images, labels = pixels(4, 28, 28), [61, 0, 10, 36]
    writers = ["f0001_41", "f0001_41", "f0002_11", "f0002_11"]
    (tmp_path / "one/femnist").mkdir(parents=True)
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in images],
        "writer_id": writers,
        "hsf_id": [0] * 4,
        "character": labels,
    }
    pq.write_table(pa.table(columns), tmp_path / "one/femnist/train-00000-of-00001.parquet")
    rows = (images.reshape(4, -1) / 255).tolist()
    data = {w: {"x": rows[i : i + 2], "y": labels[i : i + 2]} for i, w in ((0, writers[0]), (2, writers[2]))}
    content = {"users": list(data), "num_samples": [2, 2], "user_data": data}
    write(tmp_path / "two/femnist/all_data", "all_data_0.json", content)
    one, two = (load("femnist", store, [tmp_path / root]) for root in ("one", "two"))
    assert (one.spec.source, two.spec.source) == ("parquet", "leaf")
    for got in (one, two):
        holds(got, images, writer=writers)
        assert [got.classes[label] for label in got.labels] == ["z", "0", "A", "a"]


Clients = dict[int, tuple[Any, Any]]


def fed(place: Path, train: Clients, test: Clients | None = None, config: Any = None) -> str:
    """A folder of PFLlib; of the same images on both sides if no others are given."""
    for side, clients in (("train", train), ("test", train if test is None else test)):
        (place / side).mkdir(parents=True)
        for client, (x, y) in clients.items():
            np.savez_compressed(place / side / f"{client}.npz", x=x, y=np.asarray(y))
    if config is not None:
        (place / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(place)


def grey(count: int, side: int = 4) -> np.ndarray:
    """Images as PFLlib has them: floats in [-1, 1]."""
    pixels = np.arange(count * side * side).reshape(count, 1, side, side) % 256
    return ((pixels / 255 - 0.5) / 0.5).astype(np.float32)


OWN: Clients = {0: (grey(2), [0, 1])}


def test_clients_come_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    sizes = {0: 2, 2: 3, 10: 4}
    train = {c: (grey(n), [c % 3] * n) for c, n in sizes.items()}
    test = {c: (grey(1), [0]) for c in sizes}
    got = load(fed(tmp_path / "fed", train, test, {"num_classes": 3}), store)
    assert (got.spec.name, got.classes, got.images.shape) == ("fed", ("0", "1", "2"), (12, 4, 4, 1))
    holds(got, client=[0, 0, 2, 2, 2, 10, 10, 10, 10, 0, 2, 10], split=[0] * 9 + [1] * 3)
    assert got.images[1].ravel().tolist() == list(range(16, 32))


@pytest.mark.parametrize("shape", [(5,), (9, 1, 8), (1, 1, 8), (3, 1, 128), (128, 1, 3)])
def test_series_and_features_are_vectors(tmp_path: Path, store: Store, shape: tuple[int, ...]) -> None:
    """As PFLlib's HAR and PAMAP2, [n, 9, 1, 128]: of any range, one after the other channel."""
    rows = np.random.default_rng(0).normal(size=(6, *shape)) * 10
    own = {0: (np.zeros((0, *shape)), []), 1: (rows[:4].astype(np.float32), [0, 1, 0, 1]), 2: (rows[4:], [0, 1])}
    lines: list[str] = []
    place = fed(tmp_path / "fed", own)
    got = load(place, store, notify=lines.append)
    size = int(np.prod(shape))
    assert lines[-1] == f"fed: 12 vectors of {size} values, 2 classes"
    np.testing.assert_array_equal(
        got.images.reshape(12, size), np.tile(rows.reshape(6, size), (2, 1)).astype(np.float32)
    )
    assert spec_of(None, {"from": place}, protocol.load("plain"), store).clients == 2


def test_a_folder_holds_vectors_or_images(tmp_path: Path, store: Store) -> None:
    some = {0: (np.ones((2, 5)), [0, 1]), 1: (grey(2), [0, 1])}
    says = (
        r"1\.npz: x must be vectors \[n, D\] or \[n, C, 1, T\], as that of the first client, not float32 \[2, 1, 4, 4\]"
    )
    refused(says, load, fed(tmp_path / "vectors", some), store)
    refused(r"1\.npz: x must be images", load, fed(tmp_path / "images", {0: some[1], 1: some[0]}), store)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_images_in_0_to_1_are_no_dark_ones(tmp_path: Path, store: Store, kind: Any) -> None:
    """As PFLlib's DomainNet, Camelyon17, COVIDx and kvasir; a white image of a client is of either range."""
    levels = np.arange(256).reshape(16, 4, 4)
    own = {0: ((levels / 255).astype(kind), np.arange(16) % 2), 1: (np.ones((1, 4, 4), kind), [0])}
    lines: list[str] = []
    got = load(fed(tmp_path / "fed", own), store, notify=lines.append)
    assert got.images[:17].reshape(17, 4, 4).tolist() == [*levels.tolist(), [[255] * 4] * 4]
    found = ["the values of its images lie in [0, 1]", "34 grey images of 4 x 4 pixels, 2 classes"]
    assert lines[1:] == [f"fed: {line}" for line in found]


def test_a_bright_client_among_others_in_minus_1_to_1(tmp_path: Path, store: Store) -> None:
    bright = np.arange(128, 256).reshape(8, 4, 4)
    own = {0: (grey(2), [0, 1]), 1: ((bright / 255 - 0.5) / 0.5, [0, 1] * 4)}
    assert load(fed(tmp_path / "fed", own), store).images[2:10, ..., 0].tolist() == bright.tolist()


@pytest.mark.parametrize("none", [(np.zeros((0, 1, 4, 4), np.float32), []), ([], [])])
@pytest.mark.parametrize("without", [["train"], ["test"], ["train", "test"]])
def test_a_client_may_have_no_row(tmp_path: Path, store: Store, none: Any, without: list[str]) -> None:
    own = {0: (grey(2), [0, 1]), 1: (grey(2), [0, 1])}
    sides = [{**own, 0: none} if side in without else own for side in ("train", "test")]
    lines: list[str] = []
    got = load(fed(tmp_path / "fed", *sides), store, notify=lines.append)
    named = ", ".join(f"{side}/0.npz" for side in without)
    assert lines[1].endswith(f"[-1, 1]; no row in {named}: a client without any is left out")
    assert len(got.labels) == 8 - 2 * len(without)
    assert set(got.column("client")) == ({1} if without[1:] else {0, 1})


def test_names_of_classes_are_the_configs(tmp_path: Path, store: Store) -> None:
    of_mnist = {"num_clients": 1, "non_iid": True, "partition": "pat", "Size of samples for labels in clients": []}
    for name, config in (("a", {"classes": ["no", "yes"]}), ("b", None), ("c", of_mnist)):
        classes = load(fed(tmp_path / name, OWN, config=config), store).classes
        assert classes == (("no", "yes") if name == "a" else ("0", "1"))


@given(st.integers(0, 255), st.sampled_from([np.float16, np.float32, np.float64, np.uint8]))
def test_eight_bits_come_back_from_any_form(level: int, kind: Any) -> None:
    value = level if kind is np.uint8 else (level / 255 - 0.5) / 0.5
    for shape in ((2, 3, 4, 5), (2, 4, 5, 3), (2, 4, 5)):
        pixels, values = _pixels(np.full(shape, value, kind), "here")
        assert values in ("", _SIGNED, _EITHER)
        pixels = _signed(pixels) if values == _EITHER else pixels
        assert pixels.shape == (2, 4, 5, 1 if len(shape) == 3 else 3)
        assert (pixels == level).all()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_is_refused_and_never_run(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, bomb = fed(tmp_path / "fed", OWN), np.empty(1, object)
    bomb[0] = _Bomb()
    file, as_pflib = Path(place) / "train/0.npz", np.array({"x": grey(2), "y": np.array([0, 1])}, object)
    for arrays, says in (
        ({"data": as_pflib}, r"0\.npz holds a pickled object, .*; save the arrays x and y as such"),
        ({"x": bomb, "y": np.array([0])}, r"0\.npz holds an array of Python objects, which could run any program"),
    ):
        np.savez_compressed(file, **arrays)
        refused(says, load, place, store)
    file.write_bytes(pickle.dumps(_Bomb()))
    refused("is damaged or not an npz file", load, place, store)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("x", "y", "config", "message"),
    [
        (grey(2), [0], None, "2 rows of x but 1 of y"),
        (grey(2), [0.0, 1.0], None, "y must be whole numbers"),
        (grey(2) * 2, [0, 1], None, r"must lie in \[-1, 1\], as PFLlib normalises them, .* lie in \[-2, -1\.5137"),
        (np.full((2, 4, 4), 255.0), [0, 1], None, r"or in \[0, 1\]; they lie in \[255, 255\]"),
        ((grey(2) + 1) / 2, [0, 1], None, r"1\.npz holds images in \[0, 1\] and .*0\.npz in \[-1, 1\]; bring all"),
        (grey(2) * np.nan, [0, 1], None, r"the images must lie in \[-1, 1\]"),
        (grey(2).reshape(2, 16), [0, 1], None, r"images \[n, C, H, W\] of 1 or 3 channels, not float32 \[2, 16\]"),
        (np.zeros((2, 4, 4), int), [0, 1], None, "x must be images"),
        (np.zeros((2, 2, 4, 4), np.uint8), [0, 1], None, "x must be images"),
        (grey(2), [0, 7], None, r"labels must lie in 0\.\.1"),
        (grey(2), [0, 10**9], {}, "fed has class 1000000000, and 65,535 is the largest"),
        (grey(2, 5), [0, 1], None, r"images of shape \[5, 5, 1\]; the recipe says \[4, 4, 1\]"),
        *(
            (grey(2), [0, 1], config, message)
            for config, message in (
                ("{", "config.json is not JSON"),
                ("[" * 10_000, "config.json is not JSON"),
                ("[]", "config.json must hold an object of JSON"),
                ({"num_classes": None}, "num_classes must be a number of classes, 2 at least, not None"),
                ({"num_classes": True}, "not True"),
                ({"num_classes": 1}, "not 1"),
            )
        ),
    ],
)
def test_wrong_arrays_and_configs_are_one_line(
    tmp_path: Path, store: Store, x: Any, y: Any, config: Any, message: str
) -> None:
    place = fed(tmp_path / "fed", {**OWN, 1: (x, y)}, OWN, {"num_classes": 2} if config is None else config)
    refused(message, load, place, store)


def test_folders_that_cannot_be_it(tmp_path: Path, store: Store) -> None:
    refused(r"none .* holds no image", load, fed(tmp_path / "none", {0: ([], [])}), store)
    named = fed(tmp_path / "fed", OWN)
    (tmp_path / "fed/train/train0.npz").write_bytes(b"")
    refused(r"train0\.npz should be called by its client's number; such as 0\.npz", load, named, store)
    (tmp_path / "other/train").mkdir(parents=True)
    refused("is a folder neither of PFLlib .*; it holds no file; images in class", load, str(tmp_path / "other"), store)
    (tmp_path / "other/train/1.png").write_bytes(png(pixels(1, 4, 5)[0]))
    refused(r"it holds train/1\.png; images in class folders", load, str(tmp_path / "other"), store)


# -- MedMNIST's archives ----------------------------------------------------------------------------------------


def medmnist(path: Path, shape: tuple[int, ...] = (4, 4), labels: int = 1, **change: Any) -> str:
    """A file as MedMNIST's, of four training images, one to validate and two to test with."""
    arrays: dict[str, Any] = {}
    for side, n in (("train", 4), ("val", 1), ("test", 2)):
        arrays[f"{side}_images"] = pictures(n, *shape)
        arrays[f"{side}_labels"] = np.arange(n * labels, dtype=np.uint8).reshape(n, labels) % (3 if labels == 1 else 2)
    arrays |= change
    np.savez_compressed(path, **{name: value for name, value in arrays.items() if value is not None})
    return str(path)


@pytest.mark.parametrize(("shape", "labels"), [((4, 4), 1), ((5, 4, 3), 1), ((4, 4), 3)])
def test_medmnist(tmp_path: Path, store: Store, shape: tuple[int, ...], labels: int) -> None:
    """Grey or RGB, one class or several labels; its validation images are left out, and that is said."""
    name, lines = medmnist(tmp_path / "mixmnist.npz", shape, labels), []
    own, made = np.load(name), load(name, store, notify=lines.append)
    images, whole = (
        np.concatenate([own[f"{side}_{what}"] for side in ("train", "test")]) for what in ("images", "labels")
    )
    holds(made, images, labels=(whole if labels > 1 else whole[:, 0]).tolist(), split=[0] * 4 + [1] * 2)
    assert (made.multi_label, made.classes) == (labels > 1, ("0", "1", "2"))
    assert any("1 validation images left out" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"val_labels": None}, "has no array val_labels but train_images, .*; MedMNIST's files hold"),
        ({"test_images": pictures(2, 4, 4, 4)}, r"test_images must be bytes .* not uint8 \[2, 4, 4, 4\]; volumes"),
        ({"test_images": np.zeros((2, 4, 4))}, "test_images must be bytes .* not float64"),
        ({"test_images": pictures(3, 4, 4)}, r"test_labels must be whole numbers \[3, 1 or more\], not uint8 \[2, 1\]"),
        ({"test_images": pictures(2, 5, 4)}, r"\(test\): images of shape \[5, 4, 1\]; the recipe says \[4, 4, 1\]"),
        ({"test_labels": np.zeros((2, 2), np.uint8)}, r"\[1, 1, 2\] labels an image in train, val and test"),
        ({"train_labels": np.full((4, 1), "a")}, "train_labels must be whole numbers"),
        ({"train_labels": np.full((4, 1), -1)}, "train_labels cannot be negative, unlike -1"),
        ({"train_labels": np.full((4, 1), 10**9)}, "class 1000000000, and 65,535 is the largest"),
    ],
)
def test_medmnist_files_that_cannot_be(tmp_path: Path, store: Store, change: dict[str, Any], says: str) -> None:
    refused(says, load, medmnist(tmp_path / "bad.npz", **change), store)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    refused("bad.npz is damaged or not an npz file", load, str(tmp_path / "bad.npz"), store)


def _parts(path: Path) -> list[Any]:
    own = Source("pflib", "pflib", file=(File("train"),))
    return list(read_pflib(Recipe("fed", "", "", "", (), (), (own,)), own, [path]))


@few(st.data(), examples=40)
def test_any_bytes_end_in_one_line_or_in_images(tmp_path: Path, drawn: st.DataObject) -> None:
    """Anything, or a good file of which one byte is another."""
    whole = io.BytesIO()
    np.savez_compressed(whole, x=grey(2), y=np.array([0, 1]))
    content = bytearray(whole.getvalue())
    content[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    (tmp_path / "0.npz").write_bytes(drawn.draw(st.just(bytes(content)) | st.binary(max_size=300)))
    with contextlib.suppress(FedbenchError):  # which makes one line of anything
        (part,) = _parts(tmp_path)
        assert part.images.dtype == np.uint8


def test_an_archive_that_says_less_than_it_unpacks_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.data.guard.LIMIT", 1 << 20)
    np.savez_compressed(tmp_path / "0.npz", x=np.zeros((64, 1, 256, 256), np.uint8), y=np.zeros(64, int))
    refused("would take", _parts, tmp_path)
