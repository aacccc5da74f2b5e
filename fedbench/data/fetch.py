"""Downloads: resumed where they broke off, checked against the recipe's checksum, from the next mirror if need be.

A file grows as NAME.part and gets its name when its checksum is right, so a file that is there is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.data.build import verify
from fedbench.data.catalogue import fetchable, parts_of, recipe
from fedbench.data.guard import readable
from fedbench.data.locate import downloads, locate, places, resolve
from fedbench.data.recipe import Recipe, Source
from fedbench.errors import FedbenchError, unknown
from fedbench.files import disk_errors
from fedbench.specs import require
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.data.download import Progress


def fetch(
    name: str,
    store: Store,
    progress: Progress | None = None,
    source: str | None = None,
    roots: Sequence[Path] = (),
) -> list[Path]:
    """Bring the files of a data set, or of all parts of a union, into the store's downloads; returns their paths.

    `source` chooses one of the recipe's sources; the default is the first that can be downloaded. Files that are
    there and whole are left alone, and nothing is downloaded of a data set (or of `source`) that lies in the data
    folders `roots`: the paths are then those. A part without an address must be at hand there.
    Raises FedbenchError if no mirror delivers, with each one's reason, and for altered files in a data folder.
    """
    # What only a download needs is loaded for one: every command looks for data sets.
    from fedbench.data import hub, torchvision_files
    from fedbench.data.download import download, whole

    chosen = recipe(name)
    if (here := _at_hand(chosen, source, store, roots)) is not None:
        return here
    origin = _source(name, source)
    paths = []
    if origin.kind == "hf":
        return [hub.fetch(chosen, store)]
    if origin.kind == "torchvision":
        return torchvision_files.fetch(chosen, store)
    if origin.parts:
        return _fetch_parts(chosen.name, origin, store, progress, roots)
    for file in origin.file:
        target = downloads(store) / file.path
        with readable(target):
            require(not target.is_dir(), f"{target} is a folder and should be a file", "remove it")
            if not whole(file, target):
                store.prepare()
                with disk_errors(f"downloading {chosen.name}", target.parent):
                    target.parent.mkdir(parents=True, exist_ok=True)
                with _alone(target.parent):
                    if not whole(file, target):
                        download(file, target, progress)
        paths.append(target)
    return paths


def _at_hand(chosen: Recipe, wanted: str | None, store: Store, roots: Sequence[Path]) -> list[Path] | None:
    """The files of the first source (or of the one wanted) in the folders that go before the downloads."""
    folders = [folder for folder in places(chosen, store, roots) if folder != downloads(store)]
    for source in chosen.sources:
        if source.file and wanted in (None, source.name) and (paths := locate(source, folders)) is not None:
            for file, path in zip(source.file, paths, strict=True):
                verify(file, path)
            return paths
    return None


def _fetch_parts(
    name: str, source: Source, store: Store, progress: Progress | None, roots: Sequence[Path]
) -> list[Path]:
    paths: list[Path] = []
    lacking = []
    for part in parts_of(source):
        if any(map(fetchable, part.sources)):
            paths += fetch(part.name, store, progress, roots=roots)
            continue
        try:
            resolve(part.name, store, roots)
        except FedbenchError:
            lacking.append(part.name)
    if lacking:
        raise FedbenchError(
            f"no address is known to download {' and '.join(lacking)} from; the other parts of {name} are there",
            f"'fedbench data show {lacking[0]}' names the files: bring them and name their folder with --data or "
            "FEDBENCH_DATA",
        )
    return paths


def _source(name: str, wanted: str | None) -> Source:
    chosen = recipe(name)
    if wanted is not None:
        named = {source.name: source for source in chosen.sources}
        if wanted not in named:
            raise unknown(f"source of {chosen.name}", wanted, named)
        options: tuple[Source, ...] = (named[wanted],)
    else:
        options = chosen.sources
    for source in options:
        if source.parts or fetchable(source):
            return source
    paths = ", ".join(dict.fromkeys(f.path for f in options[0].file))
    raise FedbenchError(
        f"no address is known to download {chosen.name} from",
        f"put {paths} into a folder and name it with --data or FEDBENCH_DATA",
    )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep two processes from downloading into one folder. The lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on this system: the checksum still refuses a mixture
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FedbenchError(f"another process is downloading into {folder}", "wait for it and repeat") from error
        yield
    finally:
        os.close(handle)
