"""Safe reading of arbitrary files: only regular files, limits on memory, and one-line error messages.

`LIMIT` bounds the unpacked size of one file to half of this machine's memory (or of the process's limit, if lower): a
data set is in memory as a whole, and building it takes about twice its size.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.machine import memory

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray

#: Maximum bytes of one encoded image.
IMAGE = 256 << 20
_BLOCK = 1 << 16
#: Maximum characters of an error's text, because a library may quote the file.
_LONGEST = 300

#: Maximum bytes that one file, or all selected members of a tar, may unpack to.
LIMIT = memory() // 2


def explained(error: Exception, what: object, wrong: str) -> FedbenchError:
    """The error message for an exception while reading `what`; `wrong` is a predicate such as 'is no PNG file'."""
    if isinstance(error, FedbenchError):
        return error
    if isinstance(error, MemoryError):
        return FedbenchError(f"there is not enough memory for {what}", "use a machine with more")
    if isinstance(error, OSError) and error.errno is not None:
        return FedbenchError(f"cannot read {what} ({error.strerror})", "check that it is there and may be read")
    said = re.sub(r" ?<[^<>]* at 0x[0-9a-fA-F]+>", "", str(error))  # drop the repr of an object in memory
    reason = " ".join(said.split())[:_LONGEST] or type(error).__name__
    return FedbenchError(f"{what} {wrong} ({reason})", "get the file again")


@contextlib.contextmanager
def reading(what: object, wrong: str) -> Iterator[None]:
    """Convert every exception of a library that reads a file to one FedbenchError, see `explained`.

    Damaged files can raise any exception in a library's parser, so this catches all of them; use it around calls of
    libraries, not around fedbench's code.
    """
    try:
        yield
    except FedbenchError:
        raise
    except Exception as error:
        raise explained(error, what, wrong) from error


@contextlib.contextmanager
def readable(what: object) -> Iterator[None]:
    """Convert the operating system's read errors, and lack of memory, to one FedbenchError that names `what`."""
    try:
        yield
    except OSError as error:
        raise FedbenchError(f"cannot read {what} ({error})", "check that it is there and may be read") from error
    except MemoryError as error:
        raise explained(error, what, "") from error


def regular(path: Path) -> Path:
    """The path, if it is a regular file. Refuses folders, and pipes and devices, which may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise FedbenchError(f"{path} is {kind} and should be a file", "put the file there")
    return path


def fits(size: int, what: object) -> None:
    """Raise FedbenchError if `size` bytes are more than LIMIT."""
    if size > LIMIT:
        raise FedbenchError(
            f"{what} would take {size / 2**30:,.1f} GiB of memory, and the limit here is {LIMIT / 2**30:,.1f} GiB "
            "(half of the memory)",
            "use a machine with more memory, or get the file again",
        )


@contextlib.contextmanager
def npz(path: Path) -> Iterator[Arrays]:
    """Open a NumPy archive that loads arrays on access. Raises FedbenchError for a damaged file, for arrays that do not
    fit into memory, and on access to an array of objects (pickles), which could run any code."""
    import numpy as np

    with reading(path, "is damaged or not an npz file"), np.load(regular(path), allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            raise FedbenchError(f"{path} is not an npz file")
        fits(sum(info.file_size for info in arrays.zip.infolist()), path)
        try:
            yield Arrays(path, arrays)
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise FedbenchError(
                f"{path} holds an array of Python objects, which could run any program and is not read",
                "save it as numbers or text: values.astype(float), or .astype(str) for names",
            ) from error


class Arrays:
    """The arrays of a NumPy archive, which may hold other files, too."""

    def __init__(self, path: Path, archive: NpzFile) -> None:
        self.path, self.archive = path, archive

    @property
    def files(self) -> list[str]:
        return list(self.archive.files)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Raises FedbenchError for a member that is no array, which NumPy gives as bytes."""
        import numpy as np

        one = self.archive[name]
        if not isinstance(one, np.ndarray):
            raise FedbenchError(f"{self.path}: {name} is no array", "np.savez writes arrays")
        return one


def at_most(stream: IO[bytes], count: int, block: int = _BLOCK) -> bytearray:
    """Read `count` bytes, or fewer if the stream ends. Memory grows with the bytes actually read."""
    data = bytearray()
    while len(data) < count and (piece := stream.read(min(block, count - len(data)))):
        data += piece
    return data


def whole(stream: IO[bytes], what: object, limit: int | None = None, block: int = _BLOCK) -> bytearray:
    """Read a stream to its end. Raises FedbenchError, with `what`, for more than `limit` bytes (default: LIMIT)."""
    most = LIMIT if limit is None else limit
    data = at_most(stream, most + 1, block)
    if len(data) > most:
        raise FedbenchError(f"{what} holds more than {most / 2**20:,.1f} MiB, the most that is read", "get it again")
    return data


def content(path: Path, limit: int | None = None) -> bytearray:
    """Read a regular file, see `whole`."""
    with regular(path).open("rb") as f:
        return whole(f, path, limit)
