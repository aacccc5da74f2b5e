"""Predictions for multi-label images: a score for each label, and the area under the ROC curve of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedbench.metrics.predictions import Clients, broken, groups_of, integers, whole
from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the scores in a run's predictions; a run whose images have one class each has neither.
OWN, TEST_PHASE = "own_scores", "test_phase_scores"


@dataclass(frozen=True)
class Scores:
    """Scores of N test images with U labels each; an image is in one of G groups, a group being a (round, view)."""

    rounds: np.ndarray  #: [G]
    views: Sequence[str]  #: [G]
    group: np.ndarray  #: [N] index of the image's group
    client: np.ndarray  #: [N] owner of the image
    label: np.ndarray  #: [N, U] 0 or 1
    own: np.ndarray  #: [N, U] scores by the owner's model
    test_phase: np.ndarray | None  #: [N, U] those of what serves the owner without labels; NaN in groups without


def scored(run: Artifact) -> bool:
    """Whether the images of the run have several labels. Raises FedbenchError if its predictions cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = run.file("predictions.parquet")
    try:
        return OWN in pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise broken(run, f"cannot read {path} ({error})") from error


def read_scores(run: Artifact, clients: Clients, rounds: int) -> Scores:
    """The `predictions` table of a run of so many rounds.

    Raises FedbenchError for missing columns, labels other than 0 and 1, scores that are not finite, unknown clients,
    and groups that do not hold every client's test images.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = run.file("predictions.parquet")
    try:
        if "view" not in pq.read_schema(path).names:
            raise broken(run, "table predictions has no column 'view'")
        table = pq.read_table(path, read_dictionary=["view"])
    except (OSError, pa.ArrowException) as error:
        raise broken(run, f"cannot read {path} ({error})") from error
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
    return Scores(number, views, group, client, label, own, test_phase)


def _lists(run: Artifact, table: pa.Table, name: str, gaps: bool = False) -> np.ndarray:
    """A column of lists of one length as [N, U] float64; rows without one are NaN where gaps are allowed."""
    import pyarrow as pa

    if name not in table.column_names:
        raise broken(run, f"table predictions has no column '{name}'")
    column = table.column(name).combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        raise broken(run, f"column '{name}' of table predictions must hold lists of one length, not {column.type}")
    there = np.asarray(column.is_valid())
    flat = column.flatten()  # which leaves out the rows without a list
    if flat.null_count or not (gaps or there.all()):
        raise broken(run, f"column '{name}' of table predictions has gaps")
    out = np.full((len(column), column.type.list_size), np.nan)
    out[there] = np.asarray(flat, np.float64).reshape(-1, column.type.list_size)
    return out


def areas(s: Scores, clients: Clients) -> dict[str, list[np.ndarray]]:
    """Metric -> values for the federation [G] and for each client [G, M], whichever there are.

    Unseen clients count in `client_auc` only; a client whose labels are all constant has no value and does not count.
    """
    areas_of = {"client_auc": _by_client(s, s.own, len(clients))}
    if s.test_phase is not None:
        areas_of["test_phase_auc"] = _by_client(s, s.test_phase, clients.trainees)
    out = {name: [each] for name, each in areas_of.items()}
    return out | {f"{name}_mean": [_mean(each[:, : clients.trainees])] for name, each in areas_of.items()}


def _by_client(s: Scores, scores: np.ndarray, clients: int) -> np.ndarray:
    """[G, clients]: macro areas."""
    out = np.full((len(s.rounds), clients), np.nan)
    for g in range(len(s.rounds)):
        for c in range(clients):
            rows = (s.group == g) & (s.client == c)
            if not np.isnan(scores[rows]).any():
                out[g, c] = macro_area(scores[rows], s.label[rows])
    return out


def macro_area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean over labels of the area under the ROC curve, from scores [n, U] and labels 0 or 1 [n, U]; labels that are
    constant have none and are left out. NaN if all of them are.

    The area is the share of pairs (an image with the label, one without) that the scores order rightly; a tie is half.
    """
    from scipy.stats import rankdata

    n = len(labels)
    positive = labels.sum(axis=0)
    defined = (positive > 0) & (positive < n)
    if not defined.any():
        return float("nan")
    labels, positive = labels[:, defined], positive[defined]
    ranks = rankdata(scores[:, defined], axis=0)  # of equals the mean
    right = (ranks * labels).sum(axis=0) - positive * (positive + 1) / 2
    return float((right / (positive * (n - positive))).mean())


def _mean(each: np.ndarray) -> np.ndarray:
    """[G]: over the clients that have a value; NaN where none has."""
    has_value = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(has_value, each, 0).sum(axis=1) / has_value.sum(axis=1)
    return mean
