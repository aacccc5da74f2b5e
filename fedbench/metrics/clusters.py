"""How a run clustered its clients: figures of its rounds, and its last clusters against the true groups."""

from __future__ import annotations

import numpy as np

from fedbench.metrics.predictions import numbers
from fedbench.store import Artifact

#: Figures that methods report of a round, by the names of their metrics; the run's own is the last.
FIGURES = ("clusters", "elbow", "clustering_round")


def clustering(run: Artifact) -> dict[str, dict[int, float]]:
    """Metric -> round -> value; round 0 stands for the whole run. Empty for a run without true groups on record."""
    rounds, clients = run.table("rounds"), run.table("clients")
    found: dict[str, dict[int, float]] = {}
    number = rounds.column("round").to_pylist()
    for name in FIGURES:
        if (column := f"figure_{name}") in rounds.column_names:
            series = {t: v for t, v in zip(number, rounds.column(column).to_pylist(), strict=True) if v is not None}
            if series:
                found[name] = {**series, 0: series[max(series)]}
    if "group" not in clients.column_names:
        return found
    group = numbers(run, clients, "clients", "group")
    found["true_clusters"] = {0: float(len(np.unique(group)))}
    if "cluster" in clients.column_names and "clusters" in found:  # a model for every client is no clustering
        from sklearn.metrics import adjusted_rand_score

        cluster = clients.column("cluster").to_pylist()
        has = np.array([c is not None for c in cluster])
        if has.any():
            found["clusters"][0] = float(len({c for c in cluster if c is not None}))
            score = adjusted_rand_score(group[has], [c for c in cluster if c is not None])
            found["adjusted_rand_index"] = {0: float(score)}
    return found
