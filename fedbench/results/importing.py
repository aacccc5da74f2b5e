"""Packs of other people: checked, marked with who made them, and added to a store."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.results.pack import Pack, Row, add, same_numbers, write
from fedbench.results.packs import FOLDER, Packs, imported
from fedbench.store import Store
from fedbench.words import counted, path_of

if TYPE_CHECKING:
    from fedbench.data.fetch import Progress


#: Which metrics to keep if a run exists with others: the imported ones, or the existing ones.
NEW, OLD = "new", "old"
#: Most bytes of a pack from a URL; the shipped packs have two million.
LARGEST = 64_000_000


@contextlib.contextmanager
def brought(source: str, progress: Progress | None = None) -> Iterator[list[Path]]:
    """The packs of a source: a file, every .parquet below a folder, or a URL (deleted when the context ends).

    A URL uses https (http only to this machine) and ends with the pack's name. Redirects to another host are not
    followed, and downloads are limited to LARGEST bytes. Raises FedbenchError for an invalid URL, a failed download,
    and a folder without packs.
    """
    if "://" in source:
        from fedbench.data.fetch import download
        from fedbench.data.recipe import File

        name = _name_at(source)
        with tempfile.TemporaryDirectory(prefix="fedbench-pack-") as folder:
            path = Path(folder) / name
            try:
                download(File(name, urls=(source,), size=LARGEST), path, progress, stays=True)
                yield [path]
            except FedbenchError as error:
                hint = error.hint if path.exists() else "check the address, or bring the file and import that"
                raise FedbenchError(error.message.replace(str(path), source), hint) from error
        return
    path = path_of(source, "FILE")
    packs = [path]
    if path.is_dir():
        paths = sorted(path.rglob("*.parquet"))
        packs = [file for file in paths if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not packs:
            raise FedbenchError(f"there is no result pack (.parquet) in {path}", "'fedbench results export' makes one")
    yield packs


def _name_at(url: str) -> str:
    """The name of the pack at a URL. Raises FedbenchError for an invalid URL (see `brought`)."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise FedbenchError(f"'{url}' is no address ({error})", "https://HOST/NAME.parquet") from error
    here = host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", host)
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
        raise FedbenchError(f"a result pack is brought over https only, not from {url}", "https://HOST/NAME.parquet")
    name = unquote(parts.path).rpartition("/")[2]
    if not name.endswith(".parquet") or name.startswith(".") or not name.isprintable():
        raise FedbenchError(f"{url} does not end in the name of a result pack", "https://HOST/NAME.parquet")
    return name


def take_in(path: Path, store: Store, by: str = "", prefer: str | None = None) -> tuple[Path, list[Row], int, int]:
    """Add the runs of a pack to the store's pack of that name, made by `by` (default: as the pack says).

    `prefer` decides about runs that exist with other metrics: NEW imports them and removes them from other imported
    packs (runs of the store still come first), OLD skips them.

    Reads and checks every row first. Raises FedbenchError for a damaged, empty or hidden pack, if neither `by` nor the
    pack says who made the runs, and if runs exist with other metrics and `prefer` is None. Returns the pack in the
    store, the imported runs, how many were skipped, and how many runs that pack has now.
    """
    if not path.is_file():
        raise FedbenchError(f"there is no file {path}", "name a result pack (.parquet)")
    if path.name.startswith("."):
        raise FedbenchError(f"a pack whose name begins with a dot is hidden, and never read: {path}", "rename it")
    if prefer not in (None, NEW, OLD):
        raise unknown("run to prefer", prefer, (NEW, OLD))
    pack = Pack(path)
    rows = pack.rows()
    if not rows:
        raise FedbenchError(f"there are no runs in {path}", "'fedbench results export' makes a pack")
    if not by and not all(row.by for row in rows):
        raise FedbenchError(f"{path} does not say who made its runs", "say it: --by NAME")
    rows = [dataclasses.replace(row, by=by or row.by) for row in rows]
    target = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    packs = Packs.of(store)
    clashes = {row.id: names for row in rows if (names := _clashes_of(row, store, packs))}
    if clashes and prefer is None:
        examples = [f"{id} ({', '.join(names)})" for id, names in [*clashes.items()][:3]]
        raise FedbenchError(
            f"{counted(len(clashes), 'run')} of {path} {'has' if len(clashes) == 1 else 'have'} other numbers than are "
            f"there: {', '.join([*examples, *(['...'] if len(clashes) > 3 else [])])}",
            f"--prefer {NEW} takes these, --prefer {OLD} leaves them out",
        )
    added = [row for row in rows if row.id not in clashes] if prefer == OLD else rows
    total = add(target, added, pack.failures) if added or pack.failures else 0
    if prefer == NEW:
        for other in (other for other in packs.whole if other.path in imported(store) and other.path != target):
            if not clashes.keys().isdisjoint(other.places):
                write(other.path, [row for row in other.rows() if row.id not in clashes], other.failures)
    return target, added, len(rows) - len(added), total


def _clashes_of(row: Row, store: Store, packs: Packs) -> list[str]:
    """Where this run exists with other metrics: "this store", and names of packs."""
    others = [run.pack for run in packs.others(row.id, row.metrics)]
    with contextlib.suppress(FedbenchError):  # a damaged run has no metrics
        stored = store.get(row.spec)
        if stored is not None and not same_numbers(load(evaluate(stored, store)), row.metrics):
            return ["this store", *others]
    return others
