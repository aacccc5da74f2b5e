"""Who is hurt: the clients that a run serves worse than Local's run on the same partition, with the same seed, does.

Both numbers compare the clients that train, after the rounds that count: by accuracy, or by AUC where images have
several labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedbench.metrics.definitions import METRICS, Definition
from fedbench.metrics.read import Metrics
from fedbench.specs import Setting

#: The method that clients are compared with, and its run in words.
LOCAL = "local"
OF_LOCAL = "Local's run on the same partition, with the same seed"
#: Differences of accuracies that are rounding.
ROUNDING = 1e-12


def _share(lost: np.ndarray) -> float:
    return float((lost > 0).mean())


def _by(lost: np.ndarray) -> float:
    return float(lost[lost > 0].mean()) if (lost > 0).any() else 0.0


def _defined(description: str) -> Definition:
    return Definition(description, "fraction", "fedbench")


#: Metric -> its definition, and its number of what the clients lose (`lost`).
NUMBERS: dict[str, tuple[Definition, Callable[[np.ndarray], float]]] = {
    "worse_than_local": (
        _defined(f"share of the clients that train whose accuracy is below the one that they have by {OF_LOCAL}"),
        _share,
    ),
    "worse_than_local_by": (
        _defined(f"by how much, the mean over these clients (0 if there are none); compared with {OF_LOCAL}"),
        _by,
    ),
}


def clients(
    metrics: Metrics, setting: Setting, view: str, rounds: Sequence[int], metric: str = "client_accuracy"
) -> np.ndarray:
    """The metric of each client that trains [clients], as `Metrics.per_client` gives it: the mean over the rounds that
    count. Empty if not measured after one of them."""
    definition = METRICS.get(metric)
    by_round = definition is not None and definition.by_view
    each = [metrics.per_client(metric, view, t if by_round else None)[: setting.partition.trainees] for t in rounds]
    return np.mean(each, axis=0) if len({len(values) for values in each}) == 1 else np.zeros(0)


def compared(metrics: Metrics) -> str:
    """The metric of clients that is compared."""
    return "client_auc" if "client_auc" in metrics.names else "client_accuracy"


def lost(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray | None:
    """By how much each client's value [clients] is below the one that it has by Local, for clients that have both; None
    if the runs are not of the same clients."""
    if len(ours) != len(theirs):
        return None
    found = (theirs - ours)[~np.isnan(theirs - ours)]
    return np.where(np.abs(found) < ROUNDING, 0.0, found) if len(found) else None
