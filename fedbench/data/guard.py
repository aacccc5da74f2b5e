"""Reading files that may be anything: regular ones, no more than memory has room for, one clear line for the rest.

The bound is `LIMIT`, half of this machine's memory (or of the process's limit, if that is lower), for whatever one file
unpacks to: a data set lies in memory whole, and making it takes about twice its size.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.machine import memory

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile

#: Most bytes of one encoded image.
IMAGE = 256 << 20
_BLOCK = 1 << 16
#: An error's text is cut to so many characters: a library may quote the file.
_LONGEST = 300

#: Most bytes that one file, or all wanted members of a tar, may unpack to.
LIMIT = memory() // 2


def explained(error: Exception, what: object, wrong: str) -> FedbenchError:
    """What any exception over the content of a file means to the user; `wrong` is said of `what`: 'is no PNG file'."""
    if isinstance(error, FedbenchError):
        return error
    if isinstance(error, MemoryError):
        return FedbenchError(f"there is not enough memory for {what}", "use a machine with more")
    if isinstance(error, OSError) and error.errno is not None:
        return FedbenchError(f"cannot read {what} ({error.strerror})", "check that it is there and may be read")
    said = re.sub(r" ?<[^<>]* at 0x[0-9a-fA-F]+>", "", str(error))  # an object in memory, which names no file
    reason = " ".join(said.split())[:_LONGEST] or type(error).__name__
    return FedbenchError(f"{what} {wrong} ({reason})", "get the file again")


@contextlib.contextmanager
def reading(what: object, wrong: str) -> Iterator[None]:
    """Turn whatever a library raises over the content of a file into one clear line, see `explained`.

    Of a damaged file a library raises whatever its parsing stumbles over, so this takes every exception: put it around
    calls of libraries, not around code of our own.
    """
    try:
        yield
    except FedbenchError:
        raise
    except Exception as error:
        raise explained(error, what, wrong) from error


@contextlib.contextmanager
def readable(what: object) -> Iterator[None]:
    """Turn the operating system's refusal to read, and too little memory, into one clear line that names `what`."""
    try:
        yield
    except OSError as error:
        raise FedbenchError(f"cannot read {what} ({error})", "check that it is there and may be read") from error
    except MemoryError as error:
        raise explained(error, what, "") from error


def regular(path: Path) -> Path:
    """The path itself, if it is a regular file's. A folder, or a pipe or device, which may never end, is refused."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise FedbenchError(f"{path} is {kind} and should be a file", "put the file there")
    return path


def fits(size: int, what: object) -> None:
    """Raise FedbenchError if `size` bytes are more than may be taken into memory."""
    if size > LIMIT:
        raise FedbenchError(
            f"{what} would take {size / 2**30:,.1f} GiB of memory, and {LIMIT / 2**30:,.1f} GiB is the most here "
            "(half of what there is)",
            "use a machine with more memory, or get the file again",
        )


@contextlib.contextmanager
def npz(path: Path) -> Iterator[NpzFile]:
    """A NumPy archive, whose arrays are read when they are asked for; together they fit into memory, and none may hold
    objects, which could run any program. Raises FedbenchError for a file that is damaged or no archive."""
    import numpy as np

    with reading(path, "is damaged or not an npz file"), np.load(regular(path), allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            raise FedbenchError(f"{path} is not an npz file")
        fits(sum(info.file_size for info in arrays.zip.infolist()), path)
        yield arrays


def at_most(stream: IO[bytes], count: int, block: int = _BLOCK) -> bytearray:
    """The next `count` bytes, fewer if the stream ends before. Takes memory only for what the stream really gives."""
    data = bytearray()
    while len(data) < count and (piece := stream.read(min(block, count - len(data)))):
        data += piece
    return data


def whole(stream: IO[bytes], what: object, limit: int | None = None, block: int = _BLOCK) -> bytearray:
    """A stream to its end. Raises FedbenchError naming `what` if that is more than `limit` bytes (default: LIMIT)."""
    most = LIMIT if limit is None else limit
    data = at_most(stream, most + 1, block)
    if len(data) > most:
        raise FedbenchError(f"{what} holds more than {most / 2**20:,.1f} MiB, the most that is read", "get it again")
    return data


def content(path: Path, limit: int | None = None) -> bytearray:
    """A regular file's content, see `whole`."""
    with regular(path).open("rb") as f:
        return whole(f, path, limit)
