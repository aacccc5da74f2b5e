"""Downloads that resume, verify the recipe's checksum, and try the next mirror if one fails.

A download is NAME.part until its checksum is correct and then renamed, so a file without `.part` is complete.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from fedbench import __version__
from fedbench.data.build import verify
from fedbench.data.catalogue import fetchable, parts_of, recipe
from fedbench.data.guard import readable
from fedbench.data.locate import downloads, locate, places, resolve
from fedbench.data.recipe import File, Recipe, Source
from fedbench.errors import FedbenchError, check_known
from fedbench.files import alone, disk_errors
from fedbench.specs import require
from fedbench.store import Store

# Download one file from its mirrors, with limits on size and time.
#
# A mirror may misbehave: a wrong or missing length, redirects, an endless or very slow stream. Then the next mirror is
# tried.


#: Receives the file's name, bytes so far, and total bytes (None if the server does not send a length).
Progress = Callable[[str, int, int | None], None]

TIMEOUT = 30.0  #: seconds without a response, or with fewer than LEAST bytes
LEAST = 1 << 16  #: bytes that count as progress, within TIMEOUT and within an attempt
#: Consecutive attempts at a mirror without progress before the next mirror.
TRIES = 3
PAUSE = 2.0  #: seconds before the second attempt; twice as long before the third, and so on
LARGEST = 1 << 38  #: maximum bytes (256 GiB) of a file if its recipe has no size
_BLOCK = 1 << 18


def whole(file: File, path: Path) -> bool:
    """Whether the file exists with the right checksum; False if the recipe has no checksum."""
    if file.checksum is None or not path.is_file():
        return False
    try:
        verify(file, path)
    except FedbenchError:
        return False
    return True


def download(file: File, target: Path, progress: Progress | None, stays: bool = False) -> None:
    """Download a file to `target` from the first mirror that works. Without a checksum, accept what the server sends.

    `stays`: do not follow redirects to other hosts. Raises FedbenchError with each mirror's error.
    """
    part = target.with_name(f"{target.name}.part")
    reasons = []
    for url in file.urls:
        reason = None if whole(file, part) else _from(url, file, part, progress, stays)
        if reason is None:
            with disk_errors("downloading", target.parent):
                part.replace(target)
            return
        reasons.append(f"{url}: {reason}")
    raise FedbenchError(
        f"cannot download {target.name} ({'; '.join(reasons)})",
        f"check the network and repeat the command, which continues where it stopped, or put the file at {target}",
    )


class _TooMuch(Exception):
    """A mirror sends more bytes than the file may have."""


def _from(url: str, file: File, part: Path, progress: Progress | None, stays: bool) -> str | None:
    """Complete `part` from one mirror; returns None on success, else the reason."""
    reason, idle, anew = "", 0, False
    while idle < TRIES:
        before, wrong = _size(part), False
        time.sleep(PAUSE * idle)
        try:
            _transfer(url, file, part, progress, stays)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answers {error.code} {_short(error.reason)}"
            wrong = error.code == 416 and before > 0  # no bytes after the ones in `part`, so these are of another file
            if error.code < 500 and not wrong:
                return reason
        except _TooMuch as error:
            reason, wrong = str(error), True
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an invalid address
            reason = _short(getattr(error, "reason", error)) or type(error).__name__
        else:
            if file.checksum is None:
                return None
            reason, wrong = f"checksum differs from the recipe's {file.checksum} ({_size(part)} bytes)", True
        if wrong:
            if whole(file, part):
                return None
            part.unlink(missing_ok=True)
            if not before or anew:
                return reason
            anew = True  # maybe the resumed bytes were wrong, so retry once from the start
            continue
        idle = 0 if _size(part) - before >= LEAST else idle + 1
    return None if whole(file, part) else reason


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, stays: bool) -> None:
        self.stays = stays

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new, old = urlsplit(newurl), urlsplit(req.full_url)
        if new.scheme not in ("http", "https"):
            raise urllib.error.HTTPError(newurl, code, f"and leads to {newurl}, no http(s) address", headers, fp)
        if self.stays and new[:2] != old[:2]:
            raise urllib.error.HTTPError(newurl, code, f"and leads to another host, {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _transfer(url: str, file: File, part: Path, progress: Progress | None, stays: bool) -> None:
    held, most = _size(part), file.size or LARGEST
    headers = {"User-Agent": f"fedbench/{__version__}", **({"Range": f"bytes={held}-"} if held else {})}
    opener = urllib.request.build_opener(_Redirects(stays))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {held}-")
        at = held if resumed else 0
        left = answer.length  # None without a valid length; then the end of the stream is the end of the file
        total = None if left is None else at + left
        if total is not None and total > most:
            raise _TooMuch(f"it wants to send {total:,} bytes, more than {most:,}")
        with disk_errors("downloading", part.parent):
            out: IO[bytes] = part.open("ab" if resumed else "wb")
        with out:
            since, mark = time.monotonic(), at
            while block := answer.read1(_BLOCK if total is None else min(_BLOCK, total - at)):
                at += len(block)
                if at > most:
                    raise _TooMuch(f"it sends more than {most:,} bytes")
                with disk_errors("downloading", part.parent):
                    out.write(block)
                if progress:
                    progress(part.name.removesuffix(".part"), at, total)
                if at - mark >= LEAST:
                    since, mark = time.monotonic(), at
                elif time.monotonic() - since > TIMEOUT:
                    raise TimeoutError(f"it sent only {at - mark} bytes in {TIMEOUT:.0f} seconds")
            with disk_errors("downloading", part.parent):
                out.flush()
                os.fsync(out.fileno())
    if total is not None and at < total:
        raise ConnectionError(f"the connection broke after {at} of {total} bytes")


def _short(text: object) -> str:
    return " ".join(str(text).split())[:300]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def fetch(
    name: str,
    store: Store,
    progress: Progress | None = None,
    source: str | None = None,
    roots: Sequence[Path] = (),
) -> list[Path]:
    """Download the files of a data set, or of all parts of a union, into the store; returns their paths.

    `source` selects one of the recipe's sources; default: the first that can be downloaded. Skips complete files. If a
    source (or `source`) is in the data folders `roots`, downloads nothing and returns these paths. A part without an
    address must be there. Raises FedbenchError if no mirror works, with each one's error, and for altered files in a
    data folder.
    """
    # Imported here, because every command looks up data sets and few download one.
    from fedbench.data import hub, torchvision_files

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
                busy = f"another process is downloading into {target.parent}"
                with contextlib.ExitStack() as held:
                    with disk_errors(f"downloading {chosen.name}", target.parent):
                        target.parent.mkdir(parents=True, exist_ok=True)
                        # The lock is outside the folder, which may be a data set that consists of all its files.
                        held.enter_context(alone(downloads(store) / ".locks" / Path(file.path).parent, busy))
                    if not whole(file, target):
                        download(file, target, progress)
        paths.append(target)
    return paths


def _at_hand(chosen: Recipe, wanted: str | None, store: Store, roots: Sequence[Path]) -> list[Path] | None:
    """The files of the first source (or of `wanted`) in the folders that precede the downloads."""
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
        check_known(f"source of {chosen.name}", wanted, named)
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
