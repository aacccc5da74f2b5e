"""FedDrift: what a client chooses, how far apart models are, how they are merged, and when it is FedAvg."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core.client import Client, Collect, Collected, Train
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.several import OfEach
from fedbench.core.trainer import Progress
from fedbench.methods.feddrift import Compared, FedDrift, Memory
from fedbench.methods.feddrift.merging import apart, groups, merge
from fedbench.methods.parts.clustered import right as is_right
from tests.support.groups_lab import answers, bare_client, grouped_federation, grouped_setting, network, pixels
from tests.support.lab import Run, drive, federation, method, setting, train, trainer


def server_of(*models: float, assigned: dict[int, int], met: dict[int, tuple[float, float]] | None = None) -> Server:
    """A server whose models are one number each."""
    start, met = {"w": torch.zeros(1)}, met or {}
    memory = Memory({i: best for i, (best, _) in met.items()}, {i: images for i, (_, images) in met.items()})
    states = [{"w": torch.tensor([m])} for m in models]
    return Server(start, start, models=states, assigned=assigned, memory=memory)


def member(index: int, state: dict[str, torch.Tensor], size: int = 4) -> Client:
    return bare_client(index, size, state, dict(state))


def asked(server: Server, *right: list[int], index: int = 0, delta: float = 0.1) -> tuple[Client, list[Any]]:
    """The client after its update, each model of which was right on these of its four images."""
    how = method("feddrift", delta=delta)
    client = member(index, server.view(index))
    how.broadcast(server, client)
    answers = [Collected(torch.tensor(right, dtype=torch.float32).T, torch.zeros(4))] if right else []
    return client, drive(how.local(client), *answers)


def test_in_the_first_round_nothing_is_compared() -> None:
    client, requests = asked(server_of(assigned={}))
    assert [type(r) for r in requests] == [Train]
    assert client.upload is None


def test_a_client_goes_on_with_the_best_model_and_of_equals_with_its_own() -> None:
    server = server_of(10.0, 20.0, 30.0, assigned={0: 1, 5: 2})
    ones, half = [1, 1, 1, 1], [1, 1, 0, 0]
    for right, best in (((ones, ones, half), 1), ((ones, half, half), 0), ((half, half, ones), 2)):
        client, requests = asked(server, *right)
        assert [type(r) for r in requests] == [Collect, Train]
        assert requests[0] == Collect(OfEach(is_right), split="train", model=("0", "1", "2"))
        assert client.upload.model == best
        assert float(client.state["w"]) == 10 * (best + 1)
        assert client.upload.accuracy.tolist() == [sum(r) / 4 for r in right]
    late, _ = asked(server, ones, half, ones, index=3)  # the first of equals where none is its own
    assert late.upload.model == 0


def test_only_a_loss_of_more_than_delta_makes_a_fresh_copy_of_the_best() -> None:
    server = server_of(10.0, 20.0, assigned={0: 0}, met={0: (0.75, 4.0)})
    poor, fair = [1, 0, 0, 0], [1, 1, 0, 0]
    drifted, _ = asked(server, poor, fair, delta=0.2)
    assert drifted.upload.model == 2
    assert float(drifted.state["w"]) == 20.0
    calm, _ = asked(server, poor, fair, delta=0.25)
    assert calm.upload.model == 1
    new, _ = asked(server, poor, fair, index=7, delta=0.0)
    assert new.upload.model == 1  # has lost nothing


def trained(index: int, value: float, size: int, choice: int, accuracy: list[float]) -> Client:
    client = member(index, {"w": torch.tensor([value])}, size)
    client.upload = Compared(torch.tensor(accuracy, dtype=torch.float64), choice)
    return client


def test_a_round_of_the_server_by_hand() -> None:
    """Models 0 and 1 do alike on each other's data, 2 does not; 3 is given up; client 4 takes a fresh copy."""
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


def test_a_model_that_nobody_of_the_round_holds_is_not_compared() -> None:
    server = server_of(1.0, 2.0, 3.0, assigned={0: 0, 1: 1, 2: 2}, met=dict.fromkeys(range(3), (0.0, 1.0)))
    cohort = [trained(0, 10.0, 1, 0, [0.5, 0.5, 0.5]), trained(1, 20.0, 1, 1, [0.5, 0.5, 0.5])]
    FedDrift().aggregate(server, cohort, 2)
    assert [float(m["w"]) for m in server.models] == [15.0, 3.0]
    assert server.assigned == {0: 0, 1: 0, 2: 1}


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(2, 9), st.integers(0, 2**32 - 1))
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


def test_merging_all_is_fedavg_from_then_on(tmp_path: Path) -> None:
    """With delta at 1 every model is merged as soon as it is compared, and no loss is a drift."""
    data, s = federation(), setting(rounds=4)
    it = trainer(method("feddrift", delta=1.0), data, tmp_path / "drift", s)
    plain = trainer(method("fedavg"), data, tmp_path / "fedavg", s)

    def hand_over(progress: Progress) -> None:
        if progress.round == 2:
            plain.server = dataclasses.replace(plain.server, shared=dict(it.server.models[0]), round=2)

    it.run(hand_over)
    plain.run()
    assert [line["figure_clusters"] for line in it.checkpoint.rounds] == [4.0, 1.0, 1.0, 1.0]
    assert all(torch.equal(it.server.models[0][name], value) for name, value in plain.server.shared.items())


@pytest.fixture(scope="module")
def concepts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Federation]:
    data = grouped_federation(size=150, concept=True)
    return train("feddrift", data, tmp_path_factory.mktemp("drift"), grouped_setting(rounds=8)), data


def test_concepts_are_told_apart_and_learnt(concepts: tuple[Run, Federation]) -> None:
    run, data = concepts
    server = run.trainer.server
    kinds = [{data.groups[i] for i, m in server.assigned.items() if m == k} for k in range(len(server.models))]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(kinds) < data.clients
    assert run.accuracy > 0.75
    last = run.predictions.to_pandas().query("round == 8")
    assert (last["test_phase"] == last["label"]).mean() < run.accuracy - 0.2  # the two concepts contradict each other


def test_at_random_each_model_answers_as_many_images_as_another(
    concepts: tuple[Run, Federation], tmp_path: Path
) -> None:
    """Training is the same, and an image without a label is answered by one of the models, however many hold it."""
    run, data = concepts
    found = train(method("feddrift", assignment="random"), data, tmp_path, grouped_setting(rounds=8))
    states, before = found.trainer.server.models, run.trainer.server.models
    assert all(torch.equal(a[name], b[name]) for a, b in zip(states, before, strict=True) for name in a)
    labels, drawn = answers(found, "label"), answers(found, "test_phase")
    images = pixels(data, torch.cat(list(data.test)))
    each = np.stack([network(data, state)(images).argmax(1).numpy() for state in states])
    assert (each == drawn).any(0).all()
    assert (drawn == labels).mean() == pytest.approx((each == labels).mean(), abs=0.05)
    alone = [np.flatnonzero((each == each[m]).sum(0) == 1) for m in range(len(each))]  # where no other says the same
    shares = [(each[m] == drawn)[rows].mean() for m, rows in enumerate(alone)]
    assert shares == pytest.approx([1 / len(each)] * len(each), abs=0.12)
    assert (answers(run, "test_phase") != drawn).any()


def test_traffic_counts_the_models_that_were_sent(concepts: tuple[Run, Federation]) -> None:
    run, _ = concepts
    lines = run.trainer.checkpoint.rounds
    size = sum(t.nbytes for t in run.shared.values())
    before = [0, *(int(line["figure_clusters"]) for line in lines[:-1])]
    # Beside them which one is the client's own and its last best accuracy; back each one's accuracy and the choice.
    assert [line["bytes_down"] for line in lines] == [6 * (size * m + 16 if m else size) for m in before]
    assert [line["bytes_up"] for line in lines] == [6 * (size + 8 * (m + 1) if m else size) for m in before]


def test_a_drift_of_all_of_a_clients_labels_is_found(tmp_path: Path) -> None:
    """Client 0's labels change in round 6: it leaves the model that it shared with the others."""
    data = grouped_federation((0, 0, 0), size=150, concept=True)
    labels = data.labels.clone()
    doubled = torch.cat([data.labels, (data.labels[data.train[0]] + 5) % 10])
    at = len(labels) + torch.arange(len(data.train[0]))
    image = torch.cat([torch.arange(len(labels)), data.train[0]])
    stages = [(data.train, data.validation), ([at, *data.train[1:]], data.validation)]
    drifting = dataclasses.replace(data, labels=doubled, image=image, stages=stages)
    run = train(method("feddrift", delta=0.5), drifting, tmp_path, grouped_setting(rounds=6, drifts=(6,)))
    assigned = run.trainer.server.assigned
    assert run.trainer.checkpoint.rounds[4]["figure_clusters"] == 1.0
    assert assigned[1] == assigned[2] != assigned[0]


def test_a_client_that_never_took_part_holds_the_model_of_most(tmp_path: Path) -> None:
    it = trainer(method("feddrift"), federation(), tmp_path)
    cohort = [it.client(i, it.server.view(i), 1) for i in (0, 2)]
    it.method.aggregate(it.server, cohort, 1)
    assert it.server.view(3).keys() == it.server.view(0).keys()
    assert it.server.shared is it.server.models[0]
