"""Statistic "pairs": xi of FLUX's descriptors over all pairs of the snapshots that a cell's runs have kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.report.numbers.measured import Value
from fedbench.report.table.spec import UNITS, Column
from fedbench.specs import RunSpec
from fedbench.store import Artifact

if TYPE_CHECKING:
    from fedbench.theory.arrays import Array


def xi(runs: Sequence[Artifact]) -> Array:
    """xi of all pairs of snapshots of these runs together.

    Raises FedbenchError for a run that kept none, for damaged ones, and if the runs' descriptors differ in length.
    """
    from fedbench.theory.wasserstein import Snapshots, deviations

    rows, widths = [_rows(run) for run in runs], {_width(run) for run in runs}
    if len(widths) > 1 or len({r.shape[1] for r in rows}) > 1:
        raise FedbenchError(f"the snapshots of runs {', '.join(run.id for run in runs)} differ in length")
    return deviations(Snapshots.of(np.concatenate(rows), widths.pop()))


def over_pairs(found: Array, column: Column, runs: int) -> Value:
    """A column's number from xi of all pairs of so many runs; a mean has the standard deviation (ddof 0)."""
    factor = UNITS[str(column.unit)][0]
    if column.metric == "xi_mean":
        return Value(float(found.mean()) * factor, float(found.std()) * factor, len(found), seeds=runs)
    number = found.max() if column.metric == "xi_max" else found.min()
    return Value(float(number) * factor, None, len(found), seeds=runs)


def _rows(run: Artifact) -> Array:
    """Snapshots [N, ...] of a run."""
    from fedbench.metrics.predictions import broken

    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(f"run {run.id} kept no snapshots of its clients", "they are descriptor_bounds' alone")
    told = run.table("descriptors")
    if "descriptor" not in told.column_names or not len(told):
        raise broken(run, "table descriptors has no column 'descriptor'")
    rows = told.column("descriptor").to_pylist()
    if len({len(row or ()) for row in rows}) != 1:
        raise broken(run, "the snapshots of table descriptors must be of one length")
    return np.array(rows, float)


def _width(run: Artifact) -> int:
    spec = run.spec
    assert isinstance(spec, RunSpec)
    return int(str(spec.params["components"]))
