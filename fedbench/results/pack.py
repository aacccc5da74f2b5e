"""The format of a result pack: one Parquet file with one row per run, sorted by id.

| column | holds |
|---|---|
| id, stem, spec | the run's id, its id without versions, and its spec as canonical JSON |
| data, model, rounds, precision | the data set's spec, and fields of the setting: tables need not read all specs |
| predictions | SHA-256 of its predictions (`checksum`) |
| by, started, seconds, machine | who made it, when (UTC), how long training took, on which kind of machine |
| about | JSON of the rest of its provenance: title, deviations, executor, versions, the code's fingerprint |
| names, views | the names of its metrics, and the views of its test images |
| metric, view, round, client, value | its metrics in long form, the first two as indices into `names` and `views` |

A pack holds all metrics exactly, except seconds, shares of seconds and losses of single rounds, which would be most of
its bytes. These have 18 bits (five digits; the rest is noise), and at most a thousand rounds, evenly spaced up to
the last. Values of a whole run are exact. The file's metadata hold the diverged runs (`Failure`) and the checksum
(`sealed`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.files import alone, disk_errors, write_whole
from fedbench.metrics.read import Metrics, outside
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec
from fedbench.specs.upgrade import former_id, upgraded
from fedbench.store.provenance import LEAKAGE
from fedbench.words import plain

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Failure:
    """A run that diverged, and why it ended: a tuned table must know that its values are excluded."""

    spec: RunSpec
    reason: str

    @property
    def id(self) -> str:
        return self.spec.id


def to_json(failures: Iterable[Failure]) -> bytes:
    """Canonical JSON: equal failures give equal bytes."""
    each = {failure.id: {"spec": failure.spec.to_dict(), "reason": failure.reason} for failure in failures}
    return json.dumps(each, sort_keys=True, separators=(",", ":")).encode()


def from_json(text: bytes) -> list[Failure]:
    """Inverse of `to_json`; specs of schema 1 are upgraded. Raises ValueError for any other text."""
    try:
        entries = json.loads(text).values()
        failures = [Failure(RunSpec.shared(upgraded("run", entry["spec"])), str(entry["reason"])) for entry in entries]
    except (AttributeError, KeyError, TypeError, FedbenchError) as error:
        raise ValueError(f"a run that diverged cannot be read: {error}") from error
    return failures


#: A pack's checksum, the SHA-256 of its bytes, is stored within them; an edited or damaged pack is refused. Its key in
#: the file's metadata, and its value while the checksum is computed.
SEAL, BLANK = b"fedbench_seal", b"0" * 64


def sealed(data: bytes) -> bytes:
    """The pack's bytes with the checksum in place of the last BLANK: a Parquet file ends with its metadata."""
    place = data.rindex(BLANK)
    return data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + len(BLANK) :]


def whole(data: bytes, seal: bytes) -> bool:
    """Whether the bytes of a pack match its checksum `seal`."""
    if len(seal) != len(BLANK) or (place := data.rfind(seal)) < 0:
        return False
    view, count = memoryview(data), hashlib.sha256()
    for part in (view[:place], BLANK, view[place + len(seal) :]):
        count.update(part)
    return count.hexdigest().encode() == seal


VERSION = 3
#: The version whose specs were of schema 1 (specs/upgrade.py). It had the column `budget` for `model` and `rounds`.
FORMER = 2
#: Key in the file's metadata: the version of this layout.
KEY = b"fedbench_pack"
#: Key in the file's metadata: the diverged runs.
FAILURES = b"fedbench_diverged"
#: Columns that repeat parts of the spec.
OF_SPEC = ("data", "model", "rounds", "precision")
TEXTS = ("id", "stem", "spec", "data", "model", "precision", "predictions", "by", "started", "machine", "about")
FORMER_TEXTS = tuple("budget" if name == "model" else name for name in TEXTS)
#: Column -> regular expression of its values.
FORMS = {
    "id": "[0-9a-f]{12}",
    "stem": "[0-9a-f]{12}",
    "predictions": "[0-9a-f]{64}",
    "started": r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?",
}
#: Keys of a run's provenance that a pack copies, and their types: no host, user, path or list of source files.
ABOUT: Mapping[str, type] = {
    "title": str,
    "overrides": dict,
    "defaults": dict,
    "deviations": list,
    "measures": list,
    "device": str,
    "cpu": str,
    "processor": str,
    "cores": int,
    "threads": int,
    "executor": str,
    "stacks": int,
    "together": int,
    "libraries": dict,
    "git": str,
    "fingerprint": str,
    "former_id": str,
    LEAKAGE: str,
}
#: Of a run whose spec was of schema 1: the id that it had.
FORMER_ID = "former_id"
#: Integer columns of the metrics in long form.
LONG = ("metric", "view", "round", "client")
#: Runs per row group: few, since a table needs few runs of a pack.
GROUP = 32
#: Suffixes of metrics with noise in their last digits; bits that a pack keeps of their value in each round; most rounds
#: that it keeps.
NOISY, BITS, ROUNDS = ("seconds", "_share", "_loss"), 18, 1000
#: Tolerance between the metrics of two trainings with the same predictions.
APART = 1e-6


@dataclass(frozen=True)
class Row:
    """A run in a pack."""

    spec: RunSpec
    predictions: str  #: SHA-256
    by: str
    started: str  #: such as 2026-11-23T03:44:05Z
    seconds: float
    machine: str
    about: Mapping[str, Any]
    metrics: Metrics

    @property
    def id(self) -> str:
        return self.spec.id


def name_of(pack: Path) -> str:
    """A pack's printed name: FOLDER/NAME, with the name of its paper's or store's folder."""
    return f"{pack.parent.parent.name}/{pack.stem}"


class Pack:
    """A pack on disk, read on demand. Every value that is read is checked for type and range."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[int] | None = None  #: of a pack of schema 1: run -> its row in the file

    @cached_property
    def heads(self) -> Mapping[str, Sequence[Any]]:
        """Column -> values, one per run, without metrics. Raises FedbenchError unless it is a pack."""
        import pyarrow as pa

        if self.path.is_dir():
            raise FedbenchError(f"{self.path} is a folder, not a result pack", "name a file")
        try:
            metadata = self._file.metadata.metadata or {}
            version = json.loads(metadata.get(KEY, b"null"))
            known = version in (VERSION, FORMER)
            if known and not whole(self.path.read_bytes(), metadata.get(SEAL, b"")):
                raise ValueError("it was edited or damaged since it was written")
            types = {column.name: column.type for column in self._file.schema_arrow} if known else {}
            names = [name for name in types if name not in ("names", "views", *LONG, "value")]
            table = self._file.read(names, use_threads=False) if known and types == _types(version) else None
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise self._damaged(next(iter(str(error).splitlines()), "")) from error
        if isinstance(version, int) and version > VERSION:
            raise FedbenchError(f"{self.path} was written by a newer fedbench", "upgrade fedbench")
        if table is None:
            raise self._damaged("it is no result pack")
        heads = {name: table.column(name).to_pylist() for name in table.column_names}
        if fault := _fault_of_heads(heads):
            raise self._damaged(fault)
        return heads if version == VERSION else self._upgraded(heads)

    def _upgraded(self, heads: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
        """The columns of a pack of schema 1 as they would be now, sorted by the new ids. Of two runs of one training,
        which two budgets made, the one that was made last stays."""
        try:
            raws = [json.loads(text)["spec"] for text in heads["spec"]]
            former = [former_id("run", raw) for raw in raws]
            specs = [RunSpec.shared(upgraded("run", raw)) for raw in raws]
            about = [json.loads(text) for text in heads["about"]]
        except (ValueError, KeyError, TypeError, RecursionError, FedbenchError) as error:
            raise self._damaged(f"a spec cannot be read: {error}") from error
        if wrong := [(id, hashed) for id, hashed in zip(heads["id"], former, strict=True) if id != hashed]:
            raise self._damaged(f"run {wrong[0][0]} has the spec of {wrong[0][1]}")
        last: dict[str, int] = {}
        for row in sorted(range(len(specs)), key=lambda row: heads["started"][row]):
            last[specs[row].id] = row
        self._rows = [row for _, row in sorted(last.items())]
        new = [{**_of_spec(specs[row]), "about": _about({**about[row], FORMER_ID: former[row]})} for row in self._rows]
        kept = {name: [values[row] for row in self._rows] for name, values in heads.items() if name != "budget"}
        return {**kept, **{name: [row[name] for row in new] for name in new[0]}} if new else kept

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Run's id -> its row."""
        return {id: row for row, id in enumerate(self.heads["id"])}

    @cached_property
    def failures(self) -> list[Failure]:
        """The diverged runs. Raises FedbenchError unless it is a pack."""
        try:
            raw = (self._file.metadata.metadata or {}).get(FAILURES, b"{}") if self.heads else b"{}"
            failures = from_json(raw)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if not all(failure.reason == plain(failure.reason) for failure in failures):
            raise self._damaged("why a run diverged is no plain text")
        return failures

    def spec(self, row: int, expected: RunSpec | None = None) -> RunSpec:
        """The spec of a row; `expected` itself if they are equal. Raises FedbenchError if it does not match the id."""
        text = self.heads["spec"][row]  # raises unless this is a pack
        spec = expected
        if spec is None or text != spec.canonical():  # parsing is most of the time to read a run
            try:
                spec = RunSpec.shared(json.loads(text)["spec"])
            except (ValueError, KeyError, TypeError, RecursionError, FedbenchError) as error:
                raise self._damaged(f"a spec cannot be read: {error}") from error
        if (spec.id, spec.stem) != (self.heads["id"][row], self.heads["stem"][row]):
            raise self._damaged(f"run {self.heads['id'][row]} has the spec of {spec.id}")
        return spec

    @cached_property
    def partitions(self) -> set[str]:
        """The stems of its runs' partitions. Raises FedbenchError for a damaged row."""
        try:
            parts = [json.loads(text)["spec"]["setting"]["partition"] for text in self.heads["spec"]]
            return {PartitionSpec.shared(part).stem for part in parts}
        except (ValueError, KeyError, TypeError, RecursionError, FedbenchError) as error:
            raise self._damaged(f"a spec cannot be read: {error}") from error

    def metrics(self, row: int) -> Metrics:
        import pyarrow as pa

        at = row if self._rows is None else self._rows[row]
        try:
            group = self._group(at // GROUP)
            columns = {name: group.column(name)[at % GROUP].values for name in ("names", "views", *LONG, "value")}
            if any(values.null_count for values in columns.values()):
                raise ValueError("no value")
            return Metrics(
                id=self.heads["id"][row],
                names=columns["names"].to_pylist(),
                views=columns["views"].to_pylist(),
                **{name: np.from_dlpack(columns[name]) for name in (*LONG, "value")},
            )
        except (OSError, KeyError, ValueError, IndexError, AttributeError, BufferError, pa.ArrowException) as error:
            raise self._damaged(f"the metrics of run {self.heads['id'][row]} cannot be read") from error

    def row(self, row: int, expected: RunSpec | None = None) -> Row:
        """A run with its metrics; `expected` as in `spec`. Raises FedbenchError for a faulty run or metric."""
        self.check()
        try:
            about = json.loads(self.heads["about"][row])
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"what is said about run {self.heads['id'][row]} cannot be read") from error
        head = {name: self.heads[name][row] for name in ("predictions", "by", "started", "seconds", "machine")}
        run = Row(self.spec(row, expected), **head, about=about, metrics=self.metrics(row))
        expected_heads = _of_spec(run.spec)
        fault = next(
            (f"its {name} is not its spec's" for name in OF_SPEC if expected_heads[name] != self.heads[name][row]), ""
        )
        if fault := fault or fault_of(run):
            raise self._damaged(f"run {run.id}: {fault}")
        return run

    def check(self) -> None:
        """Raise FedbenchError unless every value of every run is in the range of its metric: one wrong value makes the
        whole pack doubtful."""
        if self._fault:
            raise self._damaged(self._fault)

    @cached_property
    def _fault(self) -> str:
        """The first value of any run that is out of its metric's range, in words; "" if there is none."""
        import pyarrow as pa

        try:
            ids = iter(self._file.read(["id"], use_threads=False).column("id").to_pylist() if self.heads else ())
            for k in range(self._file.num_row_groups):  # a group fits into a CPU's cache
                table = self._file.read_row_group(k, ["names", "metric", "value"], use_threads=False)
                columns = [table.column(name).combine_chunks() for name in table.column_names]
                if any(column.null_count or column.values.null_count for column in columns):
                    return "a run lacks a metric's name or value"
                metrics, values = (np.from_dlpack(column.values) for column in columns[1:])
                ends, others = (np.from_dlpack(column.offsets) for column in columns[1:])
                for j, names in enumerate(columns[0].to_pylist()):
                    id, metric, value = next(ids), metrics[ends[j] : ends[j + 1]], values[others[j] : others[j + 1]]
                    if fault := _fault_of_values(names, metric, value):
                        return f"run {id}: {fault}"
        except (OSError, KeyError, AttributeError, BufferError, TypeError, pa.ArrowException) as error:
            return f"its metrics cannot be read: {next(iter(str(error).splitlines()), '')}"
        return ""

    def rows(self) -> list[Row]:
        """All runs of the pack."""
        return [self.row(k) for k in range(len(self.heads["id"]))]

    @cached_property
    def _file(self) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.path, memory_map=True)

    def _group(self, number: int) -> pa.Table:
        groups = self.__dict__.setdefault("_groups", {})
        if number not in groups:
            groups[number] = self._file.read_row_group(number, ["names", "views", *LONG, "value"], use_threads=False)
        return groups[number]

    def _damaged(self, why: str) -> FedbenchError:
        return FedbenchError(f"cannot read the result pack {self.path} ({why})", "delete it, or get it again")


def fault_of(row: Row) -> str:
    """The first fault in a run's `about` or metrics, in words; "" if there is none."""
    about, m, spec = row.about, row.metrics, row.spec
    if not isinstance(about, dict):
        return "what is said about it is no object"
    for name, value in about.items():
        if type(value) is not ABOUT.get(name, type(value)) or not all(text == plain(text) for text in _strings(value)):
            return f"its {name} is not legible"
    lists, texts = about.get("deviations", []), about.get("libraries", {}).values()
    if not all(isinstance(text, str) for text in (*lists, *texts)):
        return "its deviations or libraries are not legible"
    if len({len(values) for values in (m.metric, m.view, m.round, m.client, m.value)}) > 1:
        return "its metrics are not of one length"
    if not all(len({*names}) == len(names) and all(n == plain(n) for n in names) for names in (m.names, m.views)):
        return "the names of its metrics or views are not legible"
    limits = (
        ("view", 0, len(m.views) - 1),
        ("round", 0, spec.setting.rounds),
        ("client", -1, spec.setting.partition.all_clients - 1),
    )
    for name, least, most in limits:
        places = getattr(m, name)
        if len(places) and not least <= places.min() <= places.max() <= most:
            return f"a metric's {name} is not in {least} to {most}"
    return _fault_of_values(m.names, m.metric, m.value, spec.method)


def _fault_of_values(names: Sequence[str], metric: np.ndarray, value: np.ndarray, method: str = "") -> str:
    if len(metric) != len(value) or (len(metric) and not 0 <= metric.min() <= metric.max() < len(names)):
        return "its values are of no metric"
    return outside(names, metric, value, method)


def _fault_of_heads(heads: Mapping[str, Sequence[Any]]) -> str:
    """The first fault in a pack's columns other than metrics, in words; "" if there is none."""
    for name, values in heads.items():
        kind: type = {"seconds": float, "rounds": int}.get(name, str)
        if (k := next((k for k, value in enumerate(values) if type(value) is not kind), None)) is not None:
            return f"run {heads['id'][k]} has no {name}"
    for name in heads.keys() - {"spec", "about", "seconds", "rounds"}:  # the first two are parsed
        form = re.compile(FORMS.get(name, ".*"))
        for text in {*heads[name]}:
            if text != plain(text) or not form.fullmatch(text):
                return f"{name} of a run is {plain(text)!r}"
    if len({*heads["id"]}) < len(heads["id"]):
        return "a run is there twice"
    if wrong := [seconds for seconds in heads["seconds"] if not 0 <= seconds < math.inf]:
        return f"seconds of a run are {wrong[0]:g}"
    try:
        for text in {*heads["data"]}:
            DatasetSpec.shared(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, FedbenchError) as error:
        return f"a data set cannot be read: {error}"
    return ""


def _strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _strings(item)


def same_numbers(one: Metrics, other: Metrics) -> bool:
    """Whether the metrics that both have are equal within APART; without times, memory and losses, which differ
    between any two trainings."""
    names, views = ({name: k for k, name in enumerate(metrics)} for metrics in (one.names, one.views))
    (ours, mine), (theirs, its) = (_places(metrics, names, views) for metrics in (one, other))
    _, i, j = np.intersect1d(ours, theirs, return_indices=True)
    return bool(np.allclose(mine[i], its[j], rtol=APART, atol=APART))


def _places(of: Metrics, names: Mapping[str, int], views: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(keys [N], values [N]): a key encodes metric, view, round and client; `names` and `views` map to their codes."""
    varies = [name.endswith((*NOISY, "_memory")) for name in of.names]
    metric = np.array([-1 if v else names.get(n, -1) for n, v in zip(of.names, varies, strict=True)], np.int64)
    view = np.array([views.get(v, -1) for v in of.views], np.int64)
    metric, view = metric[of.metric], view[of.view]
    shared = (metric >= 0) & (view >= 0)
    key = ((metric * len(views) + view) << 42) + (of.round.astype(np.int64) << 21) + of.client + 1
    return key[shared], of.value[shared]


def write(path: Path, rows: Iterable[Row], failures: Iterable[Failure] = ()) -> None:
    """Write a pack of these runs (if rows share an id, the last) and failures. Equal runs give equal bytes."""
    data = packed(rows, failures)
    with disk_errors("writing a result pack", path.parent, "folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)


def add(path: Path, rows: Iterable[Row], failures: Iterable[Failure] = ()) -> int:
    """Add runs to a pack (created if missing) and return its number of runs. Replaces runs with the same id; of runs
    that differ only in versions, keeps the one made last. Processes that add to one pack at once do so in turn.

    Raises FedbenchError if the file is no pack.
    """
    rows, failures = [*rows], [*failures]
    with alone_with(path):
        before = Pack(path) if path.exists() else None
        every = {row.id: row for row in (*(before.rows() if before else ()), *rows)}
        kept = latest(every.values())
        write(path, kept, [*(before.failures if before else ()), *failures])
    return len(kept)


def latest(rows: Iterable[Row]) -> list[Row]:
    """Of runs that differ only in versions, the one made last."""
    return [*{row.spec.stem: row for row in sorted(rows, key=lambda row: row.started)}.values()]


def leave_out(path: Path, ids: Collection[str]) -> None:
    """Remove the runs with these ids from a pack. Raises FedbenchError if the file is no pack."""
    with alone_with(path):
        pack = Pack(path)
        write(path, [row for row in pack.rows() if row.id not in ids], pack.failures)


@contextlib.contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Lock a pack that is to be read, changed and written. Raises FedbenchError if its folder cannot be written."""
    with contextlib.ExitStack() as held:
        with disk_errors("writing a result pack", path.parent, "folder"):
            held.enter_context(alone(path.parent, file=path.name))
        yield


def packed(rows: Iterable[Row], failures: Iterable[Failure] = ()) -> bytes:
    """The bytes of a pack, with checksum. A run that is both complete and in `failures` counts as complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    unique = [replace(row, metrics=compact(row.metrics)) for _, row in sorted({row.id: row for row in rows}.items())]
    heads = [_heads_of(row) for row in unique]
    columns = {
        **{name: [head[name] for head in heads] for name in (*TEXTS, "rounds", "seconds")},
        **{name: [getattr(row.metrics, name) for row in unique] for name in ("names", "views", *LONG, "value")},
    }
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in _types().items()})
    made = {row.id for row in unique}
    diverged = [failure for failure in failures if failure.id not in made]
    kept = {FAILURES: to_json(diverged)} if diverged else {}
    table = table.replace_schema_metadata({KEY: json.dumps(VERSION), **kept, SEAL: BLANK})
    buffer = io.BytesIO()
    split = "value.list.element"
    pq.write_table(
        table,
        buffer,
        row_group_size=GROUP,
        compression="zstd",
        compression_level=19,
        use_dictionary=[*TEXTS, *(f"{name}.list.element" for name in ("names", "views", *LONG))],
        column_encoding={split: "BYTE_STREAM_SPLIT"},
    )
    return sealed(buffer.getvalue())


def _types(version: int = VERSION) -> dict[str, pa.DataType]:
    """Column -> type, in the file's order."""
    import pyarrow as pa

    rounds = {} if version == FORMER else {"rounds": pa.int64()}
    return {
        **dict.fromkeys(FORMER_TEXTS if version == FORMER else TEXTS, pa.string()),
        **rounds,
        "seconds": pa.float64(),
        **dict.fromkeys(("names", "views"), pa.list_(pa.string())),
        **dict.fromkeys(LONG, pa.list_(pa.int32())),
        "value": pa.list_(pa.float64()),
    }


def _heads_of(row: Row) -> dict[str, Any]:
    """A run's values of the columns other than metrics."""
    return {
        **_of_spec(row.spec),
        "predictions": row.predictions,
        "by": row.by,
        "started": row.started,
        "seconds": row.seconds,
        "machine": row.machine,
        "about": _about(row.about),
    }


def _of_spec(spec: RunSpec) -> dict[str, Any]:
    """The values of the columns that follow from the spec."""
    setting = spec.setting
    return {
        "id": spec.id,
        "stem": spec.stem,
        "spec": spec.canonical(),
        "data": setting.partition.dataset.text,
        "model": setting.model,
        "rounds": setting.rounds,
        "precision": setting.precision,
    }


def _about(about: Mapping[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)


def compact(metrics: Metrics) -> Metrics:
    """The metrics, with noisy values of single rounds reduced to BITS bits and at most ROUNDS rounds."""
    noisy = np.array([name.endswith(NOISY) for name in metrics.names], bool)[metrics.metric] & (metrics.round > 0)
    mantissa, exponent = np.frexp(metrics.value)
    value = np.where(noisy, np.ldexp(np.round(np.ldexp(mantissa, BITS)), exponent - BITS), metrics.value)
    last = int(metrics.round.max(initial=0))
    kept = ~noisy | ((last - metrics.round) % max(-(-last // ROUNDS), 1) == 0)
    return replace(metrics, value=value[kept], **{name: getattr(metrics, name)[kept] for name in LONG})
