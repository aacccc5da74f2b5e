"""The format of a result pack: one Parquet file, a row a run, sorted by the runs' ids.

| column | holds |
|---|---|
| id, stem, spec | the run's id, what it has in common with its other versions, and its spec as canonical JSON |
| data, budget, precision | of its data set the spec; so that tables need not read all specs |
| predictions | SHA-256 of its predictions (`checksum`) |
| by, started, seconds, machine | who made it, when (UTC), how long training took, on which kind of machine |
| about | JSON of what its provenance says besides: title, deviations, executor, versions, the code's fingerprint |
| names, views | its metrics and the views of test images that they are of |
| metric, view, round, client, value | its metrics in long form, the first two as places in `names` and `views` |

All metrics are there, exactly, but for seconds, shares of seconds and losses of single rounds, which are most of what a
pack would hold: they have 18 bits (five digits), being noise beyond that, and of a run of several thousand rounds a
thousand at most are kept, evenly spaced to the last. What stands for a whole run is exact. The file's metadata hold the
runs that diverged (`failure`), and its seal (`seal`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, write_whole
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.read import Metrics, outside
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec
from fedbench.words import plain

if TYPE_CHECKING:
    import pyarrow as pa


# -- failure ---------------------------------------------------------------------------------------------------
# Runs that diverged, as packs hold them: a table that chooses values must know that these are out of the question.


@dataclass(frozen=True)
class Failure:
    """A run that diverged, and why it ended."""

    spec: RunSpec
    reason: str

    @property
    def id(self) -> str:
        return self.spec.id


def to_json(failures: Iterable[Failure]) -> bytes:
    """The same failures are the same bytes."""
    each = {failure.id: {"spec": failure.spec.to_dict(), "reason": failure.reason} for failure in failures}
    return json.dumps(each, sort_keys=True, separators=(",", ":")).encode()


def from_json(text: bytes) -> list[Failure]:
    """Raises ValueError for what `to_json` has not written."""
    try:
        failures = [Failure(RunSpec.shared(one["spec"]), str(one["reason"])) for one in json.loads(text).values()]
    except (AttributeError, KeyError, TypeError, FedbenchError) as error:
        raise ValueError(f"a run that diverged cannot be read: {error}") from error
    return failures


# -- seal ------------------------------------------------------------------------------------------------------
# A pack's seal: the SHA-256 of its bytes, which stands in their midst. What was edited or damaged is no result.


#: In the file's metadata, and what stands there while the bytes are counted.
SEAL, BLANK = b"fedbench_seal", b"0" * 64


def sealed(data: bytes) -> bytes:
    """A pack with its seal in the place of BLANK. A Parquet file's metadata are its end, so the last one is meant."""
    place = data.rindex(BLANK)
    return data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + len(BLANK) :]


def whole(data: bytes, seal: bytes) -> bool:
    """Whether a pack that has this seal has the bytes that it was written with."""
    if len(seal) != len(BLANK) or (place := data.rfind(seal)) < 0:
        return False
    view, count = memoryview(data), hashlib.sha256()
    for part in (view[:place], BLANK, view[place + len(seal) :]):
        count.update(part)
    return count.hexdigest().encode() == seal


# -- pack ------------------------------------------------------------------------------------------------------


VERSION = 2
#: In the file's metadata: the version of this layout.
KEY = b"fedbench_pack"
#: Likewise: the runs that diverged.
FAILURES = b"fedbench_diverged"
#: Columns that repeat what the spec says.
OF_SPEC = ("data", "budget", "precision")
TEXTS = ("id", "stem", "spec", "data", "budget", "precision", "predictions", "by", "started", "machine", "about")
#: What some of them look like.
FORMS = {"id": "[0-9a-f]{12}", "stem": "[0-9a-f]{12}", "predictions": "[0-9a-f]{64}",
         "started": r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?"}  # fmt: skip
#: What is taken over of a run's provenance, and of which type: no host, user or path, and not the list of its source
#: files.
ABOUT: Mapping[str, type] = {
    "title": str, "overrides": dict, "defaults": dict, "deviations": list, "measures": list, "device": str, "cpu": str,
    "processor": str, "cores": int, "threads": int, "executor": str, "stacks": int, "together": int,
    "libraries": dict, "git": str, "fingerprint": str,
}  # fmt: skip
#: Of the metrics in long form.
LONG = ("metric", "view", "round", "client")
#: Runs that are read together: few, since a table needs few of a pack's.
GROUP = 32
#: Ends of the names of metrics that are noise in their last digits, the bits that are left of each round's, and of how
#: many rounds they are kept.
NOISY, BITS, ROUNDS = ("seconds", "_share", "_loss"), 18, 1000
#: How far apart two trainings of the same predictions may have a number.
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
    """A pack in print: its folder's name, and its own."""
    return f"{pack.parent.parent.name}/{pack.stem}"


class Pack:
    """A pack on disk, read as far as it is asked for. What is read is checked: each value has a type and a range."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def heads(self) -> Mapping[str, Sequence[Any]]:
        """The columns that tell of the runs, without their metrics. Raises FedbenchError unless it is a pack."""
        import pyarrow as pa

        if self.path.is_dir():
            raise FedbenchError(f"{self.path} is a folder, not a result pack", "name a file")
        try:
            metadata = self._file.metadata.metadata or {}
            version = json.loads(metadata.get(KEY, b"null"))
            ours = version == VERSION
            if ours and not whole(self.path.read_bytes(), metadata.get(SEAL, b"")):
                raise ValueError("it was edited or damaged since it was written")
            types = {one.name: one.type for one in self._file.schema_arrow} if ours else {}
            table = self._file.read([*TEXTS, "seconds"], use_threads=False) if ours and types == _types() else None
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise self._damaged(next(iter(str(error).splitlines()), "")) from error
        if isinstance(version, int) and version > VERSION:
            raise FedbenchError(f"{self.path} was written by a newer fedbench", "upgrade fedbench")
        if table is None:
            raise self._damaged("it is no result pack")
        heads = {name: table.column(name).to_pylist() for name in table.column_names}
        if fault := _fault_of_heads(heads):
            raise self._damaged(fault)
        return heads

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Run's id -> its row."""
        return {id: row for row, id in enumerate(self.heads["id"])}

    @cached_property
    def failures(self) -> list[Failure]:
        """The runs that diverged. Raises FedbenchError unless it is a pack."""
        try:
            raw = (self._file.metadata.metadata or {}).get(FAILURES, b"{}") if self.heads else b"{}"
            failures = from_json(raw)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if not all(one.reason == plain(one.reason) for one in failures):
            raise self._damaged("why a run diverged is no plain text")
        return failures

    def spec(self, row: int, expected: RunSpec | None = None) -> RunSpec:
        """`expected` itself, if it is the row's. Raises FedbenchError unless it is what the row's id says."""
        text = self.heads["spec"][row]  # a pack that is none says so itself
        spec = expected
        if spec is None or text != spec.canonical():  # to parse one that is known is most of what its run costs
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

        try:
            group = self._group(row // GROUP)
            own = {name: group.column(name)[row % GROUP].values for name in ("names", "views", *LONG, "value")}
            if any(values.null_count for values in own.values()):
                raise ValueError("no value")
            return Metrics(
                id=self.heads["id"][row], names=own["names"].to_pylist(), views=own["views"].to_pylist(),
                **{name: np.from_dlpack(own[name]) for name in (*LONG, "value")},
            )  # fmt: skip
        except (OSError, KeyError, ValueError, IndexError, AttributeError, BufferError, pa.ArrowException) as error:
            raise self._damaged(f"the metrics of run {self.heads['id'][row]} cannot be read") from error

    def row(self, row: int, expected: RunSpec | None = None) -> Row:
        """The whole of a run; `expected` as in `spec`. Raises FedbenchError if it or a metric of the pack is faulty."""
        self.check()
        try:
            about = json.loads(self.heads["about"][row])
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"what is said about run {self.heads['id'][row]} cannot be read") from error
        head = {name: self.heads[name][row] for name in ("predictions", "by", "started", "seconds", "machine")}
        whole = Row(self.spec(row, expected), **head, about=about, metrics=self.metrics(row))
        told = _texts(whole)
        fault = next((f"its {name} is not its spec's" for name in OF_SPEC if told[name] != self.heads[name][row]), "")
        if fault := fault or fault_of(whole):
            raise self._damaged(f"run {whole.id}: {fault}")
        return whole

    def check(self) -> None:
        """Raise FedbenchError unless every value of every run is in the range of its metric: a run that lies makes all
        of the pack doubtful."""
        if self._fault:
            raise self._damaged(self._fault)

    @cached_property
    def _fault(self) -> str:
        """Of all runs, which value is not in the range of its metric, in words; "" if all are."""
        import pyarrow as pa

        ids = iter(self.heads["id"])
        try:
            for k in range(self._file.num_row_groups):  # a part that fits into a processor's cache
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
        """All of its runs."""
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
        return FedbenchError(f"cannot read the result pack {self.path} ({why})", "delete it, or get it anew")


def fault_of(row: Row) -> str:
    """What is wrong with what a run says of itself and with its metrics, in words; "" if nothing is."""
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
    limits = (("view", 0, len(m.views) - 1), ("round", 0, spec.setting.rounds),
              ("client", -1, spec.setting.partition.clients - 1))  # fmt: skip
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
    """What is wrong with the columns that tell of the runs, in words; "" if nothing is."""
    for name, values in heads.items():
        kind: type = float if name == "seconds" else str
        if (k := next((k for k, value in enumerate(values) if type(value) is not kind), None)) is not None:
            return f"run {heads['id'][k]} has no {name}"
    for name in set(TEXTS) - {"spec", "about"}:  # these are parsed
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
    """All texts of a value out of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _strings(one)


def same_numbers(one: Metrics, other: Metrics) -> bool:
    """Whether what both have measured are the same numbers, but for times, memory, losses and what comes of logits,
    which no two trainings have alike."""
    names, views = ({name: k for k, name in enumerate(own)} for own in (one.names, one.views))
    (ours, mine), (theirs, its) = (_places(own, names, views) for own in (one, other))
    _, i, j = np.intersect1d(ours, theirs, return_indices=True)
    return bool(np.allclose(mine[i], its[j], rtol=APART, atol=APART))


def _places(of: Metrics, names: Mapping[str, int], views: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """A number for each place that has a value, by these names and views, and the values."""
    varies = [n.endswith((*NOISY, "_memory")) or bool((m := METRICS.get(n)) and m.needs) for n in of.names]
    metric = np.array([-1 if v else names.get(n, -1) for n, v in zip(of.names, varies, strict=True)], np.int64)
    view = np.array([views.get(v, -1) for v in of.views], np.int64)
    metric, view = metric[of.metric], view[of.view]
    shared = (metric >= 0) & (view >= 0)
    place = ((metric * len(views) + view) << 42) + (of.round.astype(np.int64) << 21) + of.client + 1
    return place[shared], of.value[shared]


def write(path: Path, rows: Iterable[Row], failures: Iterable[Failure] = ()) -> None:
    """Write a pack of these runs, each once (of several rows of a run the last), and of those that diverged. The same
    runs are the same bytes."""
    data = packed(rows, failures)
    with disk_errors("writing a result pack", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)


def add(path: Path, rows: Iterable[Row], failures: Iterable[Failure] = ()) -> int:
    """Add runs to a pack, or begin one, and return how many it has now. A run that is there already is replaced, and of
    several versions of one the last made stays.

    Raises FedbenchError if what is there is no pack.
    """
    before = Pack(path) if path.exists() else None
    every = {row.id: row for row in (*(before.rows() if before else ()), *rows)}
    last = {row.spec.stem: row for row in sorted(every.values(), key=lambda row: row.started)}
    write(path, last.values(), [*(before.failures if before else ()), *failures])
    return len(last)


def packed(rows: Iterable[Row], failures: Iterable[Failure] = ()) -> bytes:
    """The bytes of a pack, sealed. A run that diverged somewhere and is complete is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    unique = [replace(row, metrics=compact(row.metrics)) for _, row in sorted({row.id: row for row in rows}.items())]
    texts = [_texts(row) for row in unique]
    columns = {
        **{name: [text[name] for text in texts] for name in TEXTS},
        "seconds": [row.seconds for row in unique],
        **{name: [getattr(row.metrics, name) for row in unique] for name in ("names", "views", *LONG, "value")},
    }
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in _types().items()})
    made = {row.id for row in unique}
    diverged = [one for one in failures if one.id not in made]
    kept = {FAILURES: to_json(diverged)} if diverged else {}
    table = table.replace_schema_metadata({KEY: json.dumps(VERSION), **kept, SEAL: BLANK})
    buffer = io.BytesIO()
    split = "value.list.element"
    pq.write_table(
        table, buffer, row_group_size=GROUP, compression="zstd", compression_level=19,
        use_dictionary=[*TEXTS, *(f"{name}.list.element" for name in ("names", "views", *LONG))],
        column_encoding={split: "BYTE_STREAM_SPLIT"},
    )  # fmt: skip
    return sealed(buffer.getvalue())


def _types() -> dict[str, pa.DataType]:
    """Column -> its type, in their order in the file."""
    import pyarrow as pa

    return {
        **dict.fromkeys(TEXTS, pa.string()), "seconds": pa.float64(),
        **dict.fromkeys(("names", "views"), pa.list_(pa.string())), **dict.fromkeys(LONG, pa.list_(pa.int32())),
        "value": pa.list_(pa.float64()),
    }  # fmt: skip


def _texts(row: Row) -> dict[str, str]:
    setting = row.spec.setting
    return {
        "id": row.id, "stem": row.spec.stem, "spec": row.spec.canonical(), "data": setting.partition.dataset.text,
        "budget": setting.budget, "precision": setting.precision, "predictions": row.predictions, "by": row.by,
        "started": row.started, "machine": row.machine, "about": json.dumps(row.about, sort_keys=True),
    }  # fmt: skip


def compact(metrics: Metrics) -> Metrics:
    """The same, but that noisy metrics of single rounds have BITS bits, and ROUNDS rounds at most."""
    noisy = np.array([name.endswith(NOISY) for name in metrics.names], bool)[metrics.metric] & (metrics.round > 0)
    mantissa, exponent = np.frexp(metrics.value)
    value = np.where(noisy, np.ldexp(np.round(np.ldexp(mantissa, BITS)), exponent - BITS), metrics.value)
    last = int(metrics.round.max(initial=0))
    every_round = noisy & (metrics.view == 0)  # what depends on no view comes from training, not from evaluations
    kept = ~every_round | ((last - metrics.round) % max(-(-last // ROUNDS), 1) == 0)
    return replace(metrics, value=value[kept], **{name: getattr(metrics, name)[kept] for name in LONG})
