"""Times, communication cost, training loss and validation accuracy from a run's `rounds` table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.metrics.predictions import broken, integers, numbers
from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa

#: Column of `rounds` -> (metric, what stands for the whole run).
_COLUMNS = {
    "local_seconds": ("local_training_seconds", "warm mean"),
    "server_seconds": ("server_seconds", "sum"),
    "evaluation_seconds": ("evaluation_seconds", "sum"),
    "total_seconds": ("total_runtime_seconds", "only sum"),
    "bytes_up": ("bytes_up", "sum"),
    "bytes_down": ("bytes_down", "sum"),
}
#: Parts of the clients' work that are metrics where a run tells them: column `part_NAME_seconds` of `rounds`, as a
#: share of what the clients took.
PARTS = ("network", "estimation", "interpolation")
#: Column of the most memory so far.
PEAK = "peak_bytes"


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
    total, evaluation = (numbers(run, table, "rounds", f"{part}_seconds") for part in ("total", "evaluation"))
    alone = total - evaluation
    warm = alone[1 if rounds > 2 else 0 :].mean()
    out["round_seconds"] = {0: float(warm), **dict(zip(number.tolist(), alone.tolist(), strict=True))}
    if PEAK in table.column_names:  # runs before it was measured have none
        peak = numbers(run, table, "rounds", PEAK)
        out["peak_memory"] = {0: float(peak.max()), **dict(zip(number.tolist(), peak.tolist(), strict=True))}
    out |= _shares(run, table, number)
    loss = numbers(run, table, "rounds", "loss")
    # Nobody trained: an empty cohort, or one that only told of its data.
    trained = (integers(run, table, "rounds", "participants") > 0) & (integers(run, table, "rounds", "images") > 0)
    out["train_loss"] = dict(zip(number[trained].tolist(), loss[trained].tolist(), strict=True))
    if "validation_accuracy" in table.column_names:
        shares = zip(number.tolist(), table.column("validation_accuracy").to_pylist(), strict=True)
        out["validation_accuracy"] = {t: float(share) for t, share in shares if share is not None}
    return out


def _shares(run: Artifact, table: pa.Table, number: np.ndarray) -> dict[str, dict[int, float]]:
    """The shares of the parts, for rounds in which somebody worked, and of all their seconds."""
    columns = {part: f"part_{part}_seconds" for part in PARTS if f"part_{part}_seconds" in table.column_names}
    whole = numbers(run, table, "rounds", "client_seconds") if columns else np.zeros(0)
    out = {}
    for part, column in columns.items():
        values = numbers(run, table, "rounds", column)
        if not np.isfinite(values).all() or (values < 0).any():
            raise broken(run, f"column '{column}' of table rounds holds a value below zero or none at all")
        worked = whole > 0
        by_round = dict(zip(number[worked].tolist(), (values[worked] / whole[worked]).tolist(), strict=True))
        out[f"{part}_share"] = {0: float(values.sum() / whole.sum()), **by_round} if by_round else {}
    return out
