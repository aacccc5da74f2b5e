"""The bench of the executor `workers` runs, and finds the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_it_runs() -> None:
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")
    script = Path(__file__).with_name("workers.py")
    words = ("--only", "b10,d", "--rounds", "1", "--short")
    said = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == 2
    assert all("% of the round" in line for line in lines)
