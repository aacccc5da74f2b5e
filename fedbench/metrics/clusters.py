"""How a run clustered its clients: its last clusters against the true groups."""

from __future__ import annotations

import numpy as np

from fedbench.metrics.method_metrics import of_rounds
from fedbench.metrics.predictions import numbers
from fedbench.store import Artifact


def clustering(run: Artifact) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, with all else that was measured of the run's rounds; round 0 stands for the whole run.
    There is nothing to compare clusters with in a run without true groups on record."""
    clients, values = run.table("clients"), of_rounds(run)
    if "group" not in clients.column_names:
        return values
    group = numbers(run, clients, "clients", "group")
    values["true_clusters"] = {0: float(len(np.unique(group)))}
    if "cluster" in clients.column_names and "clusters" in values:  # a model for every client is no clustering
        from sklearn.metrics import adjusted_rand_score

        cluster = clients.column("cluster").to_pylist()
        has = np.array([c is not None for c in cluster])
        if has.any():
            values["clusters"][0] = float(len({c for c in cluster if c is not None}))
            score = adjusted_rand_score(group[has], [c for c in cluster if c is not None])
            values["adjusted_rand_index"] = {0: float(score)}
    return values
