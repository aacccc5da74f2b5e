"""Small files that unpack to much: refused, and memory stays near the bound (made small here)."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbench.data import guard, load
from fedbench.data.archive import open_tree
from fedbench.data.idx import read_idx
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, pixels, recipe_text

MIB = 1 << 20
ZEROS = bytes(MIB)
LIMIT = 8 * MIB
#: Gzip streams follow one another, so that many MiB take no time to make.
PACKED = gzip.compress(ZEROS)


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LIMIT", LIMIT)


@contextmanager
def memory_below(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def header(*shape: int, code: int = 0x08) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**31, 2**31, 2**31), "should hold 9903520314283042199192993792 bytes of values and holds only 60"),  # > 2^63
        ((2**32 - 1, 2**32 - 1, 2), "should hold 36893488130239234050 bytes"),
        ((2**16, 2**16, 2**16, 2**16), "should hold 18446744073709551616 bytes"),  # 2^64, and so 0 in 64 bits
        ((4, 4, 5), "should hold 80 bytes of values and holds only 60"),
    ],
)
def test_dimensions_that_overflow(tmp_path: Path, shape: tuple[int, ...], message: str) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(header(*shape) + pixels(3, 4, 5).tobytes())
    with memory_below(MIB), pytest.raises(FedbenchError, match=rf"a\.idx {message}"):
        read_idx(path)


def test_packed_dimensions_that_overflow(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(header(2**31, 2**31, 2**31)) + PACKED * 64)
    with memory_below(MIB), pytest.raises(FedbenchError, match=r"a\.gz would take .* GiB of memory"):
        read_idx(path)


@pytest.mark.parametrize(("shape", "there"), [((3, 4, 5), "more"), ((7, MIB), f"only {4 * MIB}")])
def test_a_packed_file_that_holds_more_or_less_than_it_says(tmp_path: Path, shape: tuple[int, ...], there: str) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(header(*shape)) + PACKED * (64 if there == "more" else 4))
    with memory_below(2 * LIMIT), pytest.raises(FedbenchError, match=rf"a\.gz should hold \d+ bytes .* holds {there}"):
        read_idx(path)


@pytest.mark.parametrize("count", [0, 65, 255])
def test_a_number_of_dimensions_that_no_array_has(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(header(*[1] * count) + b"x")
    with pytest.raises(FedbenchError, match=r"a\.idx is (not an IDX file|truncated or damaged)"):
        read_idx(path)


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes], stream: bytes = b"") -> Path:
    """A .tar.gz of these headers and contents, whatever the headers say, and then a packed stream."""
    packed = b"".join(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + data) for member, data in members)
    path.write_bytes(packed + stream)
    return path


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


@pytest.mark.parametrize(
    "first",
    [
        member("a", 64 * MIB),
        member("a", 2**60),
        member("././@LongLink", 64 * MIB, tarfile.GNUTYPE_LONGNAME),
        member("pax", 64 * MIB, tarfile.XHDTYPE),
        member("pax", 64 * MIB, tarfile.XGLTYPE),
    ],
    ids=["a member", "a member that is not there", "a long name", "a header", "a global header"],
)
def test_a_tar_that_unpacks_to_more_than_fits(tmp_path: Path, first: tarfile.TarInfo) -> None:
    path = tar_of(tmp_path / "a.tar.gz", (first, b""), stream=PACKED * 64)
    with (
        memory_below(2 * LIMIT),
        pytest.raises(FedbenchError, match=r"a\.tar\.gz (\(a\) would take|is damaged)"),
        open_tree(path),
    ):
        pass


def test_the_members_of_a_tar_count_together(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar.gz", *((member(f"m{i}", MIB), ZEROS) for i in range(12)))
    with memory_below(2 * LIMIT), pytest.raises(FedbenchError, match=r"\(m8\) would take"), open_tree(path):
        pass
    with open_tree(path, lambda name: name in ("m1", "m11")) as tree:  # what is not wanted does not count
        assert tree.read("m11") == ZEROS


def test_a_tar_whose_sizes_are_negative(tmp_path: Path) -> None:
    # Python's own reader of 3.11.7 goes round in a circle over some of these.
    head = bytearray(member("a", 0).tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 11 + b"\x00"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a.tar").write_bytes(bytes(head) * 3 + bytes(1024))
    with pytest.raises(FedbenchError, match=r"a\.tar is damaged"), open_tree(tmp_path / "a.tar"):
        pass


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("told", ["the truth", "a lie"])
def test_a_zip_member_that_unpacks_to_more_than_fits(tmp_path: Path, method: int, told: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a", bytes(64 * MIB))
    if told == "a lie":  # in both places where the size stands
        data = path.read_bytes()
        path.write_bytes(data.replace(struct.pack("<I", 64 * MIB), struct.pack("<I", 10)))
    with (
        open_tree(path) as tree,
        pytest.raises(FedbenchError, match=r"a\.zip (\(a\) would take|is damaged)"),
        memory_below(80 * MIB if method == zipfile.ZIP_BZIP2 and told == "a lie" else 4 * LIMIT),
    ):
        tree.read("a")


PARQUET = '[[source]]\nname = "p"\nkind = "parquet"\n[[source.file]]\npath = "toy.parquet"\n'


def loaded(folder: Path, store: Store, text: str) -> object:
    (folder / "toy.toml").write_text(text)
    return load(str(folder / "toy.toml"), store)


def test_one_value_that_a_million_rows_share(tmp_path: Path, store: Store) -> None:
    blob = encoded(pixels(1, 4, 5)[0]) + bytes(10_000)
    images = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**6, np.int32)), pa.array([blob]))
    table = pa.table({"image": images, "label": np.zeros(10**6, np.int8)})
    pq.write_table(table, tmp_path / "toy.parquet", store_schema=False)
    assert (tmp_path / "toy.parquet").stat().st_size < MIB
    pool = pa.default_memory_pool()
    before = pool.max_memory() or 0
    with pytest.raises(FedbenchError, match=r"toy\.parquet would take .* of memory"):
        loaded(tmp_path, store, recipe_text(PARQUET))
    assert (pool.max_memory() or 0) <= max(before, 4 * LIMIT)  # ten gigabytes without the bound


def png(width: int, height: int) -> bytes:
    data = encoded(pixels(1, 4, 5)[0])
    head = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]


@pytest.mark.filterwarnings("error")  # Pillow warns of the first, and its warning would be printed
@pytest.mark.parametrize("size", [(12_000, 12_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_very_many_pixels(tmp_path: Path, store: Store, size: tuple[int, int]) -> None:
    column = {"image": [encoded(pixels(1, 4, 5)[0]), png(*size)], "label": [0, 1]}
    pq.write_table(pa.table(column), tmp_path / "toy.parquet")
    text = recipe_text(PARQUET.replace("[[source.file]]", "resize = true\n[[source.file]]"))
    with memory_below(LIMIT), pytest.raises(FedbenchError, match=r"toy\.parquet, row 1 is not a readable image"):
        loaded(tmp_path, store, text)


def mat_bomb() -> bytes:
    """A MATLAB file whose X says that it is 2^31 - 1 bytes a side."""
    from scipy.io import savemat

    out = io.BytesIO()
    savemat(out, {"X": pixels(1, 2, 3, 4), "y": [1]})
    return out.getvalue().replace(struct.pack("<4i", 1, 2, 3, 4), struct.pack("<4i", 1, 2**31 - 1, 2**31 - 1, 4))


def leaf_bomb() -> bytes:
    return b'{"users": [' + b"[]," * (LIMIT // 16) + b"[]]}"


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("mat", "toy.mat", mat_bomb, r"toy\.mat \(X\) would take"),
        ("leaf", "toy/all_data_0.json", leaf_bomb, r"all_data_0\.json holds more than 0\.5 MiB"),
    ],
)
def test_mat_and_json(
    tmp_path: Path, store: Store, kind: str, name: str, content: Callable[[], bytes], message: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content())
    body = f'[[source]]\nname = "s"\nkind = "{kind}"\n[[source.file]]\npath = "{name.split("/")[0]}"\n'
    with memory_below(4 * LIMIT), pytest.raises(FedbenchError, match=message):
        loaded(tmp_path, store, recipe_text(body))


SCRIPT = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from fedbench.data.archive import open_tree
from fedbench.data.idx import read_idx
from fedbench.errors import FedbenchError
for name in sys.argv[1:]:
    try:
        if name.endswith("idx.gz"):
            read_idx(Path(name))
        else:
            with open_tree(Path(name)) as tree:
                tree.read("a")
    except FedbenchError as error:
        print(error)
"""


def test_a_process_with_little_memory_ends_in_one_line_a_file(tmp_path: Path) -> None:
    """The bound follows the process's own limit; eight gigabytes a file do not fit into its two."""
    idx, tar = tmp_path / "a.idx.gz", tmp_path / "a.tar.gz"
    idx.write_bytes(gzip.compress(header(8, 1024, MIB)) + PACKED * 8192)
    tar_of(tar, (member("a", 2**33 - 1), b""), stream=PACKED * 8192)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(idx), str(tar)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), done.stderr) == (0, 2, "")
    assert all("would take 8.0 GiB of memory, and 1.0 GiB is the most here" in line for line in lines)
