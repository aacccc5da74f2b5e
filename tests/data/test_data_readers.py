"""Readers: every format gives back the pixels and labels that were put in, or says which file is wrong."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbench.data import Dataset, load, resolve
from fedbench.data.encoded import pattern
from fedbench.data.idx import read_idx
from fedbench.data.images import fit
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, idx_bytes, pixels, recipe_text, tar, write_idx, zipped

DTYPES = st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64])


def loaded(folder: Path, store: Store, text: str) -> Dataset:
    path = folder / "toy.toml"
    path.write_text(text)
    return load(str(path), store)


@given(values=DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(max_dims=4, max_side=5))), packed=st.booleans())
def test_idx_round_trip(values: np.ndarray, packed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_idx(tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a"), values)
    back = read_idx(path)
    assert back.dtype == values.dtype
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda v: idx_bytes(v)[:-1], "should hold 60 bytes of values and holds only 59"),
        (lambda v: idx_bytes(v) + b"x", "should hold 60 bytes of values and holds more"),
        (lambda v: gzip.compress(idx_bytes(v))[:-9], "truncated or damaged"),
        (lambda v: gzip.compress(idx_bytes(v))[:8], "truncated or damaged"),
        (lambda v: b"\x89PNG" + idx_bytes(v), "not an IDX file"),
        (lambda v: b"", "not an IDX file"),
        (lambda v: idx_bytes(v)[:6], "truncated or damaged"),
    ],
)
def test_damaged_idx(tmp_path: Path, data: object, message: str) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(data(pixels(3, 4, 5)))  # type: ignore[operator]
    with pytest.raises(FedbenchError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


CIFAR = """
[[source]]
name = "binary"
kind = "cifar-binary"
fields = ["coarse", "fine"]
label = "fine"
columns = { coarse = "coarse" }
[[source.file]]
"""


def cifar_records(n: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    images, labels = pixels(n, 4, 5, 3, seed=seed), np.arange(2 * n, dtype=np.uint8).reshape(n, 2) % 3
    planes = images.transpose(0, 3, 1, 2).reshape(n, -1)
    return np.hstack([labels, planes]).tobytes(), images, labels


def test_cifar_binary_from_an_archive(tmp_path: Path, store: Store) -> None:
    test, test_images, test_labels = cifar_records(2, 1)
    train, train_images, train_labels = cifar_records(5, 2)
    tar(tmp_path / "toy.tar.gz", {"d/test.bin": test, "d/readme.html": b"!", "d/train.bin": train})
    members = '[{path = "d/test.bin", split = "test"}, {path = "d/train.bin"}]'
    got = loaded(tmp_path, store, recipe_text(f'{CIFAR}path = "toy.tar.gz"\nmember = {members}\n', (4, 5, 3)))
    np.testing.assert_array_equal(got.images, np.concatenate([train_images, test_images]))
    np.testing.assert_array_equal(got.labels, [*train_labels[:, 1], *test_labels[:, 1]])
    np.testing.assert_array_equal(got.columns["coarse"], [*train_labels[:, 0], *test_labels[:, 0]])
    assert got.split.tolist() == [0] * 5 + [1] * 2


def test_cifar_binary_that_ends_in_mid_record(tmp_path: Path, store: Store) -> None:
    (tmp_path / "a.bin").write_bytes(cifar_records(2, 0)[0][:-1])
    with pytest.raises(FedbenchError, match=r"a\.bin is truncated: 123 bytes are no whole number of 62-byte records"):
        loaded(tmp_path, store, recipe_text(f'{CIFAR}path = "a.bin"\n', (4, 5, 3)))


def test_archive_without_the_member(tmp_path: Path, store: Store) -> None:
    tar(tmp_path / "toy.tar.gz", {"other.bin": b"x"})
    with pytest.raises(FedbenchError, match=r"toy\.tar\.gz has no file d/train\.bin"):
        loaded(
            tmp_path,
            store,
            recipe_text(f'{CIFAR}path = "toy.tar.gz"\nmember = [{{path = "d/train.bin"}}]\n', (4, 5, 3)),
        )


PARQUET = """
[[source]]
name = "parquet"
kind = "parquet"
image = "img"
label = "what"
columns = { who = "who" }
[[source.file]]
path = "toy.parquet"
"""


def write_parquet(path: Path, blobs: list[bytes | None], labels: list[object], nested: bool = False) -> None:
    images: object = [{"bytes": b, "path": "x"} for b in blobs] if nested else blobs
    pq.write_table(pa.table({"img": images, "what": labels, "who": [f"w{i % 2}" for i in range(len(blobs))]}), path)


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_with_encoded_images(tmp_path: Path, store: Store, nested: bool) -> None:
    images = pixels(4, 4, 5, 3)
    write_parquet(tmp_path / "toy.parquet", [encoded(i) for i in images], [2, 0, 1, 2], nested)
    got = loaded(tmp_path, store, recipe_text(PARQUET, (4, 5, 3)))
    np.testing.assert_array_equal(got.images, images)
    assert got.labels.tolist() == [2, 0, 1, 2]
    assert got.columns["who"].tolist() == ["w0", "w1", "w0", "w1"]


def test_names_of_classes_become_their_numbers(tmp_path: Path, store: Store) -> None:
    write_parquet(tmp_path / "toy.parquet", [encoded(i) for i in pixels(3, 4, 5)], ["c", "a", "b"])
    assert loaded(tmp_path, store, recipe_text(PARQUET)).labels.tolist() == [2, 0, 1]


def test_grey_becomes_rgb_and_rgb_grey_as_the_shape_says(tmp_path: Path, store: Store) -> None:
    grey = pixels(1, 4, 5)[0]
    write_parquet(tmp_path / "toy.parquet", [encoded(grey), encoded(np.stack([grey] * 3, -1))], [0, 1])
    for channels in (1, 3):
        got = loaded(tmp_path, store, recipe_text(PARQUET, (4, 5, channels)))
        for image in got.images:
            for c in range(channels):
                np.testing.assert_array_equal(image[..., c], grey)


def damaged_blob(pixel: np.ndarray) -> bytes:
    return encoded(pixel, "JPEG")[:-20]


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (damaged_blob(pixels(1, 4, 5)[0]), r"toy\.parquet, row 1 is not a readable image"),
        (b"no image", r"toy\.parquet, row 1 is not a readable image"),
        (encoded(pixels(1, 5, 4)[0]), r"toy\.parquet, row 1 is 4 x 5 pixels; the recipe says 5 x 4"),
        (None, "column img has empty values"),
    ],
)
def test_a_bad_image_is_named(tmp_path: Path, store: Store, blob: bytes | None, message: str) -> None:
    good = encoded(pixels(1, 4, 5)[0])
    write_parquet(tmp_path / "toy.parquet", [good, blob, good], [0, 1, 2])
    with pytest.raises(FedbenchError, match=message):
        loaded(tmp_path, store, recipe_text(PARQUET))


def test_a_truncated_parquet_file_is_named(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "toy.parquet"
    write_parquet(path, [encoded(i) for i in pixels(3, 4, 5)], [0, 1, 2])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FedbenchError, match=r"toy\.parquet is damaged or not a Parquet file"):
        loaded(tmp_path, store, recipe_text(PARQUET))


def test_a_missing_column_offers_the_nearest(tmp_path: Path, store: Store) -> None:
    write_parquet(tmp_path / "toy.parquet", [encoded(pixels(1, 4, 5)[0])], [0])
    with pytest.raises(FedbenchError, match=r"unknown column of .* 'whos'; did you mean 'who'"):
        loaded(tmp_path, store, recipe_text(PARQUET.replace('who = "who"', 'who = "whos"')))


FOLDER = """
[[source]]
name = "folder"
kind = "folder"
columns = {columns}
[[source.file]]
path = "{path}"
member = [
  {{ path = "{train}" }},
  {{ path = "val/images/*.png", split = "test", annotations = "val/notes.txt" }},
]
"""


def folder_files() -> tuple[dict[str, bytes], np.ndarray]:
    images = pixels(6, 4, 5)
    names = ["train/a/images/1.png", "train/a/images/2.png", "train/b/images/1.png", "train/c/images/9.png",
             "val/images/v1.png", "val/images/v2.png"]  # fmt: skip
    files = {name: encoded(image) for name, image in zip(names, images, strict=True)}
    files["val/notes.txt"] = b"v2.png\ta\t0\t0\t3\t3\nv1.png\tc\t1\t1\t2\t2\n"
    files["train/a/boxes.txt"] = b"not an image"
    return files, images


@pytest.mark.parametrize("form", ["folder", "zip", "tar"])
def test_folders_and_archives_of_images(tmp_path: Path, store: Store, form: str) -> None:
    files, images = folder_files()
    if form == "zip":
        name = zipped(tmp_path / "toy.zip", files).name
    elif form == "tar":
        name = tar(tmp_path / "toy.tar.gz", dict(reversed(files.items()))).name
    else:
        name = "toy"
        for path, data in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(data)
    body = FOLDER.format(columns="{}", path=name, train="train/{label}/images/*.png")
    got = loaded(tmp_path, store, recipe_text(body))
    np.testing.assert_array_equal(got.images[..., 0], images)
    assert got.labels.tolist() == [0, 0, 1, 2, 2, 0]
    assert got.split.tolist() == [0, 0, 0, 0, 1, 1]


def test_annotations_may_be_separated_by_blanks(tmp_path: Path, store: Store) -> None:
    # As MNIST-M is handed round: the same file names in both splits, and "name class" lines.
    images = pixels(4, 4, 5, 3)
    for i, image in enumerate(images):
        path = tmp_path / f"pics/pics_{'train' if i < 2 else 'test'}/{i % 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(image))
    (tmp_path / "pics/train.txt").write_text("1.png 0\n0.png 2\n")
    (tmp_path / "pics/test.txt").write_text("0.png 1\r\n1.png 2\r\n")
    body = """
[[source]]
name = "folder"
kind = "folder"
[[source.file]]
path = "pics"
member = [
  { path = "pics_train/*.png", annotations = "train.txt" },
  { path = "pics_test/*.png", split = "test", annotations = "test.txt" },
]
"""
    got = loaded(tmp_path, store, recipe_text(body, (4, 5, 3), ("0", "1", "2")))
    np.testing.assert_array_equal(got.images, images)
    assert got.labels.tolist() == [2, 0, 1, 2]
    assert got.split.tolist() == [0, 0, 1, 1]


def test_images_are_resized_where_the_recipe_allows_it(tmp_path: Path, store: Store) -> None:
    # Halved, a pixel is the mean of four, whatever the filter's edges do to a constant image: its value.
    flat = np.full((8, 10, 3), (10, 120, 250), np.uint8)
    same = pixels(1, 4, 5, 3)[0]
    write_parquet(tmp_path / "toy.parquet", [encoded(flat), encoded(same)], [0, 1])
    text = recipe_text(PARQUET, (4, 5, 3))
    with pytest.raises(FedbenchError, match="is 10 x 8 pixels"):
        loaded(tmp_path, store, text)
    before = resolve("toy", store)
    got = loaded(tmp_path, store, text.replace('kind = "parquet"', 'kind = "parquet"\nresize = true'))
    assert got.spec != before
    np.testing.assert_array_equal(got.images[0], flat[:4, :5])
    np.testing.assert_array_equal(got.images[1], same)  # what fits is left alone


@pytest.mark.parametrize("channels", [1, 3])
def test_bilinear_interpolation_against_its_definition(channels: int) -> None:
    small = pixels(3, 6, 7, channels)
    big = fit(small, (12, 14, channels))
    # Pixel centres: position i of the large image lies at (i + 1/2) / 2 - 1/2 of the small one, kept inside it.
    rows, columns = (np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1) for n in (6, 7))
    r, c = rows.astype(int).clip(max=4), columns.astype(int).clip(max=5)
    u, v = (rows - r)[:, None, None], (columns - c)[:, None]
    for before, after in zip(small.astype(float), big, strict=True):
        top = before[r][:, c] * (1 - v) + before[r][:, c + 1] * v
        below = before[r + 1][:, c] * (1 - v) + before[r + 1][:, c + 1] * v
        assert np.abs(after - (top * (1 - u) + below * u)).max() <= 1


def test_a_folder_level_becomes_a_natural_column(tmp_path: Path, store: Store) -> None:
    files = {f"{centre}/{name}/1.png": encoded(pixels(1, 4, 5)[0]) for centre in ("rim", "acrima") for name in "ab"}
    zipped(tmp_path / "toy.zip", files)
    body = """
[[source]]
name = "folder"
kind = "folder"
columns = { centre = "centre" }
[[source.file]]
path = "toy.zip"
member = [{ path = "{centre}/{label}/*.png" }]
"""
    got = loaded(tmp_path, store, recipe_text(body))
    assert got.columns["centre"].tolist() == ["acrima", "acrima", "rim", "rim"]
    assert got.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("val/notes.txt"), r"has no file val/notes\.txt"),
        (lambda f: f.update({"val/notes.txt": b"v2.png\ta\n"}), "does not say the class of 'v1.png'"),
        (
            lambda f: f.update({"val/notes.txt": f["val/notes.txt"] + b"v2.png\tb\t0\n"}),
            r"\(val/notes\.txt\) lists v2\.png with two classes, a and b; list an image once",
        ),
        (lambda f: f.update({"train/zebra/images/1.png": f["val/images/v1.png"]}), "class 'zebra' is not among"),
        (lambda f: f.update({"train/b/images/1.png": b"x"}), r"\(train/b/images/1\.png\) is not a readable image"),
        (lambda f: [f.pop(n) for n in list(f) if n.startswith("train")], "has no file like train/"),
    ],
)
def test_a_wrong_folder_is_explained(tmp_path: Path, store: Store, change: object, message: str) -> None:
    files, _ = folder_files()
    change(files)  # type: ignore[operator]
    zipped(tmp_path / "toy.zip", files)
    body = FOLDER.format(columns="{}", path="toy.zip", train="train/{label}/images/*.png")
    with pytest.raises(FedbenchError, match=message):
        loaded(tmp_path, store, recipe_text(body))


def test_patterns_stay_on_their_level() -> None:
    rule = pattern("train/{label}/images/*_?.JPEG")
    assert rule.fullmatch("train/n01/images/n01_3.JPEG")["label"] == "n01"  # type: ignore[index]
    for other in ("train/n01/x/images/n01_3.JPEG", "train/n01/images/a/n01_3.JPEG", "train/n01/images/n01_3xJPEG"):
        assert rule.fullmatch(other) is None


def test_digits_are_stretched_to_all_grey_levels(store: Store) -> None:
    from sklearn.datasets import load_digits

    got = load("digits", store)
    raw = load_digits().images
    assert got.images.shape == (1797, 8, 8, 1)
    for level, byte in ((0, 0), (1, 16), (8, 128), (15, 239), (16, 255)):
        assert set(got.images[..., 0][raw == level].tolist()) == {byte}
    assert got.split.max() == 0
    assert np.bincount(got.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_encoded_helper_makes_real_jpeg() -> None:
    from PIL import Image

    assert Image.open(io.BytesIO(encoded(pixels(1, 8, 8)[0], "JPEG"))).format == "JPEG"
