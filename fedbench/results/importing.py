"""Packs of other people: checked, marked with who made them, and added to a store."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fedbench.errors import FedbenchError, unknown
from fedbench.files import alone, disk_errors
from fedbench.measure import restored
from fedbench.metrics.evaluate import MEASURES, evaluate
from fedbench.metrics.follows import contradiction
from fedbench.metrics.read import load
from fedbench.results import own_code
from fedbench.results.pack import Pack, Row, add, alone_with, fault_of, latest, leave_out, same_numbers, write
from fedbench.results.packs import FOLDER, Packs, imported
from fedbench.store import Store
from fedbench.words import counted, path_of

if TYPE_CHECKING:
    from fedbench.data.fetch import Progress


#: Which metrics to keep if a run exists with others: the imported ones, or the existing ones.
NEW, OLD = "new", "old"
#: Most bytes of a pack from a URL; the shipped packs have two million.
LARGEST = 64_000_000
#: Most seconds for a pack from a URL, however slowly its server sends.
LONGEST = 600.0


@contextlib.contextmanager
def brought(source: str, progress: Progress | None = None) -> Iterator[list[Path]]:
    """The packs of a source: a file, every .parquet below a folder, or a URL (deleted when the context ends).

    A URL uses https (http only to this machine) and ends with the pack's name. Redirects to another host are not
    followed, and downloads are limited to LARGEST bytes and LONGEST seconds. Raises FedbenchError for an invalid URL, a
    failed download, and a folder without packs.
    """
    if "://" in source:
        from fedbench.data.fetch import download
        from fedbench.data.recipe import File

        name = _name_at(source)
        with tempfile.TemporaryDirectory(prefix="fedbench-pack-") as folder:
            path = Path(folder) / name
            try:
                file = File(name, urls=(source,), size=LARGEST)
                _within(LONGEST, partial(download, file, path, progress, stays=True), source)
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


def _within(seconds: float, call: Callable[[], None], source: str) -> None:
    """Make a call, in a thread, which is left behind if it takes longer: a server that sends a byte now and then would
    otherwise hold it for days, at any step. Raises what the call raises, and FedbenchError after these seconds."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="download")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise FedbenchError(f"{source} was not there after {seconds:g} seconds, the longest that a pack may take")
    if raised:
        raise raised[0]


def _name_at(url: str) -> str:
    """The name of the pack at a URL. Raises FedbenchError for an invalid URL (see `brought`)."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise FedbenchError(f"'{url}' is no address ({error})", "https://HOST/NAME.parquet") from error
    here = host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", host)
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
        raise FedbenchError(f"a result pack is downloaded over https only, not from {url}", "https://HOST/NAME.parquet")
    name = unquote(parts.path).rpartition("/")[2]
    if not name.endswith(".parquet") or name.startswith(".") or not name.isprintable():
        raise FedbenchError(f"{url} does not end in the name of a result pack", "https://HOST/NAME.parquet")
    return name


def take_in(path: Path, store: Store, by: str = "", prefer: str | None = None) -> tuple[Path, list[Row], int, int]:
    """Add the runs of a pack to the store's pack of that name, made by `by` (default: as the pack says).

    `prefer` decides about runs that exist with other metrics: NEW imports them and removes them from other imported
    packs (runs of the store still come first), OLD skips them.

    Reads and checks every row first. Raises FedbenchError for a damaged, empty or hidden pack, for a run whose metrics
    contradict each other, if neither `by` nor the pack says who made the runs, and if runs exist with other metrics and
    `prefer` is None. Returns the pack in the store, the imported runs, how many were skipped, and how many runs that
    pack has now.
    """
    _known(prefer)
    pack, rows = read(path)
    if not by and not all(row.by for row in rows):
        raise FedbenchError(f"{path} does not say who made its runs", "name them: --by NAME")
    rows = [dataclasses.replace(row, by=by or row.by) for row in rows]
    target = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    with contextlib.ExitStack() as held:  # what is there is compared and changed in one go
        with disk_errors("taking in a result pack", target.parent):
            held.enter_context(alone(target.parent))
        packs = Packs.of(store)
        clashes = {row.id: names for row in rows if (names := _clashes_of(row, store, packs))}
        _decided(path, clashes, prefer)
        added = [row for row in rows if row.id not in clashes] if prefer == OLD else rows
        total = add(target, added, pack.failures) if added or pack.failures else 0
        if prefer == NEW:
            for other in (other for other in packs.whole if other.path in imported(store) and other.path != target):
                if not clashes.keys().isdisjoint(other.places):
                    leave_out(other.path, clashes)
    return target, added, len(rows) - len(added), total


def merge(paths: Sequence[Path], output: Path, prefer: str | None = None) -> tuple[int, int, int]:
    """Add the runs of packs, in this order, to the pack `output` (created if missing); who made them stays.

    A run with other numbers than an earlier pack's is handled as in `take_in`: NEW replaces the earlier one, OLD skips
    it. Raises FedbenchError as `take_in` does, before anything is written. Returns how many runs were added or
    replaced, how many were skipped, and how many runs `output` has now.
    """
    _known(prefer)
    packs = [read(path) for path in paths]
    with alone_with(output):
        merged = {row.id: row for row in read(output)[1]} if output.exists() else {}
        before, skipped = {**merged}, 0
        failures = Pack(output).failures if output.exists() else []
        for path, (pack, rows) in zip(paths, packs, strict=True):
            there = {row.id: merged[row.id] for row in rows if row.id in merged}
            clashes = {
                row.id: [there[row.id].by or "no name"]
                for row in rows
                if row.id in there and not same_numbers(there[row.id].metrics, row.metrics)
            }
            _decided(path, clashes, prefer)
            left = {row.id for row in rows if row.id in there and not (row.id in clashes and prefer == NEW)}
            skipped += len(left & clashes.keys())
            merged |= {row.id: row for row in rows if row.id not in left}
            failures = [*failures, *pack.failures]
        kept = latest(merged.values())
        own_code.refuse(output, (row.spec for row in kept))
        write(output, kept, failures)
    return sum(before.get(row.id) is not row for row in kept), skipped, len(kept)


def read(path: Path) -> tuple[Pack, list[Row]]:
    """A pack and its runs, all checked. Raises FedbenchError if it is missing, hidden, damaged or empty, if a run's
    metrics contradict each other, or if a run is of a user's code that does not lie in the folder of the pack's paper
    (`own_code`)."""
    if not path.is_file():
        raise FedbenchError(f"there is no file {path}", "name a result pack (.parquet)")
    if path.name.startswith("."):
        raise FedbenchError(f"a pack whose name begins with a dot is hidden, and never read: {path}", "rename it")
    pack = Pack(path)
    rows = pack.rows()
    if not rows:
        raise FedbenchError(f"there are no runs in {path}", "'fedbench results export' makes a pack")
    for row in rows:
        if fault := contradicted(row):
            raise FedbenchError(f"run {row.id} of {path} contradicts itself: {fault}", "ask who made it")
    own_code.refuse(path, (row.spec for row in rows))
    return pack, rows


def _known(prefer: str | None) -> None:
    if prefer not in (None, NEW, OLD):
        raise unknown("run to prefer", prefer, (NEW, OLD))


def _decided(path: Path, clashes: Mapping[str, Sequence[str]], prefer: str | None) -> None:
    """Raise FedbenchError if runs of a pack exist with other numbers (id -> where) and it is not said which to keep."""
    if clashes and prefer is None:
        examples = [f"{id} ({', '.join(names)})" for id, names in [*clashes.items()][:3]]
        raise FedbenchError(
            f"{counted(len(clashes), 'run')} of {path} {'has' if len(clashes) == 1 else 'have'} other numbers than "
            f"are there: {', '.join([*examples, *(['...'] if len(clashes) > 3 else [])])}",
            f"--prefer {NEW} takes these, --prefer {OLD} leaves them out",
        )


def refuse_faulty(rows: Iterable[Row]) -> None:
    """Raise FedbenchError for a run that `take_in` would refuse: a pack that is written must be readable."""
    for row in rows:
        if fault := fault_of(row) or contradicted(row):
            raise FedbenchError(
                f"run {row.id} cannot be exported: {fault}",
                f"'fedbench evaluate --again {row.id}' computes its metrics anew; else this is a fault of fedbench",
            )


def contradicted(row: Row) -> str:
    """The first metric of a run that others of its metrics contradict, in words; "" if there is none."""
    try:
        measures = restored(row.about.get(MEASURES, []), MEASURES)
    except FedbenchError as error:
        return str(error)
    return contradiction(row.metrics, row.spec.setting.partition.trainees, measures)


def _clashes_of(row: Row, store: Store, packs: Packs) -> list[str]:
    """Where this run exists with other metrics: "this store", and names of packs."""
    others = [run.pack for run in packs.others(row.id, row.metrics)]
    with contextlib.suppress(FedbenchError):  # a damaged run has no metrics
        stored = store.get(row.spec)
        if stored is not None and not same_numbers(load(evaluate(stored, store)), row.metrics):
            return ["this store", *others]
    return others
