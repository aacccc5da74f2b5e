"""One interface for folders, zip and tar archives that never unpacks anything to disk.

Members are read into memory, so a malicious archive cannot write to a path. Archives with absolute paths, `..`, links
or devices are still refused, because they are not what the recipe describes. Sizes are limited (see `guard`): of each
member, and for a tar, which is read in one pass, of all selected members in total.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedbench.data.guard import content, fits, reading, regular, whole
from fedbench.errors import FedbenchError

_BROKEN = "is damaged or not a readable archive"
#: File types in the upper bits of a zip member's Unix mode: unset, folder or regular file; symbolic link.
_PLAIN, _LINK = (0x0, 0x4, 0x8), 0xA
_PACKED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x5d\0\0": lzma.open,
}


@dataclass(frozen=True)
class Tree:
    """Regular files in a folder or archive: names (sorted, '/' between levels) and contents."""

    path: Path
    names: tuple[str, ...]
    _known: frozenset[str]
    _read: Callable[[str, int | None], bytes | bytearray]

    def read(self, name: str, limit: int | None = None) -> bytes | bytearray:
        """Read one file. Raises FedbenchError if it is missing, damaged, or larger than `limit` bytes.

        Thread-safe.
        """
        if name not in self._known:
            raise FedbenchError(f"{self.path} has no file {name}")
        return self._read(name, limit)


@contextlib.contextmanager
def open_tree(path: Path, keep: Callable[[str], bool] = lambda name: True) -> Iterator[Tree]:
    """Open a folder, .zip or .tar(.gz, .bz2, .xz); skips files for which `keep(name)` is false.

    Raises FedbenchError for a damaged archive, for members with absolute paths, '..', links or devices, for a folder
    without read permission, and for a selected file whose name is not UTF-8.
    """
    with contextlib.ExitStack() as stack:
        with reading(path, _BROKEN):
            if path.is_dir():
                tree = _folder(path, keep)
            elif zipfile.is_zipfile(regular(path)):
                tree = _zip(path, stack.enter_context(zipfile.ZipFile(path)), keep)
            else:
                tree = _tar(path, keep)
        yield tree


def held(path: Path) -> str:
    """The contents of a folder or archive for an error message: its first files, and the number of others."""
    seen: list[str] = []
    with open_tree(path, lambda name: seen.append(name) is not None):  # appends each name, selects none
        first = ", ".join(sorted(seen)[:3])
    return f"it holds {first}{f' and {len(seen) - 3:,} more' if len(seen) > 3 else ''}" if seen else "it holds no file"


def _tree(path: Path, names: Iterable[str], read: Callable[[str, int | None], bytes | bytearray]) -> Tree:
    unique = frozenset(names)
    for name in unique:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise FedbenchError(f"{path} holds a file whose name is not UTF-8: {name!a}", "rename it") from error
    return Tree(path, tuple(sorted(unique)), unique, read)


def _folder(path: Path, keep: Callable[[str], bool]) -> Tree:
    def refuse(error: OSError) -> None:
        raise error

    def read(name: str, limit: int | None) -> bytes | bytearray:
        with reading(path / name, _BROKEN):
            return content(path / name, limit)

    names = []
    inside = {str(path): {os.path.realpath(path)}}  # folder -> itself and those that it lies in, without links
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        below, around = Path(folder).relative_to(path), inside.pop(folder)
        for name in [*folders]:
            real = os.path.realpath(os.path.join(folder, name))
            if real in around:  # a link to a folder in which it lies would never end
                folders.remove(name)
            else:
                inside[os.path.join(folder, name)] = around | {real}
        paths = [(below / file).as_posix() for file in files if not file.startswith(".")]
        names += [name for name in paths if keep(name) and (path / name).is_file()]
    return _tree(path, names, read)


def _zip(path: Path, archive: zipfile.ZipFile, keep: Callable[[str], bool]) -> Tree:
    def read(name: str, limit: int | None) -> bytes | bytearray:
        with reading(path, _BROKEN):
            info = archive.getinfo(name)
            fits(info.file_size, f"{path} ({name})")
            # zipfile limits the unpacked size of a read only for these two methods; for others read smaller blocks.
            block = 1 << 16 if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 1 << 12
            with archive.open(info) as stream:
                return whole(stream, f"{path} ({name})", limit, block)

    for info in archive.infolist():
        kind = info.external_attr >> 28
        _safe(path, info.filename, kind == _LINK, kind not in (*_PLAIN, _LINK))
    return _tree(path, (i.filename for i in archive.infolist() if not i.is_dir() and keep(i.filename)), read)


def _tar(path: Path, keep: Callable[[str], bool]) -> Tree:
    # One pass in the archive's order, because a compressed tar allows no random access.
    contents: dict[str, bytearray] = {}
    size, at = 0, -1
    with path.open("rb") as raw:
        head = raw.read(6)
    unpack = next((unpack for magic, unpack in _PACKED.items() if head.startswith(magic)), open)
    with unpack(path, "rb") as stream, tarfile.open(fileobj=_Steps(stream), mode="r:", encoding="utf-8") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # otherwise it holds every header in memory
            if member.size < 0 or member.offset <= at:
                raise tarfile.ReadError(f"the size of its member {member.name!a} is wrong")
            at = member.offset
            _safe(path, member.name, member.issym() or member.islnk(), member.isdev())
            if member.isreg() and keep(member.name):
                size += member.size
                fits(size, f"{path} ({member.name})")
                content = archive.extractfile(member)
                contents[member.name] = whole(content, path) if content else bytearray()
        # Read the stream to its end, because tarfile does not notice if it is truncated after a member.
        while stream.read(_Steps.LONGEST):
            pass

    def read(name: str, limit: int | None) -> bytes | bytearray:
        return contents[name]

    return _tree(path, contents, read)


class _Steps:
    """A stream that refuses reads of more than 1 MiB; tarfile needs more only for the header of a malicious archive."""

    LONGEST = 1 << 20

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self.LONGEST:
            raise tarfile.ReadError(f"a header says that it is {count} bytes long")
        return self.stream.read(count)


def _safe(path: Path, name: str, link: bool, device: bool) -> None:
    pure = PurePosixPath(name.replace("\\", "/"))
    outside = pure.is_absolute() or ".." in pure.parts or (pure.parts and pure.parts[0].endswith(":"))
    if link or device or outside:
        what = "a link" if link else "a device or pipe" if device else "a path that leads outside"
        raise FedbenchError(
            f"{path} is not a safe archive: its member '{name}' is {what}", "get it from its official source"
        )
