"""Accuracies from predictions, for all rounds and views at once. Definitions: `definitions.METRICS`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedbench.metrics.predictions import Clients, Predictions


def accuracies(p: Predictions, clients: Clients) -> dict[str, list[np.ndarray]]:
    """Metric -> values for the federation [G] and for each client [G, M], whichever there are.

    G counts the (round, view) groups of `p`, M the clients. System accuracies other than the oracle's need votes; a
    standard deviation needs two clients. Unseen clients count in `client_accuracy` only. The test phase is NaN in
    groups without one.
    """
    m, trained = len(clients), slice(clients.trainees)
    weights, n_test = clients.n_train[trained] / clients.n_train[trained].sum(), clients.n_test[trained]
    each = _share(p.own == p.label, p.group * m + p.client, len(p.rounds) * m).reshape(-1, m)
    own = each[:, trained]
    p = _of_first(p, clients.trainees)
    of_class = _share(p.own == p.label, p.group * p.classes + p.label, len(p.rounds) * p.classes)
    out = {
        "system_accuracy_oracle": [_system(p, p.own)],
        "average_accuracy": [own @ weights],
        "client_accuracy": [each],
        "client_accuracy_mean": [own.mean(axis=1)],
        "client_accuracy_min": [own.min(axis=1)],
        "client_accuracy_max": [own.max(axis=1)],
        "client_accuracy_weighted": [own @ (n_test / n_test.sum())],
        "class_accuracy_mean": [np.nanmean(of_class.reshape(-1, p.classes), axis=1)],
    }
    if p.test_phase is not None:
        test_phase = _share(p.test_phase == p.label, p.group * m + p.client, len(p.rounds) * m).reshape(-1, m)[
            :, trained
        ]
        test_phase[~_share(p.test_phase >= 0, p.group, len(p.rounds)).astype(bool)] = np.nan
        out["test_phase_accuracy"] = [test_phase]
        out["test_phase_accuracy_mean"] = [test_phase.mean(axis=1)]
    if clients.trainees > 1:
        out["client_accuracy_std"] = [own.std(axis=1, ddof=1)]
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
    """The answers for the test images of the first so many clients."""
    rows = p.client < clients
    if rows.all():
        return p
    return replace(
        p,
        group=p.group[rows],
        client=p.client[rows],
        label=p.label[rows],
        own=p.own[rows],
        test_phase=None if p.test_phase is None else p.test_phase[rows],
        vote=None if p.vote is None else p.vote[rows],
        route={rule: clients_of[rows] for rule, clients_of in p.route.items()},
        routed={rule: answers[rows] for rule, answers in p.routed.items()},
    )


def _share(right: np.ndarray, cell: np.ndarray, cells: int) -> np.ndarray:
    """Share of True in every cell; NaN where a cell has no image."""
    size = np.bincount(cell, minlength=cells)
    with np.errstate(invalid="ignore"):
        share: np.ndarray = np.bincount(cell[right], minlength=cells) / size
    return share


def _system(p: Predictions, answers: np.ndarray) -> np.ndarray:
    return _share(answers == p.label, p.group, len(p.rounds))
