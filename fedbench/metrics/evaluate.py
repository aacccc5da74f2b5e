"""Computes the metrics of a run: one table in long form.

Columns of the artifact's table `metrics`: metric, view ("" if the metric depends on none), round (0: the whole run),
client (-1: the whole federation), value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedbench.data.part import values_of
from fedbench.errors import FedbenchError
from fedbench.measure import CLIENT, FEDERATION, ROUND, Measure, restored
from fedbench.methods import declarations
from fedbench.metrics.accuracy import accuracies
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.predictions import Predictions, broken, integers, numbers, read_clients, read_predictions
from fedbench.metrics.read import HEADLINE, listed, metrics_of, of_table, spec_of, writing
from fedbench.metrics.scores import areas, read_scores, scored
from fedbench.metrics.statistics import warm_rounds
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import pyarrow as pa

#: Key of a run's provenance: the measures of its method, metrics that it took itself per round or per client.
MEASURES = "measures"
#: Metrics of old runs, whose provenance has no declared measures.
BEFORE = ("clusters", "elbow", "clustering_round", "ratio_bound")
#: Columns of a run's `clients` table; a metric may not have these names.
RESERVED = ("client", "n_train", "n_test", "group", "cluster")


class Noted(NamedTuple):
    """A metric with a value per client."""

    whole: float  #: value of the federation
    values: np.ndarray  #: [M]; NaN for unseen clients without a value


def measures_of(run: Artifact) -> dict[str, Measure]:
    """Name -> measure that the run's method declared. Raises FedbenchError if the provenance is damaged there."""
    if (raw := run.provenance.get(MEASURES)) is None:
        return {name: measure for name, measure in declarations.measures().items() if name in BEFORE}
    try:
        return {measure.name: measure for measure in restored(raw, MEASURES)}
    except FedbenchError as error:
        raise broken(run, str(error)) from error


def of_rounds(run: Artifact) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, of the method's measures per round; round 0 has the last value."""
    rounds = run.table("rounds")
    number = rounds.column("round").to_pylist()
    values: dict[str, dict[int, float]] = {}
    for name in (name for name, measure in measures_of(run).items() if measure.of == ROUND):
        if (column := f"figure_{name}") in rounds.column_names:
            series = {t: v for t, v in zip(number, rounds.column(column).to_pylist(), strict=True) if v is not None}
            if series:
                values[name] = {**series, 0: series[max(series)]}
    return values


def of_clients(run: Artifact, trainees: int) -> dict[str, Noted]:
    """Metric -> values, of the method's measures that every training client (the first `trainees`) has.

    Raises FedbenchError for a value that is not finite or below the measure's least value.
    """
    table = run.table("clients")
    noted: dict[str, Noted] = {}
    for name, measure in measures_of(run).items():
        if measure.of != CLIENT or name not in table.column_names or table.column(name)[:trainees].null_count:
            continue
        values = numbers(run, table, "clients", name)
        present = values[values_of(table.column(name).is_valid())]
        least = -np.inf if measure.least is None else measure.least
        if not np.isfinite(present).all() or (present < least).any():
            below = "" if measure.least is None else f"below {measure.least:g} or "
            raise broken(run, f"column '{name}' of table clients holds a value {below}not finite")
        noted[name] = Noted(FEDERATION[measure.federation](values[:trainees].tolist()), values)
    return noted


def check_measures(measures: Sequence[Measure], where: str) -> None:
    """Raise FedbenchError unless a method's `measures` can be metrics of its runs; `where` names the method."""
    names = [measure.name for measure in measures]
    for name in names:
        if name in (*METRICS, *RESERVED):
            raise FedbenchError(f"{where} measures '{name}', which is a name of fedbench's own", "choose another name")
        if names.count(name) > 1:
            raise FedbenchError(f"{where} measures '{name}' twice", "choose another name")


def clustering(run: Artifact) -> dict[str, dict[int, float]]:
    """Metric -> round -> value: the method's measures per round and, if the run records the true groups, its metrics of
    clustering; round 0 has the value of the whole run."""
    clients, values = run.table("clients"), of_rounds(run)
    if "group" not in clients.column_names:
        return values
    group = numbers(run, clients, "clients", "group")
    values["true_clusters"] = {0: float(len(np.unique(group)))}
    if "cluster" in clients.column_names and "clusters" in values:  # not if every client has its own model
        from sklearn.metrics import adjusted_rand_score

        cluster = clients.column("cluster").to_pylist()
        has = np.array([c is not None for c in cluster])
        if has.any():
            values["clusters"][0] = float(len({c for c in cluster if c is not None}))
            score = adjusted_rand_score(group[has], [c for c in cluster if c is not None])
            values["adjusted_rand_index"] = {0: float(score)}
    return values


#: Column of `rounds` -> metric; its value for the whole run is the sum, unless `timings` defines another.
_COLUMNS = {
    "local_seconds": "local_training_seconds",
    "server_seconds": "server_seconds",
    "evaluation_seconds": "evaluation_seconds",
    "total_seconds": "total_runtime_seconds",
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
}
#: Parts of the clients' work: column `part_NAME_seconds` of `rounds` gives the metric NAME_share, a share of the
#: clients' seconds.
PARTS = ("network", "estimation", "interpolation")
#: Column of the peak memory so far, in bytes.
PEAK = "peak_bytes"


def timings(run: Artifact, rounds: int) -> dict[str, dict[int, float]]:
    """Metric -> round -> value; round 0 has the value of the whole run.

    Raises FedbenchError if the table lacks a round or a column, or holds a time or a size below zero.
    """
    table = run.table("rounds")
    number = integers(run, table, "rounds", "round")
    if not np.array_equal(number, np.arange(1, rounds + 1)):
        raise broken(run, f"table rounds must list the rounds 1 to {rounds} in order")

    def by_round(values: np.ndarray, rows: Any = slice(None)) -> dict[int, float]:
        return dict(zip(number[rows].tolist(), values[rows].tolist(), strict=True))

    columns = {column: _amounts(run, table, column) for column in _COLUMNS}
    out = {metric: {0: float(columns[name].sum()), **by_round(columns[name])} for name, metric in _COLUMNS.items()}
    total, evaluation = columns["total_seconds"], columns["evaluation_seconds"]
    out["local_training_seconds"][0] = warm_rounds(out["local_training_seconds"]).mean
    out["total_runtime_seconds"] = {0: float(total.sum())}
    training = by_round(total - evaluation)
    out["round_seconds"] = {0: warm_rounds(training).mean, **training}
    if PEAK in table.column_names:  # old runs have none
        peak = numbers(run, table, "rounds", PEAK)
        out["peak_memory"] = {0: float(peak.max()), **by_round(peak)}
    for part in PARTS:
        if (column := f"part_{part}_seconds") in table.column_names:
            values, client_seconds = _amounts(run, table, column), numbers(run, table, "rounds", "client_seconds")
            worked = client_seconds > 0
            shares = by_round(
                np.divide(values, client_seconds, out=np.zeros_like(client_seconds), where=worked), worked
            )
            out[f"{part}_share"] = {0: float(values.sum() / client_seconds.sum()), **shares} if shares else {}
    loss = numbers(run, table, "rounds", "loss")
    # No loss without training: an empty cohort, or one that only described its data.
    trained = (integers(run, table, "rounds", "participants") > 0) & (integers(run, table, "rounds", "images") > 0)
    out["train_loss"] = by_round(loss, trained)
    if "validation_accuracy" in table.column_names:
        right = zip(number.tolist(), table.column("validation_accuracy").to_pylist(), strict=True)
        out["validation_accuracy"] = {t: float(share) for t, share in right if share is not None}
    return out


def _amounts(run: Artifact, table: pa.Table, column: str) -> np.ndarray:
    """A column of times or sizes. Raises FedbenchError for a negative or missing value."""
    values = numbers(run, table, "rounds", column)
    if not np.isfinite(values).all() or (values < 0).any():
        raise broken(run, f"column '{column}' of table rounds holds a value below zero or none at all")
    return values


def evaluate(run: Artifact, store: Store, *, again: bool = False) -> Artifact:
    """The metrics artifact of a run: from the store (unless `again`), else computed from the run's tables.

    Raises FedbenchError, and writes nothing, if the run's tables are damaged or contradict each other.
    """
    spec = spec_of(run)
    if not again and (done := metrics_of(run, store)) is not None:
        return done
    rounds = spec.run.setting.rounds
    clients = read_clients(run)
    read, measure = (read_scores, areas) if scored(run) else (read_predictions, accuracies)
    answers = read(run, clients, rounds)
    measured = measure(answers, clients)
    by_round = {**timings(run, rounds), **clustering(run)}
    images = Noted(clients.n_test[: clients.trainees].sum(), clients.n_test)
    by_client = {"test_images": images, **of_clients(run, clients.trainees)}
    table = _long_form(answers, measured, len(clients), by_round, by_client)
    with writing(run, store) as writer:
        writer.table("metrics", table)
        writer.provenance[HEADLINE] = listed(of_table(spec.id, table), spec.run.setting)
    return store.open(spec.kind, spec.id)


def _long_form(
    p: Predictions,
    measured: dict[str, list[np.ndarray]],
    clients: int,
    times: dict[str, dict[int, float]],
    noted: dict[str, Noted],
) -> pa.Table:
    """The table `metrics` from metrics of predictions ([G] or [G, M]), of rounds and of clients."""
    import pyarrow as pa

    views = ["", *sorted(set(p.views))]
    view_of_group = np.array([views.index(v) for v in p.views])
    names = [*sorted(measured), *sorted(times), *sorted(noted)]
    blocks: list[tuple[np.ndarray, ...]] = []  # (metric, view, round, client, value), each [rows]
    for code, name in enumerate(names):
        for values in measured.get(name, []):
            owners = np.arange(values.shape[1]) if values.ndim == 2 else np.array([-1])
            group = np.repeat(np.arange(len(p.rounds)), len(owners))
            metric = np.full(len(group), code)
            client = np.tile(owners, len(p.rounds))
            blocks.append((metric, view_of_group[group], p.rounds[group], client, values.ravel()))
        by_round = times.get(name, {})
        n = len(by_round)
        blocks.append(
            (np.full(n, code), np.zeros(n), np.array([*by_round]), np.full(n, -1), np.array([*by_round.values()]))
        )
        if name in noted:
            owner, value = np.arange(-1, clients), np.array([noted[name].whole, *noted[name].values])
            n = len(value)
            blocks.append((np.full(n, code), np.zeros(n), np.zeros(n), owner, value))
    metric, view, number, client, value = (np.concatenate(column) for column in zip(*blocks, strict=True))
    defined = np.isfinite(value)  # NaN: no test phase in this round, constant labels; infinite: a method's own metric
    metric, view, number, client, value = (column[defined] for column in (metric, view, number, client, value))
    return pa.table(
        {
            "metric": pa.DictionaryArray.from_arrays(metric.astype(np.int32), names),
            "view": pa.DictionaryArray.from_arrays(view.astype(np.int32), views),
            "round": number.astype(np.int32),
            "client": client.astype(np.int32),
            "value": value.astype(np.float64),
        }
    )
