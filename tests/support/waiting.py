"""Waiting for another process, which is as slow as the machine is busy."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

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
