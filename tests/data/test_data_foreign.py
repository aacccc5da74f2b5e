"""Data sets without a recipe file: the Hugging Face hub's repositories, torchvision's sets, MedMNIST's archives."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat

from fedbench import data
from fedbench.data import foreign, hub, load, torchvision_files
from fedbench.data.foreign import SETS
from fedbench.errors import FedbenchError
from fedbench.store import Store
from fedbench.vision import torchvision
from tests.support.data_makers import encoded as png
from tests.support.data_makers import holds, write_idx, written
from tests.support.frames import refused

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
