"""A store of their own for the tests of the command line, and data sets that need no files."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedbench import data
from fedbench.store import Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("FEDBENCH_DATA", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> data.Dataset:
    return data.load("digits", Store(tmp_path_factory.mktemp("digits")))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[data.Dataset], data.Dataset]:
    """Makes a data set the one that every partition is built of."""

    def these(of: data.Dataset) -> data.Dataset:
        stored = SimpleNamespace(digest="", provenance={})
        monkeypatch.setattr(import_module("fedbench.data.build"), "obtain", lambda *given: stored)
        monkeypatch.setattr("fedbench.data.dataset.from_artifact", lambda artifact: of)
        return of

    return these
