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

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, write_whole
from fedbench.metrics.read import Metrics
from fedbench.results import failure, seal
from fedbench.results.failure import Failure
from fedbench.specs import PartitionSpec, RunSpec

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2
#: In the file's metadata: the version of this layout.
KEY = b"fedbench_pack"
#: Likewise: the runs that diverged.
FAILURES = b"fedbench_diverged"
TEXTS = ("id", "stem", "spec", "data", "budget", "precision", "predictions", "by", "started", "machine", "about")
#: Of the metrics in long form.
LONG = ("metric", "view", "round", "client")
#: Runs that are read together: few, since a table needs few of a pack's.
GROUP = 32
#: Ends of the names of metrics that are noise in their last digits, the bits that are left of each round's, and of how
#: many rounds they are kept.
NOISY, BITS, ROUNDS = ("seconds", "_share", "_loss"), 18, 1000


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


class Pack:
    """A pack on disk, read as far as it is asked for."""

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
            if ours and not seal.whole(self.path.read_bytes(), metadata.get(seal.KEY, b"")):
                raise ValueError("it was edited or damaged since it was written")
            table = self._file.read([*TEXTS, "seconds"], use_threads=False) if ours else None
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise self._damaged(next(iter(str(error).splitlines()), "")) from error
        if isinstance(version, int) and version > VERSION:
            raise FedbenchError(f"{self.path} was written by a newer fedbench", "upgrade fedbench")
        if table is None or {*table.column_names} != {*TEXTS, "seconds"}:
            raise self._damaged("it is no result pack")
        return {name: table.column(name).to_pylist() for name in table.column_names}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Run's id -> its row."""
        return {id: row for row, id in enumerate(self.heads["id"])}

    @cached_property
    def failures(self) -> list[Failure]:
        """The runs that diverged. Raises FedbenchError unless it is a pack."""
        try:
            return failure.from_json((self._file.metadata.metadata or {}).get(FAILURES, b"{}")) if self.heads else []
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def spec(self, row: int, expected: RunSpec | None = None) -> RunSpec:
        """`expected` itself, if it is the row's. Raises FedbenchError unless it is what the row's id says."""
        text = self.heads["spec"][row]  # a pack that is none says so itself
        spec = expected
        if spec is None or text != spec.canonical():  # to parse one that is known is most of what its run costs
            try:
                spec = RunSpec.shared(json.loads(text)["spec"])
            except (ValueError, KeyError, TypeError, FedbenchError) as error:
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
        except (ValueError, KeyError, TypeError, FedbenchError) as error:
            raise self._damaged(f"a spec cannot be read: {error}") from error

    def metrics(self, row: int) -> Metrics:
        import pyarrow as pa

        try:
            group = self._group(row // GROUP)
            own = {name: group.column(name)[row % GROUP].values for name in ("names", "views", *LONG, "value")}
            return Metrics(
                id=self.heads["id"][row], names=own["names"].to_pylist(), views=own["views"].to_pylist(),
                **{name: np.from_dlpack(own[name]) for name in (*LONG, "value")},
            )  # fmt: skip
        except (OSError, KeyError, IndexError, AttributeError, BufferError, pa.ArrowException) as error:
            raise self._damaged(f"the metrics of run {self.heads['id'][row]} cannot be read") from error

    def row(self, row: int, expected: RunSpec | None = None) -> Row:
        """The whole of a run; `expected` as for `spec`."""
        try:
            about = json.loads(self.heads["about"][row])
        except (ValueError, TypeError) as error:
            raise self._damaged("what is said about a run cannot be read") from error
        head = {name: self.heads[name][row] for name in ("predictions", "by", "started", "seconds", "machine")}
        return Row(self.spec(row, expected), **head, about=about, metrics=self.metrics(row))

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
    texts = {name: pa.array([_texts(row)[name] for row in unique], pa.string()) for name in TEXTS}
    numbers = {name: pa.array([getattr(row.metrics, name) for row in unique], pa.list_(pa.int32())) for name in LONG}
    table = pa.table(
        {
            **texts,
            "seconds": pa.array([row.seconds for row in unique], pa.float64()),
            "names": pa.array([row.metrics.names for row in unique], pa.list_(pa.string())),
            "views": pa.array([row.metrics.views for row in unique], pa.list_(pa.string())),
            **numbers,
            "value": pa.array([row.metrics.value for row in unique], pa.list_(pa.float64())),
        }
    )
    made = {row.id for row in unique}
    diverged = [one for one in failures if one.id not in made]
    kept = {FAILURES: failure.to_json(diverged)} if diverged else {}
    table = table.replace_schema_metadata({KEY: json.dumps(VERSION), **kept, seal.KEY: seal.BLANK})
    buffer = io.BytesIO()
    split = "value.list.element"
    pq.write_table(
        table, buffer, row_group_size=GROUP, compression="zstd", compression_level=19,
        use_dictionary=[*TEXTS, *(f"{name}.list.element" for name in ("names", "views", *LONG))],
        column_encoding={split: "BYTE_STREAM_SPLIT"},
    )  # fmt: skip
    return seal.sealed(buffer.getvalue())


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
