"""Claims: a folder held by one process, so that any number of processes or machines can share out the work.

A claim is a file (host, machine, pid, token) whose time of change is its heartbeat. Who is dead, or has not beaten for
long, has lost it.
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

#: A claim whose heartbeat is older than this may be taken over.
STALE_SECONDS = 120.0
FILE = "claim.json"


class HeldError(FedbenchError):
    """Somebody else is at it: `who` is the process and its host."""

    def __init__(self, what: str, who: str) -> None:
        super().__init__(f"{what} is being trained by {who}", "wait for it, or stop it first")
        self.who = who


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the folder now (host, pid, age of the heartbeat in seconds), or None."""
    path = folder / FILE
    try:
        claim, age = read_json(path), time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError, FedbenchError):  # claims are written whole: damage is no holder
        return None
    host, pid = claim.get("host", "unknown"), claim.get("pid")
    # A heartbeat from the future is no heartbeat: some clock is wrong, and nobody would wait for it.
    if not isinstance(host, str) or type(pid) is not int or pid < 1 or abs(age) > STALE_SECONDS:
        return None
    gone = claim.get("machine") == machine() and not alive(pid)
    return None if gone else {"host": host, "pid": pid, "age": max(age, 0.0)}


@contextlib.contextmanager
def hold(folder: Path, what: str) -> Iterator[Claim]:
    """Hold the folder (made if need be) for this process. Raises HeldError if somebody else holds it."""
    token = f"{process()}-{time.monotonic_ns()}"
    claim = Claim(folder / FILE, token)
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
        with contextlib.suppress(OSError), alone(folder.parent):  # left behind it is stale at once: we are gone
            if claim.held():
                claim.path.unlink()
            folder.rmdir()  # only if empty: a checkpoint stays


@dataclass(frozen=True)
class Claim:
    """A held run; its heartbeat shows other processes that the holder is alive, however long a round takes."""

    path: Path
    token: str

    def held(self) -> bool:
        """Whether the claim is still ours (a process that slept too long may have lost it)."""
        try:
            return bool(read_json(self.path).get("token") == self.token)
        except (FileNotFoundError, NotADirectoryError, FedbenchError):
            return False

    def beat(self) -> None:
        """Renew the claim. Raises FedbenchError if another process (or a person) has taken it away."""
        if not self.held():
            raise FedbenchError("another process has taken this run over", "let that one finish")
        os.utime(self.path)

    def keep(self, released: threading.Event) -> None:
        """Beat until released or taken over (the body of the heartbeat thread)."""
        while not released.wait(STALE_SECONDS / 4):
            try:
                self.beat()
            except (FedbenchError, OSError):
                return
