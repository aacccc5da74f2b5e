"""Accuracies from predictions, for all rounds and views at once, and confusion matrices. Definitions:
`definitions.METRICS`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.metrics.predictions import (
    ClientSizes,
    Predictions,
    groups_of,
    integers,
    opened,
    read_clients,
    whole,
)
from fedbench.metrics.scores import scored
from fedbench.specs import RunSpec
from fedbench.store import Artifact


def accuracies(p: Predictions, clients: ClientSizes) -> dict[str, list[np.ndarray]]:
    """Metric -> list of its arrays: for the federation [G], for each client [G, M], or both.

    G: number of (round, view) groups of `p`; M: number of clients. System accuracies other than the oracle's need
    votes; a standard deviation needs two clients. Unseen clients count in `client_accuracy` only. The test phase is NaN
    in groups without one.
    """
    m, trained = len(clients), slice(clients.trainees)
    weights, n_test = clients.n_train[trained] / clients.n_train[trained].sum(), clients.n_test[trained]
    by_client = _share(p.own == p.label, p.group * m + p.client, len(p.rounds) * m).reshape(-1, m)
    of_trainees = by_client[:, trained]
    p = _of_first(p, clients.trainees)
    of_class = _share(p.own == p.label, p.group * p.classes + p.label, len(p.rounds) * p.classes)
    out = {
        "system_accuracy_oracle": [_system(p, p.own)],
        "average_accuracy": [of_trainees @ weights],
        "client_accuracy": [by_client],
        "client_accuracy_mean": [of_trainees.mean(axis=1)],
        "client_accuracy_min": [of_trainees.min(axis=1)],
        "client_accuracy_max": [of_trainees.max(axis=1)],
        "client_accuracy_weighted": [of_trainees @ (n_test / n_test.sum())],
        "class_accuracy_mean": [np.nanmean(of_class.reshape(-1, p.classes), axis=1)],
    }
    if p.test_phase is not None:
        right = _share(p.test_phase == p.label, p.group * m + p.client, len(p.rounds) * m)
        test_phase = right.reshape(-1, m)[:, trained]
        test_phase[~_share(p.test_phase >= 0, p.group, len(p.rounds)).astype(bool)] = np.nan
        out["test_phase_accuracy"] = [test_phase]
        out["test_phase_accuracy_mean"] = [test_phase.mean(axis=1)]
    if clients.trainees > 1:
        out["client_accuracy_std"] = [of_trainees.std(axis=1, ddof=1)]
    if p.vote is not None:
        out["system_accuracy_vote"] = [_system(p, p.vote)]
    if p.single is not None:
        single = p.single / np.bincount(p.group, minlength=len(p.rounds))[:, None]
        out["system_accuracy_random"] = [single.mean(axis=1)]
        out["system_accuracy_best_client"] = [single.max(axis=1)]
    for rule, answers in p.routed.items():
        out[f"system_accuracy_{rule}"] = [_system(p, answers)]
    headline = "system_accuracy_probability" if "probability" in p.route else "system_accuracy_vote"
    if headline in out:
        out["system_accuracy"] = out[headline]
    if "probability" in p.route:
        m = clients.trainees
        hits = _share(p.route["probability"] == p.client, p.group * m + p.client, len(p.rounds) * m).reshape(-1, m)
        out["routing_accuracy"] = [hits @ weights, hits]
    return out


def _of_first(p: Predictions, clients: int) -> Predictions:
    """The answers for the test images of the first `clients` clients."""
    rows = p.client < clients
    if rows.all():
        return p
    columns = ((name, getattr(p, name)) for name in ("group", "client", "label", "own", "test_phase", "vote"))
    of_image: dict[str, Any] = {name: None if values is None else values[rows] for name, values in columns}
    return replace(
        p,
        **of_image,
        route={rule: clients_of[rows] for rule, clients_of in p.route.items()},
        routed={rule: answers[rows] for rule, answers in p.routed.items()},
    )


def _share(right: np.ndarray, cell: np.ndarray, cells: int) -> np.ndarray:
    """Share [cells] of True in `right` [N] per cell (`cell` [N]: indices); NaN for a cell without images."""
    size = np.bincount(cell, minlength=cells)
    with np.errstate(invalid="ignore"):
        share: np.ndarray = np.bincount(cell[right], minlength=cells) / size
    return share


def _system(p: Predictions, answers: np.ndarray) -> np.ndarray:
    return _share(answers == p.label, p.group, len(p.rounds))


#: Columns of predictions to read: without votes, which are most of the bytes.
_COLUMNS = ("round", "view", "client", "label", "own")


def confusion(run: Artifact, view: str = "plain", client: int | None = None) -> NDArray[np.int64]:
    """Confusion matrix [K, K] after the last round: number of test images by true class (row) and the class that their
    owner's model answers (column); over the clients that train, or one `client`.

    Raises FedbenchError for multi-label images, an unknown client or view, and damaged predictions.
    """
    if scored(run):
        raise FedbenchError(f"the images of run {run.id} have several labels each", "a confusion matrix is of one")
    assert isinstance(run.spec, RunSpec)
    clients = read_clients(run)
    if client is not None and not 0 <= client < len(clients):
        raise FedbenchError(f"run {run.id} has no client {client}", f"it has 0..{len(clients) - 1}")
    with opened(run) as file:
        table = file.read(list(_COLUMNS))
    number, views, group = groups_of(run, table, run.spec.setting.rounds)
    owner, label, own = (integers(run, table, "predictions", name) for name in ("client", "label", "own"))
    whole(run, clients, number, group, owner)
    if view not in views:
        raise FedbenchError(f"run {run.id} has no {view} test images", f"it has {', '.join(sorted(set(views)))}")
    last = max(g for g in range(len(number)) if views[g] == view)
    rows = (group == last) & ((owner == client) if client is not None else (owner < clients.trainees))
    declared = (table.schema.metadata or {}).get(b"classes", b"0")
    classes = max(int(declared), int(label.max()) + 1, int(own.max()) + 1)
    return np.bincount(label[rows] * classes + own[rows], minlength=classes**2).reshape(classes, classes)
