"""Export runs of a store to a pack, and import packs into a store."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fedbench.errors import FedbenchError, unknown
from fedbench.files import alone, disk_errors
from fedbench.measure import restored
from fedbench.metrics.evaluate import MEASURES, evaluate
from fedbench.metrics.follows import contradiction
from fedbench.metrics.read import load
from fedbench.models.registry import is_plugin
from fedbench.results.pack import ABOUT, Failure, Pack, Row, add, leave_out, same_numbers
from fedbench.results.packs import FOLDER, Packs, imported
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code
from fedbench.store.unfinished import unfinished
from fedbench.words import counted, path_of

if TYPE_CHECKING:
    import pyarrow as pa

    from fedbench.data.fetch import Progress


# -- checksum --------------------------------------------------------------------------------------------------
# The checksum of a run's predictions: of the values, not of the Parquet file, which also records library versions.


def predictions(run: Artifact) -> str:
    """SHA-256 of a run's predictions, column by column, sorted by name."""
    table = run.table("predictions")
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        _add(digest, name, table.column(name).combine_chunks())
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, values: pa.Array) -> None:
    import pyarrow as pa

    digest.update(f"{name} {len(values)}\n".encode())
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        digest.update(values.is_null().to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_fixed_size_list(values.type) or pa.types.is_list(values.type):
        lengths = values.value_lengths().fill_null(0)
        _add(digest, f"{name} lengths", lengths)
        _add(digest, f"{name} values", values.flatten())
    elif pa.types.is_string(values.type):
        texts = values.fill_null("").dictionary_encode()
        words = texts.dictionary.to_pylist()
        order = sorted(words)
        places = pa.array([order.index(word) for word in words], pa.int64())
        digest.update("\0".join(order).encode())
        _add(digest, f"{name} places", places.take(texts.indices))
    else:
        kind = "<f8" if pa.types.is_floating(values.type) else "<i8"
        digest.update(values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind).tobytes())


# -- making ----------------------------------------------------------------------------------------------------


def row_of(run: Artifact, store: Store, by: str = "") -> Row:
    """A run as a row of a pack; computes its metrics if missing.

    Raises FedbenchError for a run of a user's code, because nobody else could repeat it.
    """
    spec = run.spec
    assert isinstance(spec, RunSpec)
    if part := own_code(spec):
        other = {
            "method": f"method!={spec.method.partition('@')[0]}",
            "network": f"model!={spec.setting.model}",
            "partitioner": f"scheme!={spec.setting.partition.scheme}",
        }
        raise FedbenchError(
            f"run {run.id} is of a {part} of your own, which others cannot make again, so no pack takes it",
            f"leave it out, for example with {other[part]}",
        )
    provenance = run.provenance
    return Row(
        spec, predictions(run), by, str(provenance["started"]), float(provenance["train_seconds"]), machine(provenance),
        {name: provenance[name] for name in ABOUT if provenance.get(name) is not None}, load(evaluate(run, store)),
    )  # fmt: skip


def refuse_other_code(runs: Collection[Artifact]) -> None:
    """Raise FedbenchError if other code than today's made any of the runs."""
    if changed := [run.id for run in runs if other_code(run.provenance)]:
        raise FedbenchError(
            f"{counted(len(changed), 'run')} of {len(runs):,} {'was' if len(changed) == 1 else 'were'} made by other "
            f"code than today's: {', '.join([*changed[:3], *(['...'] if len(changed) > 3 else [])])}",
            "make them again (train --again), or export them as they are: --other-code",
        )


def diverged(store: Store, ids: Collection[str] | None = None) -> list[Failure]:
    """A store's diverged runs (with `ids`: only these), without runs of the user's code."""
    return [
        Failure(run.spec, run.reason)
        for run in unfinished(store)
        if run.diverged and (ids is None or run.id in ids) and not own_code(run.spec)
    ]


def own_code(spec: RunSpec) -> str:
    """The part of a run that is a user's file: "method", "network", "partitioner", or "" if none is."""
    setting = spec.setting
    if spec.source is not None or "@" in spec.method:
        return "method"
    if is_plugin(setting.model):
        return "network"
    return "partitioner" if "@" in setting.partition.scheme else ""


def machine(provenance: Mapping[str, Any]) -> str:
    """The kind of machine, on which the last bits of a run depend, such as 'Linux x86_64 AVX512'; not its name."""
    if provenance.get("device", "cpu") != "cpu":
        return str(provenance["device"])
    platform = str(provenance.get("platform", ""))
    kind = re.search(r"x86_64|AMD64|aarch64|arm64", platform)
    words = (platform.partition("-")[0], kind[0] if kind else "", str(provenance.get("cpu", "")))
    return " ".join(word for word in words if word) or "unknown"


# -- importing -------------------------------------------------------------------------------------------------
# Packs of other people: checked, marked with who made them, and added to a store.


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
        raise FedbenchError(f"a result pack is brought over https only, not from {url}", "https://HOST/NAME.parquet")
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
    for row in rows:
        if fault := contradicted(row):
            raise FedbenchError(f"run {row.id} of {path} contradicts itself: {fault}", "ask who made it")
    rows = [dataclasses.replace(row, by=by or row.by) for row in rows]
    target = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    with contextlib.ExitStack() as held:  # what is there is compared and changed in one go
        with disk_errors("taking in a result pack", target.parent):
            held.enter_context(alone(target.parent))
        packs = Packs.of(store)
        clashes = {row.id: names for row in rows if (names := _clashes_of(row, store, packs))}
        if clashes and prefer is None:
            examples = [f"{id} ({', '.join(names)})" for id, names in [*clashes.items()][:3]]
            raise FedbenchError(
                f"{counted(len(clashes), 'run')} of {path} {'has' if len(clashes) == 1 else 'have'} other numbers than "
                f"are there: {', '.join([*examples, *(['...'] if len(clashes) > 3 else [])])}",
                f"--prefer {NEW} takes these, --prefer {OLD} leaves them out",
            )
        added = [row for row in rows if row.id not in clashes] if prefer == OLD else rows
        total = add(target, added, pack.failures) if added or pack.failures else 0
        if prefer == NEW:
            for other in (other for other in packs.whole if other.path in imported(store) and other.path != target):
                if not clashes.keys().isdisjoint(other.places):
                    leave_out(other.path, clashes)
    return target, added, len(rows) - len(added), total


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
