"""Readers: every format gives back the pixels and labels that were put in, or one line that names the file."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy.io import savemat

from fedbench.data import Dataset, load, resolve
from fedbench.data.archive import open_tree
from fedbench.data.images import fit
from fedbench.data.part import as_array, as_column, filled, values_of
from fedbench.data.readers import read_idx
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, holds, idx_bytes, loaded, pixels, tar, write_idx, written, zipped
from tests.support.frames import few, refused

GOOD = [encoded(image) for image in pixels(3, 4, 5)]
DEEP = r"row 0 has pixels of more than 8 bits \(mode "
DTYPES = st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64])
TOY = '[[source.file]]\npath = "toy"\n'


IDX = "".join(f'[[source.file]]\npath = "{name}"\nrole = "{name}"\n' for name in ("images", "labels"))


@few(DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(max_dims=4, max_side=5))), st.booleans(), examples=30)
def test_idx_round_trip(tmp_path: Path, values: np.ndarray, packed: bool) -> None:
    back = read_idx(write_idx(tmp_path / ("a.gz" if packed else "a"), values))
    assert back.dtype == values.dtype
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: gzip.compress(whole)[:-9], "truncated or damaged"),
        (lambda whole: gzip.compress(whole)[:8], "truncated or damaged"),
        (lambda whole: b"\x89PNG" + whole, "not an IDX file"),
        (lambda whole: b"", "not an IDX file"),
        (lambda whole: whole[:6], "truncated or damaged"),
    ],
)
def test_damaged_idx(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(damage(idx_bytes(pixels(3, 4, 5))))
    refused(rf"{re.escape(str(path))}.*{message}", read_idx, path)


CIFAR = 'fields = ["coarse", "fine"]\nlabel = "fine"\ncolumns = { coarse = "coarse" }\n[[source.file]]\n'


def cifar_records(n: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    images, labels = pixels(n, 4, 5, 3, seed=seed), np.arange(2 * n, dtype=np.uint8).reshape(n, 2) % 3
    planes = images.transpose(0, 3, 1, 2).reshape(n, -1)
    return np.hstack([labels, planes]).tobytes(), images, labels


def test_cifar_binary_from_an_archive(tmp_path: Path, store: Store) -> None:
    test, test_images, test_labels = cifar_records(2, 1)
    train, train_images, train_labels = cifar_records(5, 2)
    tar(tmp_path / "toy.tar.gz", {"d/test.bin": test, "d/readme.html": b"!", "d/train.bin": train})
    members = '[{path = "d/test.bin", split = "test"}, {path = "d/train.bin"}]'
    body = f'{CIFAR}path = "toy.tar.gz"\nmember = {members}\n'
    got = loaded(tmp_path, store, "cifar-binary", body, 3)
    coarse, fine = np.concatenate([train_labels, test_labels]).T
    holds(got, np.concatenate([train_images, test_images]), labels=fine, coarse=coarse, split=[0] * 5 + [1] * 2)
    tar(tmp_path / "toy.tar.gz", {"d/train.bin": train})
    refused(r"toy\.tar\.gz has no file d/test\.bin", loaded, tmp_path, store, "cifar-binary", body, 3)


PARQUET = 'columns = { who = "who" }\n[[source.file]]\npath = "toy.parquet"\n'


def parquet(folder: Path, store: Store, channels: int = 1, body: str = PARQUET, **columns: Any) -> Dataset:
    held = {"image": GOOD, "label": [0, 1, 2], "who": ["x", "y", "z"], **columns}
    pq.write_table(pa.table(held), folder / "toy.parquet")
    return loaded(folder, store, "parquet", body, channels)


def test_images_names_of_classes_and_dictionaries_of_parquet_are_read(tmp_path: Path, store: Store) -> None:
    images = pixels(3, 4, 5, 3)
    blobs = [encoded(i) for i in images]
    for column in (blobs, [{"bytes": b, "path": "x"} for b in blobs]):
        holds(parquet(tmp_path, store, 3, image=column), images, labels=[0, 1, 2], who=["x", "y", "z"])
    holds(parquet(tmp_path, store, label=["c", "a", "b"]), labels=[2, 0, 1])
    who, label = pa.array(["x", "y", "x"]).dictionary_encode(), pa.array([2, 1, 0], pa.int8())
    holds(parquet(tmp_path, store, who=who, label=label), labels=[2, 1, 0], who=["x", "y", "x"])


def test_grey_becomes_rgb_and_rgb_grey_as_the_shape_says(tmp_path: Path, store: Store) -> None:
    grey = pixels(1, 4, 5)[0]
    for channels in (1, 3):
        got = parquet(tmp_path, store, channels, image=[encoded(grey), *[encoded(np.stack([grey] * 3, -1))] * 2])
        np.testing.assert_array_equal(got.images, np.broadcast_to(grey[..., None], (3, 4, 5, channels)))


def image(mode: str, form: str = "PNG", colour: Any = None) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (5, 4), colour or 0).save(out, form)
    return out.getvalue()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [GOOD[0], encoded(pixels(1, 4, 5)[0], "JPEG")[:-20], GOOD[1]]}, "row 1 is not a readable image"),
        ({"image": [GOOD[0], b"no image", GOOD[1]]}, "row 1 is not a readable image"),
        # A format that is a program; and what Pillow's conversion would make white, as it is above 255.
        ({"image": [image("RGB", "EPS"), *GOOD[1:]]}, r"row 0 is not a readable image \(cannot identify image file\)"),
        *(
            ({"image": [image(mode, form, 300), *GOOD[1:]], "channels": n}, rf"{DEEP}{mode}.*; scale it")
            for mode, form, n in (("I;16", "PNG", 1), ("I;16", "PNG", 3), ("I", "TIFF", 1), ("F", "TIFF", 3))
        ),
        ({"image": [GOOD[0], encoded(pixels(1, 5, 4)[0]), GOOD[1]]}, "row 1 is 4 x 5 pixels; the recipe says 5 x 4"),
        ({"image": [GOOD[0], None, GOOD[1]]}, "column image has empty values"),
        *(
            ({"image": pa.array([], kind), "label": pa.array([], pa.int64()), "who": pa.array([], pa.string())}, "none")
            for kind in (pa.binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        ),
        ({"image": [{"data": blob} for blob in GOOD]}, "image must hold encoded images as bytes, not struct"),
        ({"image": [{"bytes": None}, *({"bytes": blob} for blob in GOOD[1:])]}, "image has empty values"),
        ({"image": [{"bytes": [blob]} for blob in GOOD]}, "image must hold encoded images as bytes, not list"),
        ({"image": pa.array(GOOD).dictionary_encode()}, "image must hold encoded images as bytes, not dictionary"),
        ({"label": [[0], [1], [2]]}, "label must hold numbers or text, not list"),
        ({"label": [0.0, 1.0, float("nan")]}, "labels must be whole numbers, not float64"),
        ({"label": [True, False, True]}, "labels must be whole numbers, not bool"),
        ({"label": [0, 1, 3]}, r"labels must lie in 0\.\.2"),
        ({"who": [b"\xff", b"x", b"y"], "label": ["a", "b", "z"]}, "class 'z' is not among"),
        ({"who": ["x", "y" * 1001, "z"]}, "who holds text of 1,001 characters; the most is 1,000"),
        ({"who": ["x", "x\0", "z"]}, r"who holds text with a zero character: 'x\\x00'"),
    ],
)
def test_columns_that_cannot_be(tmp_path: Path, store: Store, columns: dict[str, Any], message: str) -> None:
    refused(rf"toy\.parquet.*{message}", parquet, tmp_path, store, **columns)


def test_parquet_files_that_are_none(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FedbenchError, match=r"unknown column of .* 'whos'; did you mean 'who'"):
        parquet(tmp_path, store, body=PARQUET.replace('who = "who"', 'who = "whos"'))
    path = tmp_path / "toy.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    refused(r"toy\.parquet is damaged or not a Parquet file", loaded, tmp_path, store, "parquet", PARQUET)
    pq.write_table(pa.table([pa.array(GOOD), *[pa.array([0, 1, 2])] * 2], names=["image", "label", "label"]), path)
    refused(r"toy\.parquet is damaged", loaded, tmp_path, store, "parquet", '[[source.file]]\npath = "toy.parquet"\n')


def test_a_column_of_another_kind_in_every_file(tmp_path: Path, store: Store) -> None:
    for name, who in (("one", pa.array([1, 2, 3], pa.timestamp("s"))), ("two", [1.5, 2.5, 3.5])):
        pq.write_table(pa.table({"image": GOOD, "label": [0, 1, 2], "who": who}), tmp_path / name)
    files = "".join(TOY.replace("toy", name) for name in ("one", "two"))
    says = "toy, column who is of different kinds in different files"
    refused(says, loaded, tmp_path, store, "parquet", f'columns = {{ who = "who" }}\n{files}')


def test_images_are_resized_where_the_recipe_allows_it(tmp_path: Path, store: Store) -> None:
    # Halved, a pixel is the mean of four, whatever the filter's edges do to a constant image: its value.
    flat = np.full((8, 10, 3), (10, 120, 250), np.uint8)
    same = pixels(1, 4, 5, 3)[0]
    image = [encoded(flat), encoded(same), encoded(same)]
    refused("is 10 x 8 pixels", parquet, tmp_path, store, 3, image=image)
    before = resolve("toy", store)
    got = parquet(tmp_path, store, 3, f"resize = true\n{PARQUET}", image=image)
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


def test_palette_and_print_colours_become_rgb(tmp_path: Path, store: Store) -> None:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (255, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE).save(out, "PNG")
    blobs = [out.getvalue(), image("RGBA", colour=(255, 0, 0, 255)), image("CMYK", "TIFF", (0, 255, 255, 0))]
    assert (parquet(tmp_path, store, 3, image=blobs).images == (255, 0, 0)).all()


FOLDER = '[[source.file]]\npath = "toy"\nmember = [{ path = "{label}/*.png" }]\n'
NOTED = """[[source.file]]
path = "toy"
member = [
  { path = "train/{label}/images/*.png" },
  { path = "val/images/*.png", split = "test", annotations = "val/notes.txt" },
]
"""


NAMES = (
    "train/a/images/1.png",
    "train/a/images/2.png",
    "train/b/images/1.png",
    "train/c/images/9.png",
    "val/images/v1.png",
    "val/images/v2.png",
)


def folder_files() -> tuple[dict[str, bytes], np.ndarray]:
    images = pixels(6, 4, 5)
    files = {name: encoded(image) for name, image in zip(NAMES, images, strict=True)}
    notes = b"v2.png\ta\t0\t0\t3\t3\nv1.png\tc\t1\t1\t2\t2\n"
    return {**files, "val/notes.txt": notes, "train/a/boxes.txt": b"not an image"}, images


@pytest.mark.parametrize("form", ["folder", "zip", "tar"])
def test_folders_and_archives_of_images(tmp_path: Path, store: Store, form: str) -> None:
    files, images = folder_files()
    if form == "zip":
        zipped(tmp_path / "toy", files)
    elif form == "tar":
        tar(tmp_path / "toy", dict(reversed(files.items())))
    else:
        written(tmp_path / "toy", files)
    holds(loaded(tmp_path, store, "folder", NOTED), images, labels=[0, 0, 1, 2, 2, 0], split=[0, 0, 0, 0, 1, 1])


def test_class_folders_that_are_links_are_read_and_circles_end(tmp_path: Path, store: Store) -> None:
    """As where a class lies on another disk. A link to a folder around it would be read for ever."""
    files, images = folder_files()
    written(tmp_path / "elsewhere", files)
    (tmp_path / "toy").mkdir()
    for name in ("train", "val"):
        (tmp_path / "toy" / name).symlink_to(tmp_path / "elsewhere" / name)
    (tmp_path / "elsewhere/train/circle").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/itself").symlink_to(tmp_path / "elsewhere")
    for name in ("x", "y"):
        (tmp_path / "toy" / name).mkdir()
        (tmp_path / "toy" / name / "other").symlink_to(tmp_path / "toy" / ("y" if name == "x" else "x"))
    with open_tree(tmp_path / "toy") as tree:
        assert {name for name in tree.names if name.startswith(("train/", "val/"))} >= files.keys()
        assert max(name.count("/") for name in tree.names) < 8
    holds(loaded(tmp_path, store, "folder", NOTED), images, labels=[0, 0, 1, 2, 2, 0], split=[0, 0, 0, 0, 1, 1])


def test_annotations_may_be_separated_by_blanks(tmp_path: Path, store: Store) -> None:
    # As MNIST-M is handed round: the same file names in both splits, and "name class" lines.
    images = pixels(4, 4, 5, 3)
    names = ["pics_train/0.png", "pics_train/1.png", "pics_test/0.png", "pics_test/1.png"]
    notes = {"train.txt": b"1.png 0\n0.png 2\n", "test.txt": b"0.png 1\r\n1.png 2\r\n"}
    written(tmp_path / "toy", {**dict(zip(names, map(encoded, images), strict=True)), **notes})
    body = """[[source.file]]
path = "toy"
member = [
  { path = "pics_train/*.png", annotations = "train.txt" },
  { path = "pics_test/*.png", split = "test", annotations = "test.txt" },
]
"""
    holds(loaded(tmp_path, store, "folder", body, 3, ("0", "1", "2")), images, labels=[2, 0, 1, 2], split=[0, 0, 1, 1])


def test_a_folder_level_becomes_a_natural_column(tmp_path: Path, store: Store) -> None:
    """... and a pattern stays on its level."""
    places = (f"{centre}/{name}/1.png" for centre in ("rim", "acrima") for name in "ab")
    zipped(tmp_path / "toy", dict.fromkeys([*places, "rim/x/a/1.png", "rim/a/x/1.png", "rim/a/1xpng"], GOOD[0]))
    body = f'columns = {{ centre = "centre" }}\n{FOLDER.replace("{label}", "{centre}/{label}")}'
    holds(loaded(tmp_path, store, "folder", body), labels=[0, 1, 0, 1], centre=["acrima", "acrima", "rim", "rim"])


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
def test_a_wrong_folder_is_explained(tmp_path: Path, store: Store, change: Callable[..., object], message: str) -> None:
    files, _ = folder_files()
    change(files)
    zipped(tmp_path / "toy", files)
    refused(message, loaded, tmp_path, store, "folder", NOTED)


@pytest.mark.parametrize("name", [b"a/\xff.png", b"\xff/1.png", None])
def test_a_name_that_is_not_utf_8(tmp_path: Path, store: Store, name: bytes | None) -> None:
    if name is None:
        tar(tmp_path / "toy", {"a/\udcff.png": GOOD[0]})
    else:
        path = os.path.join(os.fsencode(tmp_path), b"toy", name)
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as f:
            f.write(GOOD[0])
    says = r"toy holds a file whose name is not UTF-8: '.*\\udcff.*'; rename it"
    refused(says, loaded, tmp_path, store, "folder", FOLDER)


CSV = f"""image = "Path"
columns = {{ who = "who" }}
label_columns = ["one", "two", "three"]
label_values = {{ "" = 0, "0" = 0, "1" = 1 }}
{TOY}"""
BODIES = {
    "idx": IDX.replace('"images"\nrole', '"toy"\nrole'),
    "cifar-binary": f'fields = ["label"]\n{TOY}',
    "parquet": TOY,
    "mat": TOY,
    "csv": CSV,
}


@pytest.mark.parametrize("kind", [*BODIES, "folder", "leaf"])
def test_folders_pipes_and_endless_devices_are_not_read(tmp_path: Path, store: Store, kind: str) -> None:
    body = {**BODIES, "folder": FOLDER, "leaf": TOY}[kind]
    write_idx(tmp_path / "labels", np.zeros(1, np.uint8))
    for make in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
        make(tmp_path / "toy")
        refused("toy is a pipe or device and should be a file", loaded, tmp_path, store, kind, body)
        (tmp_path / "toy").unlink()
    (tmp_path / "toy").mkdir()
    for more in ("", f'md5 = "{"0" * 32}"\n') if kind in BODIES else ():
        says = "toy is a folder and should be a file; put the file there"
        refused(says, loaded, tmp_path, store, kind, body.replace('path = "toy"\n', f'path = "toy"\n{more}'))


@contextlib.contextmanager
def nobody(*shut: Path) -> Iterator[None]:
    """As a user who may not read these."""
    for path in shut:
        path.chmod(0)
    before = os.geteuid()
    if before == 0:  # root may read everything
        os.seteuid(65534)
    try:
        yield
    finally:
        if before == 0:
            os.seteuid(before)
        for path in shut:
            path.chmod(0o755)


def test_files_and_folders_that_may_not_be_read(tmp_path: Path, store: Store) -> None:
    path = tmp_path  # which anybody may search, and write into
    while path.owner() == tmp_path.owner() and path != path.parent and path.stat().st_mode & 0o777 == 0o700:
        path.chmod(0o755)
        path = path.parent
    tmp_path.chmod(0o777)
    write_idx(tmp_path / "images", pixels(1, 4, 5))
    write_idx(tmp_path / "labels", np.zeros(1, np.uint8))
    toy = written(tmp_path / "toy", {"a/1.png": GOOD[0], "b/1.png": GOOD[0]})
    for shut, kind, body, says in (
        (tmp_path / "images", "idx", IDX, "cannot read .*images.*[Pp]ermission denied"),
        (toy / "a", "folder", FOLDER.replace('"toy"', '"toy/a/images"'), "cannot read .*[Pp]ermission denied"),
        (toy / "b", "folder", FOLDER, r"cannot read .*toy \(Permission denied\)"),  # is not left out
    ):
        with nobody(shut):
            refused(says, loaded, tmp_path, store, kind, body)


MAT = '[[source.file]]\npath = "train.mat"\n[[source.file]]\npath = "test.mat"\nsplit = "test"\n'


def mat(folder: Path, store: Store, train: Any, test: Any = (1,), more: Any = None, compressed: bool = True) -> Dataset:
    """y [n] of the training and the test images; `more` are other variables of the training file, or its bytes."""
    images = pixels(len(train) + len(test), 4, 5, 3)
    for name, mine, y in (("train", images[: len(train)], train), ("test", images[len(train) :], test)):
        held = {"X": mine.transpose(1, 2, 3, 0), "y": np.asarray(y)[:, None]}
        own = more if name == "train" and isinstance(more, dict) else {}
        savemat(folder / f"{name}.mat", {**held, **own}, do_compression=compressed)
    if isinstance(more, bytes):
        (folder / "train.mat").write_bytes(more)
    return loaded(folder, store, "mat", MAT, 3, tuple("0123456789"))


def test_images_and_labels_with_ten_for_zero(tmp_path: Path, store: Store) -> None:
    for dtype, packed in ((np.uint8, True), (np.float64, False)):
        got = mat(tmp_path, store, np.array([1, 10, 9, 5, 10], dtype), np.array([3, 2, 10], dtype), compressed=packed)
        holds(got, pixels(8, 4, 5, 3), labels=[1, 0, 9, 5, 0, 3, 2, 0], split=[0] * 5 + [1] * 3)
    assert mat(tmp_path, store, [0, 9, 1], [0]).labels.tolist() == [0, 9, 1, 0]  # stay, as in SynthDigits


NOT_WHOLE = ([[1], [2.5]], [[np.nan], [1]], [["1"], ["2"]], [[np.inf], [1.0]], [[1j], [1]])
BEYOND = ([[1], [11]], [[1e300], [1.0]], np.array([[2**64 - 1], [1]], np.uint64))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"y": [[0], [10]]}, "y holds both 0 and 10, which stands for 0"),
        *(({"y": y}, "y must be whole numbers") for y in NOT_WHOLE),
        ({"y": [[1], [2], [3]]}, "2 images but 3 values of label"),
        *(({"y": y}, r"labels must lie in 0\.\.9") for y in BEYOND),
        ({"y": np.array([{}, {}], object)}, "y must be an array of numbers, not of class cell"),
        ({"X": {"a": 1}}, "X must be an array of numbers, not of class struct"),
        ({"X": pixels(4, 5, 3, 2) / 255}, r"X must be bytes .* not float64 \[4, 5, 3, 2\]"),
        ({"X": pixels(4, 5, 2)}, r"X must be bytes .* not uint8 \[4, 5, 2\]"),
        ({"X": pixels(5, 4, 3, 2)}, r"images of shape \[5, 4, 3\]; the recipe says \[4, 5, 3\]"),
        (b"<html>404</html>" * 20, "is damaged or not a MATLAB file of version 5 to 7"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "is damaged or not a MATLAB file of version 5 to 7"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_matlab_files_that_cannot_be(tmp_path: Path, store: Store, more: Any, message: str) -> None:
    refused(rf"train\.mat.*({message})", mat, tmp_path, store, [1, 2], more=more)


@pytest.mark.parametrize("compressed", [True, False])
def test_truncated_matlab_files_are_one_line(tmp_path: Path, store: Store, compressed: bool) -> None:
    savemat(tmp_path / "whole.mat", {"X": pixels(4, 5, 3, 50), "y": [[1]] * 50}, do_compression=compressed)
    whole = (tmp_path / "whole.mat").read_bytes()
    for keep in (0, 3, 100, 128, 140, len(whole) // 2, -1):
        says = r"train\.mat (is damaged or not a MATLAB|has no variable)"
        refused(says, mat, tmp_path, store, [1], more=whole[:keep])
    savemat(tmp_path / "z.mat", {"X": pixels(4, 5, 3, 2), "z": [1, 2]})
    refused(r"train\.mat has no variable y", mat, tmp_path, store, [1], more=(tmp_path / "z.mat").read_bytes())
    empty = {"X": np.zeros((4, 5, 3, 0), np.uint8), "y": np.zeros((0, 1))}
    refused(r"holds no image|X must be bytes", mat, tmp_path, store, [1], (), empty)


def test_numbers_of_a_csv_file(tmp_path: Path, store: Store) -> None:
    written(tmp_path, {"0.png": GOOD[0], "toy": f"{HEADS}0.png,{10**30},NaN,0,1\n".encode()})
    got = loaded(tmp_path, store, "csv", CSV.replace('"" = 0', "nan = 0"))
    holds(got, who=[str(10**30)], labels=[[0, 0, 1]])  # too large: it stays text


@pytest.mark.parametrize("form", [("utf-8", ","), ("utf-8-sig", ";"), ("utf-16", "\t")])
def test_a_csv_file_of_images_from_another_country_or_windows(
    tmp_path: Path, store: Store, form: tuple[str, str]
) -> None:
    encoding, separator = form
    text = f"{HEADS}img\\0.png,1,0,0,1\nimg/1\\.png,2,1,0,0\n".replace(",", separator)
    written(tmp_path, {"img/0.png": GOOD[0], "img/1\\.png": GOOD[1], "toy": text.encode(encoding)})
    holds(loaded(tmp_path, store, "csv", CSV), pixels(2, 4, 5), who=[1, 2], labels=[[0, 0, 1], [1, 0, 0]])
    written(tmp_path, {"toy": f"{HEADS}..\\img\\0.png,1,0,0,1\n".encode()})
    refused("does not lie below the file's folder", loaded, tmp_path, store, "csv", CSV)


LISTS = """
columns = {{ domain = "domain" }}
[[source.file]]
path = "train.txt"
[[source.file]]
path = "test.txt"
split = "test"
"""
FIRST = "d1/a b/0.png {}\n\nd2/1.png {}\n"


@pytest.mark.parametrize(("classes", "codes"), [("012", [0, 1, 2]), ("123", [0, 1, 2]), ("cab", [2, 0, 1])])
def test_a_list_of_images_and_classes(tmp_path: Path, store: Store, classes: str, codes: list[int]) -> None:
    """As the splits of DomainNet (from 0), PACS (from 1) and others (by name): a domain is the first folder."""
    for i, name in enumerate(("d1/a b/0.png", "d2/1.png", "d1/2.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(GOOD[i])
    (tmp_path / "train.txt").write_text(FIRST.format(*classes[:2]))
    (tmp_path / "test.txt").write_text(f"d1/2.png\t{classes[2]}\n")
    made = loaded(tmp_path, store, "list", LISTS.format())
    holds(made, pixels(3, 4, 5), labels=codes, split=[0, 0, 1], domain=["d1", "d2", "d1"])


NO_ROWS = {"images": idx_bytes(pixels(0, 4, 5)), "labels": idx_bytes(np.zeros(0, np.uint8))}
FOUR = {f"toy/{i}.png": GOOD[0] for i in range(4)}
CUT = "is truncated: 123 bytes are no whole number of 62-byte records"
#: A kind of source, its files with their content, and what is wrong with them.
WRONG: list[tuple[str, str, dict[str, bytes], str]] = [
    ("idx", IDX, NO_ROWS, r"toy \(s\) holds no image: toy \(s, train\) has none; get its files again"),
    ("cifar-binary", f'{CIFAR}path = "a.bin"\n', {"a.bin": cifar_records(2, 0)[0][:-1]}, rf"a\.bin {CUT}"),
    ("mat", TOY.replace("toy", "x" * 5000), {}, "cannot read .*File name too long"),
    ("folder", FOLDER, FOUR, r"toy has no file like \{label\}/\*\.png; it holds 0\.png, 1\.png, 2\.png and 1 more"),
    ("folder", FOLDER.replace("/*.png", "/{label}"), FOUR, r"the pattern \{label\}/\{label\} has a name twice"),
]
HEADS = "Path,who,one,two,three\n"
WRONG += [
    ("csv", CSV, {"img/0.png": GOOD[0], "toy": text.encode()}, f"^(?=.*toy)(?=.*{says}).{{,2000}}$")
    for text, says in (
        (f"{HEADS}a\0b,1,0,0,0\n", "cannot be the name of a file"),
        (f"{HEADS}{'x' * 5000},1,0,0,0\n", "cannot be the name of a file"),
        (f"{HEADS}img,1,0,0,0\n", "img is a folder and should be a file"),
        (f"{HEADS}{'x' * 200_000},1,0,0,0\n", "is damaged or not a CSV file .field larger than field limit"),
        (f"{HEADS}img/0.png,{'w' * 1001},0,0,0\n", "column who holds text of 1,001 characters"),
        (f"{HEADS}img/0.png,1,0,0,{'7' * 100_000}\n", "three is '7{60}', which is no label"),
        ("Path,who,one,one,two,three\nimg/0.png,1,0,0,0,0\n", "toy has two columns one"),
    )
]
WRONG += [
    (
        "list",
        LISTS.format(),
        {"d1/0.png": GOOD[0], "d1/1.png": GOOD[0], "train.txt": text, "test.txt": b"d1/0.png 1\n"},
        says,
    )
    for text, says in (
        (b"d1/0.png 1\n\nd1/0.png\n", r"train\.txt, line 3: 1 values under 2 column names"),
        (b"d1/0.png 1\n\nd1/0.png 3\nd1/1.png 0\n", r"class in .*line 3: .*3"),
        (b"d1/0.png 1\n\n0.png 1\n", r"line 3: the image '0\.png' lies in no folder that names its domain"),
        (b"../d1/0.png 1\n", r"line 1: the image '\.\./d1/0\.png' does not lie below"),
        (b"d1/9.png 1\n", r"line 1: the image .*d1/9\.png is not there; unpack the whole data set"),
    )
]


@pytest.mark.parametrize(("kind", "body", "files", "says"), WRONG, ids=lambda value: str(value)[:40])
def test_files_that_cannot_be(
    tmp_path: Path, store: Store, kind: str, body: str, files: dict[str, bytes], says: str
) -> None:
    refused(says, loaded, written(tmp_path, files), store, kind, body, 3 if kind == "cifar-binary" else 1)
    assert not (store.home / "dataset").exists()


def test_digits_are_stretched_to_all_grey_levels(store: Store) -> None:
    from sklearn.datasets import load_digits

    got = load("digits", store)
    raw = load_digits().images
    assert got.images.shape == (1797, 8, 8, 1)
    for level, byte in ((0, 0), (1, 16), (8, 128), (15, 239), (16, 255)):
        assert set(got.images[..., 0][raw == level].tolist()) == {byte}
    assert got.split.max() == 0
    assert np.bincount(got.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(
    "chunks", [[[1, 2], [3]], [[]], [[1.5], [], [2.5]], [[True, False, True, True], [False]]], ids=str
)
def test_a_column_is_the_array_of_its_values(chunks: list[list[float]]) -> None:
    column = pa.chunked_array(chunks) if any(chunks) else pa.chunked_array(chunks, pa.int16())
    values = values_of(column)
    assert values.dtype == column.type.to_pandas_dtype()
    assert values.tolist() == [value for chunk in chunks for value in chunk]
    assert values_of(column.combine_chunks()[1:]).tolist() == values[1:].tolist()


def test_gaps_are_filled_elsewhere_refused_and_arrays_come_back_in_memory_of_their_own() -> None:
    column = pa.chunked_array([[1.0, None], [None, 4.0]])
    np.testing.assert_array_equal(filled(column, np.nan), [1, np.nan, np.nan, 4])
    assert filled(pa.chunked_array([[7, None]], pa.uint16()), -1).tolist() == [7, -1]
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        values_of(column)
    for values in (np.arange(6, dtype=np.uint8), np.arange(6, dtype=np.float32).reshape(3, 2)):
        column = pa.table({"a": as_column(values)})["a"]
        back = as_array(column)
        np.testing.assert_array_equal(back, values)
        assert back.dtype == values.dtype
        back[:] = 0
        np.testing.assert_array_equal(as_array(column), values)


def test_pandas_is_not_imported_for_it(tmp_path: Path) -> None:
    one, many = np.arange(4), as_column(np.zeros((4, 2), np.float32))
    pq.write_table(pa.table({"one": one, "many": many}), tmp_path / "a.parquet")
    code = (
        "import sys, pyarrow.parquet as pq\n"
        "from fedbench.data.part import as_array, filled, values_of\n"
        "table = pq.ParquetFile(sys.argv[1]).read()\n"
        "one, many = table['one'], table['many']\n"
        "values_of(one), filled(one, -1), values_of(one.is_valid()), as_array(one), as_array(many)\n"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
