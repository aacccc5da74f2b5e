"""Data files of every kind that are not what they should be: one line that names the file and says what to do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat

from fedbench.data import Dataset, load
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, pixels, recipe_text, tar, write_idx

GOOD = [encoded(image) for image in pixels(3, 4, 5)]


def loaded(folder: Path, store: Store, kind: str, body: str, channels: int = 1) -> Dataset:
    text = recipe_text(f'[[source]]\nname = "s"\nkind = "{kind}"\n{body}', (4, 5, channels))
    (folder / "toy.toml").write_text(text)
    return load(str(folder / "toy.toml"), store)


PARQUET = 'columns = { who = "who" }\n[[source.file]]\npath = "toy.parquet"\n'


def parquet(folder: Path, store: Store, **columns: Any) -> Dataset:
    held = {"image": GOOD, "label": [0, 1, 2], "who": ["x", "y", "z"], **columns}
    pq.write_table(pa.table(held), folder / "toy.parquet")
    return loaded(folder, store, "parquet", PARQUET)


# -- no image --------------------------------------------------------------------------------------------------------

IDX = "".join(f'[[source.file]]\npath = "{name}"\nrole = "{name}"\n' for name in ("images", "labels"))


def test_idx_files_of_no_rows(tmp_path: Path, store: Store) -> None:
    write_idx(tmp_path / "images", pixels(0, 4, 5))
    write_idx(tmp_path / "labels", np.zeros(0, np.uint8))
    with pytest.raises(
        FedbenchError, match=r"toy \(s\) holds no image: toy \(s, train\) has none; get its files again"
    ):
        loaded(tmp_path, store, "idx", IDX)
    assert not (store.home / "dataset").exists()


@pytest.mark.parametrize("kind", [pa.binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])])
def test_a_parquet_file_of_no_rows(tmp_path: Path, store: Store, kind: pa.DataType) -> None:
    empty = {"image": pa.array([], kind), "label": pa.array([], pa.int64()), "who": pa.array([], pa.string())}
    with pytest.raises(FedbenchError, match=r"holds no image: .*toy\.parquet has none"):
        parquet(tmp_path, store, **empty)


def test_an_empty_folder(tmp_path: Path, store: Store) -> None:
    (tmp_path / "toy").mkdir()
    with pytest.raises(FedbenchError, match=r"toy has no file like \{label\}/\*\.png"):
        loaded(tmp_path, store, "folder", FOLDER)


# -- columns of Parquet files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [[blob] for blob in GOOD]}, "image must hold encoded images as bytes, not list"),
        ({"image": [{"data": blob} for blob in GOOD]}, "image must hold encoded images as bytes, not struct"),
        ({"image": [{"bytes": None}, *({"bytes": blob} for blob in GOOD[1:])]}, "image has empty values"),
        ({"image": [{"bytes": [blob]} for blob in GOOD]}, "image must hold encoded images as bytes, not list"),
        ({"image": [1, 2, 3]}, "image must hold encoded images as bytes, not int64"),
        ({"image": pa.array(GOOD).dictionary_encode()}, "image must hold encoded images as bytes, not dictionary"),
        ({"label": [[0], [1], [2]]}, "label must hold numbers or text, not list"),
        ({"label": [{"x": 0}] * 3}, "label must hold numbers or text, not struct"),
        ({"label": [0.0, 1.0, float("nan")]}, "labels must be whole numbers, not float64"),
        ({"label": [True, False, True]}, "labels must be whole numbers, not bool"),
        ({"label": [0, 1, 3]}, r"labels must lie in 0\.\.2"),
        ({"label": [0, 1, None]}, "label has empty values"),
        ({"who": [["x"], ["y"], []]}, "who must hold numbers or text, not list"),
        ({"who": [b"\xff", b"x", b"y"], "label": ["a", "b", "z"]}, "class 'z' is not among"),
        ({"who": ["x", "y" * 1001, "z"]}, "who holds text of 1,001 characters; the most is 1,000"),
        ({"who": ["x", "x\0", "z"]}, r"who holds text with a zero character: 'x\\x00'"),
    ],
)
def test_columns_of_wrong_types(tmp_path: Path, store: Store, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError, match=rf"toy\.parquet.*{message}"):
        parquet(tmp_path, store, **columns)


def test_columns_that_are_stored_as_a_dictionary_are_read(tmp_path: Path, store: Store) -> None:
    got = parquet(
        tmp_path, store, who=pa.array(["x", "y", "x"]).dictionary_encode(), label=pa.array([2, 1, 0], pa.int8())
    )
    assert got.columns["who"].tolist() == ["x", "y", "x"]
    assert got.labels.tolist() == [2, 1, 0]


def test_a_column_that_is_there_twice(tmp_path: Path, store: Store) -> None:
    table = pa.table([pa.array(GOOD), pa.array([0, 1, 2]), pa.array([0, 1, 2])], names=["image", "label", "label"])
    pq.write_table(table, tmp_path / "toy.parquet")
    with pytest.raises(FedbenchError, match=r"toy\.parquet is damaged"):
        loaded(tmp_path, store, "parquet", '[[source.file]]\npath = "toy.parquet"\n')


def test_a_column_of_another_kind_in_every_file(tmp_path: Path, store: Store) -> None:
    for name, who in (("one", pa.array([1, 2, 3], pa.timestamp("s"))), ("two", [1.5, 2.5, 3.5])):
        pq.write_table(pa.table({"image": GOOD, "label": [0, 1, 2], "who": who}), tmp_path / name)
    files = '[[source.file]]\npath = "one"\n[[source.file]]\npath = "two"\n'
    with pytest.raises(FedbenchError, match="toy, column who is of different kinds in different files"):
        loaded(tmp_path, store, "parquet", f'columns = {{ who = "who" }}\n{files}')


# -- names -----------------------------------------------------------------------------------------------------------

FOLDER = '[[source.file]]\npath = "toy"\nmember = [{ path = "{label}/*.png" }]\n'


@pytest.mark.parametrize("name", [b"a/\xff.png", b"\xff/1.png"])
def test_a_name_in_a_folder_that_is_not_utf_8(tmp_path: Path, store: Store, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"toy", name)
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as f:
        f.write(GOOD[0])
    with pytest.raises(FedbenchError, match=r"toy holds a file whose name is not UTF-8: '.*\\udcff.*'; rename it"):
        loaded(tmp_path, store, "folder", FOLDER)


def test_a_name_in_an_archive_that_is_not_utf_8(tmp_path: Path, store: Store) -> None:
    with tarfile.open(tmp_path / "toy", "w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("a/\udcff.png")
        info.size = len(GOOD[0])
        archive.addfile(info, io.BytesIO(GOOD[0]))
    with pytest.raises(FedbenchError, match=r"toy holds a file whose name is not UTF-8: 'a/\\udcff\.png'"):
        loaded(tmp_path, store, "folder", FOLDER)


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_device_in_an_archive(tmp_path: Path, store: Store, kind: bytes) -> None:
    with tarfile.open(tar(tmp_path / "toy", {"a/1.png": GOOD[0]}), "w") as archive:
        info = tarfile.TarInfo("a/2.png")
        info.type = kind
        archive.addfile(info)
    with pytest.raises(FedbenchError, match=r"toy is not a safe archive: its member 'a/2\.png' is a device or pipe"):
        loaded(tmp_path, store, "folder", FOLDER)


# -- places that are no files ----------------------------------------------------------------------------------------

MEMBERS = 'member = [{ path = "{label}/*.png" }]\n'
CSV = """image = "Path"
columns = { who = "who" }
label_columns = ["one", "two", "three"]
label_values = { "" = 0, "0" = 0, "1" = 1 }
[[source.file]]
path = "toy"
"""
BODIES = {
    "idx": IDX.replace('"images"\nrole', '"toy"\nrole'),
    "cifar-binary": 'fields = ["label"]\n[[source.file]]\npath = "toy"\n',
    "parquet": '[[source.file]]\npath = "toy"\n',
    "mat": '[[source.file]]\npath = "toy"\n',
    "csv": CSV,
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_a_folder_where_a_file_should_be(tmp_path: Path, store: Store, kind: str, declared: bool) -> None:
    (tmp_path / "toy").mkdir()
    write_idx(tmp_path / "labels", np.zeros(1, np.uint8))
    body = BODIES[kind].replace(
        'path = "toy"\n', f'path = "toy"\nmd5 = "{"0" * 32}"\n' if declared else 'path = "toy"\n'
    )
    with pytest.raises(FedbenchError, match=r"toy is a folder and should be a file; put the file there"):
        loaded(tmp_path, store, kind, body)


@pytest.mark.parametrize("kind", [*BODIES, "folder", "leaf"])
def test_a_pipe_and_an_endless_device_are_not_read(tmp_path: Path, store: Store, kind: str) -> None:
    body = {**BODIES, "folder": FOLDER, "leaf": '[[source.file]]\npath = "toy"\n'}[kind]
    write_idx(tmp_path / "labels", np.zeros(1, np.uint8))
    for make in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
        make(tmp_path / "toy")
        with pytest.raises(FedbenchError, match=r"toy is a pipe or device and should be a file"):
            loaded(tmp_path, store, kind, body)
        (tmp_path / "toy").unlink()


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


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that anybody may search and write into."""
    path = tmp_path
    while path.owner() == tmp_path.owner() and path != path.parent and path.stat().st_mode & 0o777 == 0o700:
        path.chmod(0o755)
        path = path.parent
    tmp_path.chmod(0o777)
    return tmp_path


def test_a_file_that_may_not_be_read(open_path: Path) -> None:
    write_idx(open_path / "images", pixels(1, 4, 5))
    write_idx(open_path / "labels", np.zeros(1, np.uint8))
    with (
        nobody(open_path / "images"),
        pytest.raises(FedbenchError, match=r"cannot read .*images.*[Pp]ermission denied"),
    ):
        loaded(open_path, Store(open_path / "store"), "idx", IDX)


def test_a_folder_that_may_not_be_searched(open_path: Path) -> None:
    (open_path / "toy/a").mkdir(parents=True)
    body = '[[source.file]]\npath = "toy/a/images"\nmember = [{ path = "{label}/*.png" }]\n'
    with nobody(open_path / "toy/a"), pytest.raises(FedbenchError, match=r"cannot read .*[Pp]ermission denied"):
        loaded(open_path, Store(open_path / "store"), "folder", body)


def test_a_folder_of_images_that_may_not_be_listed_is_not_left_out(open_path: Path) -> None:
    for name in "ab":
        (open_path / "toy" / name).mkdir(parents=True)
        (open_path / "toy" / name / "1.png").write_bytes(GOOD[0])
    with nobody(open_path / "toy/b"), pytest.raises(FedbenchError, match=r"cannot read .*toy \(Permission denied\)"):
        loaded(open_path, Store(open_path / "store"), "folder", FOLDER)


def test_a_path_that_is_too_long(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FedbenchError, match=r"cannot read .*File name too long"):
        loaded(tmp_path, store, "mat", f'[[source.file]]\npath = "{"x" * 5000}"\n')


# -- images ----------------------------------------------------------------------------------------------------------


def image(mode: str, form: str = "PNG", colour: Any = None) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (5, 4), colour or 0).save(out, form)
    return out.getvalue()


def test_palette_alpha_and_print_colours_become_rgb(tmp_path: Path, store: Store) -> None:
    red = Image.new("RGB", (5, 4), (255, 0, 0))
    out = io.BytesIO()
    red.convert("P", palette=Image.Palette.ADAPTIVE).save(out, "PNG")
    blobs = [out.getvalue(), image("RGBA", colour=(255, 0, 0, 9)), image("CMYK", "TIFF", (0, 255, 255, 0))]
    pq.write_table(pa.table({"image": blobs, "label": [0, 1, 2]}), tmp_path / "toy")
    got = loaded(tmp_path, store, "parquet", BODIES["parquet"], channels=3)
    assert (got.images == (255, 0, 0)).all()


@pytest.mark.parametrize(("mode", "form"), [("I;16", "PNG"), ("I", "TIFF"), ("F", "TIFF")])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_more_than_8_bits_are_refused_and_not_cut_off(
    tmp_path: Path, store: Store, mode: str, form: str, channels: int
) -> None:
    # Pillow's conversion makes white of whatever is above 255.
    pq.write_table(pa.table({"image": [image(mode, form, 300)], "label": [0]}), tmp_path / "toy")
    with pytest.raises(FedbenchError, match=rf"toy, row 0 has pixels of more than 8 bits \(mode {mode}.*; scale it"):
        loaded(tmp_path, store, "parquet", BODIES["parquet"], channels)


def test_an_image_in_a_format_that_is_a_program_is_not_opened(tmp_path: Path, store: Store) -> None:
    pq.write_table(pa.table({"image": [image("RGB", "EPS")], "label": [0]}), tmp_path / "toy")
    with pytest.raises(FedbenchError, match=r"toy, row 0 is not a readable image \(cannot identify image file\)"):
        loaded(tmp_path, store, "parquet", BODIES["parquet"])


# -- MATLAB, LEAF, CSV -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"X": {"a": 1}}, "X must be an array of numbers, not of class struct"),
        ({"y": np.array([{}, {}], object)}, "y must be an array of numbers, not of class cell"),
        ({"y": [[np.inf], [1.0]]}, "y must be whole numbers"),
        ({"y": [[1e300], [1.0]]}, r"labels must lie in 0\.\.2"),
        ({"y": np.array([[2**64 - 1], [1]], np.uint64)}, r"labels must lie in 0\.\.2"),
        ({"y": [[1j], [1]]}, "y must be whole numbers"),
        ({"X": np.zeros((4, 5, 3, 0), np.uint8), "y": np.zeros((0, 1))}, "holds no image|X must be bytes"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_variables_of_a_matlab_file(tmp_path: Path, store: Store, more: dict[str, Any], message: str) -> None:
    savemat(tmp_path / "toy", {"X": pixels(4, 5, 3, 2), "y": [[1], [2]], **more}, appendmat=False)
    with pytest.raises(FedbenchError, match=rf"toy.*{message}"):
        loaded(tmp_path, store, "mat", BODIES["mat"], channels=3)


ROW = [0.5] * 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"users": [["u"]], "num_samples": [1], "user_data": {}}, "the name of a user must be text, not"),
        ({"users": [{"u": 1}], "num_samples": [1], "user_data": {}}, "the name of a user must be text, not"),
        ({"users": ["\ud800"], "num_samples": [1], "user_data": {"\ud800": {"x": [ROW], "y": [0]}}}, "not Unicode"),
        (
            {"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [ROW], "y": [10**30]}}},
            "must be whole numbers",
        ),
        ({"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[10**400] * 20], "y": [0]}}}, "not rows of 20"),
        ("[" * 100_000, "is truncated or not JSON"),
        ("9" * 10_000, "is truncated or not JSON"),
    ],
)
def test_json_of_leaf(tmp_path: Path, store: Store, content: Any, message: str) -> None:
    (tmp_path / "toy").mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "toy/all_data_0.json").write_text(text)
    body = 'columns = { writer = "writer" }\n[[source.file]]\npath = "toy"\n'
    with pytest.raises(FedbenchError, match=rf"all_data_0\.json.*{message}"):
        loaded(tmp_path, store, "leaf", body)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("a\0b,1,0,0,0", "cannot be the name of a file"),
        ("x" * 5000 + ",1,0,0,0", "cannot be the name of a file"),
        ("img,1,0,0,0", "img is a folder and should be a file"),
        ("x" * 200_000 + ",1,0,0,0", "is damaged or not a CSV file .field larger than field limit"),
        (f"img/0.png,{'w' * 1001},0,0,0", "column who holds text of 1,001 characters"),
        ("img/0.png,1,0,0," + "7" * 100_000, "three is '7{60}', which is no label"),
    ],
)
def test_cells_of_a_csv_file(tmp_path: Path, store: Store, cells: str, message: str) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img/0.png").write_bytes(GOOD[0])
    (tmp_path / "toy").write_text(f"Path,who,one,two,three\n{cells}\n")
    with pytest.raises(FedbenchError, match=message) as caught:
        loaded(tmp_path, store, "csv", CSV)
    assert "toy" in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_numbers_of_a_csv_file_that_are_too_large_stay_text(tmp_path: Path, store: Store) -> None:
    (tmp_path / "0.png").write_bytes(GOOD[0])
    (tmp_path / "toy").write_text(f"Path,who,one,two,three\n0.png,{10**30},0,0,1\n")
    assert loaded(tmp_path, store, "csv", CSV).columns["who"].tolist() == [str(10**30)]


def test_two_columns_of_one_name_in_a_csv_file(tmp_path: Path, store: Store) -> None:
    (tmp_path / "toy").write_text("Path,who,one,one,two,three\n0.png,1,0,0,0,0\n")
    with pytest.raises(FedbenchError, match="toy has two columns one"):
        loaded(tmp_path, store, "csv", CSV)


def test_a_member_pattern_with_a_name_twice(tmp_path: Path, store: Store) -> None:
    (tmp_path / "toy").mkdir()
    with pytest.raises(FedbenchError, match=r"the pattern \{label\}/\{label\} has a name twice"):
        loaded(tmp_path, store, "folder", FOLDER.replace("{label}/*.png", "{label}/{label}"))
