"""Times, traffic and training loss from a run's `rounds` table."""

from __future__ import annotations

import numpy as np

from fedbench.metrics.predictions import broken, integers, numbers
from fedbench.store import Artifact

#: Column of `rounds` -> (metric, what stands for the whole run).
_COLUMNS = {
    "local_seconds": ("local_training_seconds", "warm mean"),
    "server_seconds": ("server_seconds", "sum"),
    "evaluation_seconds": ("evaluation_seconds", "sum"),
    "total_seconds": ("total_runtime_seconds", "only sum"),
    "bytes_up": ("bytes_up", "sum"),
    "bytes_down": ("bytes_down", "sum"),
}


def timings(run: Artifact, rounds: int) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, round 0 standing for the whole run of `rounds` rounds.

    Raises FedbenchError if the table lacks a round or a column, or holds a time or a size below zero.
    """
    table = run.table("rounds")
    number = integers(run, table, "rounds", "round")
    if not np.array_equal(number, np.arange(1, rounds + 1)):
        raise broken(run, f"table rounds must list the rounds 1 to {rounds} in order")
    out: dict[str, dict[int, float]] = {}
    for column, (metric, whole) in _COLUMNS.items():
        values = numbers(run, table, "rounds", column)
        if not np.isfinite(values).all() or (values < 0).any():
            raise broken(run, f"column '{column}' of table rounds holds a value below zero or none at all")
        # The first round pays for allocations and compilation; two rounds are too few to spare one.
        total = values[1 if rounds > 2 else 0 :].mean() if whole == "warm mean" else values.sum()
        by_round = {} if whole == "only sum" else dict(zip(number.tolist(), values.tolist(), strict=True))
        out[metric] = {0: float(total), **by_round}
    loss = numbers(run, table, "rounds", "loss")
    trained = integers(run, table, "rounds", "participants") > 0  # an empty cohort has no loss
    out["train_loss"] = dict(zip(number[trained].tolist(), loss[trained].tolist(), strict=True))
    return out
