"""Downloads from a server on this machine: whole, cut, missing, wrong, stubborn; and from mirrors that are hostile, of
which the next is asked, within bounds of bytes, tries and time."""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

from fedbench.cli import context
from fedbench.cli.data import data_app
from fedbench.data import fetch, load, recipe
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import pixels, recipe_file, tar, union, written
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
    np.testing.assert_array_equal(load(name, store).images, IMAGES)
    fetch(name, store)
    assert len(server.asked) == 1  # what is there and whole is left alone
    assert [p.name for p in paths[0].parent.iterdir()] == ["toy.tar.gz"]


def test_what_a_data_folder_holds_is_not_downloaded(tmp_path: Path, store: Store, data: bytes) -> None:
    name, root = toy(tmp_path / "mine", data, NOBODY), written(tmp_path / "root", {"toy/toy.tar.gz": data})
    place = root / "toy/toy.tar.gz"
    assert fetch(name, store, roots=[root]) == [place]
    context.configure(store.home, str(root), False)
    result = CliRunner().invoke(data_app, ["fetch", name])
    assert (result.exit_code, result.stderr) == (0, f"{name}: at hand, nothing to download: {place}\n")
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
            "the first 2,000 bytes": data[:2000], "the whole": data, "other bytes": b"x" * 1000,
            "other bytes, too many": b"x" * (len(data) + 10), "damaged": data[:-1],
        }[there]  # fmt: skip
        part = "toy.tar.gz" if there == "damaged" else "toy.tar.gz.part"
        written(store.home / "downloads/toy", {part: earlier})
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


@pytest.mark.parametrize(
    ("bad", "times"),
    [
        (raw(b"HTTP/1.1 404 no\r\n\r\n"), 1),
        (raw(b"HTTP/1.1 500 no\r\n\r\n"), 3),
        (whole(b"other bytes"), 1),
        (whole(b""), 1),
    ],
    ids=["404", "500", "other bytes", "nothing"],
)
def test_the_next_mirror_is_used(
    tmp_path: Path, store: Store, server: Server, data: bytes, bad: Answer, times: int
) -> None:
    server.answers |= {"/bad": bad, "/good": whole(data)}
    assert fetch(toy(tmp_path, data, f"{server.base}/bad", f"{server.base}/good"), store)[0].read_bytes() == data
    assert [path for path, _ in server.asked].count("/bad") == times


def test_all_mirrors_fail(tmp_path: Path, store: Store, server: Server, data: bytes) -> None:
    server.answers["/wrong"] = whole(b"wrong")
    base = server.base
    with pytest.raises(FedbenchError) as caught:
        fetch(toy(tmp_path, data, f"{base}/gone", f"{base}/wrong", NOBODY), store)
    text = caught.value.message
    for says in (f"{base}/gone: the server answers 404", f"{base}/wrong: checksum differs", ":9/nobody: ", "refused"):
        assert says in text
    assert "\n" not in text
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
    got = load(name, store)
    np.testing.assert_array_equal(got.images, np.concatenate([held["two"], held["one"]]))
    assert got.labels.tolist() == [1, 2, 0] * 2  # the number of classes stands for 0
    fetch(name, store)
    assert sorted(server.asked) == [("/one", 0), ("/two", 0)]


def test_a_part_without_an_address_must_be_at_hand(tmp_path: Path, store: Store, server: Server) -> None:
    mats(tmp_path, server)
    name, root = union(tmp_path, "usps", "one", shape=(4, 5, 3)), tmp_path / "root"
    with pytest.raises(FedbenchError) as caught:
        fetch(name, store)
    assert caught.value.message == "no address is known to download usps from; the other parts of all are there"
    assert "'fedbench data show usps'" in caught.value.hint
    assert (store.home / "downloads/one/train.mat").is_file()  # what can be fetched is
    written(root, dict.fromkeys((file.path for file in recipe("usps").sources[0].file), b""))
    assert fetch(name, store, roots=[root]) == [store.home / "downloads/one/train.mat"]


DATA = pixels(300, 1000).tobytes()
LENGTH = b"Content-Length: %d\r\n\r\n" % len(DATA)


@pytest.fixture
def mirrors(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(sys.modules["fedbench.data.download"], "TIMEOUT", 0.3)
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


def byte_by_byte(to: socket.socket, request: bytes) -> None:
    whole(DATA, cuts=[1])(to, request)


def chunks(sizes: bytes) -> Answer:
    return raw(OK, b"Transfer-Encoding: chunked\r\n\r\n", sizes, b"\r\n", DATA)


def length(says: bytes, data: bytes = DATA[:-1]) -> Answer:
    return raw(OK, b"Content-Length: ", says, b"\r\n\r\n", data)


HOSTILE: dict[str, Answer] = {
    "length is no number": length(b"many"),
    "length is negative": length(b"-5"),
    "length is empty": length(b""),
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
    "redirect to ftp": moved("ftp://127.0.0.1:9/x"),
    "redirect to no scheme": moved("gopher://127.0.0.1/"),
    "redirect to no address": moved("http://[::1"),
    "redirect to a port that is none": moved("http://127.0.0.1:port/"),
    "redirect to a port that is closed": moved("http://127.0.0.1:9/"),
    "redirect to a host that cannot be one": moved("http://" + "a" * 80 + ".invalid/"),
    "redirect to a host with dots only": moved("http://../"),
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


def test_a_length_that_is_too_large_does_not_make_a_whole_file_wrong(
    tmp_path: Path, store: Store, mirrors: Server
) -> None:
    mirrors.answers["/bad"] = HOSTILE["length is too large"]
    assert fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", size=""), store)[0].read_bytes() == DATA


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
    monkeypatch.setattr(sys.modules["fedbench.data.download"], "LARGEST", 10**6)
    says = "/bad: it sends more than 1,000,000 bytes; .*/boast: it wants to send 1,000,001 bytes, more than 1,000,000"
    refused(says, fetch, raw_toy(tmp_path, bad, f"{mirrors.base}/boast", size=""), store)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (drip, r"it sent only \d+ bytes in 0 seconds"),  # bytes that drip do not count as progress
        (stall, r"cannot download toy\.bin"),
        (byte_by_byte, "the connection broke after 3 of 300000 bytes"),
    ],
)
def test_a_mirror_that_takes_for_ever_is_given_up(
    tmp_path: Path, store: Store, mirrors: Server, answer: Answer, says: str
) -> None:
    mirrors.answers["/bad"] = answer
    refused(says, fetch, raw_toy(tmp_path, f"{mirrors.base}/bad"), store)
    assert [path for path, _ in mirrors.asked] == ["/bad"] * 3


def test_a_folder_where_the_file_should_be(tmp_path: Path, store: Store, mirrors: Server) -> None:
    (store.home / "downloads/toy/toy.bin").mkdir(parents=True)
    says = r"toy\.bin is a folder and should be a file; remove it"
    refused(says, fetch, raw_toy(tmp_path, f"{mirrors.base}/good"), store)
    assert mirrors.asked == []


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://127.0.0.1:port/x", "http:///x", "http://a b/x", "http://é..é/"]
)
def test_an_address_that_is_none(tmp_path: Path, store: Store, mirrors: Server, url: str) -> None:
    assert fetch(raw_toy(tmp_path, url, f"{mirrors.base}/good"), store)[0].read_bytes() == DATA
