"""Archives: hostile and damaged ones are refused and nothing is ever written; of small files that unpack to much,
memory stays near the bound (made small here)."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.io import savemat

from fedbench.data import guard
from fedbench.data.archive import open_tree
from fedbench.data.idx import read_idx
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, loaded, pixels, tar, written, zipped
from tests.support.frames import refused


def opened(path: Path, *names: str) -> None:
    """Opens an archive, and reads these members."""
    with open_tree(path) as tree:
        for name in names:
            tree.read(name)


@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/tmp/evil.txt", "..\\evil.txt", "C:/evil.txt"])
@pytest.mark.parametrize("make", [tar, zipped])
def test_paths_that_lead_outside(tmp_path: Path, name: str, make: Any) -> None:
    path = make(tmp_path / "a.archive", {"good.txt": b"1", name: b"evil"})
    before = sorted(tmp_path.parent.rglob("*"))
    refused("not a safe archive.*leads outside", opened, path)
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_links(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("label.bin")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    for path in (tar(tmp_path / "a.tar.gz", {}, links={"label.bin": "/etc/passwd"}), tmp_path / "a.zip"):
        refused("'label.bin' is a link", opened, path)


@pytest.mark.parametrize(("make", "name"), [(tar, "a.tar.gz"), (zipped, "a.zip")])
def test_only_what_is_wanted_is_seen(tmp_path: Path, make: Any, name: str) -> None:
    path = make(tmp_path / name, {"b/2": b"two", "a/1": b"one", "c": b"three"})
    with open_tree(path, lambda n: n != "c") as tree:
        assert tree.names == ("a/1", "b/2")
        assert tree.read("b/2") == b"two"
        refused("has no file nothing", tree.read, "nothing")
    with pytest.raises(OSError, match="not the archive's"), open_tree(path):  # the readers' own errors pass through
        raise OSError("not the archive's")


def test_archives_that_are_damaged(tmp_path: Path) -> None:
    packed = tar(tmp_path / "a.tar.gz", {"a": pixels(200).tobytes()}).read_bytes()
    plain = zipped(tmp_path / "a.zip", {"a": b"x" * 100}).read_bytes()
    for name, content, says in (
        *(("a.tar.gz", packed[:-cut], r"a\.tar\.gz is damaged") for cut in (5, 60, 200)),
        ("a.zip", plain.replace(b"x" * 100, b"x" * 99 + b"y"), r"a\.zip is damaged"),
        ("a.zip", b"<html>404</html>", "not a readable archive"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(says, opened, tmp_path / name, "a")


MIB = 1 << 20
ZEROS = bytes(MIB)
LIMIT = 8 * MIB
#: Gzip streams follow one another, so that many MiB take no time to make.
PACKED = gzip.compress(ZEROS)
PARQUET = '[[source.file]]\npath = "toy.parquet"\n'


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LIMIT", LIMIT)


bounded = pytest.mark.usefixtures("small_limit")


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


@bounded
@pytest.mark.parametrize(
    ("shape", "packed", "says", "most"),
    [
        # Beyond 63 bits; 64 of them, and so 0; and what is only too little.
        ([2**31] * 3, 0, "should hold 9903520314283042199192993792 bytes of values and holds only 60", MIB),
        ([2**32 - 1, 2**32 - 1, 2], 0, "should hold 36893488130239234050 bytes", MIB),
        ([2**16] * 4, 0, "should hold 18446744073709551616 bytes", MIB),
        ([4, 4, 5], 0, "should hold 80 bytes of values and holds only 60", MIB),
        ([2**31] * 3, 64, "would take .* GiB of memory", MIB),
        ([3, 4, 5], 64, r"should hold \d+ bytes .* holds more", 2 * LIMIT),
        ([7, MIB], 4, rf"should hold \d+ bytes .* holds only {4 * MIB}", 2 * LIMIT),
        *(([1] * n, 0, "is (not an IDX file|truncated or damaged)", MIB) for n in (0, 65, 255)),
    ],
)
def test_dimensions_of_idx_files(tmp_path: Path, shape: list[int], packed: int, says: str, most: int) -> None:
    """With 60 bytes behind them, one where all are 1, or packed, so many MiB."""
    path = tmp_path / "a.idx"
    bare = header(*shape) + bytes(60 if set(shape) - {1} else 1)
    path.write_bytes(gzip.compress(header(*shape)) + PACKED * packed if packed else bare)
    with memory_below(most):
        refused(f"a.idx {says}", read_idx, path)


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes], stream: bytes = b"") -> Path:
    """A .tar.gz of these headers and contents, whatever the headers say, and then a packed stream."""
    packed = b"".join(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + data) for member, data in members)
    path.write_bytes(packed + stream)
    return path


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


@bounded
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
    with memory_below(2 * LIMIT):
        refused(r"a\.tar\.gz (\(a\) would take|is damaged)", opened, path)


@bounded
def test_the_members_of_a_tar_count_together(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar.gz", *((member(f"m{i}", MIB), ZEROS) for i in range(12)))
    with memory_below(2 * LIMIT):
        refused(r"\(m8\) would take", opened, path)
    with open_tree(path, lambda name: name in ("m1", "m11")) as tree:  # what is not wanted does not count
        assert tree.read("m11") == ZEROS


def test_a_tar_whose_sizes_are_negative(tmp_path: Path) -> None:
    # Python's own reader of 3.11.7 goes round in a circle over some of these.
    head = bytearray(member("a", 0).tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 11 + b"\x00"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a.tar").write_bytes(bytes(head) * 3 + bytes(1024))
    refused(r"a\.tar is damaged", opened, tmp_path / "a.tar")


@bounded
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("says", ["the truth", "a lie"])
def test_a_zip_member_that_unpacks_to_more_than_fits(tmp_path: Path, method: int, says: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a", bytes(48 * MIB))
    if says == "a lie":  # in both places where the size stands
        data = path.read_bytes()
        path.write_bytes(data.replace(struct.pack("<I", 48 * MIB), struct.pack("<I", 10)))
    with (
        open_tree(path) as tree,
        pytest.raises(FedbenchError, match=r"a\.zip (\(a\) would take|is damaged)"),
        memory_below(64 * MIB if method == zipfile.ZIP_BZIP2 and says == "a lie" else 4 * LIMIT),
    ):
        tree.read("a")


@bounded
def test_one_value_that_a_million_rows_share(tmp_path: Path, store: Store) -> None:
    blob = encoded(pixels(1, 4, 5)[0]) + bytes(10_000)
    images = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**6, np.int32)), pa.array([blob]))
    table = pa.table({"image": images, "label": np.zeros(10**6, np.int8)})
    pq.write_table(table, tmp_path / "toy.parquet", store_schema=False)
    assert (tmp_path / "toy.parquet").stat().st_size < MIB
    pool = pa.default_memory_pool()
    before = pool.max_memory() or 0
    refused(r"toy\.parquet would take .* of memory", loaded, tmp_path, store, "parquet", PARQUET)
    assert (pool.max_memory() or 0) <= max(before, 4 * LIMIT)  # ten gigabytes without the bound


@bounded
@pytest.mark.filterwarnings("error")  # Pillow warns of the first, and its warning would be printed
@pytest.mark.parametrize("size", [(12_000, 12_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_very_many_pixels(tmp_path: Path, store: Store, size: tuple[int, int]) -> None:
    png = encoded(pixels(1, 4, 5)[0])
    head = b"IHDR" + struct.pack(">II", *size) + png[24:29]
    column = {"image": [png, png[:12] + head + struct.pack(">I", zlib.crc32(head)) + png[33:]], "label": [0, 1]}
    pq.write_table(pa.table(column), tmp_path / "toy.parquet")
    with memory_below(LIMIT):
        says = r"toy\.parquet, row 1 is not a readable image"
        refused(says, loaded, tmp_path, store, "parquet", f"resize = true\n{PARQUET}")


@bounded
@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("mat", "toy.mat", r"toy\.mat \(X\) would take"),
        ("leaf", "toy/all_data_0.json", r"all_data_0\.json holds more than 0\.5 MiB"),
    ],
)
def test_mat_and_json(tmp_path: Path, store: Store, kind: str, name: str, message: str) -> None:
    """X says that it is 2^31 - 1 bytes a side; and very many users."""
    out = io.BytesIO()
    savemat(out, {"X": pixels(1, 2, 3, 4), "y": [1]})
    bomb = out.getvalue().replace(struct.pack("<4i", 1, 2, 3, 4), struct.pack("<4i", 1, 2**31 - 1, 2**31 - 1, 4))
    written(tmp_path, {name: bomb if kind == "mat" else b'{"users": [' + b"[]," * (LIMIT // 16) + b"[]]}"})
    with memory_below(4 * LIMIT):
        refused(message, loaded, tmp_path, store, kind, f'[[source.file]]\npath = "{name.split("/")[0]}"\n')


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
    idx.write_bytes(gzip.compress(header(8, 1024, MIB)) + PACKED * 1024)
    tar_of(tar, (member("a", 2**33 - 1), b""), stream=PACKED * 1024)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(idx), str(tar)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), done.stderr) == (0, 2, "")
    assert all("would take 8.0 GiB of memory, and 1.0 GiB is the most here" in line for line in lines)
