"""What probabilities tell beyond the answers: loss, calibration, Brier score, top-5 accuracy.

They need a run that keeps its logits: log-probabilities of the classes, or with multi-label images the log-odds of each
label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.metrics.predictions import Clients, Predictions, broken
from fedbench.metrics.scores import Scores
from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa

#: The file of a run's artifact.
FILE = "logits.parquet"
#: Equal bins of the confidence (Guo et al., ICML 2017, section 4: M = 15).
BINS = 15
#: Answers that count as right for the top-5 accuracy.
TOP = 5


def probabilistic(run: Artifact, p: Predictions | Scores, clients: Clients) -> dict[str, list[np.ndarray]]:
    """Metric -> values for the federation [G] and for each client [G, M], NaN in groups whose logits were not kept;
    empty if the run keeps none. Raises FedbenchError if they do not go with the predictions."""
    import pyarrow as pa

    if FILE not in run.manifest["files"]:
        return {}
    table = run.table("logits")
    out: dict[str, list[np.ndarray]] = {}
    for g, (number, view) in enumerate(zip(p.rounds.tolist(), p.views, strict=True)):
        part = _group(table, number, view)
        if not len(part):
            continue
        rows = p.group == g
        column = part.column("logits").combine_chunks()
        if not pa.types.is_fixed_size_list(column.type) or not np.array_equal(
            part.column("client").to_numpy(), p.client[rows]
        ):
            raise broken(run, f"table logits does not go with the predictions of round {number}")
        logits = np.asarray(column.flatten(), np.float32).reshape(len(part), -1)
        for name, values in measured(logits, p.label[rows], p.own[rows], p.client[rows], clients).items():
            whole, each = out.setdefault(
                name, [np.full(len(p.rounds), np.nan), np.full((len(p.rounds), len(clients)), np.nan)]
            )
            whole[g], each[g] = values[0], values[1:]
    return out


def _group(table: pa.Table, number: int, view: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.and_(pc.equal(table["round"], number), pc.equal(table["view"], view)))


def measured(
    logits: np.ndarray, label: np.ndarray, own: np.ndarray, client: np.ndarray, clients: Clients
) -> dict[str, np.ndarray]:
    """Metric -> [1 + M]: over the pooled test images of all clients that train, then over each client's.

    logits [n, K]; label and own [n] classes, or with multi-label images [n, K] 0 or 1 and scores; client [n].
    """
    if label.ndim == 1:
        of_image, confidence, right = _one_class(logits, label, own)
    else:
        of_image, confidence, right = _multi_label(logits, label)
    m, trained = len(clients), client < clients.trainees

    def mean(values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            each = np.bincount(client, values, m) / np.bincount(client, minlength=m)
        return np.array([values[trained].mean(), *each])

    out = {name: mean(values) for name, values in of_image.items()}
    per_image = confidence.size // len(client)
    groups: Sequence[np.ndarray] = [trained, *(client == i for i in range(m))]
    out["calibration_error"] = np.array(
        [calibration_error(confidence[rows], right[rows]) for rows in (np.repeat(g, per_image) for g in groups)]
    )
    return out


def _one_class(
    logits: np.ndarray, label: np.ndarray, own: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Metric -> a value an image [n]; confidence and rightness of each answer [n]."""
    logits = logits - logits.max(1, keepdims=True)
    logits = logits - np.log(np.exp(logits).sum(1, keepdims=True))  # kept rounded: their sum is 1 again
    p, rows = np.exp(logits), np.arange(len(label))
    of_label = logits[rows, label]
    values = {
        "test_loss": -of_label,
        "brier_score": (p**2).sum(1) - 2 * p[rows, label] + 1,
    }
    if logits.shape[1] > TOP:
        earlier = np.arange(logits.shape[1]) < label[:, None]  # of equals the smaller class counts first
        before = (logits > of_label[:, None]) | ((logits == of_label[:, None]) & earlier)
        values["top5_accuracy"] = (before.sum(1) < TOP).astype(np.float64)
    return values, p[rows, own], own == label


def _multi_label(logits: np.ndarray, label: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Metric -> a value an image [n], a mean over its labels; confidence and rightness of each label's answer [n K]."""
    p = 1 / (1 + np.exp(-logits))
    loss = np.logaddexp(0, logits) - label * logits
    values = {"test_loss": loss.mean(1), "brier_score": ((p - label) ** 2).mean(1)}
    return values, np.maximum(p, 1 - p).ravel(), ((p > 0.5) == (label > 0.5)).ravel()


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The expected calibration error (Guo et al., ICML 2017, Eq. 3): over BINS equal bins ((b-1)/BINS, b/BINS] of the
    confidence [n], the mean of |share of right answers - mean confidence|, weighted by the answers in the bin. NaN of
    nothing."""
    if not len(confidence):
        return float("nan")
    bin_of = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gap = np.bincount(bin_of, right.astype(np.float64), BINS) - np.bincount(bin_of, confidence, BINS)
    return float(np.abs(gap).sum() / len(confidence))
