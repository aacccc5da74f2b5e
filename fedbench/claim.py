"""Claims: a folder held by one process, so that any number of processes or machines can share out the work.

A claim is a file (host, pid, token) whose time of change is its heartbeat. Who is dead, or has not beaten for long,
has lost it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, read_json, write_json

#: A claim whose heartbeat is older than this may be taken over.
STALE_SECONDS = 120.0
FILE = "claim.json"


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the folder now (host, pid, age of the heartbeat in seconds), or None."""
    path = folder / FILE
    try:
        claim, age = read_json(path), time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError, FedbenchError):  # claims are written whole: damage is no holder
        return None
    gone = claim.get("host") == socket.gethostname() and not _alive(claim.get("pid", 0))
    return None if gone or age > STALE_SECONDS else {"host": "unknown", "pid": 0, **claim, "age": age}


@contextlib.contextmanager
def hold(folder: Path, what: str) -> Iterator[Claim]:
    """Hold the folder (made if need be) for this process. Raises FedbenchError if somebody else holds it."""
    token = time.monotonic_ns()
    claim = Claim(folder / FILE, token)
    with disk_errors(f"claiming {what}", folder.parent), _alone(folder.parent):
        other = holder(folder)
        if other is not None:
            raise FedbenchError(
                f"{what} is being trained by process {other['pid']} on {other['host']}",
                "wait for it, or stop it first",
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(claim.path, {"host": socket.gethostname(), "pid": os.getpid(), "token": token})
    released = threading.Event()
    heartbeat = threading.Thread(target=claim.keep, args=(released,), daemon=True, name="heartbeat")
    heartbeat.start()
    try:
        yield claim
    finally:
        released.set()
        heartbeat.join()
        with contextlib.suppress(OSError), _alone(folder.parent):  # left behind it is stale at once: we are gone
            if claim.held():
                claim.path.unlink()
            folder.rmdir()  # only if empty: a checkpoint stays


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time looks at claims and changes them; the system frees the lock of a dead one."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Claim:
    """A held run; its heartbeat shows other processes that the holder is alive, however long a round takes."""

    path: Path
    token: int

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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
