"""A server to download from, and what keeps one test's own recipes from the next."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from tests.support.server import Handler, Served, Server


@pytest.fixture(autouse=True)
def _no_user_recipes() -> Iterator[None]:
    from fedbench.data import catalogue

    yield
    catalogue._users.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The address of a server that answers what is put into `served`; downloads do not pause between attempts."""
    import fedbench.data.download  # noqa: F401

    monkeypatch.setattr(sys.modules["fedbench.data.download"], "PAUSE", 0.0)
    served: dict[str, Served] = {}
    handler = type("Bound", (Handler,), {"served": served})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", served
    httpd.shutdown()
    httpd.server_close()
