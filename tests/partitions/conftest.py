"""A store of their own for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("FEDBENCH_DATA", raising=False)
    return tmp_path
