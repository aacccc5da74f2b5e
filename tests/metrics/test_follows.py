"""Metrics that follow from others of a run: none that is computed here is contradicted, and a changed one is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedbench.measure import Measure
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.follows import contradiction
from fedbench.metrics.read import Metrics, load
from fedbench.store import Store
from tests.support.make_runs import small_run

FROM_OTHERS = (
    "client_accuracy_mean",
    "client_accuracy_min",
    "client_accuracy_max",
    "client_accuracy_std",
    "client_accuracy_weighted",
    "system_accuracy_oracle",
    "system_accuracy",
    "average_accuracy",
    "routing_accuracy",
    "test_images",
    "bytes_up",
    "bytes_down",
    "server_seconds",
    "evaluation_seconds",
    "local_training_seconds",
    "round_seconds",
    "total_runtime_seconds",
)


@pytest.fixture
def small(store: Store) -> Metrics:
    return load(evaluate(small_run(store), store))


def changed(metrics: Metrics, name: str, to: float) -> Metrics:
    """The same metrics with another first value of the federation."""
    of_all = (metrics.metric == metrics.names.index(name)) & (metrics.client == -1)
    row = np.flatnonzero(of_all)[metrics.round[of_all].argmin()]
    value = metrics.value.copy()
    value[row] = to
    return replace(metrics, value=value)


@pytest.mark.parametrize("name", FROM_OTHERS)
def test_a_changed_metric_that_follows_from_others_is_named(small: Metrics, name: str) -> None:
    assert contradiction(small, 2) == ""
    others = {"system_accuracy_oracle", "client_accuracy_weighted"} - {name}  # any of two that must be equal
    said = contradiction(changed(small, name, 0.987), 2)
    assert said.startswith(f"its {name}") or any(said.startswith(f"its {other}") for other in others), said
    assert "0.987, but" in said


def test_what_metrics_follow_from_may_be_missing(small: Metrics) -> None:
    kept = small.client == -1
    arrays = {field: getattr(small, field)[kept] for field in ("metric", "view", "round", "client", "value")}
    assert contradiction(changed(replace(small, **arrays), "client_accuracy_mean", 0.9), 2) == ""


def test_clients_that_never_train_are_in_no_mean(small: Metrics) -> None:
    of = small.names.index("client_accuracy")
    rows = np.flatnonzero((small.metric == of) & (small.client == 1))
    met = {
        "metric": np.full(len(rows), of),
        "view": small.view[rows],
        "round": small.round[rows],
        "client": np.full(len(rows), 2),
        "value": np.full(len(rows), 0.5),
    }
    more = replace(small, **{name: np.concatenate([getattr(small, name), values]) for name, values in met.items()})
    assert contradiction(more, 2) == ""
    assert contradiction(more, 3).startswith("its client_accuracy_m")


def test_a_methods_own_measures(small: Metrics) -> None:
    measures = [Measure("bound", "x", "ratio", "client", "max"), Measure("share", "x", "fraction")]

    def with_measures(largest: float, last: float) -> Metrics:
        rows = [(0, 0, -1, largest), (0, 0, 0, 3.0), (0, 0, 1, 4.0), (1, 0, -1, last), (1, 1, -1, 0.1), (1, 2, -1, 0.2)]
        metric, number, client, value = (np.array(column) for column in zip(*rows, strict=True))
        return Metrics("", ["bound", "share"], [""], metric, np.zeros(6, int), number, client, value)

    assert contradiction(with_measures(4.0, 0.2), 2, measures) == ""
    assert "bound is 3.5, but 4 follows" in contradiction(with_measures(3.5, 0.2), 2, measures)
    assert "share is 0.1, but 0.2 follows" in contradiction(with_measures(4.0, 0.1), 2, measures)
