"""Waiting for another process, which is as slow as the machine is busy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedbench.store import CHECKPOINT
from fedbench.store.folder import PROGRESS

T = TypeVar("T")


def until(ready: Callable[[], T], child: subprocess.Popen[str] | None = None, seconds: float = 300.0) -> T:
    """What `ready` returns, once it is true; asked a hundred times a second. The test fails when the time is over, and
    with what the child printed if that has ended before."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert child is None or child.poll() is None, child.communicate()
        assert time.monotonic() < end, f"nothing within {seconds:.0f} s"
        time.sleep(0.01)
    return found


def rounds_under_way(home: Path) -> list[int]:
    """The round that each run at work in a store has last noted."""
    return _rounds(home, PROGRESS)


def rounds_saved(home: Path) -> list[int]:
    """The round from which each run at work or interrupted in a store would go on."""
    return _rounds(home, CHECKPOINT)


def _rounds(home: Path, file: str) -> list[int]:
    return [json.loads(path.read_text())["round"] for path in home.glob(f"work/*/{file}")]
