"""A server on this machine: what a path answers is written to the socket as it is, whole, cut, wrong or hostile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable

#: Of a connection and the request that came by it.
Answer = Callable[[socket.socket, bytes], None]
OK = b"HTTP/1.1 200 OK\r\n"


def raw(*pieces: bytes) -> Answer:
    """These bytes."""
    return lambda to, request: to.sendall(b"".join(pieces))


def start(request: bytes) -> int:
    """From which byte on it asks for the file."""
    return int(request.split(b"bytes=")[1].split(b"-")[0]) if b"bytes=" in request else 0


def whole(data: bytes, cuts: Iterable[int] = (), ranges: bool = True) -> Answer:
    """A file, or the rest of it that is asked for; the connection breaks after so many bytes, one a request."""
    left = iter(cuts)

    def answer(to: socket.socket, request: bytes) -> None:
        first, n = start(request) if ranges else 0, len(data)
        if first and first >= n:
            to.sendall(b"HTTP/1.1 416 no\r\n\r\n")
            return
        part = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes %d-%d/%d\r\n" % (first, n - 1, n)
        cut = next(left, n)
        to.sendall((part if first else OK) + b"Content-Length: %d\r\n\r\n" % (n - first) + data[first:][:cut])

    return answer


class Server:
    """`answers` by path, 404 elsewhere; `asked` are the requests: their paths, and from which byte on."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, int]] = []
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
                self.asked.append((path, start(request)))
                try:
                    self.answers.get(path, raw(b"HTTP/1.1 404 no\r\n\r\n"))(connection, request)
                except OSError:  # the client has had enough
                    return
