"""The benches (tests/bench, which is not collected) run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.engines import seconds

pytestmark = pytest.mark.slow


def test_of_engines() -> None:
    assert set(seconds("digits", runs=2, rounds=1, repeats=1, ways=("here", "jobs 2"))) == {"here", "jobs 2"}


def test_of_workers() -> None:
    """It finds the same bits, too."""
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")
    script = Path(__file__).with_name("bench") / "workers.py"
    words = ("--only", "b10,d", "--rounds", "1", "--short")
    result = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all("% of the round" in line for line in lines)
