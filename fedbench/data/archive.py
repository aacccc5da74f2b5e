"""Folders, zip and tar archives read alike, and safely: nothing of an archive is ever unpacked on disk.

Members are read into memory, so a hostile archive has no path to write to. One that holds absolute paths, `..`
or links is refused all the same: it is not the archive its recipe means.
"""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedbench.errors import FedbenchError

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
_LINK = 0xA  #: file type of a symbolic link in the upper bits of a zip member's Unix mode


@dataclass(frozen=True)
class Tree:
    """Regular files below a folder or inside an archive: their names ('/' between levels, sorted) and contents."""

    path: Path
    names: tuple[str, ...]
    _read: Callable[[str], bytes]

    def read(self, name: str) -> bytes:
        """Content of one file. Raises FedbenchError if it is not there or damaged. May be called by many threads."""
        try:
            with _readable(self.path):
                return self._read(name)
        except KeyError as error:
            raise FedbenchError(f"{self.path} has no file {name}") from error


@contextlib.contextmanager
def open_tree(path: Path, keep: Callable[[str], bool] = lambda name: True) -> Iterator[Tree]:
    """Open a folder, .zip or .tar(.gz, .bz2, .xz); files for which `keep(name)` is false are left out.

    Raises FedbenchError for a damaged archive, and for one with absolute paths, '..' or links.
    """
    if path.is_dir():
        files = (p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        names = tuple(sorted(n for n in (p.relative_to(path).as_posix() for p in files) if keep(n)))
        yield Tree(path, names, lambda name: _from_folder(path, name))
    elif zipfile.is_zipfile(path):
        with _readable(path):
            archive = zipfile.ZipFile(path)
        with archive:
            for info in archive.infolist():
                _safe(path, info.filename, (info.external_attr >> 28) == _LINK)
            names = tuple(sorted(i.filename for i in archive.infolist() if not i.is_dir() and keep(i.filename)))
            yield Tree(path, names, archive.read)
    else:
        contents = _tar(path, keep)
        yield Tree(path, tuple(sorted(contents)), contents.__getitem__)


def _from_folder(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except FileNotFoundError as error:
        raise KeyError(name) from error


def _tar(path: Path, keep: Callable[[str], bool]) -> dict[str, bytes]:
    # One pass in the archive's order: a compressed tar cannot be read out of order without starting again.
    contents: dict[str, bytes] = {}
    with _readable(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            _safe(path, member.name, member.issym() or member.islnk())
            stream = archive.extractfile(member) if member.isreg() and keep(member.name) else None
            if stream is not None:
                contents[member.name] = stream.read()
        # tarfile is content with a compressed stream that breaks off behind a member; reading to its end is not.
        while archive.fileobj is not None and archive.fileobj.read(1 << 20):
            pass
    return contents


def _safe(path: Path, name: str, link: bool) -> None:
    pure = PurePosixPath(name.replace("\\", "/"))
    if link or pure.is_absolute() or ".." in pure.parts or (pure.parts and pure.parts[0].endswith(":")):
        what = "a link" if link else "a path that leads outside"
        raise FedbenchError(
            f"{path} is not a safe archive: its member '{name}' is {what}", "get it from its official source"
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise FedbenchError(f"{path} is damaged or not a readable archive ({error})", "get the file again") from error
