"""The step from a run to its metrics: one table in long form.

Columns of the artifact's table `metrics`: metric, view ("" for what does not depend on one), round (0: the whole
run), client (-1: the whole federation), value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbench.metrics.accuracy import accuracies
from fedbench.metrics.clusters import clustering
from fedbench.metrics.headline import HEADLINE, headline
from fedbench.metrics.method_metrics import Noted, of_clients
from fedbench.metrics.predictions import read_clients, read_predictions
from fedbench.metrics.probabilities import probabilistic
from fedbench.metrics.read import metrics_of, of_table, spec_of, writing
from fedbench.metrics.scores import areas, read_scores, scored
from fedbench.metrics.timing import timings
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import pyarrow as pa


def evaluate(run: Artifact, store: Store, *, again: bool = False) -> Artifact:
    """Compute the metrics of a run from its tables, or return those that are there (unless `again`).

    Raises FedbenchError if the run's tables are damaged or contradict themselves; nothing is written then.
    """
    spec = spec_of(run)
    if not again and (done := metrics_of(run, store)) is not None:
        return done
    rounds = spec.run.setting.rounds
    clients = read_clients(run)
    if scored(run):
        scores = read_scores(run, clients, rounds)
        measured = areas(scores, clients) | probabilistic(run, scores, clients)
        answered = _Answered(scores.rounds, scores.views, measured)
    else:
        predictions = read_predictions(run, clients, rounds)
        measured = accuracies(predictions, clients) | probabilistic(run, predictions, clients)
        answered = _Answered(predictions.rounds, predictions.views, measured)
    by_round = {**timings(run, rounds), **clustering(run)}
    images = Noted(clients.n_test[: clients.trainees].sum(), clients.n_test)
    by_client = {"test_images": images, **of_clients(run, clients.trainees)}
    table = _long_form(answered, len(clients), by_round, by_client)
    with writing(run, store) as writer:
        writer.table("metrics", table)
        writer.provenance[HEADLINE] = headline(of_table(spec.id, table), spec.run.setting.window)
    return store.open(spec.kind, spec.id)


class _Answered(NamedTuple):
    """What comes from predictions: the round and the view of each group [G], and metric -> values [G] or [G, M]."""

    rounds: np.ndarray
    views: Sequence[str]
    measured: dict[str, list[np.ndarray]]


def _long_form(p: _Answered, clients: int, times: dict[str, dict[int, float]], noted: dict[str, Noted]) -> pa.Table:
    import pyarrow as pa

    views = ["", *sorted(set(p.views))]
    view_of_group = np.array([views.index(v) for v in p.views])
    names = [*sorted(p.measured), *sorted(times), *sorted(noted)]
    blocks: list[tuple[np.ndarray, ...]] = []  # (metric, view, round, client, value), each [rows]
    for code, name in enumerate(names):
        for values in p.measured.get(name, []):
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
    there = ~np.isnan(value)  # a round without a test phase has no accuracy there, constant labels no area
    metric, view, number, client, value = (column[there] for column in (metric, view, number, client, value))
    return pa.table(
        {
            "metric": pa.DictionaryArray.from_arrays(metric.astype(np.int32), names),
            "view": pa.DictionaryArray.from_arrays(view.astype(np.int32), views),
            "round": number.astype(np.int32),
            "client": client.astype(np.int32),
            "value": value.astype(np.float64),
        }
    )
