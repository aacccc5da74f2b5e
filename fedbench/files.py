"""Files: checksums, atomic JSON, and the operating system's refusals in one clear line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of the user's, whole or not at all. Raises FedbenchError if that cannot be done."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with temporary.open("wb") as f:
                f.write(content)
                f.flush()
                os.fsync(f.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FedbenchError(f"cannot write {path} ({error.strerror})", "choose another -o FILE") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: to a temporary name, flushed, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("w") as f:
            json.dump(value, f, indent=1, sort_keys=True)
            f.flush()
            os.fsync(f.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a damaged file is a FedbenchError that names it."""
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    except ValueError as error:
        raise FedbenchError(f"{path} is damaged ({error})", "delete it and repeat the command that made it") from error
    return value
