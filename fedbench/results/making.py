"""From runs of a store to rows of a pack."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.models.registry import is_plugin
from fedbench.results.pack import ABOUT, Failure, Pack, Row, add, same_numbers, write
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
# The checksum of a run's predictions: of their values, not of the Parquet file around them, which also tells of
# library versions.


def predictions(run: Artifact) -> str:
    """SHA-256 of a run's predictions, column by column in the order of their names."""
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
    """A run as a row of a pack; its metrics are computed if need be.

    Raises FedbenchError for a run of code that does not come with fedbench: nobody else could make it again.
    """
    spec = run.spec
    assert isinstance(spec, RunSpec)
    if own := own_code(spec):
        raise FedbenchError(
            f"run {run.id} is of a {own} of your own, which others cannot make again, so no pack takes it",
            f"leave it out, for example with method!={spec.method.partition('@')[0]}",
        )
    told = run.provenance
    return Row(
        spec, predictions(run), by, str(told["started"]), float(told["train_seconds"]), machine(told),
        {name: told[name] for name in ABOUT if told.get(name) is not None}, load(evaluate(run, store)),
    )  # fmt: skip


def refuse_other_code(runs: Collection[Artifact]) -> None:
    """Raise FedbenchError if there are runs that other code than today's has made."""
    if changed := [run.id for run in runs if other_code(run.provenance)]:
        raise FedbenchError(
            f"{counted(len(changed), 'run')} of {len(runs):,} {'was' if len(changed) == 1 else 'were'} made by other "
            f"code than today's: {', '.join([*changed[:3], *(['...'] if len(changed) > 3 else [])])}",
            "make them anew (train --again), or export them as they are: --other-code",
        )


def diverged(store: Store, ids: Collection[str] | None = None) -> list[Failure]:
    """A store's runs that diverged, those of these ids or all; none of the user's own code."""
    return [
        Failure(run.spec, run.reason)
        for run in unfinished(store)
        if run.diverged and (ids is None or run.id in ids) and not own_code(run.spec)
    ]


def own_code(spec: RunSpec) -> str:
    """Which part of a run is a file of the user's: "method", "network", "partitioner", or "" if none is."""
    setting = spec.setting
    if spec.source is not None or "@" in spec.method:
        return "method"
    if is_plugin(setting.model):
        return "network"
    return "partitioner" if "@" in setting.partition.scheme else ""


def machine(provenance: Mapping[str, Any]) -> str:
    """The kind of machine on which the bits of a run depend, such as 'Linux x86_64 AVX512': no name, no owner."""
    if provenance.get("device", "cpu") != "cpu":
        return str(provenance["device"])
    platform = str(provenance.get("platform", ""))
    kind = re.search(r"x86_64|AMD64|aarch64|arm64", platform)
    words = (platform.partition("-")[0], kind[0] if kind else "", str(provenance.get("cpu", "")))
    return " ".join(word for word in words if word) or "unknown"


# -- importing -------------------------------------------------------------------------------------------------
# Somebody else's packs: checked, marked as theirs, and put beside a store's own runs.


#: Which numbers stand of a run that is there with others.
NEW, OLD = "new", "old"
#: Bytes of a pack at most that comes from an address; fedbench's own have two million.
LARGEST = 64_000_000


@contextlib.contextmanager
def brought(source: str, progress: Progress | None = None) -> Iterator[list[Path]]:
    """The packs that a source names: a file, every .parquet in a folder and below it, or what an address answers, which
    is at hand as long as the context.

    An address is https (http on this machine only) and ends in the pack's name; a redirect to another host is not
    followed, and more than LARGEST bytes are not taken. Raises FedbenchError for another one, if it does not deliver,
    and for a folder without packs.
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
        every = sorted(path.rglob("*.parquet"))
        packs = [one for one in every if not any(part.startswith(".") for part in one.relative_to(path).parts)]
        if not packs:
            raise FedbenchError(f"there is no result pack (.parquet) in {path}", "'fedbench results export' makes one")
    yield packs


def _name_at(url: str) -> str:
    """The name of the pack at an address. Raises FedbenchError for an address that no pack is taken from."""
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
    """Add the runs of a pack to the one of that name in a store's folder of results, as those of `by` (default: who the
    pack says).

    Of runs that are there with other numbers, NEW takes these in the place of other imported packs' (the store's own
    still come first), OLD leaves them out.

    Every row is read and checked first. Raises FedbenchError for a damaged pack, one without runs, one that is hidden,
    if nobody says whose it is, and if runs are there with other numbers and nobody says which to prefer. Returns the
    pack in the store, the runs taken in, how many were left out, and how many it has now.
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
    place = store.home / FOLDER / f"{path.stem}.parquet"
    store.prepare()
    packs = Packs.of(store)
    there = {row.id: names for row in rows if (names := _elsewhere(row, store, packs))}
    if there and prefer is None:
        few = [f"{id} ({', '.join(names)})" for id, names in [*there.items()][:3]]
        raise FedbenchError(
            f"{counted(len(there), 'run')} of {path} {'has' if len(there) == 1 else 'have'} other numbers than are "
            f"there: {', '.join([*few, *(['...'] if len(there) > 3 else [])])}",
            f"--prefer {NEW} takes these, --prefer {OLD} leaves them out",
        )
    taken = [row for row in rows if row.id not in there] if prefer == OLD else rows
    total = add(place, taken, pack.failures) if taken or pack.failures else 0
    if prefer == NEW:
        for other in (other for other in packs.whole if other.path in imported(store) and other.path != place):
            if not there.keys().isdisjoint(other.places):
                write(other.path, [row for row in other.rows() if row.id not in there], other.failures)
    return place, taken, len(rows) - len(taken), total


def _elsewhere(row: Row, store: Store, packs: Packs) -> list[str]:
    """Who has this run with other numbers: the store, and packs by their names."""
    others = [run.pack for run in packs.others(row.id, row.metrics)]
    with contextlib.suppress(FedbenchError):  # what is damaged has no numbers
        own = store.get(row.spec)
        if own is not None and not same_numbers(load(evaluate(own, store)), row.metrics):
            return ["this store", *others]
    return others
