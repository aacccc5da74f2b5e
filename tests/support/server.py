"""A server on this machine that answers as it is told to: whole, cut, missing or wrong files."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


@dataclass
class Served:
    """What a path answers, and what it was asked."""

    data: bytes = b""
    status: int = 200
    cuts: list[int] = field(default_factory=list)  #: break off after so many bytes, one a request
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)  #: the Range header of each request


class Handler(BaseHTTPRequestHandler):
    served: dict[str, Served]

    def do_GET(self) -> None:
        entry = self.served.get(self.path) or Served(status=404)
        wanted = self.headers.get("Range")
        entry.asked.append(wanted)
        if entry.status != 200:
            self.send_error(entry.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and entry.ranges else 0
        if start and start >= len(entry.data):
            self.send_error(416)
            return
        body = entry.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(entry.data) - 1}/{len(entry.data)}")
        self.end_headers()
        self.wfile.write(body[: entry.cuts.pop(0)] if entry.cuts else body)

    def log_message(self, *args: object) -> None:
        pass


#: Its address, and what its paths answer.
Server = tuple[str, dict[str, Served]]
