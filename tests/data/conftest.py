"""A server to download from, and what keeps one test's own recipes from the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import fedbench.data.fetch  # noqa: F401
from tests.support.server import Server


@pytest.fixture(autouse=True)
def _no_user_recipes() -> Iterator[None]:
    from fedbench.data import catalogue

    yield
    catalogue._users.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Downloads do not pause between attempts."""
    monkeypatch.setattr(sys.modules["fedbench.data.fetch"], "PAUSE", 0.0)
    made = Server()
    yield made
    made.listener.close()
