"""Claims: one process holds a folder, so that any number of processes or machines can share the work.

A claim is a file (host, machine, pid, token); its modification time is the heartbeat. A process that is dead, or whose
heartbeat is too old, has lost its claim.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import alive, alone, disk_errors, machine, process, read_json, write_json

#: Another process may take over a claim with an older heartbeat.
STALE_SECONDS = 120.0
FILE = "claim.json"


class HeldError(FedbenchError):
    """Another process holds the folder: `who` is the process and its host."""

    def __init__(self, what: str, who: str) -> None:
        super().__init__(f"{what} is being trained by {who}", "wait for it, or stop it first")
        self.who = who


def holder(folder: Path) -> dict[str, Any] | None:
    """The process that holds the folder (host, pid, age of the heartbeat in seconds), or None."""
    path = folder / FILE
    try:
        claim, age = read_json(path), time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError, FedbenchError):  # claims are written atomically
        return None
    host, pid = claim.get("host", "unknown"), claim.get("pid")
    # A heartbeat in the future does not count: a clock is wrong, and nobody could wait for it to grow old.
    if not isinstance(host, str) or type(pid) is not int or pid < 1 or abs(age) > STALE_SECONDS:
        return None
    gone = claim.get("machine") == machine() and not alive(pid)
    return None if gone else {"host": host, "pid": pid, "age": max(age, 0.0)}


@contextlib.contextmanager
def hold(folder: Path, what: str) -> Iterator[Hold]:
    """Hold the folder (created if missing) for this process. Raises HeldError if another process holds it."""
    token = f"{process()}-{time.monotonic_ns()}"
    claim = Hold(folder / FILE, token)
    with disk_errors(f"claiming {what}", folder.parent), alone(folder.parent):
        other = holder(folder)
        if other is not None:
            raise HeldError(what, f"process {other['pid']} on {other['host']}")
        folder.mkdir(parents=True, exist_ok=True)
        me = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "token": token}
        write_json(claim.path, me)
    released = threading.Event()
    heartbeat = threading.Thread(target=claim.keep, args=(released,), daemon=True, name="heartbeat")
    heartbeat.start()
    try:
        yield claim
    finally:
        released.set()
        heartbeat.join()
        with (
            contextlib.suppress(OSError),
            alone(folder.parent),
        ):  # a claim left behind counts as stale: its process is gone
            if claim.held():
                claim.path.unlink()
            folder.rmdir()  # only if empty: a checkpoint stays


@dataclass(frozen=True)
class Hold:
    """A claim of this process; its heartbeat shows other processes that it is alive, however long a round takes."""

    path: Path
    token: str

    def held(self) -> bool:
        """Whether this process still holds the claim (one that slept too long may have lost it)."""
        try:
            return bool(read_json(self.path).get("token") == self.token)
        except (FileNotFoundError, NotADirectoryError, FedbenchError):
            return False

    def beat(self) -> None:
        """Renew the heartbeat. Raises FedbenchError if the claim is lost."""
        if not self.held():
            raise FedbenchError("another process has taken this run over", "let that one finish")
        os.utime(self.path)

    def keep(self, released: threading.Event) -> None:
        """Beat until the claim is released or lost (the body of the heartbeat thread)."""
        while not released.wait(STALE_SECONDS / 4):
            try:
                self.beat()
            except (FedbenchError, OSError):
                return
