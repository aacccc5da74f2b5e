"""Predictions for multi-label images: a score per label, and the area under their ROC curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbench.metrics.predictions import (
    ClientSizes,
    Predictions,
    broken,
    column_of,
    groups_of,
    integers,
    opened,
    whole,
)
from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa


#: Columns of scores in the predictions of multi-label runs.
OWN, TEST_PHASE = "own_scores", "test_phase_scores"


def scored(run: Artifact) -> bool:
    """Whether the images of the run are multi-label. Raises FedbenchError if its predictions cannot be read."""
    with opened(run) as file:
        return OWN in file.schema_arrow.names


def read_scores(run: Artifact, clients: ClientSizes, rounds: int) -> Predictions:
    """The `predictions` table of a run of `rounds` rounds, with scores instead of answers.

    Raises FedbenchError for missing columns, labels other than 0 and 1, scores that are not finite, unknown clients,
    and groups that do not hold every client's test images.
    """
    with opened(run) as file:
        table = file.read()
    number, views, group = groups_of(run, table, rounds)
    client = integers(run, table, "predictions", "client")
    whole(run, clients, number, group, client)
    label, own = _lists(run, table, "label"), _lists(run, table, OWN)
    test_phase = _lists(run, table, TEST_PHASE, gaps=True) if TEST_PHASE in table.column_names else None
    if not np.isin(label, (0, 1)).all():
        raise broken(run, "column 'label' of table predictions holds others than 0 and 1")
    for name, scores in ((OWN, own), (TEST_PHASE, test_phase)):
        if scores is None:
            continue
        if scores.shape != label.shape:
            raise broken(run, f"column '{name}' of table predictions has {scores.shape[1]} scores a row")
        if np.isinf(scores).any() or (name == OWN and np.isnan(scores).any()):
            raise broken(run, f"column '{name}' of table predictions holds scores that are not finite")
    return Predictions(number, views, label.shape[1], group, client, label, own, test_phase=test_phase)


def _lists(run: Artifact, table: pa.Table, name: str, gaps: bool = False) -> np.ndarray:
    """A column of equally long lists as [N, U] float64; null rows become NaN if `gaps`, else raise FedbenchError."""
    import pyarrow as pa

    column = column_of(run, table, "predictions", name).combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        raise broken(run, f"column '{name}' of table predictions must hold lists of one length, not {column.type}")
    valid = np.asarray(column.is_valid())
    flat = column.flatten()  # without the null rows
    if flat.null_count or not (gaps or valid.all()):
        raise broken(run, f"column '{name}' of table predictions has gaps")
    out = np.full((len(column), column.type.list_size), np.nan)
    out[valid] = np.asarray(flat, np.float64).reshape(-1, column.type.list_size)
    return out


def areas(s: Predictions, clients: ClientSizes) -> dict[str, list[np.ndarray]]:
    """Metric -> list of its arrays: for each client [G, M], or for the federation [G].

    Unseen clients count in `client_auc` only; a client whose labels are all constant is NaN and not in the mean.
    """
    areas_of = {"client_auc": _by_client(s, s.own, len(clients))}
    if s.test_phase is not None:
        areas_of["test_phase_auc"] = _by_client(s, s.test_phase, clients.trainees)
    out = {name: [values] for name, values in areas_of.items()}
    return out | {f"{name}_mean": [_mean(values[:, : clients.trainees])] for name, values in areas_of.items()}


def _by_client(s: Predictions, scores: np.ndarray, clients: int) -> np.ndarray:
    """Macro areas [G, clients]; NaN for clients without scores."""
    out = np.full((len(s.rounds), clients), np.nan)
    for g in range(len(s.rounds)):
        for c in range(clients):
            rows = (s.group == g) & (s.client == c)
            if not np.isnan(scores[rows]).any():
                out[g, c] = macro_area(scores[rows], s.label[rows])
    return out


def macro_area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean over labels of the area under the ROC curve, from scores [n, U] and labels 0 or 1 [n, U], without constant
    labels. NaN if all are constant.

    The area is the share of pairs (an image with the label, one without) that the scores order correctly; ties count
    half.
    """
    from scipy.stats import rankdata

    n = len(labels)
    positive = labels.sum(axis=0)
    defined = (positive > 0) & (positive < n)
    if not defined.any():
        return float("nan")
    labels, positive = labels[:, defined], positive[defined]
    ranks = rankdata(scores[:, defined], axis=0)  # ties get their mean rank
    right = (ranks * labels).sum(axis=0) - positive * (positive + 1) / 2
    return float((right / (positive * (n - positive))).mean())


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean [G] over the clients without NaN; NaN if all are NaN."""
    has_value = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(has_value, values, 0).sum(axis=1) / has_value.sum(axis=1)
    return mean
