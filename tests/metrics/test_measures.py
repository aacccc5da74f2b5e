"""What a run's method declared that it measures is a metric of the run, defined as the run says; and clusters against
true groups."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from fedbench.data.part import as_column
from fedbench.errors import FedbenchError
from fedbench.measure import FEDERATION, Measure
from fedbench.metrics.accuracy import calibration_error, measured
from fedbench.metrics.definitions import METRICS, all_metrics
from fedbench.metrics.evaluate import clustering, evaluate
from fedbench.metrics.method_metrics import MEASURES, check, measures_of
from fedbench.metrics.predictions import Clients
from fedbench.metrics.read import Metrics, load
from fedbench.planner.table.spec import Column
from fedbench.reports.numbers.measured import measure
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, small_run, tiny_run, write

DRIFT = Measure("drift", "distance from the first model", "distance")
TRUST = Measure("trust", "a client's trust in itself", "fraction", of="client")


def noting(**columns: Any) -> Any:
    return clients_table([30, 10], [2, 3], **columns)


def of_small_run(store: Store, *measures: Measure, **tables: Any) -> Metrics:
    return load(evaluate(small_run(store, measures=measures, **tables), store))


def test_a_figure_of_rounds_is_a_series_whose_last_value_stands_for_the_run(store: Store) -> None:
    found = of_small_run(store, DRIFT, rounds=rounds_table(2, figure_drift=[1.5, 0.5]))
    assert found.series("drift") == {0: 0.5, 1: 1.5, 2: 0.5}
    assert found.series("drift", "crop") == found.series("drift"), "it is of no view"
    assert found.series("beta") == {}, "of another method"
    with pytest.raises(FedbenchError, match="unknown metric 'betta'; did you mean 'beta'"):
        found.series("betta")


@pytest.mark.parametrize("federation", FEDERATION)
def test_a_figure_of_clients_is_each_ones_and_the_federations(store: Store, federation: str) -> None:
    trust = Measure("trust", "trust", "fraction", of="client", federation=federation)
    found = of_small_run(store, trust, clients=noting(trust=[0.25, 0.75]))
    assert found.per_client("trust").tolist() == [0.25, 0.75]
    assert found.series("trust") == {0: {"mean": 0.5, "max": 0.75, "min": 0.25, "sum": 1.0}[federation]}


def test_newcomers_have_values_of_their_own_and_no_part_in_the_federations(store: Store) -> None:
    for trust, own in (([0.25, 0.75, 1.0], [0.25, 0.75, 1.0]), ([0.25, 0.75, None], [0.25, 0.75])):
        clients = clients_table([1] * 3, [1] * 3, trust=trust)
        run = tiny_run(store, 3, (TRUST,), unseen=1, clients=clients)
        found = load(evaluate(run, store))
        assert found.per_client("trust").tolist() == own
        assert found.whole_run("trust") == 0.5
        store.remove(run.kind, run.id)


def test_a_figure_that_no_declaration_names_is_no_metric(store: Store) -> None:
    found = of_small_run(
        store, TRUST, rounds=rounds_table(2, figure_clusters=[2.0, 2.0]), clients=noting(other=[1.0, 2.0])
    )
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


def clustered(store: Store, group: list[int], cluster: list[int | None], own: bool = False) -> dict[str, Any]:
    """`own`: every client has a model of its own, so that no clusters are counted."""
    n = len(group)
    figures = {} if own else {"figure_clusters": [float(len(set(cluster)))]}
    clients = clients_table([1] * n, [1] * n, group=group, cluster=cluster)
    run = tiny_run(store, n, rounds=rounds_table(1, **figures), clients=clients)
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


NAMES = {name for name, one in METRICS.items() if one.needs == "logits"}


def test_calibration_by_hand() -> None:
    # Bins of 1/15: (0.6, 0.667] holds 0.61 and 0.65, (0.933, 1] holds 0.95 and 1.
    confidence, right = np.array([0.61, 0.65, 0.95, 1.0]), np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx((abs(1 - 1.26) + abs(2 - 1.95)) / 4)
    assert calibration_error(np.array([2 / 15, 2 / 15 + 1e-9]), np.array([True, False])) == pytest.approx(
        (1 - 2 / 15 + 2 / 15) / 2
    ), "a bin holds its upper end"
    assert np.isnan(calibration_error(np.zeros(0), np.zeros(0, bool)))


def test_against_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    n, k = 400, 8
    logits = rng.normal(0, 2, (n, k)).astype(np.float32)
    label, client = rng.integers(0, k, n), np.repeat([0, 1, 2], [100, 250, 50])
    own = logits.argmax(1)
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    found = measured(logits, label, own, client, Clients(np.ones(3), np.bincount(client), trainees=2))
    for place, rows in enumerate([client < 2, client == 0, client == 1, client == 2]):  # the third never trains
        assert found["test_loss"][place] == pytest.approx(log_loss(label[rows], p[rows], labels=range(k)), abs=1e-5)
        assert found["top5_accuracy"][place] == pytest.approx(
            top_k_accuracy_score(label[rows], p[rows], k=5, labels=range(k))
        )
        onehot = np.eye(k)[label[rows]]
        assert found["brier_score"][place] == pytest.approx(((p[rows] - onehot) ** 2).sum(1).mean(), abs=1e-5)
        each = [
            abs((own == label)[rows & inside].sum() - p.max(1)[rows & inside].sum())
            for b in range(15)
            for inside in [(p.max(1) > b / 15) & (p.max(1) <= (b + 1) / 15)]
        ]
        assert found["calibration_error"][place] == pytest.approx(sum(each) / rows.sum(), abs=1e-5)


def test_several_labels() -> None:
    rng = np.random.default_rng(2)
    logits, label = rng.normal(0, 2, (60, 3)).astype(np.float32), rng.integers(0, 2, (60, 3))
    p = 1 / (1 + np.exp(-logits.astype(float)))
    found = measured(logits, label, p, np.zeros(60, int), Clients(np.ones(1), np.array([60]), 1))
    assert set(found) == NAMES - {"top5_accuracy"}
    losses = [log_loss(label[:, u], p[:, u], labels=[0, 1]) for u in range(3)]
    briers = [brier_score_loss(label[:, u], p[:, u]) for u in range(3)]
    assert found["test_loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)
    assert found["brier_score"][0] == pytest.approx(np.mean(briers), abs=1e-5)
    sure, right = np.maximum(p, 1 - p).ravel(), ((p > 0.5) == label).ravel()
    assert found["calibration_error"][0] == pytest.approx(calibration_error(sure, right), abs=1e-5)


def the_run(store: Store, clients: tuple[int, ...] = (0, 1, 1), keep: bool = True) -> Metrics:
    """The metrics of a run of three test images, whose second round alone has logits."""
    p = np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
    plain = [{"client": c, "label": y, "own": int(q.argmax())} for c, y, q in zip((0, 1, 1), (0, 1, 1), p, strict=True)]
    tables = {
        "predictions": predictions([{**r, "round": t, "view": "plain"} for t in (1, 2) for r in plain], classes=3),
        "clients": clients_table([30, 10], [1, 2]),
        "rounds": rounds_table(2),
    }
    if keep:
        columns = {"round": np.full(3, 2, np.int32), "view": ["plain"] * 3, "client": np.array(clients, np.int32)}
        tables["logits"] = pa.table({**columns, "logits": as_column(np.log(p).astype(np.float16))})
    return load(evaluate(write(store, run_spec(2, 2), **tables), store))


def test_a_run_that_keeps_logits_has_them_after_their_rounds(store: Store) -> None:
    found = the_run(store)
    expected = -np.log([0.5, 0.2, 0.8])
    assert found.series("test_loss", "plain") == pytest.approx({2: expected.mean()}, rel=1e-3)
    assert found.per_client("test_loss", "plain", 2) == pytest.approx([expected[0], expected[1:].mean()], rel=1e-3)
    gaps = abs(1 - 0.5) + abs(0 - 0.6) + abs(1 - 0.8)
    assert found.series("calibration_error", "plain") == pytest.approx({2: gaps / 3}, rel=1e-3)
    assert found.series("top5_accuracy", "plain") == {}, "of three classes five are always right"


def test_logits_of_other_images_are_refused_and_a_table_says_what_a_run_lacks(store: Store) -> None:
    with pytest.raises(FedbenchError, match="logits does not go with the predictions of round 2"):
        the_run(store, clients=(1, 0, 1))
    store.remove("run", next(iter(store.list("run"))).id)
    found = the_run(store, keep=False)
    assert not NAMES & set(found.names)
    (run,) = store.list("run")
    assert isinstance(run.spec, RunSpec)
    column = Column("", "", metric="test_loss", statistic="last_rounds", unit="fraction", dataset="made_up")
    with pytest.raises(FedbenchError, match=r"needs the run's logits.*--keep logits --again") as error:
        measure(found, run.spec.setting, column, "plain")
    assert len(str(error.value).splitlines()) == 1
