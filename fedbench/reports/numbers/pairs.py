"""Statistic "pairs": xi of FLUX's descriptors over all pairs of the snapshots that each of a cell's runs has kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.reports.numbers.measured import Value
from fedbench.reports.table.spec import UNITS, Column
from fedbench.store import Artifact

if TYPE_CHECKING:
    from fedbench.theory.arrays import Array


def xi(runs: Sequence[Artifact]) -> Array:
    """xi of all pairs of snapshots of the same run, those of all runs one after another: only snapshots through the
    same model can be compared.

    Raises FedbenchError for a run that kept none, and for damaged ones.
    """
    return np.concatenate([_of_run(run) for run in runs])


def over_pairs(values: Array, column: Column, runs: int) -> Value:
    """A column's number from xi of all pairs of so many runs; a mean has the standard deviation (ddof 0)."""
    factor = UNITS[str(column.unit)][0]
    if column.metric == "xi_mean":
        std = float(values.std()) * factor if len(values) > 1 else None
        return Value(float(values.mean()) * factor, std, len(values), seeds=runs)
    number = values.max() if column.metric == "xi_max" else values.min()
    return Value(float(number) * factor, None, len(values), seeds=runs)


def _of_run(run: Artifact) -> Array:
    """xi of a run's snapshots, each of them (`methods.descriptor_bounds.snapshot`): the length of its descriptor, that,
    and its Gaussian."""
    from fedbench.metrics.predictions import broken
    from fedbench.theory.wasserstein import deviations

    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(f"run {run.id} kept no snapshots of its clients", "they are descriptor_bounds' alone")
    table = run.table("descriptors")
    if "descriptor" not in table.column_names or not len(table):
        raise broken(run, "table descriptors has no column 'descriptor'")
    rows = table.column("descriptor").to_pylist()
    if len({len(row or ()) for row in rows}) != 1:
        raise broken(run, "the snapshots of table descriptors must be of one length")
    snapshots = np.array(rows, float)
    length = snapshots[0, 0]
    if not 1 <= length < snapshots.shape[1] - 1:
        raise broken(run, "the snapshots of table descriptors have no Gaussians")
    return deviations(snapshots[:, 1 : 1 + int(length)], snapshots[:, 1 + int(length) :])
