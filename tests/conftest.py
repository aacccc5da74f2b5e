"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedbench.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    given = os.environ.get("FEDBENCH_DATA", "")
    folder = Path(given.split(os.pathsep)[0]).expanduser() if given else None
    if folder is None or not folder.is_dir():
        pytest.skip("needs real images: set FEDBENCH_DATA to the folder that holds them")
    return folder
