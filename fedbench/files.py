"""File utilities: checksums, atomic writes, JSON with checksums, and one-line errors of the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import sys
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
def disk_errors(doing: str, where: Path, choice: str = "--home") -> Iterator[None]:
    """Context that turns the operating system's write errors into one-line FedbenchErrors. `choice`: what the user can
    choose instead."""
    try:
        yield
    except OSError as error:
        text = str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
            raise FedbenchError(
                f"no space left while {doing} in {where}; nothing incomplete was kept",
                f"free some space or choose another {choice}",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise FedbenchError(
                f"cannot write in {where} while {doing} ({error.strerror})",
                f"choose a writable {choice}" + (" or set FEDBENCH_HOME" if choice == "--home" else ""),
            ) from error
        raise


def write_whole(path: Path, content: bytes, remedy: str = "choose another -o FILE") -> None:
    """Write a user's file atomically. Raises FedbenchError if that fails.

    A device or a pipe is not replaced, nor is the file that standard output goes to (/dev/stdout): the content is
    written to it.
    """
    try:
        if path.exists() and not path.is_file():
            _write_into(path, content)
        elif _is_output(path):
            sys.stdout.flush()
            with open(os.dup(1), "wb") as f:
                f.write(content)
        else:
            _replace(path, content)
    except OSError as error:
        if not path.parent.exists():
            remedy = f"make the folder {path.parent} first"
        raise FedbenchError(f"cannot write {path} ({error.strerror})", remedy) from error


def _write_into(path: Path, content: bytes) -> None:
    """Write to a device or a pipe. Raises OSError for a folder or a pipe without a reader."""
    into = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(into, True)
    with open(into, "wb") as f:
        f.write(content)


def _is_output(path: Path) -> bool:
    """Whether standard output goes to this file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(1), path.stat())
    return False


@contextlib.contextmanager
def whole_folder(folder: Path, doing: str, choice: str = "--home") -> Iterator[Path]:
    """Context that writes a folder atomically. It yields a hidden temporary folder to fill. If the block succeeds, that
    is renamed to `folder`, which may exist if it is empty; otherwise it is deleted, as are those that killed processes
    left of this folder. Raises FedbenchError like `disk_errors`."""
    part = scratch(folder.absolute())
    with disk_errors(doing, part.parent, choice):
        for left in part.parent.glob(".*"):
            if scratched(left) == folder.name and abandoned(left):
                erase(left)
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
    """Write JSON atomically: to a temporary file, which is flushed to disk and then renamed."""
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


def json_at_hand(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty if it is missing, damaged or not readable."""
    try:
        return read_json(path)
    except (FedbenchError, OSError):
        return {}


#: Key of the checksum in a JSON object.
SEAL = "sha256"


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a checksum of its other keys added, which detects edits."""
    return {**value, SEAL: digest(value)}


def intact(value: Mapping[str, Any]) -> bool:
    """Whether the object matches its checksum. True without a checksum, because older versions wrote none."""
    rest = {k: v for k, v in value.items() if k != SEAL}
    return SEAL not in value or value[SEAL] == digest(rest)


#: Seconds without a change after which a temporary file of another machine counts as abandoned.
ABANDONED_SECONDS = 24 * 3600.0
_numbers = itertools.count()


@cache
def machine() -> str:
    """An id of the machine: eight hexadecimal digits of a hash of host, boot and process namespace.

    Process ids are unique only within it: containers may have equal host names, and ids are reused after a reboot.
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
    """Whether a process with this id exists on this machine."""
    if sys.platform == "win32":  # where os.kill would end it
        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
        return bool(handle and kernel.CloseHandle(handle))
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
    """The file name that a path from `scratch` was made for; None for other paths and other uses."""
    match = _SCRATCH.fullmatch(path.name)
    return match["name"] if match and match["use"] == use else None


def abandoned(path: Path) -> bool:
    """Whether a path is from `scratch` and its process is dead or, on another machine, has not changed it for long."""
    match = _SCRATCH.fullmatch(path.name)
    if not match:
        return False
    if match["machine"] == machine():
        return not alive(int(match["pid"]))
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
    return False


@contextlib.contextmanager
def alone(folder: Path, busy: str | None = None, file: str = "") -> Iterator[None]:
    """Lock a folder (created if missing), or a file in it, for one process at a time; the system releases the lock of a
    dead process.

    Other processes wait, or, if `busy` is given, raise FedbenchError with that text. The lock is a hidden file:
    `.lock`, which stays, or beside a user's file `.FILE.lock`, which is deleted in the end.
    """
    from filelock import FileLock, Timeout  # slow to import, and reading needs no lock

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f".{file}.lock" if file else ".lock")
    lock = FileLock(path, timeout=-1 if busy is None else 0)
    try:
        lock.acquire(poll_interval=0.01)
    except Timeout as error:
        raise FedbenchError(busy or str(error), "wait for it and repeat") from error
    try:
        yield
    finally:
        if file:  # while it is held: who waits for a deleted file tries again (filelock 3.24)
            with contextlib.suppress(OSError):
                path.unlink()
        lock.release()
