"""CFL: when a cluster is split, into which halves, and that without a split it is FedAvg."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods import cfl
from fedbench.methods.parts.linkage import halves, within
from tests.support.groups_lab import bare_client, grouped_federation, grouped_setting
from tests.support.lab import federation, method, train, trainer


def member(index: int, delta: Any, size: int = 1) -> Client:
    """A client whose training has moved its one parameter from 1 by `delta`."""
    start = torch.ones(len(delta), dtype=torch.float64)
    state: State = {"w": start + torch.tensor(delta, dtype=torch.float64), "norm.running_mean": torch.full((3,), 9.0)}
    received = {"w": start, "norm.running_mean": torch.zeros(3)}
    return bare_client(index, size, state, received)


def server_of(cohort: list[Client]) -> Server:
    start = dict(cohort[0].received)
    return Server(start, start)


def step(cohort: list[Client], **hyperparameters: Any) -> Server:
    server = server_of(cohort)
    method("cfl", **hyperparameters).aggregate(server, cohort, 1)
    return server


def test_a_mean_that_has_vanished_splits_two_opposite_camps() -> None:
    cohort = [member(i, d) for i, d in enumerate([[1, 0.1], [-1, 0.1], [1, -0.1], [-1, -0.1], [0.9, 0]])]
    server = step(cohort)
    assert server.assigned == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}  # the larger half keeps the number
    torch.testing.assert_close(server.models[0]["w"], torch.tensor([1 + 2.9 / 3, 1.0], dtype=torch.float64))
    torch.testing.assert_close(server.models[1]["w"], torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert server.shared["w"] is server.models[0]["w"]


def test_in_fedrcs_code_the_mean_update_is_plain() -> None:
    """The average of the models is weighted all the same. With equal sizes both means are one."""
    deltas, sizes = [[1, 0.0], [-1, 0.0], [1, 0.0], [-1, 0.0]], [7, 1, 7, 1]
    weighted, plain = (
        step([member(i, d, n) for i, (d, n) in enumerate(zip(deltas, sizes, strict=True))], mean=mean)
        for mean in ("weighted", "plain")
    )
    assert len(weighted.models) == 1  # the weighted mean is 0.75
    torch.testing.assert_close(weighted.models[0]["w"], torch.tensor([1.75, 1.0], dtype=torch.float64))
    assert (len(plain.models), plain.assigned) == (2, {0: 0, 1: 1, 2: 0, 3: 1})
    lopsided = [[1, 0.0], [1, 0.0], [-1, 0.0]]  # the plain mean is 1/3, the weighted one 0
    cohort = [member(i, d, n) for i, (d, n) in enumerate(zip(lopsided, [1, 1, 2], strict=True))]
    assert [len(step(cohort, mean=mean, eps1=0.3).models) for mean in ("weighted", "plain")] == [2, 1]
    even = [member(i, d) for i, d in enumerate(deltas)]
    assert step(even, mean="plain").assigned == step(even, mean="weighted").assigned


@pytest.mark.parametrize(
    ("deltas", "hyperparameters"),
    [
        ([[1, 0], [1, 0], [-0.4, 0]], {}),  # the mean is 0.53
        ([[0.5, 0], [-0.5, 0], [0.5, 0], [-0.5, 0]], {}),  # nobody has moved by 0.6
        ([[1, 0], [-1, 0]], {}),  # two are too few
        ([[1, 0], [-1, 0], [1, 0], [-1, 0]], {"eps1": 0.0}),
        ([[1, 0], [-1, 0], [1, 0], [-1, 0]], {"eps2": 1.0}),
        ([[0.59, 0.59], [-0.59, -0.59], [0.59, 0.59], [-0.59, -0.59]], {"largest": "entry"}),  # no entry is above 0.6
    ],
)
def test_no_split(deltas: list[list[float]], hyperparameters: dict[str, Any]) -> None:
    server = step([member(i, d) for i, d in enumerate(deltas)], **hyperparameters)
    assert set(server.assigned.values()) == {0}
    assert len(server.models) == 1


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 7), st.integers(0, 2**32 - 1), st.sampled_from([("norm", 2), ("entry", np.inf)]))
def test_the_decision_by_the_vectors_themselves(count: int, seed: int, largest: tuple[str, float]) -> None:
    rng = np.random.default_rng(seed)
    deltas, sizes = rng.normal(0, 0.6, (count, 2)), rng.integers(1, 9, count)
    mean = np.linalg.norm(np.average(deltas, axis=0, weights=sizes))
    expected = mean < 0.4 and np.linalg.norm(deltas, ord=largest[1], axis=1).max() > 0.6
    cohort = [member(i, d.tolist(), int(n)) for i, (d, n) in enumerate(zip(deltas, sizes, strict=True))]
    server = step(cohort, largest=largest[0])
    assert (len(server.models) == 2) == expected
    for m, model in enumerate(server.models):
        mine = [i for i, cluster in server.assigned.items() if cluster == m]
        oracle = 1 + np.average(deltas[mine], axis=0, weights=sizes[mine])
        np.testing.assert_allclose(model["w"], oracle, rtol=1e-9)


def complete_linkage(distance: np.ndarray, stop: Any) -> list[set[int]]:
    """Merge the two clusters whose farthest members are nearest, until `stop(clusters, next height)`."""
    clusters = [{i} for i in range(len(distance))]
    while len(clusters) > 1:
        far = {
            (a, b): max(distance[i, j] for i in clusters[a] for j in clusters[b])
            for a, b in itertools.combinations(range(len(clusters)), 2)
        }
        (a, b), height = min(far.items(), key=lambda pair: pair[1])
        if stop(clusters, height):
            break
        clusters[a] |= clusters.pop(b)
    return clusters


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_the_halves_are_those_of_complete_linkage_by_cosines(count: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 4))
    cosines = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in vectors] for a in vectors]
    products = cfl.inner_products([{"a": torch.tensor(v[:1]), "b": torch.tensor(v[1:])} for v in vectors])
    distance = cfl.cosine_distances(products)
    np.testing.assert_allclose(distance, 1 - np.array(cosines), atol=1e-9)
    found = halves(distance)
    expected = complete_linkage(distance, lambda clusters, _: len(clusters) == 2)
    assert found[0] == 0
    assert {frozenset(np.flatnonzero(found == side)) for side in (0, 1)} == set(map(frozenset, expected))
    cut = float(np.median(distance))
    labels = within(distance, cut)
    grouped = complete_linkage(distance, lambda _, height: height > cut)
    assert {frozenset(np.flatnonzero(labels == g)) for g in set(labels.tolist())} == set(map(frozenset, grouped))


def test_equal_distances_and_updates_of_zero_have_two_halves_too() -> None:
    alike = np.ones((4, 4)) - np.eye(4)
    assert set(halves(alike).tolist()) == {0, 1}
    distance = cfl.cosine_distances(
        cfl.inner_products([{"w": torch.tensor(v)} for v in ([0.0, 0], [3.0, 0], [0.0, 0])])
    )
    assert np.array_equal(distance, np.ones((3, 3)) - np.eye(3))
    server = step([member(i, d) for i, d in enumerate([[0, 0], [0, 0], [0.7, 0]])])
    assert len(server.models) == 2


def test_who_is_absent_stays_with_the_larger_half_and_who_is_new_with_the_first_cluster() -> None:
    cohort = [member(i, d) for i, d in enumerate([[1, 0], [-1, 0], [-1, 0]])]
    server = server_of(cohort)
    how = method("cfl")
    server.assigned, server.models = {7: 0}, [dict(server.shared)]
    how.aggregate(server, cohort, 1)
    assert server.assigned == {7: 0, 0: 1, 1: 0, 2: 0}
    how.aggregate(server, [member(9, [0.1, 0])], 2)
    assert server.assigned[9] == 0
    assert float(server.models[1]["w"][0]) == 2.0  # nobody of it took part


@pytest.fixture(scope="module")
def concepts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three clients each of two concepts, with thresholds that let their updates split."""
    data = grouped_federation(size=150, concept=True)
    how = method("cfl", eps1=0.5, eps2=0.6)
    return train(how, data, tmp_path_factory.mktemp("cfl"), grouped_setting(rounds=10)), data


def test_concepts_are_told_apart_and_learnt(concepts: Any, tmp_path: Path) -> None:
    run, data = concepts
    assigned = [run.trainer.server.assigned[i] for i in range(data.clients)]
    assert assigned == [0, 1, 0, 1, 0, 1]
    assert run.accuracy > train("fedavg", data, tmp_path, grouped_setting(rounds=10)).accuracy + 0.2


def test_without_labels_all_clusters_answer_together(concepts: Any) -> None:
    run, _ = concepts
    last = run.predictions.to_pandas()
    assert last[last["round"] == 10]["test_phase"].notna().all()
    right = (last["test_phase"] == last["label"])[last["round"] == 10].mean()
    assert right < run.accuracy - 0.2  # two concepts that contradict each other


def test_its_updates_leave_running_statistics_out(tmp_path: Path) -> None:
    assert set(cfl.update(member(0, [1.0]))) == {"w"}
    it = trainer(method("cfl"), federation(), tmp_path)
    assert cfl.update(it.client(0, it.server.view(0), 1)).keys() == dict(it.executor.model.named_parameters()).keys()
