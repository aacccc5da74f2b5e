"""What a run's method declared that it measures is a metric of the run, defined as the run says; and clusters against
true groups."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.measure import FEDERATION, Measure
from fedbench.metrics.clusters import clustering
from fedbench.metrics.definitions import METRICS, all_metrics
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.method_metrics import MEASURES, check, measures_of
from fedbench.metrics.read import Metrics, load
from fedbench.store import Artifact, Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, small_run, write

DRIFT = Measure("drift", "distance from the first model", "distance")
TRUST = Measure("trust", "a client's trust in itself", "fraction", of="client")


def noting(**columns: Any) -> Any:
    return clients_table([30, 10], [2, 3], **columns)


def measured(store: Store, *measures: Measure, **tables: Any) -> Metrics:
    return load(evaluate(small_run(store, measures=measures, **tables), store))


def test_a_figure_of_rounds_is_a_series_whose_last_value_stands_for_the_run(store: Store) -> None:
    found = measured(store, DRIFT, rounds=rounds_table(2, figure_drift=[1.5, 0.5]))
    assert found.series("drift") == {0: 0.5, 1: 1.5, 2: 0.5}
    assert found.series("drift", "crop") == found.series("drift"), "it is of no view"


@pytest.mark.parametrize(("federation", "whole"), [("mean", 0.5), ("max", 0.75), ("min", 0.25), ("sum", 1.0)])
def test_a_figure_of_clients_is_each_ones_and_the_federations(store: Store, federation: str, whole: float) -> None:
    trust = Measure("trust", "trust", "fraction", of="client", federation=federation)
    found = measured(store, trust, clients=noting(trust=[0.25, 0.75]))
    assert found.per_client("trust").tolist() == [0.25, 0.75]
    assert found.series("trust") == {0: whole}


def test_every_way_to_the_federations_value_is_tested() -> None:
    assert set(FEDERATION) == {"mean", "max", "min", "sum"}


def test_newcomers_have_values_of_their_own_and_no_part_in_the_federations(store: Store) -> None:
    rows = [{"round": 1, "view": "plain", "client": i, "label": 0, "own": 0} for i in range(3)]
    tables = {"predictions": predictions(rows), "rounds": rounds_table(1)}
    for trust, own in (([0.25, 0.75, 1.0], [0.25, 0.75, 1.0]), ([0.25, 0.75, None], [0.25, 0.75])):
        clients = clients_table([1] * 3, [1] * 3, trust=trust)
        run = write(store, run_spec(3, unseen=1), (TRUST,), **tables, clients=clients)
        found = load(evaluate(run, store))
        assert found.per_client("trust").tolist() == own
        assert found.whole_run("trust") == 0.5
        store.remove(run.kind, run.id)


def test_a_figure_that_no_declaration_names_is_no_metric(store: Store) -> None:
    found = measured(store, TRUST, rounds=rounds_table(2, figure_clusters=[2.0, 2.0]), clients=noting(other=[1.0, 2.0]))
    assert not {"clusters", "other", "trust"} & set(found.names)


def test_a_run_made_before_methods_declared_has_the_metrics_that_it_had(store: Store) -> None:
    run = small_run(store, clients=noting(ratio_bound=[2.5, 7.0], beta=[0.0, 1.0]))
    assert MEASURES not in run.provenance
    found = load(evaluate(run, store))
    assert (found.whole_run("ratio_bound"), found.whole_run("clusters"), found.whole_run("elbow")) == (7.0, 2.0, 0.25)
    assert found.per_client("ratio_bound", round=0).tolist() == [2.5, 7.0]
    assert found.series("ratio_bound") == {0: 7.0}
    assert "beta" not in found.names
    store.remove(run.kind, run.id)
    holed = load(evaluate(small_run(store, clients=noting(ratio_bound=[2.5, None])), store, again=True))
    assert "ratio_bound" not in holed.names, "it is not noted of every client"


def test_the_run_keeps_the_whole_declaration(store: Store) -> None:
    bound = Measure("bound", "a bound", "ratio", of="client", federation="max", source="Table 1", least=0.5)
    assert measures_of(small_run(store, measures=(DRIFT, bound))) == {"drift": DRIFT, "bound": bound}


@pytest.mark.parametrize("values", [[1.0, -0.5], [1.0, np.inf], [np.nan, 1.0]])
@pytest.mark.parametrize("name", ["trust", "ratio_bound"])
def test_a_senseless_figure_is_refused(store: Store, name: str, values: list[float]) -> None:
    """Also of a run from before methods declared what they measure."""
    declared = {"measures": (Measure("trust", "t", "ratio", of="client", least=0),)} if name == "trust" else {}
    run = small_run(store, **declared, clients=noting(**{name: values}))
    with pytest.raises(FedbenchError, match=f"'{name}' of table clients holds a value below 0 or not finite"):
        evaluate(run, store)


@pytest.mark.parametrize("raw", ["beta", [{"name": "beta"}], [{"name": "beta", "meaning": "", "unit": "x"}]])
def test_a_damaged_declaration_is_told(store: Store, raw: Any) -> None:
    run = small_run(store)
    damaged = Artifact(run.path, {**run.manifest, "provenance": {**run.provenance, MEASURES: raw}}, run.spec)
    with pytest.raises(FedbenchError, match=rf"run {run.id}: .*easure"):
        measures_of(damaged)


def test_a_metric_of_another_method_is_not_measured_and_a_mistyped_one_unknown(store: Store) -> None:
    found = measured(store, DRIFT)
    assert found.series("beta") == {}
    with pytest.raises(FedbenchError, match="unknown metric 'betta'; did you mean 'beta'"):
        found.series("betta")


def test_a_method_measures_nothing_that_fedbench_calls_its_own() -> None:
    check((DRIFT, TRUST), "mine")
    for measures in ((Measure("bytes_up", "b", "bytes"),), (Measure("group", "g", "x", of="client"),), (DRIFT, DRIFT)):
        with pytest.raises(FedbenchError, match=f"mine measures '{measures[0].name}'"):
            check(measures, "mine")
    assert not set(METRICS) & (set(all_metrics()) - set(METRICS))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a b"}, "the name of a Measure is 'a b'"),
        ({"meaning": ""}, "meaning of a Measure is ''"),
        ({"unit": "two\nlines"}, "unit of a Measure"),
        ({"of": "clients"}, "did you mean 'client'"),
        ({"federation": "maximum"}, "'maximum'; known: .*max"),
    ],
)
def test_a_measure_says_what_is_wrong_with_it(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        Measure(**{"name": "trust", "meaning": "t", "unit": "x", **wrong})


# -- clusters


def clustered(store: Store, group: list[int], cluster: list[int | None], own: bool = False) -> dict[str, Any]:
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


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=9))
def test_the_index_counts_pairs(tmp_path_factory: pytest.TempPathFactory, both: list[tuple[int, int]]) -> None:
    group, cluster = [g for g, _ in both], [c for _, c in both]
    found = clustered(Store(tmp_path_factory.mktemp("store")), group, list(cluster))
    assert found["adjusted_rand_index"][0] == pytest.approx(by_pairs(group, cluster))
    assert found["true_clusters"] == {0: len(set(group))}


def test_only_clients_with_a_cluster_count(store: Store) -> None:
    assert clustered(store, [0, 0, 1, 1], [0, 0, 1, None])["adjusted_rand_index"] == {0: 1.0}
    assert "adjusted_rand_index" not in clustered(store, [0, 1, 1], [0, 1, 2], own=True)
    assert "adjusted_rand_index" not in clustered(store, [0, 1], [None, None])
