"""CFL, HACCS and FedDrift: who is put together, and when; FLUX and FLUX-soft: when they cluster, whom they put
together, and where they lead clients without labels."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from sklearn.cluster import OPTICS

from fedbench import models
from fedbench.core.client import Client, Collect, Collected, Train
from fedbench.core.federation import Federation
from fedbench.core.network import OfEach
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.simulation import new_client
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.methods import cfl, haccs
from fedbench.methods.feddrift import Compared, FedDrift, FedDriftMemory, apart, groups, in_parts, merge
from fedbench.methods.flux import clustering
from fedbench.methods.flux_soft import FluxSoftMemory, soft_weights
from fedbench.methods.parts import description
from fedbench.methods.parts.clustered import right as is_right
from fedbench.methods.parts.description import Describe, Phase, projection
from fedbench.methods.parts.descriptor import cube
from fedbench.methods.parts.linkage import halves, within
from fedbench.methods.parts.warm_up import warm_up_ends
from fedbench.specs import Setting
from tests.support.formula_lab import column, images
from tests.support.frames import SEEDS, few
from tests.support.groups_lab import (
    bare_client,
    drifted,
    grouped_federation,
    grouped_setting,
    labels_by,
    moments,
    network,
)
from tests.support.lab import LabRun, client, drive, federation, method, setting, train, trainer

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def updated(index: int, delta: Any, size: int = 1) -> Client:
    """A client whose training has moved its one parameter from 1 by `delta`."""
    start = torch.ones(len(delta), dtype=torch.float64)
    state: State = {"w": start + torch.tensor(delta, dtype=torch.float64), "norm.running_mean": torch.full((3,), 9.0)}
    received = {"w": start, "norm.running_mean": torch.zeros(3)}
    return bare_client(index, size, state, received)


def split(cohort: list[Client], assigned: dict[int, int] | None = None, **hyperparameters: Any) -> Server:
    """The server after a round of this cohort; `assigned` to its one model so far."""
    start = dict(cohort[0].received)
    server = Server(start, start, models=[start], assigned=assigned) if assigned else Server(start, start)
    method("cfl", **hyperparameters).aggregate(server, cohort, 1)
    return server


def test_who_is_split_from_whom() -> None:
    """A mean that has vanished splits two opposite camps; who is absent stays with the larger half."""
    cohort = [updated(i, d) for i, d in enumerate([[1, 0.1], [-1, 0.1], [1, -0.1], [-1, -0.1], [0.9, 0]])]
    server = split(cohort)
    assert server.assigned == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}  # the larger half keeps the number
    torch.testing.assert_close(server.models[0]["w"], torch.tensor([1 + 2.9 / 3, 1.0], dtype=torch.float64))
    torch.testing.assert_close(server.models[1]["w"], torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert server.shared["w"] is server.models[0]["w"]
    server = split([updated(i, d) for i, d in enumerate([[1, 0], [-1, 0], [-1, 0]])], {7: 0})
    assert server.assigned == {7: 0, 0: 1, 1: 0, 2: 0}
    method("cfl").aggregate(server, [updated(9, [0.1, 0])], 2)
    assert server.assigned[9] == 0
    assert float(server.models[1]["w"][0]) == 2.0  # nobody of it took part


def test_in_fedrcs_code_the_mean_update_is_plain() -> None:
    """The average of the models is weighted all the same. With equal sizes both means are one."""
    deltas, sizes = [[1, 0.0], [-1, 0.0], [1, 0.0], [-1, 0.0]], [7, 1, 7, 1]
    cohort = [updated(i, d, n) for i, (d, n) in enumerate(zip(deltas, sizes, strict=True))]
    weighted, plain = (split(cohort, mean=mean) for mean in ("weighted", "plain"))
    assert len(weighted.models) == 1  # the weighted mean is 0.75
    torch.testing.assert_close(weighted.models[0]["w"], torch.tensor([1.75, 1.0], dtype=torch.float64))
    assert (len(plain.models), plain.assigned) == (2, {0: 0, 1: 1, 2: 0, 3: 1})
    lopsided = [[1, 0.0], [1, 0.0], [-1, 0.0]]  # the plain mean is 1/3, the weighted one 0
    cohort = [updated(i, d, n) for i, (d, n) in enumerate(zip(lopsided, [1, 1, 2], strict=True))]
    assert [len(split(cohort, mean=mean, eps1=0.3).models) for mean in ("weighted", "plain")] == [2, 1]
    even = [updated(i, d) for i, d in enumerate(deltas)]
    assert split(even, mean="plain").assigned == split(even, mean="weighted").assigned


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
    server = split([updated(i, d) for i, d in enumerate(deltas)], **hyperparameters)
    assert (set(server.assigned.values()), len(server.models)) == ({0}, 1)


@few(st.integers(3, 7), SEEDS, st.sampled_from([("norm", 2), ("entry", np.inf)]), examples=50)
def test_the_decision_by_the_vectors_themselves(count: int, seed: int, largest: tuple[str, float]) -> None:
    rng = np.random.default_rng(seed)
    deltas, sizes = rng.normal(0, 0.6, (count, 2)), rng.integers(1, 9, count)
    mean = np.linalg.norm(np.average(deltas, axis=0, weights=sizes))
    expected = mean < 0.4 and np.linalg.norm(deltas, ord=largest[1], axis=1).max() > 0.6
    cohort = [updated(i, d.tolist(), int(n)) for i, (d, n) in enumerate(zip(deltas, sizes, strict=True))]
    server = split(cohort, largest=largest[0])
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


@few(st.integers(2, 8), SEEDS, examples=50)
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


def test_equal_distances_and_updates_of_zero_have_two_halves_too(tmp_path: Path) -> None:
    """Running statistics count for nothing."""
    alike = np.ones((4, 4)) - np.eye(4)
    assert set(halves(alike).tolist()) == {0, 1}
    products = cfl.inner_products([{"w": torch.tensor(v)} for v in ([0.0, 0], [3.0, 0], [0.0, 0])])
    distance = cfl.cosine_distances(products)
    assert np.array_equal(distance, np.ones((3, 3)) - np.eye(3))
    server = split([updated(i, d) for i, d in enumerate([[0, 0], [0, 0], [0.7, 0]])])
    assert len(server.models) == 2
    assert set(cfl.update(updated(0, [1.0]))) == {"w"}
    it = trainer(method("cfl"), federation(), tmp_path)
    assert cfl.update(it.client(0, it.server.view(0), 1)).keys() == dict(it.executor.model.named_parameters()).keys()


def of_first(data: Federation) -> tuple[torch.Tensor, torch.Tensor]:
    """Training images and labels of the first client, as it has them."""
    first = client(data, Plan(setting(), data.n_train, data.shape[:2]), 0, {})
    return first.images(), first.labels()


def test_histograms_count_every_pixel_of_the_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, if there are many."""
    data = federation(color=True)
    found = haccs.histograms(*of_first(data), 10, 16)
    expected = np.zeros((10, 16))
    for row in data.train[0].tolist():
        for value in data.images[row].flatten().tolist():
            expected[data.labels[row], value // 16] += 1
    assert np.array_equal(found, expected)
    assert np.array_equal(haccs.histograms(*of_first(data), 10, 1)[:, 0], expected.sum(1))
    shared = dataclasses.replace(data, images=data.images.flip(0), image=torch.arange(len(data.labels)).flip(0))
    assert np.array_equal(haccs.histograms(*of_first(shared), 10, 16), expected)
    data = federation()
    whole = haccs.histograms(*of_first(data), 10, 16)
    monkeypatch.setattr(haccs, "CHUNK", 7)
    assert np.array_equal(haccs.histograms(*of_first(data), 10, 16), whole)


@few(st.integers(2, 5), st.integers(1, 4), st.integers(2, 6), SEEDS, examples=30)
def test_distances_by_brute_force(clients: int, classes: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, (clients, classes)).astype(float)
    pixels = rng.integers(0, 9, (clients, classes, bins)) * (labels > 0)[..., None].astype(float)

    def far(p: np.ndarray, q: np.ndarray) -> float:
        p, q = (x / x.sum() if x.sum() else x for x in (p, q))
        return float(np.sqrt(sum((np.sqrt(a) - np.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)) / 2))

    found = haccs.distances(labels, pixels)
    for i in range(clients):
        for j in range(clients):
            by_class = [far(pixels[i, c], pixels[j, c]) for c in range(classes)]
            assert found[i, j] == pytest.approx(far(labels[i], labels[j]) + sum(by_class) / classes, abs=1e-12)


def test_clusters_are_scikit_learns_and_who_is_in_none_is_alone() -> None:
    """All alike, alone or fewer than a cluster takes are one cluster; twins of two kinds are two."""
    for seed in (3, 5, 7, 11):
        rng = np.random.default_rng(seed)
        centres = (rng.normal(0, 0.05, (3, 2)), rng.normal(3, 0.05, (3, 2)), rng.uniform(-20, 20, (3, 2)))
        points = np.concatenate(centres)
        far = np.linalg.norm(points[:, None] - points[None], axis=-1)
        raw, found = OPTICS(min_samples=2, metric="precomputed").fit_predict(far), haccs.optics(far)
        assert set(found.tolist()) == set(range(found.max() + 1))
        assert (raw < 0).any()
        together = (raw[:, None] == raw[None]) & (raw >= 0)[:, None]
        assert np.array_equal(found[:, None] == found[None], together | np.eye(9, dtype=bool))
    for count in (1, 2, 5):
        assert haccs.optics(np.zeros((count, count))).tolist() == [0] * count
    assert haccs.optics(1 - np.eye(2), min_samples=3).tolist() == [0, 0]
    kinds = np.array([0, 1, 0, 1, 0, 1])
    found = haccs.optics((kinds[:, None] != kinds[None]).astype(float))
    assert found.tolist() in ([0, 1] * 3, [1, 0] * 3)


def test_each_cluster_is_a_federation_of_its_own(tmp_path: Path) -> None:
    """What the other cluster holds changes nothing. It sees its digits half as bright."""
    data = grouped_federation((0,) * 6, size=150)
    dark = torch.from_numpy(data.client % 2 == 1)
    images = torch.where(dark[:, None, None, None], data.images // 2, data.images)
    data, labels = dataclasses.replace(data, images=images), data.labels.clone()
    for rows in data.train[1::2]:
        labels[rows] = 3
    other = dataclasses.replace(data, labels=labels, class_counts=torch.eye(10)[[3]].repeat(6, 1) * 80)
    a, b = (train("haccs", d, tmp_path / str(k), grouped_setting(rounds=2)) for k, d in enumerate((data, other)))
    assert [b.trainer.server.assigned[i] for i in range(6)] in ([0, 1] * 3, [1, 0] * 3)
    mine = [run.trainer.server.model(0) for run in (a, b)]
    assert all(torch.equal(mine[0][name], mine[1][name]) for name in mine[0])
    assert not torch.equal(a.trainer.server.model(1)["head.bias"], b.trainer.server.model(1)["head.bias"])


def test_a_histogram_is_sent_once_and_before_the_first_round_all_have_a_cluster(tmp_path: Path) -> None:
    data, s = federation(), setting()
    lines = train("haccs", data, tmp_path / "haccs", s).trainer.checkpoint.rounds
    plain = train("fedavg", data, tmp_path / "fedavg", s).trainer.checkpoint.rounds
    more = [a["bytes_up"] - b["bytes_up"] for a, b in zip(lines, plain, strict=True)]
    assert more == [data.clients * 10 * 17 * 4, 0, 0]
    assert [a["bytes_down"] for a in lines] == [b["bytes_down"] for b in plain]
    it = trainer(method("haccs"), federation(), tmp_path / "2")
    it.resume()
    assert it.server.assigned.keys() == {0, 1, 2, 3}
    assert set(it.server.assigned.values()) == set(range(len(it.server.models)))


def server_of(*models: float, assigned: dict[int, int], met: dict[int, tuple[float, float]] | None = None) -> Server:
    """A server whose models are one number each."""
    start, met = {"w": torch.zeros(1)}, met or {}
    memory = FedDriftMemory({i: best for i, (best, _) in met.items()}, {i: images for i, (_, images) in met.items()})
    return Server(start, start, models=[{"w": torch.tensor([m])} for m in models], assigned=assigned, memory=memory)


def member(index: int, state: dict[str, torch.Tensor], size: int = 4) -> Client:
    return bare_client(index, size, state, dict(state))


def asked(server: Server, *right: list[int], index: int = 0, delta: float = 0.1) -> tuple[Client, list[Any]]:
    """The client after its update, each model of which was right on these of its four images."""
    how = method("feddrift", delta=delta)
    client = member(index, server.view(index))
    how.broadcast(server, client)
    answers = [Collected(torch.tensor(right, dtype=torch.float32).T, torch.zeros(4))] if right else []
    return client, drive(how.local(client), *answers)


def test_a_client_goes_on_with_the_best_model_unless_it_has_lost_more_than_delta() -> None:
    """Of equals with its own; a loss of more makes a fresh copy of the best; in the first round nothing is compared."""
    client, requests = asked(server_of(assigned={}))
    assert [type(r) for r in requests] == [Train]
    assert client.upload is None
    server = server_of(10.0, 20.0, 30.0, assigned={0: 1, 5: 2})
    ones, half = [1, 1, 1, 1], [1, 1, 0, 0]
    for right, best in (((ones, ones, half), 1), ((ones, half, half), 0), ((half, half, ones), 2)):
        client, requests = asked(server, *right)
        assert [type(r) for r in requests] == [Collect, Train]
        assert requests[0] == Collect(OfEach(is_right), split="train", model=("0", "1", "2"))
        assert (client.upload.model, float(client.state["w"])) == (best, 10 * (best + 1))
        assert client.upload.accuracy.tolist() == [sum(r) / 4 for r in right]
    late, _ = asked(server, ones, half, ones, index=3)  # the first of equals where none is its own
    assert late.upload.model == 0
    server = server_of(10.0, 20.0, assigned={0: 0}, met={0: (0.75, 4.0)})
    poor, fair = [1, 0, 0, 0], [1, 1, 0, 0]
    drifted, _ = asked(server, poor, fair, delta=0.2)
    assert (drifted.upload.model, float(drifted.state["w"])) == (2, 20.0)
    calm, _ = asked(server, poor, fair, delta=0.25)
    assert calm.upload.model == 1
    new, _ = asked(server, poor, fair, index=7, delta=0.0)
    assert new.upload.model == 1  # has lost nothing


def trained(index: int, value: float, size: int, choice: int, accuracy: list[float]) -> Client:
    client = member(index, {"w": torch.tensor([value])}, size)
    client.upload = Compared(torch.tensor(accuracy, dtype=torch.float64), choice)
    return client


def test_a_round_of_the_server_by_hand(tmp_path: Path) -> None:
    """0 and 1 do alike on each other's data; 3 is given up; client 4 takes a copy; newcomers the model of most."""
    met = dict.fromkeys(range(6), (0.5, 2.0))
    server = server_of(1.0, 2.0, 3.0, 4.0, assigned={0: 0, 1: 1, 2: 2, 3: 3, 4: 2, 5: 1}, met=met)
    cohort = [
        trained(0, 10.0, 1, 0, [0.9, 0.85, 0.2, 0.1]),
        trained(1, 20.0, 3, 1, [0.82, 0.9, 0.3, 0.1]),
        trained(2, 30.0, 2, 2, [0.1, 0.2, 0.9, 0.1]),
        trained(3, 40.0, 3, 0, [0.9, 0.9, 0.1, 0.8]),
        trained(4, 50.0, 7, 4, [0.1, 0.2, 0.3, 0.1]),
    ]
    FedDrift().aggregate(server, cohort, 2)
    assert server.assigned == {0: 0, 1: 0, 2: 1, 3: 0, 4: 2, 5: 0}
    of_0, of_1 = (10 * 1 + 40 * 3) / 4, 20.0
    merged = (of_0 * (1 + 3) + of_1 * (3 + 2)) / 9  # client 5 is absent: its two images count for model 1
    assert [float(m["w"]) for m in server.models] == [pytest.approx(merged), 30.0, 50.0]
    assert float(server.shared["w"]) == pytest.approx(merged)
    assert server.memory.best == dict(enumerate([0.9, 0.9, 0.9, 0.9, 0.3, 0.5]))
    assert server.memory.images == dict(enumerate([1, 3, 2, 3, 7, 2]))
    it = trainer(method("feddrift"), federation(), tmp_path)
    cohort = [it.client(i, it.server.view(i), 1) for i in (0, 2)]
    it.method.aggregate(it.server, cohort, 1)
    assert it.server.view(3).keys() == it.server.view(0).keys()
    assert it.server.shared is it.server.models[0]


@few(st.integers(2, 6), st.integers(2, 9), SEEDS, examples=50)
def test_distances_and_weights_by_brute_force(models: int, clients: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, held = rng.integers(1, 50, clients), rng.integers(0, models, clients)
    right = np.stack([rng.integers(0, size + 1, models) for size in n])  # [clients, models] images
    delta = float(rng.random())
    server = server_of(*map(float, range(models)), assigned=dict(enumerate(held.tolist())))
    cohort = [trained(i, 0.0, int(n[i]), int(held[i]), (right[i] / n[i]).tolist()) for i in range(clients)]
    found = groups(server, cohort, models, delta)

    used = sorted(set(held.tolist()))

    def acc(i: int, j: int) -> float:
        mine = held == j
        return right[mine, i].sum() / n[mine].sum()

    far = {(i, j): max(acc(i, i) - acc(i, j), acc(j, j) - acc(j, i), 0) for i in used for j in used}
    matrix = apart(np.array([[acc(i, j) for j in used] for i in used]))
    np.testing.assert_allclose(matrix, [[far[i, j] for j in used] for i in used], atol=1e-12)
    assert sorted(m for group in found for m in group) == list(range(models))
    for group in found:
        assert len(group) == 1 or all(far[i, j] <= delta + 1e-12 for i in group for j in group)
    for a, b in ((a, b) for a in found for b in found if a < b and set(a) | set(b) <= set(used)):
        assert max(far[i, j] for i in a for j in b) > delta - 1e-12, "two groups that should be one"
    merge(server, found, dict(enumerate(n.tolist())))
    for i in range(clients):
        group = next(g for g in found if held[i] in g)
        theirs = np.isin(held, group)
        expected = np.average(held[theirs], weights=n[theirs])
        assert float(server.model(i)["w"]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert set(server.assigned.values()) == set(range(len(server.models)))


def test_at_random_each_model_answers_as_many_images_as_another(tmp_path: Path) -> None:
    """Training is the same, and an image without a label is answered by one of the models, however many hold it."""
    data, s = grouped_federation(size=150, concept=True), grouped_setting(rounds=4)
    run = train("feddrift", data, tmp_path / "usual", s)
    found = train(method("feddrift", assignment="random"), data, tmp_path / "random", s)
    states, before = found.trainer.server.models, run.trainer.server.models
    assert all(torch.equal(a[name], b[name]) for a, b in zip(states, before, strict=True) for name in a)
    labels, drawn = column(found, "label"), column(found, "test_phase")
    each = np.stack([labels_by(data, state, torch.cat(list(data.test))) for state in states])
    assert (each == drawn).any(0).all()
    assert (drawn == labels).mean() == pytest.approx((each == labels).mean(), abs=0.05)
    alone = [np.flatnonzero((each == each[m]).sum(0) == 1) for m in range(len(each))]  # where no other says the same
    shares = [(each[m] == drawn)[rows].mean() for m, rows in enumerate(alone)]
    assert shares == pytest.approx([1 / len(each)] * len(each), abs=0.12)
    assert (column(run, "test_phase") != drawn).any()


#: Three groups of clients; two, of whom a few at a time take part; two that change.
TURNED = grouped_federation((0, 1, 2, 0, 1, 2))
TEN = grouped_federation((0, 1) * 5, size=60)
SIDES = grouped_federation((0, 0, 1, 1)), grouped_federation((1, 0, 1, 0))


def coming(cohort: int) -> Setting:
    """Six rounds of so many of the ten clients."""
    return grouped_setting(rounds=6, cohort=cohort, partition=replace(grouped_setting().partition, clients=10))


@pytest.mark.parametrize(
    ("accuracies", "t", "first", "expected"),
    [
        ([0.1, 0.3], 2, 3, False),  # two rounds are no warm-up
        ([0.1, 0.3, 0.35], 3, 3, True),
        ([0.1, 0.3, 0.37], 3, 3, False),
        ([0.1, 0.12, 0.3], 3, 3, False),  # the first slope does not count ...
        ([0.1, 0.12, 0.3], 3, 2, True),  # ... but in the released code
        ([0.1, 0.2, 0.19, 0.4], 4, 3, True),  # one slope so far is enough
        ([0.1 * t for t in range(1, 8)], 7, 3, False),
        ([0.1 * t for t in range(1, 9)], 8, 3, True),  # 80 % of ten rounds
        ([0.1, 0.2, 0.3], 7, 3, False),  # rounds without a cohort count for the 80 % and for no slope
        ([0.1, 0.2, 0.3], 8, 3, True),
        ([0.1, 0.11], 5, 2, False),  # two accuracies are no warm-up
    ],
)
def test_warm_up_ends_by_eq_14(accuracies: list[float], t: int, first: int, expected: bool) -> None:
    assert warm_up_ends(accuracies, t, 10, 0.06, first) is expected


def test_the_round_in_which_it_clusters(tmp_path: Path) -> None:
    """Forced clustering is not missed if nobody took part in the round before."""
    s = grouped_setting(rounds=6, lr=1e-4)  # nothing is learnt, so flat at once
    found = train("flux", TURNED, tmp_path / "a", s)
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == 4
    rounds = found.trainer.checkpoint.rounds
    assert [line.get("figure_clustering_round") for line in rounds] == [None, None, None, 4, 4, 4]
    assert [line["figure_clusters"] for line in rounds][:3] == [1, 1, 1]
    s = grouped_setting(rounds=8, participation=0.25, seed=1)
    cohorts = [trainer(method("flux"), TURNED, tmp_path / "2" / "plan", s).plan.cohort(t) for t in range(1, 9)]
    empty = next(t for t in range(2, 7) if not cohorts[t - 1] and cohorts[t] and cohorts[t + 1])
    found = train(method("flux", start=empty + 1), TURNED, tmp_path / "2" / "run", s)
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == empty + 2


@torch.no_grad()
def described(run: LabRun, data: Federation, side: str) -> np.ndarray:
    """Every client's scaled descriptor, from theta* and the server's axes."""
    memory, out = run.trainer.server.memory, []
    net = network(data, run.trainer.server.shared)
    for rows in getattr(data, side):
        h = net.latent(images(data, rows)).numpy()
        how = projection(memory.bounds, 10)
        z = (h - how.mean.numpy()) @ how.axes.numpy().T
        out.append(moments(z, None if side == "test" else np.eye(10, dtype=bool)[data.labels[rows]]))
    low, high = (np.repeat(side.numpy(), 10)[: len(out[0])] for side in (memory.scaling.low, memory.scaling.high))
    return (np.stack(out) - low) / (high - low)


def test_clusters_and_the_test_phase_by_hand(tmp_path: Path) -> None:
    run = train(method("flux", clustering="prior", start=5), TURNED, tmp_path, grouped_setting(rounds=7))
    server = run.trainer.server
    known = described(run, TURNED, "train")
    assert (known.min(), known.max()) == pytest.approx((0, 1), abs=1e-4)
    labels, _ = clustering.k_means(known, 3)
    assert [server.assigned[i] for i in range(6)] == labels.tolist()
    centres = np.stack([known[labels == m].mean(0) for m in range(labels.max() + 1)])
    for i, d in enumerate(described(run, TURNED, "test")):
        m = int(np.linalg.norm(centres[:, :20] - d, axis=1).argmin())
        for name, chosen in (("test_phase", m), ("own", server.assigned[i])):
            assert (column(run, name, i) == labels_by(TURNED, server.models[chosen], TURNED.test[i])).all()


def test_late_clients_are_led_to_the_nearest_centroid(tmp_path: Path) -> None:
    data, s = TEN, coming(3)
    found = train(method("flux", start=3), data, tmp_path, s)
    server, plan = found.trainer.server, found.trainer.plan
    first, later = set(plan.cohort(3)), {i for t in (4, 5, 6) for i in plan.cohort(t)}
    assert set(server.assigned) == first | later
    assert later - first
    assert len(server.assigned) < 10, "somebody never took part"
    known = described(found, data, "train")
    centres = server.memory.centroids.numpy()
    for i in later - first:
        assert server.assigned[i] == int(np.linalg.norm(centres - known[i], axis=1).argmin())
    for i in set(range(10)) - first - later:  # answers all the same, with the nearest cluster's model
        m = int(np.linalg.norm(centres - known[i], axis=1).argmin())
        assert (column(found, "own", i) == labels_by(data, server.models[m], data.test[i])).all()
    # In the round after the clustering who is late is sent all models and tells its choice.
    late, line = len(set(plan.cohort(4)) - first), found.trainer.checkpoint.rounds[3]
    assert late
    model, memory = sum(t.numel() * 4 for t in server.shared.values()), server.memory
    bounds, scaling, centroids = 16 * len(memory.bounds.low), 2 * 8 * 22, 8 * memory.centroids.numel()
    assert line["bytes_down"] == 3 * model + late * (len(server.models) * model + bounds + scaling + centroids)
    assert line["bytes_up"] == 3 * model + 8 * late


def test_a_running_mean_holds_all_models_since_the_clustering(tmp_path: Path) -> None:
    """Weighted by images, absent clients' earlier models too: not the round's mean."""
    data, s = TEN, coming(4)
    how, sent = method("flux", start=3, clustering="prior", average="running"), []
    it = trainer(how, data, tmp_path / "run", s)
    averaging = type(how).aggregate

    def aggregate(self: Any, server: Any, cohort: Any, t: int) -> None:
        averaging(self, server, cohort, t)
        if t >= 3:
            sent.extend((server.assigned[c.index], c.n_train, c.state) for c in cohort)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(how), "aggregate", aggregate)
        it.run()
    assert len(sent) == 16
    for m, model in enumerate(it.server.models):
        mine = [(n, state) for of, n, state in sent if of == m]
        for name, value in model.items():
            expected = sum(n * state[name].double() for n, state in mine) / sum(n for n, _ in mine)
            torch.testing.assert_close(value, expected.float(), rtol=1e-4, atol=1e-6)
    plain = train(method("flux", start=3, clustering="prior"), data, tmp_path / "plain", s).trainer.server
    assert not torch.equal(plain.models[0]["head.weight"], it.server.models[0]["head.weight"])


def test_clients_are_clustered_anew_when_their_data_drift(tmp_path: Path) -> None:
    data = drifted(*SIDES, (1, 0, 1, 0), (0, 0, 1, 1))
    assert int(data.stages[1][0][0][0]) >= len(SIDES[0].labels)
    found = train(method("flux", start=3), data, tmp_path, grouped_setting(rounds=7, drifts=(6,)))
    at_work = [line["images"] > 0 for line in found.trainer.checkpoint.rounds]
    assert at_work == [True] * 5 + [False, True], "nobody trains in the round of a drift"
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == 6
    labels, eps = clustering.dynamic(described(found, replace(data, stages=data.stages[1:]), "train"))
    assert [found.trainer.server.assigned[i] for i in range(4)] == labels.tolist()
    assert found.trainer.server.memory.elbow == pytest.approx(eps, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "stage"),
    [*(("flux", stage) for stage in ("warm-up", "clustering", "late", "test")), ("flux_soft", "clustering")],
)
def test_latents_that_are_not_finite_are_named(
    name: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From this stage on the network gives NaN."""
    s, heard = coming(10 if stage == "test" else 4), [0]  # of ten nobody is late
    spoilt = {"warm-up": 2, "clustering": 3, "late": 4, "test": 6}[stage]
    kind = type(models.build("digits_cnn", shape=TEN.shape, classes=10, seed=0))
    latent = kind.latent
    monkeypatch.setattr(kind, "latent", lambda self, x: latent(self, x) * (np.nan if heard[-1] >= spoilt - 1 else 1.0))
    with pytest.raises(FedbenchError, match=r"the latents of client \d+ hold NaN"):
        train(method(name, start=3), TEN, tmp_path, s, observe=lambda progress: heard.append(progress.round))
    assert heard[-1] == spoilt - 1, "it is not noticed at once"


@pytest.mark.parametrize("kind", clustering.KINDS)
def test_every_clustering_gives_each_client_one(kind: str, tmp_path: Path) -> None:
    found = train(method("flux", clustering=kind, start=2), TURNED, tmp_path, grouped_setting(rounds=3))
    server = found.trainer.server
    assert sorted(server.assigned) == list(range(6))
    assert set(server.assigned.values()) == set(range(len(server.models)))
    labels, eps = clustering.cluster(kind, server.memory.described.descriptors.numpy(), 1.0, 0.0, 3)
    assert [server.assigned[i] for i in range(6)] == labels.tolist()
    assert ("elbow" in found.trainer.method.round_metrics(server)) == (kind == "density") == (eps == eps)


def test_clustering_in_the_first_round_by_a_given_reach_and_by_some_moments(tmp_path: Path) -> None:
    """The released code's bounds 0 and 2 stand in for latents that nobody has reported."""
    found = train(method("flux", start=1), TURNED, tmp_path / "first", grouped_setting(rounds=2))
    server = found.trainer.server
    assert found.trainer.method.round_metrics(server)["clustering_round"] == 1
    for name, value in server.shared.items():
        assert torch.equal(server.initial[name], value), "theta* is where all begin"
    assert (server.memory.bounds.low == 0).all()
    assert (server.memory.bounds.high == 2).all()
    for reach, clusters in ((1e-6, 6), (1e6, 1)):  # it stands for the elbow
        found = train(method("flux", reach=reach, start=2), TURNED, tmp_path / str(clusters), grouped_setting(rounds=2))
        figures = found.trainer.method.round_metrics(found.trainer.server)
        assert figures["clusters"] == clusters
        assert "elbow" not in figures
    for blocks, length in (("mu_x", 10), ("mu_x,mu_u", 110)):  # a part of the moments alone
        found = train(method("flux", blocks=blocks, start=2), TURNED, tmp_path / blocks, grouped_setting(rounds=2))
        assert found.trainer.server.memory.described.descriptors.shape[1] == length
        assert found.predictions["test_phase"].null_count == 0


def test_random_assignment_is_random_but_repeatable(tmp_path: Path) -> None:
    chosen = {"clustering": "prior", "start": 2, "assignment": "random"}
    a, b = (train(method("flux", **chosen), TURNED, tmp_path / n, grouped_setting(rounds=3)) for n in "ab")
    assert (column(a, "test_phase") == column(b, "test_phase")).all()
    assert (column(a, "own") != column(a, "test_phase")).any()


def test_noise_is_drawn_anew_each_round(tmp_path: Path) -> None:
    kind, it = method("flux", epsilon=0.01), trainer(method("flux"), TURNED, tmp_path, grouped_setting())
    rows, labels = torch.rand(30, 10), torch.arange(30) % 10

    def sent(t: int, split: str = "train") -> torch.Tensor:
        client = new_client(0, t, {}, it.context, TURNED, it.plan)
        client.inbox = Describe(cube(torch.tensor(2.0), 16), trains=True)
        box = kind.describe(client, split)  # type: ignore[attr-defined]
        next(box)
        with pytest.raises(StopIteration) as stop:
            box.send(Collected(rows, labels))
        d: torch.Tensor = stop.value.value
        return d

    assert torch.equal(sent(4), sent(4))
    assert not torch.equal(sent(4), sent(5))
    assert not torch.equal(sent(4, "test"), sent(4)[:20])


def test_everybody_draws_one_projection_from_the_bounds_that_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    projector = description.projector
    monkeypatch.setattr(description, "projector", lambda *given: drawn.append(1) or projector(*given))
    description._projection.cache_clear()
    found = train(method("flux", start=3), TURNED, tmp_path, grouped_setting(rounds=4))
    assert len(drawn) == 1, "six clients that train and six without labels"
    sent = {id(t) for t in projection(found.trainer.server.memory.bounds, 10)}
    assert sent == {id(t) for t in projection(found.trainer.server.memory.bounds, 10)}
    assert len(drawn) == 1
    projection(cube(torch.tensor(3.0), 16), 10)
    assert len(drawn) == 2, "other bounds, another projection"


def test_soft_weights_and_the_test_phase_by_hand(tmp_path: Path) -> None:
    soft = train("flux_soft", TURNED, tmp_path, grouped_setting(rounds=7))
    server, memory = soft.trainer.server, soft.trainer.server.memory
    d, kernel = memory.described.descriptors.numpy(), memory.kernel
    gaps = np.linalg.norm(d[:, None] - d, axis=2) + np.diag([np.inf] * len(d))
    assert kernel.width == pytest.approx(np.median(gaps.min(1) ** 2))
    expected = soft_weights(d, d, kernel.sizes.numpy(), kernel.reach, kernel.width)  # by hand in test_description.py
    np.testing.assert_allclose(memory.weights.numpy(), expected, atol=1e-9)
    assert (expected > 0).sum() < expected.size, "not everybody is near everybody"
    assert (np.diag(expected) == expected.max(1)).all(), "all train on as many images"
    for i, known in enumerate(described(soft, TURNED, "test")):
        w = soft_weights(known[None], d[:, :20], kernel.sizes.numpy(), kernel.reach, kernel.width)[0]
        mixed = {n: sum(float(a) * m[n].double() for a, m in zip(w, server.models, strict=True)) for n in server.shared}
        own = labels_by(TURNED, {n: t.float() for n, t in mixed.items()}, TURNED.test[i])
        assert (column(soft, "test_phase", i) == own).mean() > 0.99  # rounding may turn one


def test_mixing_by_hand() -> None:
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    trained = [{"w": torch.tensor([1.0, 2.0]) * k} for k in (1, 10, 100)]
    memory = FluxSoftMemory(Phase.GROUPED, cube(torch.tensor(2.0), 3), weights=weights)
    server = Server({}, {"w": torch.zeros(2)}, memory=memory, models=list(trained))
    server.assigned = {5: 0, 7: 1, 9: 2}
    here: Any = [SimpleNamespace(index=5), SimpleNamespace(index=9), SimpleNamespace(index=4)]
    method("flux_soft").mix(server, here)  # type: ignore[attr-defined]
    assert server.models[0]["w"].tolist() == [0.75 + 2.5, 1.5 + 5]
    assert server.models[1]["w"].tolist() == [10, 20], "not in the cohort"
    assert server.models[2]["w"].tolist() == [100, 200]


@pytest.mark.parametrize(
    ("deltas", "found"),
    [
        ([2.0, -2, 2, -1], {0: 0, 1: 1, 2: 0, 3: 1}),  # the plain mean is 0.25, a tenth of the largest is 0.3
        ([2.0, -2, 2, -0.7], {}),  # 0.325
        ([1.7, -1.7, 1.7, -1.7], {}),  # nobody has moved by 1.8
        ([2.5, *[0.001] * 8], {}),  # all the same way
        ([4.0] * 4, {}),  # a larger mean than before
    ],
)
def test_cfl_in_feddrifts_code(deltas: list[float], found: dict[int, int]) -> None:
    """After a mean of 3. A split averages nothing, and both halves begin anew."""
    how = method("cfl", variant="feddrift", largest="entry", eps1=9.0)  # which do not count
    begin = {"w": torch.zeros(2, dtype=torch.float64), "norm.running_mean": torch.zeros(3)}
    server = Server(begin, dict(begin), models=[dict(begin)])
    how.start(server)
    how.aggregate(server, [updated(i, [3.0, 0]) for i in range(4)], 1)
    assert (len(server.models), server.memory.mean, server.models[0]["w"].tolist()) == (1, 3.0, [4.0, 1.0])
    how.aggregate(server, [updated(i, [d, 0], 9 - 8 * (i % 2)) for i, d in enumerate(deltas)], 2)
    assert server.assigned == (found or dict.fromkeys(range(max(4, len(deltas))), 0))
    assert server.memory.mean == max(3.0, deltas[0] if deltas[0] == deltas[1] else 0)
    if found:
        assert [m["w"].tolist() for m in server.models] == [[0.0, 0.0]] * 2
    else:
        weights = [9 - 8 * (i % 2) for i in range(len(deltas))]
        assert server.models[0]["w"].tolist() == pytest.approx([1 + np.average(deltas, weights=weights), 1.0])


def test_feddrift_judges_on_a_rounds_part_of_the_images() -> None:
    """Ten images, four rounds: parts of 2, 3, 2 and 3. In round 2 client 0 goes by images 2 to 4 and sends what it is
    merged by, images 0 to 4, too. With one round a part is all of them."""
    rows = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1], [1, 1], *[[0, 1]] * 5], dtype=torch.float64)
    assert in_parts(rows, 1, 1).tolist() == [rows.mean(0).tolist()] * 2
    assert in_parts(rows, 4, 4).tolist() == [[0.0, 1.0], [0.3, 0.8]]
    assert in_parts(rows[:1], 2, 4).tolist() == [[1.0, 0.0]] * 2  # one at least
    how = method("feddrift", judged_on="part", delta=0.06)
    server = server_of(10.0, 20.0, assigned={0: 0, 1: 1}, met={0: (1.0, 10.0), 1: (1.0, 10.0)})
    context: Any = SimpleNamespace(setting=setting(rounds=4))
    client = dataclasses.replace(member(0, server.view(0), 10), round=2, context=context)
    how.broadcast(server, client)
    drive(how.local(client), Collected(rows, torch.zeros(10)))
    assert client.upload.accuracy.tolist() == [[pytest.approx(1 / 3), 1.0], [0.6, 0.6]]
    assert client.upload.model == 1
    other = member(1, {"w": torch.tensor([2.0])}, 10)
    other.upload = Compared(torch.tensor([[0.0, 1.0], [0.55, 0.6]], dtype=torch.float64), 1)
    client.upload = Compared(client.upload.accuracy, 0)
    how.aggregate(server, [client, other], 2)  # 0 and 1 are 0.05 apart on the parts so far, 1 on this round's
    assert len(server.models) == 1
    assert server.memory.best == {0: 1.0, 1: 1.0}
