"""Files: checksums, atomic and sealed JSON, and the operating system's refusals in one clear line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one clear line."""
    try:
        yield
    except OSError as error:
        text = str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
            raise FedbenchError(
                f"no space left while {doing} in {where}; nothing incomplete was kept",
                "free some space or choose another --home",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise FedbenchError(
                f"cannot write in {where} while {doing} ({error.strerror})",
                "choose a writable --home or set FEDBENCH_HOME",
            ) from error
        raise


def write_whole(path: Path, content: bytes, remedy: str = "choose another -o FILE") -> None:
    """Write a file of the user's, whole or not at all. Raises FedbenchError if that cannot be done.

    What is no file, such as /dev/stdout or a pipe, is written into and not replaced.
    """
    try:
        if path.exists() and not path.is_file():
            _write_into(path, content)
        else:
            _replace(path, content)
    except OSError as error:
        raise FedbenchError(f"cannot write {path} ({error.strerror})", remedy) from error


def _write_into(path: Path, content: bytes) -> None:
    """Write into a device or a pipe. Raises OSError for a folder, and for a pipe that nobody reads."""
    into = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(into, True)
    with open(into, "wb") as f:
        f.write(content)


@contextlib.contextmanager
def whole_folder(folder: Path, doing: str) -> Iterator[Path]:
    """Write a folder, whole or not at all: a hidden one beside it, to be filled in the block, takes its place (which
    may be an empty folder's) where the block ends well, and is gone where it does not. Raises FedbenchError as
    `disk_errors`."""
    part = scratch(folder.absolute())
    with disk_errors(doing, part.parent):
        part.mkdir(parents=True)
        try:
            yield part
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def erase(path: Path) -> None:
    """Delete a file, or a folder with all that is in it; of a symbolic link the link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: to a temporary name, flushed, then renamed."""
    _replace(path, json.dumps(value, indent=1, sort_keys=True).encode())


def _replace(path: Path, content: bytes) -> None:
    temporary = scratch(path)
    try:
        with temporary.open("wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. A damaged or unreadable file is a FedbenchError that names it; an absent one stays
    FileNotFoundError."""
    remedy = "delete it and repeat the command that made it"
    try:
        value = json.loads(path.read_bytes().decode())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise FedbenchError(f"{path} is damaged ({error})", remedy) from error
    except (PermissionError, IsADirectoryError) as error:
        raise FedbenchError(f"cannot read {path} ({error.strerror})", "see who owns it, and what it is") from error
    return value


#: The key of a JSON object under which its seal stands.
SEAL = "sha256"


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a checksum of all the rest in it, so that no edit goes unnoticed."""
    return {**value, SEAL: digest(value)}


def intact(value: Mapping[str, Any]) -> bool:
    """Whether a sealed object is as it was sealed. An older fedbench wrote none: without a seal it counts as such."""
    rest = {k: v for k, v in value.items() if k != SEAL}
    return SEAL not in value or value[SEAL] == digest(rest)


# -- temporary names: hidden siblings that tell which process they belong to -------------------------------------------

#: What no living process of this machine can be asked about counts as left behind after so many seconds.
ABANDONED_SECONDS = 24 * 3600.0
_numbers = itertools.count()


@cache
def machine() -> str:
    """Where process ids mean what they mean here: eight digits of host, boot and process namespace.

    Two containers may bear one host name, and ids begin anew after a boot.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def process() -> str:
    """This process, told from all others."""
    return f"{machine()}-{os.getpid()}"


def alive(pid: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def scratch(path: Path, use: str = "part") -> Path:
    """A hidden name beside `path` that nobody else uses."""
    return path.with_name(f".{path.name[:200]}.{use}-{process()}-{next(_numbers)}")


_SCRATCH = re.compile(r"\.(?P<name>.+)\.(?P<use>[a-z]+)-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-\d+")


def scratched(path: Path, use: str = "part") -> str | None:
    """The name of the sibling that a scratch name of that use stands for, or None if it is no such name."""
    match = _SCRATCH.fullmatch(path.name)
    return match["name"] if match and match["use"] == use else None


def abandoned(path: Path) -> bool:
    """Whether this is a scratch name whose process is gone: dead here, or of another machine and untouched for long."""
    match = _SCRATCH.fullmatch(path.name)
    if not match:
        return False
    if match["machine"] == machine():
        return not alive(int(match["pid"]))
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
    return False


@contextlib.contextmanager
def alone(folder: Path, busy: str | None = None) -> Iterator[None]:
    """One process at a time in this folder (made if need be); the system frees the lock of a dead one.

    Others wait; with `busy` they raise FedbenchError of that text instead.
    """
    from filelock import FileLock, Timeout  # slow to load, and what only reads takes no lock

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=-1 if busy is None else 0)
    try:
        lock.acquire(poll_interval=0.01)
    except Timeout as error:
        raise FedbenchError(busy or str(error), "wait for it and repeat") from error
    try:
        yield
    finally:
        lock.release()
