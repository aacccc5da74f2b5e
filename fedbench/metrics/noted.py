"""What a method noted of its clients before training: columns of the run's `clients` table that are metrics."""

from __future__ import annotations

import numpy as np

from fedbench.metrics.predictions import broken, numbers
from fedbench.store import Artifact

#: Such columns, by the names of their metrics; others that a method may leave there are no metrics.
NOTED = ("ratio_bound",)


def noted(run: Artifact) -> dict[str, np.ndarray]:
    """Metric -> values of the clients [M], for those of `NOTED` that the run's method noted of every client.

    Raises FedbenchError for a value that is negative or not finite.
    """
    table = run.table("clients")
    whole = [name for name in NOTED if name in table.column_names and not table.column(name).null_count]
    found = {name: numbers(run, table, "clients", name) for name in whole}
    for name, values in found.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise broken(run, f"column '{name}' of table clients holds a value below zero or not finite")
    return found
