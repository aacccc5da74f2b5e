"""Statistic "pairs": how far distances of FLUX's descriptors are from the Wasserstein distances that they approximate,
over all pairs of the snapshots that a run stored, for each run of a cell (Fenoglio et al., NeurIPS 2025, Eq. 4,
App. C.1 and Table 4, whose definition is that of the authors' notebook).

A client's images and labels are modelled as one Gaussian of vectors [pixels; one-hot label] without covariances. The
squared 2-Wasserstein distance of two such Gaussians is ||m - m'||^2 + ||s - s'||^2, with means m and standard
deviations s: the Euclidean distance of the vectors (m, s). xi is its difference from the distance of the descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbench.errors import FedbenchError
from fedbench.planner.table.spec import UNITS, Column
from fedbench.reports.numbers.measured import Value
from fedbench.specs import require
from fedbench.store import Artifact

Array = NDArray[np.float64]


def xi(runs: Sequence[Artifact]) -> Array:
    """xi of all pairs of snapshots within each run, concatenated over the runs. Snapshots by different models are not
    comparable.

    Raises FedbenchError for a run without snapshots, and for damaged ones.
    """
    return np.concatenate([_of_run(run) for run in runs])


def over_pairs(values: Array, column: Column, runs: int) -> Value:
    """A column's number from xi of all pairs of `runs` runs; the ± of a mean is the standard deviation (ddof 0)."""
    factor = UNITS[str(column.unit)][0]
    if column.metric == "xi_mean":
        std = float(values.std()) * factor if len(values) > 1 else None
        return Value(float(values.mean()) * factor, std, len(values), seeds=runs)
    number = values.max() if column.metric == "xi_max" else values.min()
    return Value(float(number) * factor, None, len(values), seeds=runs)


def _of_run(run: Artifact) -> Array:
    """xi of all pairs of a run's snapshots. A snapshot is the descriptor's length, the descriptor, and its Gaussian
    (`methods.descriptor_bounds.snapshot`)."""
    from fedbench.metrics.predictions import broken

    if "descriptors.parquet" not in run.manifest["files"]:
        raise FedbenchError(f"run {run.id} stored no snapshots of its clients", "they are descriptor_bounds' alone")
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


def deviations(descriptors: ArrayLike, gaussians: ArrayLike) -> Array:
    """Return xi = | ||d_i - d_j|| - W2(i, j) | for all pairs [N (N - 1) / 2] of N snapshots, in the order of
    np.triu_indices(N, 1).

    `descriptors` is [N, L], unscaled, and `gaussians` [N, 2 D], means before standard deviations. Raises FedbenchError
    for less than two snapshots and for NaN or infinite numbers.
    """
    from scipy.spatial.distance import pdist

    d, g = np.asarray(descriptors, float), np.asarray(gaussians, float)
    require(d.ndim == g.ndim == 2 and len(d) == len(g), "snapshots need descriptors [N, L] and Gaussians [N, 2 D]")
    require(len(d) >= 2, f"a pair needs two snapshots, and there are {len(d)}")
    if not (np.isfinite(d).all() and np.isfinite(g).all()):
        raise FedbenchError("a snapshot holds NaN or infinite moments: its model has diverged")
    return np.abs(pdist(d) - pdist(g))
