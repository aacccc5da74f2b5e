"""Folders, zip and tar archives read alike, and safely: nothing of an archive is ever unpacked on disk.

Members are read into memory, so a hostile archive has no path to write to. One that holds absolute paths, `..`, links
or devices is refused all the same: it is not the archive its recipe means. What is read is bounded (see `guard`): a
member as such, and of a tar, which is read in one pass, all wanted members together.
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
#: File types in the upper bits of a zip member's Unix mode: none told, a folder, a regular file; and a symbolic link.
_PLAIN, _LINK = (0x0, 0x4, 0x8), 0xA
_PACKED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"\x5d\0\0": lzma.open
}  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """Regular files below a folder or inside an archive: their names ('/' between levels, sorted) and contents."""

    path: Path
    names: tuple[str, ...]
    _known: frozenset[str]
    _read: Callable[[str, int | None], bytes | bytearray]

    def read(self, name: str, limit: int | None = None) -> bytes | bytearray:
        """Content of one file. Raises FedbenchError if it is not there, damaged, or of more than `limit` bytes.

        May be called by many threads.
        """
        if name not in self._known:
            raise FedbenchError(f"{self.path} has no file {name}")
        return self._read(name, limit)


@contextlib.contextmanager
def open_tree(path: Path, keep: Callable[[str], bool] = lambda name: True) -> Iterator[Tree]:
    """Open a folder, .zip or .tar(.gz, .bz2, .xz); files for which `keep(name)` is false are left out.

    Raises FedbenchError for a damaged archive, for one with absolute paths, '..', links or devices, for a folder that
    may not be read, and for a file to be kept whose name is not UTF-8.
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
    """What lies in a folder or an archive, for an error: its first files, and how many more there are."""
    seen: list[str] = []
    with open_tree(path, lambda name: seen.append(name) is not None):  # seen, not read
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
    for folder, _, files in os.walk(path, onerror=refuse):
        below = Path(folder).relative_to(path)
        paths = [(below / file).as_posix() for file in files if not file.startswith(".")]
        names += [name for name in paths if keep(name) and (path / name).is_file()]
    return _tree(path, names, read)


def _zip(path: Path, archive: zipfile.ZipFile, keep: Callable[[str], bool]) -> Tree:
    def read(name: str, limit: int | None) -> bytes | bytearray:
        with reading(path, _BROKEN):
            info = archive.getinfo(name)
            fits(info.file_size, f"{path} ({name})")
            # Of these two methods alone zipfile unpacks no more at a time than is wanted of it.
            block = 1 << 16 if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 1 << 12
            with archive.open(info) as stream:
                return whole(stream, f"{path} ({name})", limit, block)

    for info in archive.infolist():
        kind = info.external_attr >> 28
        _safe(path, info.filename, kind == _LINK, kind not in (*_PLAIN, _LINK))
    return _tree(path, (i.filename for i in archive.infolist() if not i.is_dir() and keep(i.filename)), read)


def _tar(path: Path, keep: Callable[[str], bool]) -> Tree:
    # One pass in the archive's order: a compressed tar cannot be read out of order without starting again.
    contents: dict[str, bytearray] = {}
    size, at = 0, -1
    with path.open("rb") as raw:
        head = raw.read(6)
    unpack = next((unpack for magic, unpack in _PACKED.items() if head.startswith(magic)), open)
    with unpack(path, "rb") as stream, tarfile.open(fileobj=_Steps(stream), mode="r:", encoding="utf-8") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # which otherwise holds every header, of millions as well
            if member.size < 0 or member.offset <= at:
                raise tarfile.ReadError(f"the size of its member {member.name!a} is wrong")
            at = member.offset
            _safe(path, member.name, member.issym() or member.islnk(), member.isdev())
            if member.isreg() and keep(member.name):
                size += member.size
                fits(size, f"{path} ({member.name})")
                content = archive.extractfile(member)
                contents[member.name] = whole(content, path) if content else bytearray()
        # tarfile is content with a compressed stream that breaks off behind a member; reading to its end is not.
        while stream.read(_Steps.LONGEST):
            pass

    def read(name: str, limit: int | None) -> bytes | bytearray:
        return contents[name]

    return _tree(path, contents, read)


class _Steps:
    """A stream that is read in steps of at most a MiB: the text of a tar's header is shorter, or it is a bomb."""

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
