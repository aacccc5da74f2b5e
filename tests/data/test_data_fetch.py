"""Downloads from a server on this machine: whole, cut, missing, wrong, stubborn; and from mirrors that are hostile, of
which the next is asked, within bounds of bytes, tries and time."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from tests.support.data_makers import pixels, recipe_text, tar
from tests.support.frames import refused
from tests.support.server import Served, Server

BIN = """
[[source]]
name = "binary"
kind = "cifar-binary"
fields = ["label"]
[[source.file]]
path = "toy/toy.tar.gz"
sha256 = "{sha256}"
urls = [{urls}]
member = [{{ path = "d/train.bin" }}]
"""


def archive(folder: Path, extra: dict[str, bytes] | None = None) -> tuple[bytes, np.ndarray]:
    """A .tar.gz of 700 records, and its pixels [700, 4, 5, 3]."""
    images = pixels(700, 4, 5, 3)
    labels = (np.arange(700, dtype=np.uint8) % 3)[:, None]
    records = np.hstack([labels, images.transpose(0, 3, 1, 2).reshape(700, -1)]).tobytes()
    path = tar(folder / "made.tar.gz", {"d/train.bin": records, **(extra or {})})
    return path.read_bytes(), images


def toy(folder: Path, data: bytes, *urls: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "toy.toml"
    says = ", ".join(f'"{url}"' for url in urls)
    path.write_text(recipe_text(BIN.format(sha256=hashlib.sha256(data).hexdigest(), urls=says), (4, 5, 3)))
    return str(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return archive(tmp_path_factory.mktemp("archive"))[0]


def part_of(store: Store, content: bytes, name: str = "toy.tar.gz.part") -> Path:
    """What an earlier download has left."""
    part = store.home / "downloads/toy" / name
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return part


def test_fetch_then_load(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, images = archive(tmp_path)
    served["/a"] = Served(data)
    name, seen = toy(tmp_path, data, f"{base}/a"), []
    paths = fetch(name, store, lambda *step: seen.append(step))
    assert paths == [store.home / "downloads/toy/toy.tar.gz"]
    assert seen[-1] == ("toy.tar.gz", len(data), len(data))
    np.testing.assert_array_equal(load(name, store).images, images)
    fetch(name, store)
    assert len(served["/a"].asked) == 1  # what is there and whole is left alone
    assert [p.name for p in paths[0].parent.iterdir()] == ["toy.tar.gz"]


def test_what_a_data_folder_holds_is_not_downloaded(tmp_path: Path, store: Store) -> None:
    data, _ = archive(tmp_path)
    name = toy(tmp_path / "mine", data, "http://127.0.0.1:9/nobody")
    place = tmp_path / "root/toy/toy.tar.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    assert fetch(name, store, roots=[tmp_path / "root"]) == [place]
    context.configure(store.home, str(tmp_path / "root"), False)
    result = CliRunner().invoke(data_app, ["fetch", name])
    assert (result.exit_code, result.stderr) == (0, f"{name}: at hand, nothing to download: {place}\n")
    assert not store.home.exists()
    place.write_bytes(data[:-1])
    with pytest.raises(FedbenchError, match=r"root/toy/toy\.tar\.gz is not the file that its recipe means"):
        fetch(name, store, roots=[tmp_path / "root"])


@pytest.mark.parametrize(
    ("there", "answer", "asked"),
    [
        (None, {"cuts": [1000, 500]}, [None, "bytes=1000-", "bytes=1500-"]),  # a cut connection is resumed
        (None, {"cuts": [1000], "ranges": False}, [None, "bytes=1000-"]),  # a server that ignores that
        ("the first 2,000 bytes", {}, ["bytes=2000-"]),  # an interrupted command goes on
        ("the whole", {"status": 404}, []),
        ("other bytes", {}, ["bytes=1000-", None]),
        ("other bytes, too many", {}, [None]),
        ("damaged", {}, [None]),
    ],
)
def test_a_download_that_was_not_whole(
    tmp_path: Path, store: Store, server: Server, whole: bytes, there: str | None, answer: dict, asked: list[str | None]
) -> None:
    base, served = server
    served["/a"] = Served(whole, **answer)
    if there is not None:
        earlier = {
            "the first 2,000 bytes": whole[:2000], "the whole": whole, "other bytes": b"x" * 1000,
            "other bytes, too many": b"x" * (len(whole) + 10), "damaged": whole[:-1],
        }[there]  # fmt: skip
        part_of(store, earlier, "toy.tar.gz" if there == "damaged" else "toy.tar.gz.part")
    assert fetch(toy(tmp_path, whole, f"{base}/a"), store)[0].read_bytes() == whole
    assert served["/a"].asked[-len(asked) :] == asked if asked else not served["/a"].asked


def test_an_interrupted_command_keeps_nothing_as_whole(
    tmp_path: Path, store: Store, server: Server, whole: bytes
) -> None:
    base, served = server
    served["/a"] = Served(whole)

    def stop(*step: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(toy(tmp_path, whole, f"{base}/a"), store, stop)
    assert not (store.home / "downloads/toy/toy.tar.gz").exists()


@pytest.mark.parametrize("bad", [Served(status=404), Served(status=500), Served(b"other bytes"), Served(b"")])
def test_the_next_mirror_is_used(tmp_path: Path, store: Store, server: Server, whole: bytes, bad: Served) -> None:
    base, served = server
    served["/bad"], served["/good"] = bad, Served(whole)
    assert fetch(toy(tmp_path, whole, f"{base}/bad", f"{base}/good"), store)[0].read_bytes() == whole
    assert len(bad.asked) == (3 if bad.status == 500 else 1)


def test_all_mirrors_fail(tmp_path: Path, store: Store, server: Server, whole: bytes) -> None:
    base, served = server
    served["/wrong"] = Served(b"wrong")
    with pytest.raises(FedbenchError) as caught:
        fetch(toy(tmp_path, whole, f"{base}/gone", f"{base}/wrong", "http://127.0.0.1:9/nobody"), store)
    text = caught.value.message
    for says in (f"{base}/gone: the server answers 404", f"{base}/wrong: checksum differs", ":9/nobody: ", "refused"):
        assert says in text
    assert "\n" not in text
    assert list((store.home / "downloads/toy").iterdir()) == []


def test_archives_that_are_what_was_declared_and_no_good(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    outside, _ = archive(tmp_path, {"../../evil.txt": b"evil"})
    for i, (data, says) in enumerate(
        ((outside, "not a safe archive"), (archive(tmp_path)[0][:-200], "is damaged or not a readable archive"))
    ):
        served[f"/{i}"] = Served(data)
        name = toy(tmp_path, data, f"{base}/{i}")
        fetch(name, store)
        refused(says, load, name, store)
    assert not list(tmp_path.rglob("evil.txt"))


def test_two_processes_do_not_share_a_download(tmp_path: Path, store: Store, server: Server, whole: bytes) -> None:
    base, served = server
    served["/a"] = Served(whole)
    name = toy(tmp_path, whole, f"{base}/a")
    refused: list[str] = []

    def meanwhile(*step: object) -> None:
        if not refused:
            with pytest.raises(FedbenchError, match="another process is downloading") as caught:
                fetch(name, store)
            refused.append(str(caught.value))

    assert fetch(name, store, meanwhile)[0].read_bytes() == whole
    assert len(refused) == 1


def test_no_address_and_wrong_source(tmp_path: Path, store: Store, whole: bytes) -> None:
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
    refused("downloading toy", fetch, toy(tmp_path, whole, "http://127.0.0.1:9/nobody"), store)


# -- unions -----------------------------------------------------------------------------------------------------

MAT = """
[[source]]
name = "mat"
kind = "mat"
[[source.file]]
path = "{name}/train.mat"
md5 = "{md5}"
urls = ["{url}"]
"""
UNION = """
[[source]]
name = "union"
kind = "union"
parts = {parts}
columns = {{ domain = "domain" }}
"""


def mats(folder: Path, base: str, served: dict[str, Served]) -> dict[str, np.ndarray]:
    """Recipes one.toml and two.toml of MATLAB files on the server; returns their images."""
    held = {name: pixels(3, 4, 5, 3, seed=i) for i, name in enumerate(("one", "two"))}
    for name, images in held.items():
        savemat(folder / f"{name}.mat", {"X": images.transpose(1, 2, 3, 0), "y": [[1], [2], [3]]})
        data = (folder / f"{name}.mat").read_bytes()
        served[f"/{name}"] = Served(data)
        body = MAT.format(name=name, md5=hashlib.md5(data).hexdigest(), url=f"{base}/{name}")
        (folder / f"{name}.toml").write_text(recipe_text(body, (4, 5, 3)))
    return held


def union(folder: Path, *parts: str) -> str:
    (folder / "all.toml").write_text(recipe_text(UNION.format(parts=list(parts)), (4, 5, 3)))
    return str(folder / "all.toml")


def test_a_union_is_fetched_part_by_part(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    held = mats(tmp_path, base, served)
    name = union(tmp_path, "two", "one")
    refused(r"all lacks its part two: .*'fedbench data fetch two'", load, name, store)
    paths = fetch(name, store)
    assert paths == [store.home / f"downloads/{part}/train.mat" for part in ("two", "one")]
    got = load(name, store)
    np.testing.assert_array_equal(got.images, np.concatenate([held["two"], held["one"]]))
    assert got.labels.tolist() == [1, 2, 0] * 2  # the number of classes stands for 0
    fetch(name, store)
    assert [len(served[f"/{part}"].asked) for part in ("one", "two")] == [1, 1]


def test_a_part_without_an_address_must_be_at_hand(tmp_path: Path, store: Store, server: Server) -> None:
    mats(tmp_path, *server)
    name, root = union(tmp_path, "usps", "one"), tmp_path / "root"
    with pytest.raises(FedbenchError) as caught:
        fetch(name, store)
    assert caught.value.message == "no address is known to download usps from; the other parts of all are there"
    assert "'fedbench data show usps'" in caught.value.hint
    assert (store.home / "downloads/one/train.mat").is_file()  # what can be fetched is
    for file in recipe("usps").sources[0].file:
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        (root / file.path).touch()
    assert fetch(name, store, roots=[root]) == [store.home / "downloads/one/train.mat"]


def test_large_sets_have_two_mirrors() -> None:
    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        for file in recipe(name).sources[0].file:
            assert len(set(file.urls)) == 2, file.path
            assert all(url.endswith(Path(file.path).name) for url in file.urls)


# -- hostile mirrors --------------------------------------------------------------------------------------------

DATA = pixels(300, 1000).tobytes()
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(DATA)
Answer = Callable[[socket.socket, bytes], None]


class Mirrors:
    """A raw server: what a path answers is written to the socket as it is. `asked` are the requests' first lines."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            while b"\r\n\r\n" not in request and (piece := connection.recv(4096)):
                request += piece
            if request:
                path = request.split()[1].decode()
                self.asked.append(path)
                try:
                    self.answers[path](connection, request)
                except OSError:  # the client has had enough
                    return


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrors]:
    module = sys.modules["fedbench.data.download"]
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    served = Mirrors()
    served.answers["/good"] = lambda to, request: to.sendall(OK + LENGTH + DATA)
    yield served
    served.listener.close()


RAW = """
[[source]]
name = "binary"
kind = "cifar-binary"
fields = ["label"]
[[source.file]]
path = "toy/toy.bin"
sha256 = "{sha256}"
{size}
urls = [{urls}]
"""


def raw_toy(folder: Path, *urls: str, size: str = f"size = {len(DATA)}") -> str:
    says = ", ".join(f'"{url}"' for url in urls)
    body = RAW.format(sha256=hashlib.sha256(DATA).hexdigest(), urls=says, size=size)
    (folder / "toy.toml").write_text(recipe_text(body, (4, 5, 3)))
    return str(folder / "toy.toml")


def raw(*pieces: bytes) -> Answer:
    return lambda to, request: to.sendall(b"".join(pieces))


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


HOSTILE: dict[str, Answer] = {
    "length is no number": raw(OK, b"Content-Length: many\r\n\r\n", DATA[:-1]),
    "length is negative": raw(OK, b"Content-Length: -5\r\n\r\n", DATA[:-1]),
    "length is empty": raw(OK, b"Content-Length: \r\n\r\n", DATA[:-1]),
    "length is too small": raw(OK, b"Content-Length: 10\r\n\r\n", DATA),
    "length is too large": raw(OK, b"Content-Length: %d\r\n\r\n" % (len(DATA) + 5), DATA),
    "length is beyond all bounds": raw(OK, b"Content-Length: 9%s\r\n\r\n" % (b"9" * 40), DATA),
    "length has too many digits": raw(OK, b"Content-Length: 9%s\r\n\r\n" % (b"9" * 5000), DATA),
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
def test_the_next_mirror_is_asked(tmp_path: Path, store: Store, mirrors: Mirrors, name: str) -> None:
    """And alone, it ends in one line; or what looked hostile brought the right bytes after all."""
    mirrors.answers["/bad"] = HOSTILE[name]
    path = fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", f"{mirrors.base}/good"), store)[0]
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]
    assert mirrors.asked.count("/bad") <= 12  # of which a loop of redirects is ten
    path.unlink()
    if name in ("it drips", "it stalls", "it never ends"):  # see below
        return
    says = ""
    try:
        fetch(raw_toy(tmp_path, f"{mirrors.base}/bad"), store)
    except FedbenchError as error:
        says = str(error)
    if says:
        assert f"cannot download toy.bin ({mirrors.base}/bad: " in says
        assert "\n" not in says
        assert not path.exists()
    else:
        assert path.read_bytes() == DATA


def test_a_length_that_is_too_large_does_not_make_a_whole_file_wrong(
    tmp_path: Path, store: Store, mirrors: Mirrors
) -> None:
    mirrors.answers["/bad"] = HOSTILE["length is too large"]
    assert fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", size=""), store)[0].read_bytes() == DATA


def test_a_stream_without_end_is_left_at_the_size_of_the_file(
    tmp_path: Path, store: Store, mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no size is declared, there is a limit all the same."""
    mirrors.answers["/bad"] = endless()
    mirrors.answers["/boast"] = raw(OK, b"Content-Length: 1000001\r\n\r\n")
    largest: list[int] = []
    with pytest.raises(FedbenchError, match=r"it sends more than 300,000 bytes"):
        fetch(raw_toy(tmp_path, f"{mirrors.base}/bad"), store, lambda name, at, total: largest.append(at))
    assert max(largest) <= len(DATA)
    assert list((store.home / "downloads/toy").iterdir()) == []
    monkeypatch.setattr(sys.modules["fedbench.data.download"], "LARGEST", 10**6)
    with pytest.raises(FedbenchError) as caught:
        fetch(raw_toy(tmp_path, f"{mirrors.base}/bad", f"{mirrors.base}/boast", size=""), store)
    assert "/bad: it sends more than 1,000,000 bytes; " in caught.value.message
    assert "/boast: it wants to send 1,000,001 bytes, more than 1,000,000" in caught.value.message


def byte_by_byte(to: socket.socket, request: bytes) -> None:
    """Breaks off after every byte."""
    held = int(request.split(b"bytes=")[1].split(b"-")[0]) if b"bytes=" in request else 0
    head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes %d-%d/%d\r\n" % (held, len(DATA) - 1, len(DATA))
    to.sendall((head if held else OK) + b"Content-Length: %d\r\n\r\n" % (len(DATA) - held) + DATA[held : held + 1])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (drip, r"it sent only \d+ bytes in 0 seconds"),  # bytes that drip do not count as progress
        (stall, r"cannot download toy\.bin"),
        (byte_by_byte, "the connection broke after 3 of 300000 bytes"),
    ],
)
def test_a_mirror_that_takes_for_ever_is_given_up(
    tmp_path: Path, store: Store, mirrors: Mirrors, answer: Answer, says: str
) -> None:
    mirrors.answers["/bad"] = answer
    refused(says, fetch, raw_toy(tmp_path, f"{mirrors.base}/bad"), store)
    assert mirrors.asked == ["/bad"] * 3


def test_a_folder_where_the_file_should_be(tmp_path: Path, store: Store, mirrors: Mirrors) -> None:
    (store.home / "downloads/toy/toy.bin").mkdir(parents=True)
    with pytest.raises(FedbenchError, match=r"toy\.bin is a folder and should be a file; remove it"):
        fetch(raw_toy(tmp_path, f"{mirrors.base}/good"), store)
    assert mirrors.asked == []


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://127.0.0.1:port/x", "http:///x", "http://a b/x", "http://é..é/"]
)
def test_an_address_that_is_none(tmp_path: Path, store: Store, mirrors: Mirrors, url: str) -> None:
    assert fetch(raw_toy(tmp_path, url, f"{mirrors.base}/good"), store)[0].read_bytes() == DATA
