"""Downloads from a server on this machine: whole, cut, missing, wrong, stubborn; and from mirrors that are hostile, of
which the next is asked, within bounds of bytes, tries and time."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import struct
import subprocess
import sys
import tarfile
import time
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
from typer.testing import CliRunner

from fedbench.cli import context
from fedbench.cli.data import app
from fedbench.data import fetch, guard, load, recipe
from fedbench.data.archive import open_tree
from fedbench.data.readers import read_idx
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import encoded, holds, loaded, pixels, recipe_file, tar, union, written, zipped
from tests.support.frames import refused
from tests.support.server import OK, Answer, Server, raw, whole

BODY = """
[[source]]
name = "binary"
kind = "{kind}"
{more}
[[source.file]]
path = "{path}"
{sums}
urls = [{urls}]
"""
MEMBER = 'member = [{ path = "d/train.bin" }]\n'
NOBODY = "http://127.0.0.1:9/nobody"


def toy(folder: Path, data: bytes, *urls: str, path: str = "toy/toy.tar.gz", size: str = "") -> str:
    """A recipe of CIFAR's binary files."""
    sums = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\n{size}'
    says = ", ".join(f'"{url}"' for url in urls)
    body = BODY.format(kind="cifar-binary", more='fields = ["label"]', path=path, sums=sums, urls=says)
    return recipe_file(folder, body + (MEMBER if path.endswith("gz") else ""), (4, 5, 3))


IMAGES = pixels(700, 4, 5, 3)


def archive(folder: Path, extra: dict[str, bytes] | None = None) -> bytes:
    """A .tar.gz of the records of these images."""
    labels = (np.arange(700, dtype=np.uint8) % 3)[:, None]
    records = np.hstack([labels, IMAGES.transpose(0, 3, 1, 2).reshape(700, -1)]).tobytes()
    return tar(folder / "made.tar.gz", {"d/train.bin": records, **(extra or {})}).read_bytes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return archive(tmp_path_factory.mktemp("archive"))


def test_fetch_then_load(tmp_path: Path, store: Store, server: Server, data: bytes) -> None:
    server.answers["/a"] = whole(data)
    name, seen = toy(tmp_path, data, f"{server.base}/a"), []
    paths = fetch(name, store, lambda *step: seen.append(step))
    assert paths == [store.home / "downloads/toy/toy.tar.gz"]
    assert seen[-1] == ("toy.tar.gz", len(data), len(data))
    holds(load(name, store), IMAGES)
    fetch(name, store)
    assert len(server.asked) == 1  # what is there and whole is left alone
    assert [p.name for p in paths[0].parent.iterdir()] == ["toy.tar.gz"]


def test_what_a_data_folder_holds_is_not_downloaded(tmp_path: Path, store: Store, data: bytes) -> None:
    name, root = toy(tmp_path / "mine", data, NOBODY), written(tmp_path / "root", {"toy/toy.tar.gz": data})
    place = root / "toy/toy.tar.gz"
    assert fetch(name, store, roots=[root]) == [place]
    context.configure(store.home, str(root), False)
    result = CliRunner().invoke(app, ["fetch", name])
    assert (result.exit_code, result.stderr) == (0, f"{name}: available, nothing to download: {place}\n")
    assert not store.home.exists()
    place.write_bytes(data[:-1])
    refused(r"root/toy/toy\.tar\.gz is not the file that its recipe means", fetch, name, store, roots=[root])


@pytest.mark.parametrize(
    ("there", "answer", "asked"),
    [
        (None, {"cuts": [1000, 500]}, [0, 1000, 1500]),  # a cut connection is resumed
        (None, {"cuts": [1000], "ranges": False}, [0, 1000]),  # a server that ignores that
        ("the first 2,000 bytes", {}, [2000]),  # an interrupted command goes on
        ("the whole", None, []),
        ("other bytes", {}, [1000, 0]),
        ("other bytes, too many", {}, None),
        ("damaged", {}, [0]),
    ],
)
def test_a_download_that_was_not_whole(
    tmp_path: Path, store: Store, server: Server, data: bytes, there: str | None, answer: dict, asked: list[int] | None
) -> None:
    if answer is not None:
        server.answers["/a"] = whole(data, **answer)
    if there is not None:
        earlier = {
            "the first 2,000 bytes": data[:2000],
            "the whole": data,
            "other bytes": b"x" * 1000,
            "other bytes, too many": b"x" * (len(data) + 10),
            "damaged": data[:-1],
        }[there]
        name = "toy.tar.gz" if there == "damaged" else "toy.tar.gz.part"
        written(store.home / "downloads/toy", {name: earlier})
    assert fetch(toy(tmp_path, data, f"{server.base}/a"), store)[0].read_bytes() == data
    assert [first for _, first in server.asked] == asked or (asked is None and server.asked[-1] == ("/a", 0))


def test_an_interrupted_command_keeps_nothing_as_whole(
    tmp_path: Path, store: Store, server: Server, data: bytes
) -> None:
    def stop(*step: object) -> None:
        raise KeyboardInterrupt

    server.answers["/a"] = whole(data)
    with pytest.raises(KeyboardInterrupt):
        fetch(toy(tmp_path, data, f"{server.base}/a"), store, stop)
    assert not (store.home / "downloads/toy/toy.tar.gz").exists()


def test_how_often_a_mirror_is_asked_before_the_next(tmp_path: Path, store: Store, server: Server, data: bytes) -> None:
    name = toy(tmp_path, data, *(f"{server.base}/{mirror}" for mirror in ("404", "500", "other", "empty", "good")))
    answers = (raw(b"HTTP/1.1 404 no\r\n\r\n"), raw(b"HTTP/1.1 500 no\r\n\r\n"), whole(b"other bytes"), whole(b""))
    server.answers |= dict(zip(("/404", "/500", "/other", "/empty"), answers, strict=True)) | {"/good": whole(data)}
    assert fetch(name, store)[0].read_bytes() == data
    assert [path for path, _ in server.asked] == ["/404", *["/500"] * 3, "/other", "/empty", "/good"]


def test_all_mirrors_fail(tmp_path: Path, store: Store, server: Server, data: bytes) -> None:
    server.answers["/wrong"] = whole(b"wrong")
    base = server.base
    says = f"{base}/gone: the server answers 404.*{base}/wrong: checksum differs.*:9/nobody: .*refused"
    refused(says, fetch, toy(tmp_path, data, f"{base}/gone", f"{base}/wrong", NOBODY), store)
    assert list((store.home / "downloads/toy").iterdir()) == []


def test_archives_that_are_what_was_declared_and_no_good(
    tmp_path: Path, store: Store, server: Server, data: bytes
) -> None:
    outside = archive(tmp_path, {"../../evil.txt": b"evil"})
    for content, says in ((outside, "not a safe archive"), (data[:-200], "is damaged or not a readable archive")):
        server.answers["/a"] = whole(content)
        name = toy(tmp_path, content, f"{server.base}/a")
        fetch(name, store)
        refused(says, load, name, store)
    assert not list(tmp_path.rglob("evil.txt"))


def test_two_processes_do_not_share_a_download(tmp_path: Path, store: Store, server: Server, data: bytes) -> None:
    server.answers["/a"] = whole(data)
    name, met = toy(tmp_path, data, f"{server.base}/a"), []

    def meanwhile(*step: object) -> None:
        if not met:
            refused("another process is downloading", fetch, name, store)
        met.append(step)

    assert fetch(name, store, meanwhile)[0].read_bytes() == data
    assert met


def test_no_address_and_wrong_source(tmp_path: Path, store: Store, data: bytes) -> None:
    for name, source, says in (
        ("usps", None, "no address is known to download usps"),
        ("cifar10", "parquet", "no address is known to download cifar10"),
        ("cifar10", "binry", "unknown source of cifar10 'binry'; did you mean 'binary'"),
        ("digit5", "mat", "unknown source of digit5 'mat'"),  # the sources of a union are its own
    ):
        refused(says, fetch, name, store, source=source)
    assert fetch("digits", store) == []
    store.prepare()
    (store.home / "downloads").write_text("a file where a folder should be")
    refused("downloading toy", fetch, toy(tmp_path, data, NOBODY), store)


def test_large_sets_have_two_mirrors() -> None:
    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        for file in recipe(name).sources[0].file:
            assert len(set(file.urls)) == 2, file.path
            assert all(url.endswith(Path(file.path).name) for url in file.urls)


def mats(folder: Path, server: Server) -> dict[str, np.ndarray]:
    """Recipes one.toml and two.toml of MATLAB files on the server; returns their images."""
    held = {name: pixels(3, 4, 5, 3, seed=i) for i, name in enumerate(("one", "two"))}
    for name, images in held.items():
        savemat(folder / f"{name}.mat", {"X": images.transpose(1, 2, 3, 0), "y": [[1], [2], [3]]})
        data = (folder / f"{name}.mat").read_bytes()
        server.answers[f"/{name}"] = whole(data)
        sums, url = f'md5 = "{hashlib.md5(data).hexdigest()}"', f'"{server.base}/{name}"'
        body = BODY.format(kind="mat", more="", path=f"{name}/train.mat", sums=sums, urls=url)
        recipe_file(folder, body, (4, 5, 3), name)
    return held


def test_a_union_is_fetched_part_by_part(tmp_path: Path, store: Store, server: Server) -> None:
    held = mats(tmp_path, server)
    name = union(tmp_path, "two", "one", shape=(4, 5, 3))
    refused(r"all lacks its part two: .*'fedbench data fetch two'", load, name, store)
    assert fetch(name, store) == [store.home / f"downloads/{part}/train.mat" for part in ("two", "one")]
    both = np.concatenate([held["two"], held["one"]])
    holds(load(name, store), both, labels=[1, 2, 0] * 2)  # the number of classes stands for 0
    fetch(name, store)
    assert sorted(server.asked) == [("/one", 0), ("/two", 0)]


def test_a_part_without_an_address_must_be_at_hand(tmp_path: Path, store: Store, server: Server) -> None:
    mats(tmp_path, server)
    name, root = union(tmp_path, "usps", "one", shape=(4, 5, 3)), tmp_path / "root"
    says = "^no address is known to download usps from; the other parts of all are there; .*'fedbench data show usps'"
    refused(says, fetch, name, store)
    assert (store.home / "downloads/one/train.mat").is_file()  # what can be fetched is
    written(root, dict.fromkeys((file.path for file in recipe("usps").sources[0].file), b""))
    assert fetch(name, store, roots=[root]) == [store.home / "downloads/one/train.mat"]


DATA = pixels(300, 1000).tobytes()
LENGTH = b"Content-Length: %d\r\n\r\n" % len(DATA)


@pytest.fixture
def mirrors(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(sys.modules["fedbench.data.fetch"], "TIMEOUT", 0.3)
    server.answers["/good"] = raw(OK + LENGTH + DATA)
    return server


def raw_toy(folder: Path, *urls: str, size: str = f"size = {len(DATA)}") -> str:
    return toy(folder, DATA, *urls, path="toy/toy.bin", size=size)


def moved(target: str) -> Answer:
    return raw(b"HTTP/1.1 302 Found\r\nLocation: ", target.encode("latin-1"), b"\r\nContent-Length: 0\r\n\r\n")


def endless(head: bytes = OK + b"\r\n", block: bytes = b"x" * 65536) -> Answer:
    def answer(to: socket.socket, request: bytes) -> None:
        to.sendall(head)
        while True:
            to.sendall(block)

    return answer


def drip(to: socket.socket, request: bytes) -> None:
    to.sendall(OK + LENGTH)
    for byte in DATA:  # each well within the time-out
        to.sendall(bytes([byte]))
        time.sleep(0.05)


def stall(to: socket.socket, request: bytes) -> None:
    to.sendall(OK + LENGTH + DATA[:1000])
    time.sleep(5)


def chunks(sizes: bytes) -> Answer:
    return raw(OK, b"Transfer-Encoding: chunked\r\n\r\n", sizes, b"\r\n", DATA)


def length(says: bytes, data: bytes = DATA[:-1]) -> Answer:
    return raw(OK, b"Content-Length: ", says, b"\r\n\r\n", data)


HOSTILE: dict[str, Answer] = {
    "length is no number": length(b"many"),
    "length is negative": length(b"-5"),
    "length is too small": length(b"10", DATA),
    "length is too large": length(b"%d" % (len(DATA) + 5), DATA),
    "length is beyond all bounds": length(b"9" * 41, DATA),
    "length has too many digits": length(b"9" * 5001, DATA),
    "a part that nobody asked for": raw(
        b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\nxxxxx"
    ),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.0\r\n"),
    "nothing": raw(b""),
    "a status that is no number": raw(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status with control characters": raw(b"HTTP/1.1 404 \x1b[2J\rgone\r\n\r\n"),
    "an endless line": endless(b"HTTP/1.1 200 ", b"x" * 65536),
    "endless headers": endless(OK, b"a: b\r\n" * 1000),
    "chunks of no size": chunks(b"zz"),
    "chunks of negative size": chunks(b"-5"),
    "a chunk that is too large": chunks(b"ffffffffffffff"),
    "redirect to itself": moved("/bad"),
    "redirect to a file": moved("file:///etc/passwd"),
    "redirect to no scheme": moved("gopher://127.0.0.1/"),
    "redirect to no address": moved("http://[::1"),
    "redirect to a port that is none": moved("http://127.0.0.1:port/"),
    "redirect to a port that is closed": moved("http://127.0.0.1:9/"),
    "redirect to a host that cannot be one": moved("http://" + "a" * 80 + ".invalid/"),
    "redirect to nowhere": raw(b"HTTP/1.1 302 Found\r\n\r\n"),
    "it never ends": endless(),
    "it drips": drip,
    "it stalls": stall,
    "other bytes, as many": raw(OK, LENGTH, DATA[::-1]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_next_mirror_is_asked(tmp_path: Path, store: Store, mirrors: Server, name: str) -> None:
    """And alone, it ends in one line; or what looked hostile brought the right bytes after all."""
    mirrors.answers["/bad"] = HOSTILE[name]
    path = fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", f"{mirrors.base}/good"), store)[0]
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]
    assert sum(asked == "/bad" for asked, _ in mirrors.asked) <= 12  # of which a loop of redirects is ten
    path.unlink()
    if name in ("it drips", "it stalls", "it never ends"):  # see below
        return
    says = ""
    try:
        fetch(raw_toy(tmp_path, f"{mirrors.base}/bad"), store)
    except FedbenchError as error:
        says = str(error)
    if path.exists():
        assert (says, path.read_bytes()) == ("", DATA)
    else:
        assert f"cannot download toy.bin ({mirrors.base}/bad: " in says
        assert "\n" not in says


def test_a_stream_without_end_is_left_at_the_size_of_the_file(
    tmp_path: Path, store: Store, mirrors: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no size is declared, there is a limit all the same."""
    mirrors.answers |= {"/bad": endless(), "/boast": length(b"1000001", b"")}
    bad, largest = f"{mirrors.base}/bad", []
    with pytest.raises(FedbenchError, match=r"it sends more than 300,000 bytes"):
        fetch(raw_toy(tmp_path, bad), store, lambda name, at, total: largest.append(at))
    assert max(largest) <= len(DATA)
    assert list((store.home / "downloads/toy").iterdir()) == []
    monkeypatch.setattr(sys.modules["fedbench.data.fetch"], "LARGEST", 10**6)
    says = "/bad: it sends more than 1,000,000 bytes; .*/boast: it wants to send 1,000,001 bytes, more than 1,000,000"
    refused(says, fetch, raw_toy(tmp_path, bad, f"{mirrors.base}/boast", size=""), store)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (drip, r"it sent only \d+ bytes in 0 seconds"),  # bytes that drip do not count as progress
        (stall, r"cannot download toy\.bin"),
        (lambda *given: whole(DATA, cuts=[1])(*given), "the connection broke after 3 of 300000 bytes"),
    ],
)
def test_a_mirror_that_takes_for_ever_is_given_up(
    tmp_path: Path, store: Store, mirrors: Server, answer: Answer, says: str
) -> None:
    mirrors.answers["/bad"] = answer
    refused(says, fetch, raw_toy(tmp_path, f"{mirrors.base}/bad"), store)
    assert [path for path, _ in mirrors.asked] == ["/bad"] * 3


def test_what_is_odd_here_and_not_there(tmp_path: Path, store: Store, mirrors: Server) -> None:
    """A length that is too large makes no whole file wrong; but a folder cannot stand where the file should be."""
    mirrors.answers["/bad"] = HOSTILE["length is too large"]
    (path,) = fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", size=""), store)
    assert path.read_bytes() == DATA
    path.unlink()
    mirrors.asked.clear()
    (store.home / "downloads/toy/toy.bin").mkdir(parents=True)
    says = r"toy\.bin is a folder and should be a file; remove it"
    refused(says, fetch, raw_toy(tmp_path, f"{mirrors.base}/good"), store)
    assert mirrors.asked == []


def test_addresses_that_are_none(tmp_path: Path, store: Store, mirrors: Server) -> None:
    urls = ("http://[::1/x", "http://127.0.0.1:port/x", "http:///x", "http://a b/x", "http://é..é/")
    assert fetch(raw_toy(tmp_path, *urls, f"{mirrors.base}/good"), store)[0].read_bytes() == DATA


# -- archives: hostile and damaged ones, and those that unpack to much (the bound is small here) --------------


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


def test_links_and_devices(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("label.bin")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    for path in (tar(tmp_path / "a.tar.gz", {}, links={"label.bin": "/etc/passwd"}), tmp_path / "a.zip"):
        refused("'label.bin' is a link", opened, path)
    for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        path = tar_of(tmp_path / "a.tar.gz", (member("a/2.png", 0, kind), b""))
        refused(r"a\.tar\.gz is not a safe archive: its member 'a/2\.png' is a device or pipe", opened, path)


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
        path.write_bytes(path.read_bytes().replace(struct.pack("<I", 48 * MIB), struct.pack("<I", 10)))
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


def test_the_bound_follows_the_process_s_own_limit() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
    code += "from fedbench.data import guard; print(guard.LIMIT)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{1 << 30}\n", "")
