"""FedEM and FedRC: responsibilities, weighted trainings, mixtures that answer."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.core.server import Server
from fedbench.core.stacked_collect import kind
from fedbench.core.state import State, model_in, size_in_bytes
from fedbench.core.trainer import Interrupted, Progress
from fedbench.core.who import UNLABELLED
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.methods.fedem import FedEM
from fedbench.methods.fedrc import CLASS_SHARES, FedRC, class_shares
from fedbench.methods.parts.clustered import side_by_side
from fedbench.methods.parts.responsibilities import PI, expectation, maximisation, posterior
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import Run, drive, federation, method, train, trainer
from tests.support.models_lab import DATA, SOME, accuracy, given, losses, mixed_answers, two_models

NAMES = ("fedem", "fedrc")
each = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", params=NAMES)
def some(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return two_models(request.param, tmp_path_factory.mktemp(request.param))


def models_of(server: Server) -> list[State]:
    return [model_in(server.shared, str(m)) for m in range(len(server.initial[PI]))]


@each
def test_one_model_is_fedavg(name: str, tmp_path: Path) -> None:
    run = train(method(name, clusters=1), DATA, tmp_path / name, SOME)
    fedavg = train("fedavg", DATA, tmp_path / "fedavg", SOME)
    (model,) = models_of(run.trainer.server)
    for key, value in fedavg.shared.items():
        np.testing.assert_allclose(model[key].numpy(), value, rtol=1e-4, atol=1e-6)
    assert run.predictions.equals(fedavg.predictions)
    for ours, its in zip(run.trainer.checkpoint.rounds, fedavg.trainer.checkpoint.rounds, strict=True):
        assert ours["loss"] == pytest.approx(its["loss"], rel=1e-5)
        assert [ours[b] - its[b] for b in ("bytes_up", "bytes_down")] == [
            0 if name == "fedem" else 8 * 10 * ours["participants"]
        ] * 2


@each
def test_two_concepts_are_learnt_apart(name: str, tmp_path: Path) -> None:
    """One model for both is right for half of the clients at most."""
    s = grouped_setting(rounds=16, lr=0.2)
    data = grouped_federation((0, 1, 0, 1), size=120, concept=True)
    run = train(name, data, tmp_path, s)
    assert accuracy(run, data) > 0.7
    pi = np.stack([run.trainer.server.personal[i][PI].numpy() for i in range(4)])
    assert pi.shape == (4, 2), "as many models as there are groups"
    assert len(set(pi.argmax(1)[[0, 2]])) == len(set(pi.argmax(1)[[1, 3]])) == 1
    assert pi[0].argmax() != pi[1].argmax()


def test_responsibilities_are_bayes_rule() -> None:
    rng = np.random.default_rng(0)
    pi, costs = rng.dirichlet(np.ones(3)), rng.gamma(1.0, size=(3, 50)) * 40
    q = np.empty((50, 3))
    for i in range(50):
        joint = [pi[m] * np.exp(-costs[m, i]) for m in range(3)]
        q[i] = np.array(joint) / sum(joint)
    np.testing.assert_allclose(posterior(torch.from_numpy(pi), torch.from_numpy(costs)).numpy(), q, rtol=1e-9)
    never = posterior(torch.tensor([0.0, 1.0]), torch.tensor([[1.0], [900.0]]))
    assert never.tolist() == [[0.0, 1.0]], "a model without a share gets no image, and nothing is not a number"


def by_hand(
    each_loss: np.ndarray, pi: np.ndarray, y: np.ndarray, s: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(q [n, M], counts [M, K]) from losses [M, n]; image by image."""
    m, n = each_loss.shape
    q, counts = np.empty((n, m)), np.zeros((m, 10))
    for i in range(n):
        joint = np.array([pi[j] * np.exp(-each_loss[j, i]) / (1 if s is None else s[j, y[i]]) for j in range(m)])
        q[i] = joint / joint.sum()
        counts[:, y[i]] += q[i]
    return q, counts


@each
def test_the_expectation_step_of_every_round(name: str, tmp_path: Path) -> None:
    """pi after each round, and FedRC's class shares, from the models before it."""
    s = grouped_setting(rounds=4, participation=0.7, seed=4)
    it = trainer(method(name, clusters=2), DATA, tmp_path, s)
    run = Run(it, [])
    it.resume()
    before, pi = models_of(it.server), {i: np.full(2, 0.5) for i in range(6)}
    shares = np.full((2, 10), 0.1)

    def after(progress: Progress) -> None:
        nonlocal before, shares
        if progress.doing:
            return
        total = np.zeros((2, 10))
        for i in it.plan.cohort(progress.round):
            y = DATA.labels[DATA.train[i]].numpy()
            q, counts = by_hand(losses(run, DATA, before, i), pi[i], y, shares if name == "fedrc" else None)
            pi[i] = q.mean(0)
            total += counts
            np.testing.assert_allclose(it.server.personal[i][PI].numpy(), pi[i], rtol=1e-5)
        if name == "fedrc":
            shares = np.maximum(total / total.sum(1, keepdims=True), 1e-8)
            np.testing.assert_allclose(it.server.shared[CLASS_SHARES].numpy(), shares, rtol=1e-4)
        before = models_of(it.server)

    it.run(after)
    assert it.server.round == 4
    assert max(abs(p[0] - 0.5) for p in pi.values()) > 0.01


def test_fedrc_parts_from_fedem_with_its_second_round(tmp_path: Path) -> None:
    """At first all models have equal class shares, which cancel."""
    pi = {}
    for name in NAMES:
        for rounds in (1, 2):
            s = grouped_setting(rounds=rounds, test_phase=None)
            run = train(method(name, clusters=2), DATA, tmp_path / f"{name}{rounds}", s)
            pi[name, rounds] = torch.stack([run.trainer.server.personal[i][PI] for i in range(6)])
    torch.testing.assert_close(pi["fedrc", 1], pi["fedem", 1])
    assert float((pi["fedrc", 2] - pi["fedem", 2]).abs().max()) > 1e-3


def test_class_shares_have_a_floor() -> None:
    shares = class_shares(torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    assert shares.tolist() == [[0.75, 0.25, 1e-8], [1e-8] * 3]


class Twins(FedEM):
    """FedEM whose two models begin alike, so that each is responsible for half of every image."""

    def start(self, server: Server) -> None:
        super().start(server)
        server.shared = side_by_side([model_in(server.shared, "0")] * 2)


def test_two_equal_models_take_steps_of_half_the_length(tmp_path: Path) -> None:
    """The weights are not normalised within the batch. A batch is a client's whole set: its order does not matter."""
    whole: dict[str, Any] = {"batch_size": 100, "epochs": 3, "momentum": 0.9}
    twins = train(Twins(clusters=2), DATA, tmp_path / "twins", grouped_setting(rounds=4, lr=0.2, **whole))
    half = train("fedavg", DATA, tmp_path / "half", grouped_setting(rounds=4, lr=0.1, **whole))
    for model in models_of(twins.trainer.server):
        for key, value in half.shared.items():
            np.testing.assert_allclose(model[key].numpy(), value, rtol=1e-3, atol=1e-5)
    assert [p.loss for p in twins.reports] == pytest.approx([p.loss for p in half.reports], rel=1e-4)


def test_each_model_trains_on_its_own_weights(tmp_path: Path) -> None:
    """As each would by itself on the same batches: torch's SGD, model after model, is the oracle."""
    data, s = federation((60, 40)), grouped_setting(lr=0.1, epochs=2, momentum_restarts=None, weight_decay=5e-4)
    it = trainer(method("fedem", clusters=3), data, tmp_path, s)
    it.resume()
    worker = Worker(it.executor.model, data, s, threading.Event())
    kinds: list[Any] = []
    for i, n in enumerate(data.n_train):
        client = it.client(i, it.server.view(i), 1)
        q = torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        (request,) = drive(maximisation(client, q))
        kinds.append(kind(request))
        batches = [torch.from_numpy(batch) for batch in worker.batches(client, request)]
        images = sum(map(len, batches))
        before = [client.model(str(m)) for m in range(3)]
        logged = worker.train(client, request).loss
        losses = []
        for m, state in enumerate(before):
            network = copy.deepcopy(worker.load(state))
            sgd = torch.optim.SGD(network.parameters(), client.lr, 0.9, weight_decay=s.weight_decay)
            for batch in batches:
                rows = data.train[i][batch]
                each = F.cross_entropy(network(worker.batch(rows)), data.labels[rows], reduction="none")
                sgd.zero_grad()
                (each * q[batch, m].float()).mean().backward()
                sgd.step()
                losses.append(float(each.detach().sum()) / images / 3)  # all shares are a third at first
            for name, t in network.state_dict().items():
                torch.testing.assert_close(client.model(str(m))[name], t, rtol=1e-4, atol=1e-6)
        assert logged == pytest.approx(sum(losses), rel=1e-5)
    assert kinds[0] == kinds[1], "clients of any size ask for the same"


def test_clients_answer_with_their_own_mixture(some: Run) -> None:
    """Who has taken part in no round finds its mixture when it is asked."""
    server, states = some.trainer.server, models_of(some.trainer.server)
    assert server.personal.keys() == {0, 1, 3, 4, 5}
    y = DATA.labels[DATA.train[2]].numpy()
    shares = server.shared[CLASS_SHARES].numpy() if CLASS_SHARES in server.shared else None
    late = by_hand(losses(some, DATA, states, 2), np.full(2, 0.5), y, shares)[0].mean(0)
    assert abs(late[0] - 0.5) > 1e-3
    for i in range(6):
        pi = late if i == 2 else server.personal[i][PI].numpy()
        np.testing.assert_array_equal(given(some, i), mixed_answers(some, DATA, states, pi, i))


def test_clients_without_labels_are_answered_by_the_sum_of_the_mixtures(some: Run) -> None:
    server, states = some.trainer.server, models_of(some.trainer.server)
    weights = np.sum([state[PI].numpy() for state in server.personal.values()], 0)
    for i in range(6):
        np.testing.assert_array_equal(given(some, i, "test_phase"), mixed_answers(some, DATA, states, weights, i))
    unlabelled = some.trainer.answering(server, 0, UNLABELLED, 3)
    np.testing.assert_allclose(unlabelled.inbox.weights.numpy(), weights / 5, rtol=1e-12)
    assert torch.equal(unlabelled.state[PI], server.initial[PI]), "an unlabelled client has no mixture of its own"


@pytest.mark.parametrize("executor", ["stacked", "cores"])
def test_two_models_come_out_alike_of_every_executor_and_of_a_resumed_run(
    executor: str, some: Run, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(some.trainer.method, DATA, tmp_path, SOME, executor=executor, observe=interrupt)
    run = train(some.trainer.method, DATA, tmp_path, SOME, executor=executor)
    tolerance = {"rtol": 0.0, "atol": 0.0} if executor == "cores" else {"rtol": 1e-3, "atol": 1e-5}
    assert run.trainer.server.tensors().keys() == some.trainer.server.tensors().keys()
    for key, t in some.trainer.server.tensors().items():
        torch.testing.assert_close(run.trainer.server.tensors()[key], t, **tolerance)


def test_all_models_go_both_ways(some: Run) -> None:
    server = some.trainer.server
    models = sum(size_in_bytes(state) for state in models_of(server))
    extra = 8 * 2 * 10 if CLASS_SHARES in server.shared else 0
    for line in some.trainer.checkpoint.rounds:
        assert line["bytes_up"] == line["bytes_down"] == line["participants"] * (models + extra)
        assert line["figure_clusters"] == 2.0


@each
def test_options(name: str) -> None:
    assert method(name, clusters=6).relative_compute(grouped_setting(epochs=2)) == pytest.approx(7.0)
    assert method(name).relative_compute(grouped_setting(epochs=2)) == 1.0
    with pytest.raises(FedbenchError, match=f"--clusters of {name} must be at least 0"):
        method(name, clusters=-1)


@pytest.mark.parametrize("cls", [FedEM, FedRC])
def test_alone_with_one_model_nothing_is_asked(cls: type[Method], tmp_path: Path) -> None:
    it = trainer(cls.create({"clusters": 1}), DATA, tmp_path, SOME)
    it.resume()
    client = it.client(1, it.server.view(1), 1)
    with pytest.raises(StopIteration) as stop:
        next(expectation(client))
    q, counts = stop.value.value
    assert q.tolist() == [[1.0]] * client.n_train
    assert counts.tolist() == [client.class_counts.tolist()]
