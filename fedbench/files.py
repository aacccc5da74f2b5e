"""Files: checksums, atomic JSON with checksums, and the operating system's errors as one clear line."""

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
    """Turn the operating system's write errors into FedbenchError, one clear line."""
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
    """Write a user's file atomically. Raises FedbenchError if that fails.

    Devices and pipes, such as /dev/stdout, are written to, not replaced.
    """
    try:
        if path.exists() and not path.is_file():
            _write_into(path, content)
        else:
            _replace(path, content)
    except OSError as error:
        raise FedbenchError(f"cannot write {path} ({error.strerror})", remedy) from error


def _write_into(path: Path, content: bytes) -> None:
    """Write to a device or a pipe. Raises OSError for a folder, and for a pipe without a reader."""
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
    """Delete a file, or a folder with its contents; for a symbolic link only the link."""
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
    """Read a JSON object. Raises FedbenchError for a damaged or unreadable file, FileNotFoundError if it is missing."""
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


#: Key of a JSON object's checksum.
SEAL = "sha256"


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a checksum of its other keys, which reveals any edit."""
    return {**value, SEAL: digest(value)}


def intact(value: Mapping[str, Any]) -> bool:
    """Whether the object matches its checksum. True without one: an older fedbench wrote none."""
    rest = {k: v for k, v in value.items() if k != SEAL}
    return SEAL not in value or value[SEAL] == digest(rest)


# -- temporary names: hidden siblings that name their process ----------------------------------------------------------

#: A temporary file of another machine counts as abandoned after this time without a change.
ABANDONED_SECONDS = 24 * 3600.0
_numbers = itertools.count()


@cache
def machine() -> str:
    """Where process ids are comparable: eight hexadecimal digits of a hash of host, boot and process namespace.

    Two containers may have the same host name, and process ids are reused after a boot.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def process() -> str:
    """An identifier of this process, unique across machines."""
    return f"{machine()}-{os.getpid()}"


def alive(pid: int) -> bool:
    """Whether this machine has a process with this id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def scratch(path: Path, use: str = "part") -> Path:
    """A hidden, unique path in the folder of `path`."""
    return path.with_name(f".{path.name[:200]}.{use}-{process()}-{next(_numbers)}")


_SCRATCH = re.compile(r"\.(?P<name>.+)\.(?P<use>[a-z]+)-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-\d+")


def scratched(path: Path, use: str = "part") -> str | None:
    """The name for which a scratch path of this use was made (see `scratch`), or None if it is no such path."""
    match = _SCRATCH.fullmatch(path.name)
    return match["name"] if match and match["use"] == use else None


def abandoned(path: Path) -> bool:
    """Whether this is a scratch path whose process is dead, or which another machine has not changed for long."""
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
    """A lock on a folder (created if missing) for one process at a time; the system frees the lock of a dead process.

    Others wait; with `busy` they raise FedbenchError with that text instead.
    """
    from filelock import FileLock, Timeout  # slow to import, and reading needs no lock

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
