"""The stored metrics of runs in long form, one file to take away: a row for each value, with its run, client and round.

No cell holds more than one value. The columns are: with tables, `table` and `row`; run, method, title, dataset, split,
partition, seed, partition_seed; every hyper-parameter and whatever else the runs differ in (empty for a run without);
client (from 0; empty: the federation), client_name, round (empty: the whole run), view of the test images, metric, and
value as stored (accuracies are fractions).
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.planner.runs import differing, text
from fedbench.reports.compare.numbers import of_metric
from fedbench.reports.layout.grid import Grid
from fedbench.reports.render.data import cell
from fedbench.results.frame import Frame
from fedbench.results.run import Run

if TYPE_CHECKING:
    import pyarrow as pa

#: Endings of the files that hold it.
ENDINGS = (".parquet", ".csv")
#: Columns of every run, and of every value.
MAIN = ("run", "method", "title", "dataset", "split", "partition", "seed", "partition_seed")
OF_VALUES = ("client", "client_name", "round", "view", "metric", "value")


@dataclass(frozen=True)
class Taken:
    """A run whose values are taken."""

    run: Run
    metrics: Collection[str] = ()  #: empty: all that it has
    table: str | None = None  #: ... and the row for which a table reads it
    row: str | None = None


def of_grids(grids: Sequence[Grid], frame: Frame) -> list[Taken]:
    """The runs behind the printed numbers of tables, for each row: the metrics that its columns read, and those of
    single clients that these summarise."""
    taken: dict[tuple[str, str, str], dict[str, None]] = {}
    for grid in grids:
        for line in grid.lines:
            for head, entry in zip(grid.heads, line.entries, strict=True):
                for id in entry.runs:
                    taken.setdefault((grid.id, line.label, id), {})[head.metric] = None
    runs = {id: frame.named(id) for _, _, id in taken}
    return [Taken(runs[id], _stored(metrics, runs[id]), table, row) for (table, row, id), metrics in taken.items()]


def _stored(metrics: Iterable[str], run: Run) -> list[str]:
    """The metrics, and those of clients that they summarise."""
    return list(dict.fromkeys(name for metric in metrics for name in (metric, of_metric(metric, [run]).each) if name))


def table(taken: Sequence[Taken]) -> pa.Table:
    """The values in long form. Raises FedbenchError if there are none, and for damaged metrics."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    parts = [_rows(one) for one in taken]
    sizes = [len(part["value"]) for part in parts]
    if not sum(sizes):
        raise FedbenchError("no run has a value of these metrics", "'fedbench metrics' lists them")
    index = pa.array(np.repeat(np.arange(len(taken)), sizes), pa.int32())
    if any(one.table for one in taken):
        columns = {"table": _of_runs([one.table for one in taken]), "row": _of_runs([one.row for one in taken])}
    runs = [one.run for one in taken]
    own = {key: None for run in runs for key in run.hyper_parameters}
    keys = dict.fromkeys([*MAIN, *own, *(key for key in differing(runs) if key != "row")])
    for key in keys:
        name = f"run.{key}" if key in (*OF_VALUES, "table", "row") else key
        columns[name] = _of_runs([run.id if key == "run" else run.values.get(key) for run in runs])
    columns = {name: values.take(index) for name, values in columns.items()}
    for name in OF_VALUES:
        columns[name] = pa.concat_arrays([part[name] for part in parts])
    return pa.table(columns)


def _of_runs(values: Sequence[Any]) -> pa.Array:
    """A value per run as numbers, or else as texts."""
    import pyarrow as pa

    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return pa.array(values, pa.bool_())
    if present and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return pa.array(values, pa.int64() if all(isinstance(value, int) for value in present) else pa.float64())
    return pa.array([None if value is None else text(value) for value in values], pa.string())


def _rows(one: Taken) -> dict[str, pa.Array]:
    """The values of a run, by the names of OF_VALUES."""
    import pyarrow as pa

    metrics, names = one.run.metrics, one.run.client_names
    wanted = [k for k, name in enumerate(metrics.names) if not one.metrics or name in one.metrics]
    at = np.flatnonzero(np.isin(metrics.metric, wanted))
    client, round = metrics.client[at], metrics.round[at]
    called = pa.array([*names], pa.string()) if names else pa.nulls(1, pa.string())
    known = (client >= 0) & (client < len(called) if names else False)
    view = pa.array([name or None for name in metrics.views], pa.string())
    return {
        "client": pa.array(client, pa.int32(), mask=client < 0),
        "client_name": called.take(pa.array(np.where(known, client, 0), mask=~known)),
        "round": pa.array(round, pa.int32(), mask=round == 0),
        "view": view.take(pa.array(metrics.view[at])),
        "metric": pa.array(metrics.names, pa.string()).take(pa.array(metrics.metric[at])),
        "value": pa.array(metrics.value[at], pa.float64()),
    }


def encoded(values: pa.Table, path: Path | None) -> bytes:
    """The bytes of a file of this name, or of a CSV file. Raises FedbenchError for another ending than ENDINGS.

    In CSV, a text that a spreadsheet would read as a formula gets an apostrophe in front.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    ending = ".csv" if path is None else path.suffix
    if ending not in ENDINGS:
        raise FedbenchError(f"the long form is a file that ends in {' or '.join(ENDINGS)}, not {path}")
    out = io.BytesIO()
    if ending == ".parquet":
        pq.write_table(values, out)
        return out.getvalue()
    columns = []
    for column in values.columns:
        if pa.types.is_string(column.type):
            coded = column.combine_chunks().dictionary_encode()
            column = pa.array(map(cell, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)
        columns.append(column)
    csv.write_csv(
        pa.table(columns, list(map(cell, values.column_names))), out, csv.WriteOptions(quoting_style="needed")
    )
    return out.getvalue()
