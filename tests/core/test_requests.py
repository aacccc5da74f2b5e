"""Requests on sides of a client's data, optimisers that begin anew, clusters, and clients without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import models
from fedbench.core import executors
from fedbench.core.client import NO_LABEL, UNLABELLED, Batch, Client, ClientUpdate, Collect, Context, Gradient, Train
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.simulation import new_client
from fedbench.core.state import state_of
from fedbench.methods.base import Loss, Method, cross_entropy
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec
from tests.support.lab import client, federation, setting, train

DATA = federation((60, 40))
HELD = replace(DATA, validation=[rows[:5] for rows in DATA.train], train=[rows[5:] for rows in DATA.train])


def seen(model: Any, batch: Batch) -> torch.Tensor:
    return torch.cat([batch.y[:, None].float(), batch.position[:, None].float(), model(batch.x)], 1)


def ask(request: Any, executor: str, data: Federation = HELD, same: bool = True) -> list[Any]:
    """What each client is answered; `same`: they hold one model, else each its own."""
    s = setting()
    nets = [models.build(s.model, shape=data.shape, classes=10, seed=0 if same else i) for i in range(data.clients)]
    states = [state_of(nets[0])] * data.clients if same else [state_of(net) for net in nets]
    plan = Plan(s, data.n_train, data.shape[:2])
    clients = [new_client(i, 1, states[i], Context.of(data, s), data, plan) for i in range(data.clients)]
    answers: dict[int, Any] = {}

    def update(c: Client) -> ClientUpdate:
        answers[c.index] = yield request

    runner = executors.make(executor, nets[0], data, s)
    try:
        runner.run(clients, update)
    finally:
        runner.close()
    return [answers[i] for i in range(data.clients)]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(
    ("split", "part"), [("train", None), ("validation", None), ("validation", (1, 4)), ("test", (2, 9))]
)
def test_a_side_or_a_part_of_it(executor: str, same: bool, split: str, part: Any) -> None:
    found = ask(Collect(seen, split=split, part=part), executor, same=same)
    whole = ask(Collect(seen, split=split), "sequential", same=same)
    for i, (rows, labels) in enumerate(found):
        side = {"train": HELD.train, "validation": HELD.validation, "test": HELD.test}[split][i]
        cut = slice(*part) if part else slice(None)
        true = torch.full_like(side, NO_LABEL) if split == "test" else HELD.labels[side]
        assert torch.equal(labels, true[cut])
        assert torch.equal(rows[:, 0].long(), true[cut]), "test labels are not given out"
        assert rows[:, 1].tolist() == list(range(len(side)))[cut]
        assert torch.allclose(rows[:, 2:], whole[i].rows[cut, 2:], atol=1e-5)


def entropy(model: Any, batch: Batch) -> Loss:
    p = F.log_softmax(model(batch.x), 1)
    return Loss(-(p.exp() * p).sum(1).mean())


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_gradient_on_a_part_of_the_test_images(executor: str) -> None:
    found = ask(Gradient(entropy, split="test", part=(3, 8)), executor)
    for i, answer in enumerate(found):
        net = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=0)
        images = HELD.images[HELD.test[i][3:8]].permute(0, 3, 1, 2).float() / 127.5 - 1
        entropy(net, Batch(images, torch.zeros(5), torch.zeros(5), {})).total.backward()
        for name, p in net.named_parameters():
            assert p.grad is not None
            assert torch.allclose(answer.gradient[name], p.grad, atol=1e-5)
        assert answer.images == 5


@pytest.mark.parametrize("executor", ["sequential", "stacked", "graphed"])
@pytest.mark.parametrize("rule", [{"momentum": 0.9}, {"momentum": 0.0, "optimizer": "adamw", "lr": 0.005}])
def test_the_optimizer_begins_anew_with_every_pass(rule: dict[str, Any], executor: str) -> None:
    """Two epochs of one request are two requests of one epoch, but for the order of the second pass."""

    def after(s: Any, *epochs: int) -> list[dict[str, Any]]:
        plan, net = (
            OneOrder(s, DATA.n_train, DATA.shape[:2]),
            models.build(s.model, shape=DATA.shape, classes=10, seed=3),
        )
        clients = [client(DATA, plan, i, state_of(net)) for i in range(2)]

        def update(c: Client) -> ClientUpdate:
            for n in epochs:
                yield Train(cross_entropy, epochs=n)

        runner = executors.make(executor, net, DATA, s)
        runner.run(clients, update)
        runner.close()
        return [c.state for c in clients]

    s = setting(batch_size=16, **rule)
    expected, restarted, kept = after(s, 1, 1), after(replace(s, momentum_restarts=True), 2), after(s, 2)
    for ours, its, other in zip(restarted, expected, kept, strict=True):  # the second has fewer steps a pass
        for name, value in its.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5)
        assert any(float((other[n] - v).abs().max()) > 1e-3 for n, v in its.items()), "without, it goes on"


class OneOrder(Plan):
    """Every pass goes through the images in their stored order."""

    def batches(self, client: int, t: int, phase: int, epochs: int | None, steps: int | None) -> Any:
        n = self.n_train[client]
        for _ in range(epochs or 0):
            yield from np.array_split(np.arange(n), range(self.setting.batch_size, n, self.setting.batch_size))


def test_clusters_live_in_the_server_and_its_checkpoint() -> None:
    a, b = {"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}
    server = Server(
        {"w": torch.zeros(2), "v": torch.zeros(1)}, {"v": torch.ones(1)}, models=[a, b], assigned={0: 1, 2: 0}
    )
    assert [server.view(i)["w"][0].item() for i in range(3)] == [2, 0, 1]
    copied = server.copy(4)
    copied.models[0], copied.assigned[1] = b, 1
    assert (server.models[0], server.assigned) == (a, {0: 1, 2: 0}), "the copy is to be worked on"
    again = Server(server.initial, {})
    again.restore(server.tensors())
    assert again.assigned == server.assigned
    assert [m["w"].tolist() for m in again.models] == [[1, 1], [2, 2]]
    server.keep(0, {"w": server.models[1]["w"], "v": torch.ones(1) * 3})
    assert server.personal[0].keys() == {"v"}, "what it merely received is not its own"


@dataclass(frozen=True)
class Peeking(Method):
    """Notes what a client has in the test phase; everybody is answered 3 there."""

    name = "peeking"
    met = []  # noqa: RUF012

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind != UNLABELLED:
            return
        rows, labels = yield Collect(seen, split="test")
        self.met.append((client.count("train"), client.count("validation"), float(client.class_counts.sum()), labels))
        client.answer = torch.full((len(rows),), 3)


@pytest.mark.parametrize("asked", [True, False])
def test_a_client_without_labels_has_none(asked: bool, tmp_path: Path) -> None:
    Peeking.met.clear()
    table = train(Peeking(), HELD, tmp_path, setting(rounds=2, votes=False, test_phase=asked)).predictions
    if not asked:
        assert "test_phase" not in table.column_names
        return
    assert len(Peeking.met) == 2, "after the last round alone"
    assert all(
        train == validation == counts == 0 and (y == NO_LABEL).all() for train, validation, counts, y in Peeking.met
    )
    at = table.to_pandas().groupby("round")["test_phase"]
    assert at.count().to_dict() == {1: 0, 2: sum(HELD.n_test)}
    assert set(table.column("test_phase").drop_null().to_pylist()) == {3}


def test_drift_moves_on_to_the_next_stage() -> None:
    none = [rows[:0] for rows in DATA.train]
    stages = [([rows[:10] for rows in DATA.train], none), ([rows[10:20] for rows in DATA.train], DATA.test)]
    data = replace(DATA, train=stages[0][0], stages=stages)
    part = partition_spec(DatasetSpec("digits", "", ""), "equal", 2, 1, shift="px", level=1, phases=2)
    s = setting(rounds=4, drifts=(3,), partition=part)
    plan = Plan(s, data.n_train, data.shape[:2])
    for t, stage in ((1, 0), (2, 0), (3, 1), (4, 1)):
        c = new_client(1, t, {}, Context.of(data, s), data, plan)
        assert torch.equal(c.work.rows, stages[stage][0][1])
        assert torch.equal(c.work.validation_rows, stages[stage][1][1])
        if stage:
            assert torch.equal(c.class_counts, torch.bincount(data.labels[c.work.rows], minlength=10).float())


def test_copies_of_an_image_need_no_memory_of_their_own() -> None:
    index = np.array([0, 2, 2, 1, 0, 3])
    images = np.arange(4 * 4, dtype=np.uint8).reshape(4, 2, 2, 1)
    labels, who, test = np.arange(6) % 3, np.array([0, 0, 0, 1, 1, 1]), np.array([False, False, True] * 2)
    parts = [
        Federation.of(images, labels, who, np.arange(6), test, 3, image=index),
        Federation.of(images[index] + 50, labels, who, np.arange(6), test, 3),
    ]
    plain = [Federation.of(p, labels, who, np.arange(6), test, 3) for p in (images[index], images[index] + 50)]
    s = setting(model="digits_cnn")
    joined: Sequence[Federation] = Federation.joined(parts)
    for found, expected in (*zip(parts, plain, strict=True), *zip(joined, plain, strict=True)):
        for i in range(2):
            a, b = (batch_of(data, rows, s) for data, rows in ((found, found.train[i]), (expected, expected.train[i])))
            assert torch.equal(a, b)
            assert torch.equal(found.labels[found.test[i]], expected.labels[expected.test[i]])


def batch_of(data: Federation, rows: torch.Tensor, s: Any) -> torch.Tensor:
    from threading import Event

    from fedbench.core.worker import Worker

    return Worker(torch.nn.Linear(1, 1), data, s, Event()).batch(rows)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedbabu", "local", "fedrep", "pfedfda", "mr_mtl"])
def test_who_shares_only_a_part_of_the_network_serves_nobody_without_labels(name: str, tmp_path: Path) -> None:
    run = train(name, DATA, tmp_path, setting(rounds=1, votes=False, test_phase=True))
    serves = name in ("fedavg", "ditto", "fedbabu")
    assert ("test_phase" in run.predictions.column_names) == serves


def test_newcomers_are_met_without_labels_too(tmp_path: Path) -> None:
    data = federation((40, 30, 30, 20))
    part = replace(setting().partition, unseen=2)
    run = train("fedavgft", data, tmp_path, setting(rounds=1, votes=False, test_phase=True, partition=part))
    assert run.predictions["test_phase"].null_count == 0
