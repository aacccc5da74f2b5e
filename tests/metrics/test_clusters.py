"""Clusters against true groups."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.metrics.clusters import clustering
from fedbench.metrics.evaluate import evaluate
from fedbench.store import Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write


def of(store: Store, group: list[int], cluster: list[int | None], own: bool = False) -> dict[str, dict[int, float]]:
    """`own`: every client has a model of its own, so that no clusters are counted."""
    n = len(group)
    clients = clients_table([1] * n, [1] * n, group=group, cluster=cluster)
    rows = [{"round": 1, "view": "plain", "client": i, "label": 0, "own": 0} for i in range(n)]
    figures = {} if own else {"figure_clusters": [float(len(set(cluster)))]}
    tables = {"predictions": predictions(rows), "rounds": rounds_table(1, **figures), "clients": clients}
    run = write(store, run_spec(n), **tables)
    found = clustering(run)
    store.remove(run.kind, run.id)
    return found


def by_pairs(group: list[int], cluster: list[int]) -> float:
    """The adjusted Rand index as Hubert and Arabie define it, counting pairs of clients."""
    pairs = list(combinations(range(len(group)), 2))
    both = sum(group[a] == group[b] and cluster[a] == cluster[b] for a, b in pairs)
    sizes = [[comb(n, 2) for n in np.bincount(x)] for x in (group, cluster)]
    expected = sum(sizes[0]) * sum(sizes[1]) / len(pairs)
    most = (sum(sizes[0]) + sum(sizes[1])) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=9))
def test_the_index_counts_pairs(tmp_path_factory: pytest.TempPathFactory, both: list[tuple[int, int]]) -> None:
    group, cluster = [g for g, _ in both], [c for _, c in both]
    found = of(Store(tmp_path_factory.mktemp("store")), group, list(cluster))
    assert found["adjusted_rand_index"][0] == pytest.approx(by_pairs(group, cluster))
    assert found["true_clusters"] == {0: len(set(group))}


def test_only_clients_with_a_cluster_count(tmp_path: object) -> None:
    found = of(Store(tmp_path), [0, 0, 1, 1], [0, 0, 1, None])  # type: ignore[arg-type]
    assert found["adjusted_rand_index"] == {0: 1.0}
    assert "adjusted_rand_index" not in of(Store(tmp_path), [0, 1, 1], [0, 1, 2], own=True)  # type: ignore[arg-type]
    assert "adjusted_rand_index" not in of(Store(tmp_path), [0, 1], [None, None])  # type: ignore[arg-type]


def test_an_answer_outside_the_classes_is_refused(tmp_path: object) -> None:
    rows = [{"round": 1, "view": "plain", "client": i, "label": 0, "own": 0, "test_phase": 7} for i in range(2)]
    store = Store(tmp_path)  # type: ignore[arg-type]
    tables = {"predictions": predictions(rows, classes=3), "rounds": rounds_table(1)}
    run = write(store, run_spec(2), **tables, clients=clients_table([1, 1], [1, 1]))
    with pytest.raises(FedbenchError, match="test_phase"):
        evaluate(run, store)
