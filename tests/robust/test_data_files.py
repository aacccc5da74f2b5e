"""Whatever a data file holds, a data set of the recipe's form comes of it, or one line that says what is wrong."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import os
import signal
import stat
import struct
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import UNSHRUNK, nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from fedbench.data import catalogue, load
from fedbench.data.guard import reading
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, idx_bytes, pixels, recipe_text

SHAPE = (4, 5, 3)
IMAGES, LABELS = pixels(4, *SHAPE), [0, 1, 2, 1]
NAMES = ("a", "b", "c")


PLACES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
}
ANY_PLACE = st.sampled_from(sorted(PLACES))
#: By path below the recipe's folder (bytes: a name need not be UTF-8) the content, or what is no file: one of PLACES.
Files = dict[bytes, bytes | str]


def lay(folder: Path, recipe: str, files: Files) -> Path:
    """Write all of it; returns the recipe's path."""
    for name, data in files.items():
        path = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        PLACES[data](path) if isinstance(data, str) else path.write_bytes(data)
    (folder / "toy.toml").write_text(recipe)
    return folder / "toy.toml"


# -- changes of bytes ------------------------------------------------------------------------------------------------

ODD_BYTES = st.sampled_from([b"\0", b"\xff", b"\x80", b"\0" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\n", b'"', b","])


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut off, overwritten, doubled or put in."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 40)))
        how = draw(st.sampled_from(["cut", "take out", "double", "overwrite", "put in", "end"]))
        odd = draw(st.one_of(ODD_BYTES, st.binary(min_size=1, max_size=8)))
        data = {
            "cut": data[:at],
            "take out": data[:at] + data[to:],
            "double": data[:to] + data[at:],
            "overwrite": data[:at] + odd + data[at + len(odd) :],
            "put in": data[:at] + odd + data[at:],
            "end": data + odd,
        }[how]
    return data


# -- a strategy of files for every kind ------------------------------------------------------------------------------

DIMENSIONS = st.sampled_from([0, 1, 3, 4, 5, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1])


@st.composite
def idx(draw: st.DrawFn) -> Files:
    """Headers that lie, other types and numbers of dimensions; packed or not."""
    arrays = {b"images": IMAGES, b"labels": np.array(LABELS, np.uint8)}
    files: Files = {name: idx_bytes(values) for name, values in arrays.items()}
    name = draw(st.sampled_from(sorted(arrays)))
    code = draw(st.sampled_from([0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E, 0x0A, 0xFF]))
    shape = draw(st.one_of(st.just(arrays[name].shape), st.lists(DIMENSIONS, max_size=6)))
    count = draw(st.sampled_from([len(shape), len(shape), 0, 1, 200, 255]))
    files[name] = struct.pack(f">HBB{len(shape)}I", 0, code, count, *shape) + arrays[name].tobytes()
    if draw(st.booleans()):
        files[name] = gzip.compress(files[name] + bytes(draw(st.sampled_from([0, 1, 10**6]))))
    return files


IDX = "".join(f'[[source.file]]\npath = "{name}"\nrole = "{name}"\n' for name in ("images", "labels"))
BIN = 'fields = ["label"]\n[[source.file]]\npath = "toy.bin"\n'
RECORDS = np.hstack([np.array(LABELS, np.uint8)[:, None], IMAGES.transpose(0, 3, 1, 2).reshape(4, -1)]).tobytes()


@st.composite
def cifar(draw: st.DrawFn) -> Files:
    """Records of other lengths and labels."""
    return {b"toy.bin": draw(st.one_of(st.just(b""), st.binary(max_size=130), damaged(RECORDS)))}


PNGS = [encoded(image) for image in IMAGES]


@st.composite
def images(draw: st.DrawFn) -> bytes:
    """An image file of any format, mode and size, often damaged."""
    mode = draw(st.sampled_from(["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "I", "I;16", "F", "HSV", "LAB"]))
    form = draw(st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP", "JPEG2000", "TGA", "EPS", "PDF"]))
    size = draw(st.sampled_from([(5, 4), (5, 4), (5, 4), (4, 5), (1, 1), (300, 2)]))
    out = io.BytesIO()
    try:
        Image.new(mode, size).save(out, form)
    except (OSError, ValueError, KeyError, RuntimeError):  # a format does not take every mode
        return draw(damaged(PNGS[0]))
    data = out.getvalue()
    if form == "PNG" and draw(st.booleans()):  # a bomb: a header of any size over little data
        data = data[:16] + struct.pack(">II", *draw(st.tuples(DIMENSIONS, DIMENSIONS))) + data[24:]
    return draw(st.one_of(st.just(data), damaged(data)))


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["bytes", "path", "x"]), st.binary(), min_size=1),
)


@st.composite
def columns(draw: st.DrawFn, good: list[Any], rows: int) -> pa.Array:
    """A column of any type, of good values or none."""
    values: Any = draw(
        st.one_of(
            st.just(good),
            st.just(good),
            CELLS.map(lambda cell: [cell] * 4),
            st.just([{"bytes": value} for value in good]),
            st.just([{"data": value} for value in good]),
            st.just([[value] for value in good]),
            st.just([None, *good[1:]]),
        )
    )
    column = pa.array(values[:rows])
    if column.null_count or pa.types.is_nested(column.type) or draw(st.integers(0, 4)):
        return column
    return column.dictionary_encode()


@st.composite
def parquet(draw: st.DrawFn) -> Files:
    """Columns of wrong types, nested ones, nulls, no rows, columns that are missing or there twice, damaged bytes."""
    rows = draw(st.sampled_from([4, 4, 4, 0, 1]))
    blobs = [*PNGS[:3], draw(st.one_of(st.just(PNGS[3]), images()))]
    held = {
        "image": draw(columns(blobs, rows)),
        "label": draw(columns([0, 1, 2, 1], rows)),
        "who": draw(columns(["x", "y", "x", "y"], rows)),
    }
    names = draw(st.sampled_from([list(held), list(held), list(held), ["image", "label"], ["image", "image", "who"]]))
    out = io.BytesIO()
    pq.write_table(pa.table([held[name] for name in names], names=names), out)
    return {b"toy.parquet": draw(st.one_of(st.just(out.getvalue()), damaged(out.getvalue())))}


PARQUET = 'columns = { who = "who" }\n[[source.file]]\npath = "toy.parquet"\n'


@st.composite
def members(draw: st.DrawFn) -> dict[str, bytes]:
    """Images by class and writer, some with odd names and contents."""
    files = {f"{NAMES[label]}/w{i}/{i}.png": PNGS[i] for i, label in enumerate(LABELS)}
    odd = st.sampled_from(
        ["a/w/\udcff.png", "a/\udcff/1.png", "\udcff/w/1.png", "a/" + "w" * 200 + "/1.png", "d/w/1.png"]
    )
    for name in draw(st.lists(odd, max_size=2)):
        files[name] = draw(images())
    for name in draw(st.lists(st.sampled_from(sorted(files)), max_size=2)):
        files.pop(name, None)
    return files if draw(st.integers(0, 9)) else {}


FOLDER = """columns = {{ who = "who" }}
[[source.file]]
path = "{}"
member = [{{ path = "{{label}}/{{who}}/*.png" }}]
"""
UNSAFE = st.sampled_from(["../x.png", "/a/w/1.png", "a/../../x.png", "C:/x.png", "a\\..\\..\\x", "a/w/1.png", "", "."])
TYPES = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.GNUTYPE_SPARSE,
        tarfile.CONTTYPE,
        b"Z",
    ]
)


@st.composite
def tars(draw: st.DrawFn) -> Files:
    """Members of odd names, types and sizes; then packed, then damaged."""
    out = io.BytesIO()
    form = draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in draw(members()).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        if draw(st.booleans()):
            entry = tarfile.TarInfo(draw(UNSAFE))
            entry.type, entry.linkname = draw(TYPES), draw(st.sampled_from(["", "/etc/passwd", "a"]))
            archive.addfile(entry)
    data = bytearray(out.getvalue())
    if draw(st.booleans()):  # a size in the header that is not so, with the checksum put right
        at = 512 * draw(st.integers(0, 3))
        if len(data) >= at + 512:
            size = draw(st.sampled_from([b"77777777777\0", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"00000000001\0"]))
            data[at + 124 : at + 136] = size
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    if draw(st.integers(0, 2)) == 0:
        data = bytearray(draw(damaged(bytes(data))))
    packed = gzip.compress(data) if draw(st.booleans()) else bytes(data)
    return {b"toy.tar": draw(st.one_of(st.just(packed), st.just(packed), damaged(packed)))}


@st.composite
def zips(draw: st.DrawFn) -> Files:
    """Members of odd names, types and methods; then damaged."""
    out = io.BytesIO()
    method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in draw(members()).items():
            archive.writestr(name.encode(errors="replace").decode(), data)
        if draw(st.booleans()):
            entry = zipfile.ZipInfo(draw(UNSAFE))
            kinds = [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFREG, 0]
            entry.external_attr = draw(st.sampled_from(kinds)) << 16
            archive.writestr(entry, "a")
    data = out.getvalue()
    return {b"toy.zip": draw(st.one_of(st.just(data), damaged(data)))}


@st.composite
def folders(draw: st.DrawFn) -> Files:
    """Files in a folder, some of which are none."""
    files: Files = {b"toy/" + os.fsencode(name): data for name, data in draw(members()).items()}
    if draw(st.booleans()):
        files[b"toy/a/w/9.png"] = draw(ANY_PLACE)
    return files or {b"toy": "folder"}


GOOD_LEAF = {
    "users": ["u", "v"],
    "num_samples": [2, 2],
    "user_data": {
        user: {"x": (IMAGES[rows].reshape(2, -1) / 255).round(2).tolist(), "y": LABELS[rows]}
        for user, rows in (("u", slice(0, 2)), ("v", slice(2, 4)))
    },
}
JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["\ud800", "x" * 2000]),
    st.just([]),
    st.just({}),
    st.just([[1]]),
    st.just({"x": []}),
    st.just(10**30),
    st.just([[]] * 3),
    st.just("u"),
)


@st.composite
def leaf(draw: st.DrawFn) -> Files:
    """A value anywhere in the tree replaced by another, taken out, or doubled; then damaged."""
    held: Any = copy.deepcopy(GOOD_LEAF)
    for _ in range(draw(st.integers(0, 2))):
        places = [(box, key) for box, key in nodes(held) if not isinstance(box[key], float)] * 8  # pixels are many
        places += [*nodes(held)] or [({"": 0}, "")]
        node, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.integers(0, 3)):
            node[key] = copy.deepcopy(draw(JSON))
        else:
            del node[key]
    data = json.dumps(held).encode()
    data = draw(
        st.sampled_from([data, data, data, b"[" * 100_000, b'{"users":' * 20_000, b"9" * 10_000, b"\xff\xfe" + data])
    )
    return {b"leaf/all_data_0.json": draw(st.one_of(st.just(data), damaged(data)))}


LEAF = 'columns = { writer = "writer" }\n[[source.file]]\npath = "leaf"\n'


@st.composite
def mat(draw: st.DrawFn) -> Files:
    """Other shapes, types and classes of X and y; then damaged."""
    other = st.sampled_from(
        [
            np.zeros((4, 5, 3, 4)),
            *(np.zeros(shape, np.uint8) for shape in ((0, 0), (5, 4, 3, 4), (4, 5, 3))),
            np.array([1.5, 2, 3, 1]),
            *(np.array([value] * 4) for value in (np.nan, np.inf, 1e300, "a", 1j)),
            np.array([[1, 2, 3, 1]], np.uint64) + np.uint64(2**63),
            {"a": 1},
            np.array([{}], object),
            np.array([-1, 1, 2, 1]),
            np.array([True, False, True, True]),
            "text",
        ]
    )
    held: dict[str, Any] = {"X": IMAGES.transpose(1, 2, 3, 0), "y": np.array(LABELS)[:, None] + 1}
    for name in draw(st.sets(st.sampled_from(["X", "y"]))):
        held[name] = draw(other)
    out = io.BytesIO()
    savemat(out, held, do_compression=draw(st.booleans()))
    data = draw(st.sampled_from([out.getvalue()] * 3 + [b"\x89HDF\r\n\x1a\n" + bytes(600)]))
    return {b"toy.mat": draw(st.one_of(st.just(data), damaged(data)))}


MAT = '[[source.file]]\npath = "toy.mat"\n'
CELL = st.sampled_from(
    [
        "",
        "a/0.png",
        "../toy.csv",
        "/etc/passwd",
        "a\0b",
        "x" * 5000,
        "x" * 200_000,
        "nan",
        "1e999",
        "9" * 30,
        "9" * 6000,
        "-1",
        "a",
        "é",
        "img",
        ".",
        "a/none.png",
        '"',
        "\r\n",
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> Files:
    """Cells, headings and encodings of a CSV file, and the images beside it."""
    rows = [["Path", "who", "one", "two", "three"]]
    rows += [[f"img/{i}.png", str(i), "1", "0", ""] for i in range(4)]
    for _ in range(draw(st.integers(0, 2))):
        row = rows[draw(st.integers(0, 4))]
        row[draw(st.integers(0, len(row) - 1))] = draw(CELL)
        if draw(st.integers(0, 4)) == 0:
            row.append(draw(CELL))
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    code = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    data = out.getvalue().encode(code, errors="replace")
    files: Files = {b"img/%d.png" % i: data for i, data in enumerate(PNGS)}
    odd = draw(st.one_of(st.just(PNGS[0]), images(), ANY_PLACE))
    return {**files, b"img/0.png": odd, b"toy.csv": draw(st.one_of(st.just(data), damaged(data)))}


CSV = """columns = { who = "who" }
image = "Path"
label_columns = ["one", "two", "three"]
label_values = { "" = 0, "0" = 0, "1" = 1 }
[[source.file]]
path = "toy.csv"
"""

KINDS: dict[str, tuple[st.SearchStrategy[Files], str, str]] = {
    "idx": (idx(), "idx", IDX),
    "cifar-binary": (cifar(), "cifar-binary", BIN),
    "parquet": (parquet(), "parquet", PARQUET),
    "folder": (folders(), "folder", FOLDER.format("toy")),
    "tar": (tars(), "folder", FOLDER.format("toy.tar")),
    "zip": (zips(), "folder", FOLDER.format("toy.zip")),
    "leaf": (leaf(), "leaf", LEAF),
    "mat": (mat(), "mat", MAT),
    "csv": (tables(), "csv", CSV),
}


@st.composite
def cases(draw: st.DrawFn, kind: str) -> tuple[str, Files]:
    """A hostile source of a kind: a recipe and its files as its strategy makes them, now and then one that is none."""
    strategy, reader, body = KINDS[kind]
    files = draw(strategy)
    if draw(st.integers(0, 29)) == 17:
        files[draw(st.sampled_from(sorted(files)))] = draw(ANY_PLACE)
    text = f'[[source]]\nname = "{reader}"\nkind = "{reader}"\n{body}'
    return recipe_text(text, SHAPE, NAMES), files


#: Of one case, after which it counts as stuck: no case takes so long on a busy machine, nor what the first one imports.
SECONDS = 600


@contextmanager
def not_stuck(seconds: float = SECONDS) -> Iterator[None]:
    """Ends a case that waits for ever, as on a pipe that nobody writes to. What it raises is no Exception, which a
    reader that meets it would take for damage of the file."""

    def stuck(*_: object) -> None:
        pytest.fail(f"the case is stuck: it has not ended in {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_reader_that_is_stuck_does_not_pass_for_a_damaged_file() -> None:
    with pytest.raises(pytest.fail.Exception, match="the case is stuck"), not_stuck(0.01), reading("it", "is damaged"):
        time.sleep(60)


@pytest.mark.filterwarnings("ignore")  # of what is odd, but no error, Pillow and SciPy warn
@pytest.mark.parametrize(
    "kinds", [("idx", "cifar-binary", "mat"), ("parquet", "folder", "tar", "zip"), ("leaf", "csv")], ids=", ".join
)
@settings(phases=UNSHRUNK)
@given(data=st.data())
def test_a_data_set_or_one_line(kinds: tuple[str, ...], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(kinds))
    recipe, files = data.draw(cases(kind))
    catalogue._users.clear()
    with tempfile.TemporaryDirectory() as name, not_stuck():
        folder = Path(name)
        store = Store(folder / "store")
        path = lay(folder, recipe, files)
        try:
            got = load(str(path), store)
        except FedbenchError as error:
            text = str(error)
            assert "toy" in text or name in text  # the data set, or a file of it
            assert "\n" not in text
            assert len(text) < 2_000
            assert not list((store.home / "dataset").glob("*"))
            return
        count = len(got.images)
        assert count >= 1
        assert got.images.shape == (count, *SHAPE)
        assert got.labels.shape == ((count, 3) if kind == "csv" else (count,))
        assert np.isin(got.labels, [0, 1, 2]).all()
        assert all(len(values) == count for values in got.columns.values())
        assert [entry.name for entry in (store.home / "dataset").iterdir()] == [got.spec.id]
