"""The tables that a run writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedbench.core.answers import Answers
from fedbench.core.federation import Federation
from fedbench.data.part import as_column
from fedbench.errors import FedbenchError
from fedbench.store.writing import BYTES

if TYPE_CHECKING:
    import pyarrow as pa


def predictions(t: int, answers: Mapping[str, Answers], federation: Federation) -> Iterator[pa.Table]:
    """Tables of round t's predictions, view by view; a view with many votes has several tables.

    For multi-label images, `label` is a list of 0 and 1 per row, and the scores of all labels, `own_scores` and
    `test_phase_scores`, replace the classes `own` and `test_phase`.
    """
    import pyarrow as pa

    many = federation.multi_label
    own, test_phase = ("own_scores", "test_phase_scores") if many else ("own", "test_phase")
    labels = federation.labels.cpu().numpy().astype(np.uint8 if many else np.uint16)
    having = [as_column(a.test_phase[:0]) for a in answers.values() if a.test_phase is not None]
    kind = pa.table([having[0]], [test_phase]).schema.field(0).type if having else None
    for view, a in answers.items():
        for part in _parts(a):
            rows = a.rows[part]
            columns: dict[str, Any] = {
                "round": np.full(len(rows), t, np.int32),
                "view": pa.array([view] * len(rows), pa.string()),
                "client": federation.client[rows].astype(np.int32),
                "sample": federation.sample[rows].astype(np.int32),
                "label": as_column(labels[rows]),
                own: as_column(a.own[part]),
            }
            if a.votes is not None:
                columns["votes"] = as_column(a.votes[part])
            columns.update({f"route_{rule}": chosen[part] for rule, chosen in a.routes.items()})
            if a.test_phase is not None:
                columns[test_phase] = as_column(a.test_phase[part])
            elif kind is not None:
                columns[test_phase] = pa.nulls(len(rows), kind)
            yield pa.table(columns)


def _parts(answers: Answers) -> list[slice]:
    """Split the rows so that the votes of a part take at most BYTES."""
    rows = max(len(answers.rows), 1)
    size = rows if answers.votes is None else max(1, BYTES // (2 * answers.votes.shape[1]))
    return [slice(at, at + size) for at in range(0, rows, size)]


def clients(federation: Federation, notes: Mapping[str, Mapping[str, float]], assigned: Mapping[int, int]) -> pa.Table:
    """One row per client: sizes, true group, cluster (if there are any), and metrics from `notes` (client, as text ->
    metric -> value)."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "client": np.arange(federation.clients, dtype=np.int32),
        "n_train": np.array(federation.n_train, np.int64),
        "n_test": np.array(federation.n_test, np.int64),
        "group": np.array(federation.groups, np.int32),
    }
    if assigned:
        own = [int(assigned[i]) if i in assigned else None for i in range(federation.clients)]
        columns["cluster"] = pa.array(own, pa.int32())
    for key in sorted({k for metrics in notes.values() for k in metrics}):
        columns[key] = [notes.get(str(i), {}).get(key) for i in range(federation.clients)]
    return pa.table(columns)


def descriptors(clients: Tensor, values: Tensor) -> pa.Table:
    """One row per client with a descriptor [L]."""
    import pyarrow as pa

    flat = pa.array(values.cpu().float().numpy().reshape(-1))
    columns = {"client": pa.array(clients.cpu().numpy(), pa.int32())}
    return pa.table({**columns, "descriptor": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])})


def number(what: str, value: Any) -> float:
    """A number, NumPy scalar or tensor with one element as a plain number. Raises FedbenchError for other values;
    `what` is the name for the message."""
    single = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    plain = value.item() if single else value
    if not isinstance(plain, int | float):
        raise FedbenchError(f"{what} is {value!r}, not a number")
    return plain


def rounds(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row per round. Missing seconds of a part of the work become 0, missing metrics null."""
    import pyarrow as pa

    names = {name: None if _is_measure(name) else 0.0 for line in lines for name in line}
    return pa.Table.from_pylist([{**names, **line} for line in lines])


def _is_measure(name: str) -> bool:
    return name.startswith("figure_") or name == "validation_accuracy"


def average_accuracy(answers: Mapping[str, Answers], federation: Federation, trainees: int) -> float:
    """Average accuracy of the first view over the clients that train, weighted by training sizes, for the display.

    A multi-label image counts with its share of correct labels, where scores are compared with 1/2.
    """
    a = next(iter(answers.values()))
    labels = federation.labels.cpu().numpy()[a.rows]
    if federation.multi_label:
        right = ((a.own > 0.5) == (labels > 0.5)).mean(axis=1)
    else:
        right = (labels == a.own).astype(np.float64)
    client = federation.client[a.rows]
    accuracy = np.bincount(client, right, federation.clients) / np.bincount(client, minlength=federation.clients)
    weights = np.array(federation.n_train[:trainees], np.float64)
    return float((accuracy[:trainees] * weights).sum() / weights.sum())
