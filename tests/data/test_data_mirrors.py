"""Hostile mirrors on 127.0.0.1: whatever one answers, the next is asked, within bounds of bytes, tries and time."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedbench.data import fetch
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import pixels, recipe_text

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


BODY = """
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


def toy(folder: Path, *urls: str, size: str = f"size = {len(DATA)}") -> str:
    told = ", ".join(f'"{url}"' for url in urls)
    body = BODY.format(sha256=hashlib.sha256(DATA).hexdigest(), urls=told, size=size)
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
    mirrors.answers["/bad"] = HOSTILE[name]
    path = fetch(toy(tmp_path, f"{mirrors.base}/bad", f"{mirrors.base}/good"), store)[0]
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]
    assert mirrors.asked.count("/bad") <= 12  # of which a loop of redirects is ten


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_mirror_alone_is_one_line(tmp_path: Path, store: Store, mirrors: Mirrors, name: str) -> None:
    mirrors.answers["/bad"] = HOSTILE[name]
    target = store.home / "downloads/toy/toy.bin"
    try:
        fetch(toy(tmp_path, f"{mirrors.base}/bad"), store)
        text = ""
    except FedbenchError as error:
        text = str(error)
    if text:
        assert f"cannot download toy.bin ({mirrors.base}/bad: " in text
        assert "\n" not in text
        assert not target.exists()
    else:  # what looked hostile brought the right bytes after all
        assert target.read_bytes() == DATA


def test_a_length_that_is_too_large_does_not_make_a_whole_file_wrong(
    tmp_path: Path, store: Store, mirrors: Mirrors
) -> None:
    mirrors.answers["/bad"] = raw(OK, b"Content-Length: %d\r\n\r\n" % (len(DATA) + 5), DATA)
    name = toy(tmp_path, f"{mirrors.base}/bad", size="")
    assert fetch(name, store)[0].read_bytes() == DATA


def test_a_stream_without_end_is_left_at_the_size_of_the_file(tmp_path: Path, store: Store, mirrors: Mirrors) -> None:
    mirrors.answers["/bad"] = endless()
    largest: list[int] = []
    with pytest.raises(FedbenchError, match=r"it sends more than 300,000 bytes"):
        fetch(toy(tmp_path, f"{mirrors.base}/bad"), store, lambda name, at, total: largest.append(at))
    assert max(largest) <= len(DATA)
    assert list((store.home / "downloads/toy").iterdir()) == []


def test_where_no_size_is_declared_there_is_a_limit_all_the_same(
    tmp_path: Path, store: Store, mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["fedbench.data.download"], "LARGEST", 10**6)
    mirrors.answers["/bad"] = endless()
    mirrors.answers["/boast"] = raw(OK, b"Content-Length: 1000001\r\n\r\n")
    with pytest.raises(FedbenchError) as caught:
        fetch(toy(tmp_path, f"{mirrors.base}/bad", f"{mirrors.base}/boast", size=""), store)
    assert "/bad: it sends more than 1,000,000 bytes; " in caught.value.message
    assert "/boast: it wants to send 1,000,001 bytes, more than 1,000,000" in caught.value.message


def test_bytes_that_drip_do_not_count_as_progress(tmp_path: Path, store: Store, mirrors: Mirrors) -> None:
    mirrors.answers["/bad"] = drip
    with pytest.raises(FedbenchError, match=r"it sent only \d+ bytes in 0 seconds"):
        fetch(toy(tmp_path, f"{mirrors.base}/bad"), store)
    assert mirrors.asked == ["/bad"] * 3


def test_a_connection_that_breaks_after_every_byte_is_given_up(tmp_path: Path, store: Store, mirrors: Mirrors) -> None:
    def answer(to: socket.socket, request: bytes) -> None:
        held = int(request.split(b"bytes=")[1].split(b"-")[0]) if b"bytes=" in request else 0
        head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes %d-%d/%d\r\n" % (held, len(DATA) - 1, len(DATA))
        to.sendall((head if held else OK) + b"Content-Length: %d\r\n\r\n" % (len(DATA) - held) + DATA[held : held + 1])

    mirrors.answers["/bad"] = answer
    with pytest.raises(FedbenchError, match="the connection broke after 3 of 300000 bytes"):
        fetch(toy(tmp_path, f"{mirrors.base}/bad"), store)
    assert mirrors.asked == ["/bad"] * 3


def test_a_folder_where_the_file_should_be(tmp_path: Path, store: Store, mirrors: Mirrors) -> None:
    (store.home / "downloads/toy/toy.bin").mkdir(parents=True)
    with pytest.raises(FedbenchError, match=r"toy\.bin is a folder and should be a file; remove it"):
        fetch(toy(tmp_path, f"{mirrors.base}/good"), store)
    assert mirrors.asked == []


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://127.0.0.1:port/x", "http:///x", "http://a b/x", "http://é..é/"]
)
def test_an_address_that_is_none(tmp_path: Path, store: Store, mirrors: Mirrors, url: str) -> None:
    assert fetch(toy(tmp_path, url, f"{mirrors.base}/good"), store)[0].read_bytes() == DATA
