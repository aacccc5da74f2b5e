"""A user at the command line: an own store for every test, and a prepared one to go on from or to damage."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_user import SMOKE, good


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No data folder, no terminal's width; and the process's signals as they were."""
    for name in ("FEDBENCH_DATA", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's store, empty."""
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "store"
    good("partition", "digits", "--dir", "0.3", "--home", folder)
    good("train", "--method", "fedavg", *SMOKE, "--home", folder)
    return folder


@pytest.fixture
def ready(_prepared: Path, home: Path) -> Path:
    """The user's store after `partition digits --dir 0.3` and `train --method fedavg --budget smoke`."""
    shutil.copytree(_prepared, home)
    return home
