"""Run artifacts as the trainer leaves them, made from plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedbench.measure import Measure, stored
from fedbench.metrics.evaluate import MEASURES
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Artifact, Store


def run_spec(
    clients: int,
    rounds: int = 1,
    *,
    window: int = 1,
    method: str = "fedavg",
    seed: int = 0,
    unseen: int | None = None,
    lr: float = 0.1,
) -> RunSpec:
    """The spec of a run on a made-up dataset."""
    dataset = DatasetSpec("made_up", "generated", "0")
    partition = partition_spec(dataset, "iid", clients, 0, 0.5, unseen=unseen)
    setting = Setting(partition, "lenet5", rounds, batch_size=8, lr=lr, seed=seed, epochs=1, window=min(window, rounds))
    return RunSpec(setting, method)


def predictions(rows: list[dict[str, Any]], classes: int | None = None) -> pa.Table:
    """Rows with round, view, client, label, own and perhaps votes, route_*."""
    whole, short = pa.int32(), pa.uint16()
    kinds = {"round": whole, "view": pa.string(), "client": whole, "sample": whole, "label": short, "own": short}
    rows = [{**r, "sample": i} for i, r in enumerate(rows)]
    table: dict[str, Any] = {name: pa.array([r[name] for r in rows], kind) for name, kind in kinds.items()}
    if rows and "votes" in rows[0]:
        flat = pa.array([v for r in rows for v in r["votes"]], pa.uint16())
        table["votes"] = pa.FixedSizeListArray.from_arrays(flat, len(rows[0]["votes"]))
    for name in (n for n in (rows[0] if rows else ()) if n.startswith("route_")):
        table[name] = pa.array([r[name] for r in rows], pa.int32())
    if any("test_phase" in r for r in rows):
        table["test_phase"] = pa.array([r.get("test_phase") for r in rows], pa.uint16())
    return pa.table(table).replace_schema_metadata({"classes": str(classes)} if classes else None)


def rounds_table(rounds: int, **columns: Any) -> pa.Table:
    """A line a round; columns not given hold ones."""
    ones = np.ones(rounds)
    table: dict[str, Any] = {
        "round": np.arange(1, rounds + 1, dtype=np.int32),
        "participants": np.full(rounds, 2, np.int32),
        "images": np.full(rounds, 9),
        "loss": ones,
        "lr": ones,
        "local_seconds": ones,
        "server_seconds": ones,
        "evaluation_seconds": ones,
        "total_seconds": ones,
        "bytes_up": ones.astype(int),
        "bytes_down": ones.astype(int),
    }
    return pa.table({**table, **columns})


def clients_table(n_train: list[int], n_test: list[int], **columns: Any) -> pa.Table:
    index = np.arange(len(n_train), dtype=np.int32)
    return pa.table({"client": index, "n_train": n_train, "n_test": n_test, **columns})


def write(store: Store, spec: RunSpec, measures: Sequence[Measure] | None = None, **tables: pa.Table) -> Artifact:
    """Put a complete run into the store, of a method that declares these measures; None: one made before any did."""
    with store.writing(spec) as writer:
        if measures is not None:
            writer.provenance[MEASURES] = stored(measures)
        for name, table in tables.items():
            writer.table(name, table)
    return store.open("run", spec.id)


def tiny_run(
    store: Store, n: int = 1, measures: Sequence[Measure] | None = None, last: int = 1, **changed: Any
) -> Artifact:
    """A run of n clients, who each have one training image and answer one test image rightly after the first round.
    `changed` replaces tables, and values of the spec."""
    rows = [{"round": 1, "view": "plain", "client": i, "label": 0, "own": 0} for i in range(n)]
    tables = {
        "predictions": predictions(rows),
        "clients": clients_table([1] * n, [1] * n),
        "rounds": rounds_table(last),
    }
    spec = run_spec(n, last, **{key: changed.pop(key) for key in ("method", "unseen") if key in changed})
    return write(store, spec, measures, **{**tables, **changed})


def small_run(store: Store, **changed: Any) -> Artifact:
    """Two clients, two rounds, both views, votes and routes; see test_evaluate for what follows from it.

    Client 0 has 30 training and 2 test images, client 1 has 10 and 3. `changed` replaces tables.
    """
    plain = [
        {"client": 0, "label": 0, "own": 0, "votes": [0, 1], "route_probability": 0, "route_density_ratio": 1},
        {"client": 0, "label": 1, "own": 2, "votes": [2, 1], "route_probability": 1, "route_density_ratio": 1},
        {"client": 1, "label": 2, "own": 2, "votes": [2, 2], "route_probability": 1, "route_density_ratio": 1},
        {"client": 1, "label": 2, "own": 1, "votes": [2, 1], "route_probability": 0, "route_density_ratio": 1},
        {"client": 1, "label": 0, "own": 1, "votes": [2, 1], "route_probability": 0, "route_density_ratio": 0},
    ]
    rows = [{**r, "round": t, "view": v} for t in (1, 2) for v in ("crop", "plain") for r in plain]
    for r in rows:
        if r["round"] == 2 and r["view"] == "plain":
            r["own"] = r["label"]
            r["test_phase"] = 0
    tables = {
        "predictions": predictions(rows, classes=3),
        "clients": clients_table([30, 10], [2, 3], group=[0, 1], cluster=[1, 0]),
        "rounds": rounds_table(
            2,
            local_seconds=[4.0, 2.0],
            bytes_up=[5, 7],
            loss=[0.5, 0.25],
            client_seconds=[8.0, 2.0],
            part_network_seconds=[6.0, 1.0],
            part_estimation_seconds=[1.0, 0.0],
            part_interpolation_seconds=[0.5, 0.5],
            validation_accuracy=[None, 0.75],
            evaluation_seconds=[0.25, 0.5],
            peak_bytes=[5e8, 7e8],
            figure_clusters=[None, 2.0],
            figure_elbow=[0.25, None],
            figure_clustering_round=[None, 2.0],
        ),
    }
    return write(store, run_spec(2, 2, window=2), **{**tables, **changed})
