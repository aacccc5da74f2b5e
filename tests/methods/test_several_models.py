"""IFCA and FeSEM, FedEM and FedRC: which model a client takes or how far it has each, and who answers."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import models
from fedbench.conformance.subject import small
from fedbench.core.client import UNLABELLED, Client
from fedbench.core.images import to_input
from fedbench.core.server import Server
from fedbench.core.stacked import kind
from fedbench.core.state import State, model_in, size_in_bytes, state_of
from fedbench.core.trainer import Progress
from fedbench.core.worker import Worker
from fedbench.engine.training import known_association
from fedbench.methods.fedrc import CLASS_SHARES, class_shares
from fedbench.methods.fesem import nearest
from fedbench.methods.parts.clustered import Choice, expected_groups
from fedbench.methods.parts.responsibilities import PI, expectation, maximisation, posterior
from fedbench.partitions import schemes
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec
from tests.support.formula_lab import ByHand, answered, averaged, close, column, sent
from tests.support.groups_lab import bare_client, grouped_federation, grouped_setting
from tests.support.lab import LabRun, drive, federation, finish, method, same, setting, train, trainer

#: Two groups of clients that disagree about the labels.
DATA = grouped_federation(concept=True)
#: Clients come and go; one of them takes part in no round.
SOME = grouped_setting(rounds=3, participation=0.5, seed=4)
HARD, SOFT = ("ifca", "fesem"), ("fedem", "fedrc")
hard, soft = pytest.mark.parametrize("name", HARD), pytest.mark.parametrize("name", SOFT)
_RUNS: dict[str, LabRun] = {}


@pytest.fixture
def some(name: str, tmp_path: Path) -> LabRun:
    if name not in _RUNS:
        _RUNS[name] = train(method(name, clusters=2), DATA, tmp_path, SOME)
    return _RUNS[name]


def models_of(server: Server) -> list[State]:
    return server.models or [model_in(server.shared, str(m)) for m in range(len(server.initial[PI]))]


def probabilities(run: LabRun, state: State, rows: torch.Tensor) -> np.ndarray:
    """[n, K] of images, by the run's network with this state."""
    return answered(state, to_input(DATA.images[rows]), copy.deepcopy(run.trainer.executor.model)).numpy()


def losses(run: LabRun, states: list[State], client: int, judged_on: str = "train") -> np.ndarray:
    """[M, n]: each model's cross-entropy on each training image of the client, or on the held-back ones, over again."""
    rows = DATA.train[client]
    if judged_on == "validation":
        rows = np.resize(DATA.validation[client], len(rows))
    y = DATA.labels[rows].numpy()
    return np.stack([-np.log(probabilities(run, state, rows)[np.arange(len(y)), y]) for state in states])


def best(run: LabRun, states: list[State], client: int) -> int:
    return int(losses(run, states, client).mean(1).argmin())


def mixed(run: LabRun, weights: np.ndarray, client: int) -> np.ndarray:
    """[m] labels of the client's test images by the weighted mean of the models' class probabilities."""
    each = [probabilities(run, state, DATA.test[client]) for state in models_of(run.trainer.server)]
    return sum(w * p for w, p in zip(weights, each, strict=True)).argmax(1)


def watched(name: str, where: Path, s: Any, after: Any, **chosen: Any) -> LabRun:
    """A run with two models; `after` (round, trainer, models before it) hears of every round."""
    it = trainer(method(name, clusters=2, **chosen), DATA, where, s)
    it.resume()
    before = models_of(it.server)

    def listen(progress: Progress) -> None:
        nonlocal before
        if not progress.doing:
            after(progress.round, it, before)
            before = models_of(it.server)

    it.run(listen)
    return LabRun(it, [])


@hard
def test_the_first_choice_is_the_lowest_loss(name: str, tmp_path: Path) -> None:
    """Of models from the run's seed and those after it."""
    s = grouped_setting(rounds=1, lr=1e-9)
    run = train(method(name, clusters=3), DATA, tmp_path, s)
    fresh = [state_of(models.build(s.model, shape=DATA.shape, classes=DATA.classes, seed=s.seed + k)) for k in range(3)]
    chosen = [best(run, fresh, i) for i in range(6)]
    assert [run.trainer.server.assigned[i] for i in range(6)] == chosen
    assert len(set(chosen)) > 1
    for m in set(range(3)) - set(chosen):
        assert all(torch.equal(run.trainer.server.models[m][n], t) for n, t in fresh[m].items()), "nobody's model moved"


def test_an_initial_seed_is_that_of_all_models_and_an_unseen_client_takes_that_of_the_lowest_loss(
    tmp_path: Path,
) -> None:
    nine_and_one = state_of(models.build("digits_cnn", shape=DATA.shape, classes=10, seed=10))
    for seed in (1, 2):
        it = trainer(method("ifca", clusters=2), DATA, tmp_path / str(seed), grouped_setting(seed=seed, init_seed=9))
        it.resume()
        assert all(torch.equal(it.server.models[1][n], t) for n, t in nine_and_one.items())
    part = partition_spec(DatasetSpec("digits", "t", "t"), "iid", 6, 1, 0.7, unseen=2)
    s = grouped_setting(rounds=2, partition=part, test_phase=None)
    run = train(method("ifca", clusters=2), DATA, tmp_path / "2", s)
    server = run.trainer.server
    assert server.assigned.keys() == {0, 1, 2, 3}
    for i in (4, 5):
        np.testing.assert_array_equal(column(run, "own", i), mixed(run, np.eye(2)[best(run, server.models, i)], i))


def test_ifca_chooses_in_every_round_and_keeps_what_it_chose_last(tmp_path: Path) -> None:
    """After each round, whoever took part stands where its losses under the round's models say."""
    expected: dict[int, int] = {}
    moved = []

    def after(t: int, it: Any, before: list[State]) -> None:
        for i in it.plan.cohort(t):
            choice = best(LabRun(it, []), before, i)
            moved.append(expected.get(i, choice) != choice)
            expected[i] = choice
        assert it.server.assigned == expected

    watched("ifca", tmp_path, grouped_setting(rounds=6, participation=0.6), after)
    assert any(moved), "no client ever changed its mind"


@hard
def test_who_answers_and_what_is_sent(name: str, some: LabRun) -> None:
    """Who never took part chooses when asked; without labels the ensemble answers; bytes of one and of all models."""
    server = some.trainer.server
    absent = set(range(6)) - {i for t in (1, 2, 3) for i in some.trainer.plan.cohort(t)}
    assert absent
    assert server.assigned.keys() == set(range(6)) - absent
    for i in range(6):
        m = best(some, server.models, i) if i in absent else server.assigned[i]
        np.testing.assert_array_equal(column(some, "own", i), mixed(some, np.eye(2)[m], i))
    weights = np.bincount(list(some.trainer.server.assigned.values()), minlength=2) / len(some.trainer.server.assigned)
    assert 0 < weights[0] != weights[1] > 0
    by_hand, evenly = (np.concatenate([mixed(some, w, i) for i in range(6)]) for w in (weights, np.full(2, 0.5)))
    np.testing.assert_array_equal(column(some, "test_phase"), by_hand)
    assert not np.array_equal(by_hand, evenly)
    one, met = size_in_bytes(some.trainer.server.models[0]), set[int]()
    choice = 8 if name == "ifca" else 0  # the number of the model; FeSEM's server finds it
    for t, (up, down) in enumerate(sent(some), 1):
        cohort = set(some.trainer.plan.cohort(t))
        offered = cohort if name == "ifca" else cohort - met  # FeSEM sends all models to who has no cluster yet
        met |= cohort
        assert (up, down) == ((one + choice) * len(cohort), one * (len(cohort) + len(offered)))
    assert [line["figure_clusters"] for line in some.trainer.checkpoint.rounds] == [2.0] * 3


@hard
def test_the_ensemble_does_not_know_the_clients_distributions_after_a_drift(
    name: str, some: LabRun, tmp_path: Path
) -> None:
    """Known association leads to the cluster of the test distribution, of which who has no labels learns nothing."""
    drifted = replace(DATA, test_groups=[DATA.groups[0]] * len(DATA.groups))
    it = trainer(method(name, clusters=2), drifted, tmp_path / "moved", SOME)
    it.associate = partial(known_association, groups=drifted.groups, test_groups=drifted.test_groups)
    moved = finish(it)
    assert it.associate(it.server.assigned) != it.server.assigned
    assert moved.predictions.column("test_phase").equals(some.predictions.column("test_phase"))
    assert not moved.predictions.column("own").equals(some.predictions.column("own"))


def member(index: int, n: int, value: float | State, choice: int | None = None) -> Client:
    """A client with so many training images that has trained this state, and tells its choice of a model."""
    state = value if isinstance(value, dict) else two_tensors(value, value)
    return bare_client(index, n, state, {}, None if choice is None else Choice(choice))


def two_tensors(a: float, b: float) -> State:
    return {"w": torch.full((4,), float(a)), "b": torch.full((1,), float(b))}


@pytest.mark.parametrize(
    ("name", "chosen", "known", "assigned", "expected"),
    [
        ("ifca", {}, {}, 0, [(30 * 1 + 20 * 8) / 50, 9.0]),
        ("fesem", {}, {}, 1, [1.0, (10 * 9 + 20 * 8) / 30]),  # the server moves client 2, which is nearer to model 1
        ("fesem", {"variant": "fedrc"}, {0: 0, 1: 1, 2: 0}, 1, [1.0, (10 * 9 + 20 * 10) / 30]),  # its 8 is lost
    ],
)
def test_models_are_averaged_by_cluster_and_training_images(
    name: str, chosen: dict[str, str], known: dict[int, int], assigned: int, expected: list[float]
) -> None:
    """The empty cluster keeps its model. In FedRC's code who moves contributes the model that it moves to."""
    before = [two_tensors(v, v) for v in (0, 10, -50)]
    server = Server(two_tensors(0, 0), {}, models=list(before), assigned=known)
    first, second = (0, 1) if name == "ifca" else (None, None)  # FeSEM's server finds it
    cohort = [member(0, 30, 1, first), member(1, 10, 9, second), member(2, 20, 8, first)]
    method(name, **chosen).aggregate(server, cohort, 1)
    assert server.assigned == {0: 0, 1: 1, 2: assigned}
    for model, value in zip(server.models, (*expected, -50.0), strict=True):
        close(model, two_tensors(value, value))


@hard
def test_models_that_nobody_chose_become_zeros(name: str) -> None:
    """... where they are not kept, their counters too; what the others become does not change."""
    counted = [{**two_tensors(v, v), "norm.num_batches_tracked": torch.tensor(7)} for v in (0, 10, -50)]

    def after(how: str) -> list[State]:
        server = Server(counted[0], {}, models=list(counted))
        cohort = [member(i, 10 + i, {**counted[0], **two_tensors(1, i)}, 0) for i in range(3)]
        method(name, unchosen=how).aggregate(server, cohort, 1)
        assert set(server.assigned.values()) == {0}
        return server.models

    kept, zero = after("keep"), after("zero")
    assert same({n: t.numpy() for n, t in zero[0].items()}, {n: t.numpy() for n, t in kept[0].items()})
    assert kept[1:] == counted[1:]
    for model, old in zip(zero[1:], counted[1:], strict=True):
        assert model.keys() == old.keys()
        assert all(t.dtype == old[n].dtype and t.shape == old[n].shape and not t.any() for n, t in model.items())


def test_in_fedrcs_code_fesems_first_round_trains_all_models(tmp_path: Path) -> None:
    """Each by a third of the loss, which is a third of the learning rate; then the lowest loss decides. In the second
    round a client trains its cluster's model alone, by all of the loss."""
    s = grouped_setting(rounds=2, epochs=1)
    it = trainer(method("fesem", clusters=3, variant="fedrc"), DATA, tmp_path, s, network=lambda: small(norm=True))
    it.resume()
    initial, run = it.server.models, ByHand(DATA, s)

    def after(state: State, i: int, t: int, request: int, share: float) -> State:
        return run.descended(state, run.batches(i, t, request, 1), lr=s.lr * share)

    def mean(states: dict[int, State], chosen: dict[int, int], before: list[State]) -> list[State]:
        out = list(before)
        for m in set(chosen.values()):
            who = [i for i in states if chosen[i] == m]
            out[m] = averaged([states[i] for i in who], [DATA.n_train[i] for i in who])
        return out

    chosen, kept, second, moved = {}, {}, {}, {}
    for i in range(DATA.clients):
        mine = [after(state, i, 1, m + 1, 1 / 3) for m, state in enumerate(initial)]
        chosen[i] = best(LabRun(it, []), mine, i)
        kept[i] = mine[chosen[i]]
    assert len(set(chosen.values())) > 1
    first = mean(kept, chosen, list(initial))
    for i in range(DATA.clients):
        second[i] = after(first[chosen[i]], i, 2, 1, 1.0)
        moved[i] = nearest(second[i], first)
        second[i] = second[i] if moved[i] == chosen[i] else first[moved[i]]
    finish(it)
    assert it.server.assigned == moved
    for ours, theirs in zip(it.server.models, mean(second, moved, first), strict=True):
        close(ours, theirs, 1e-4, 2e-5)


def test_fesem_measures_tensor_by_tensor() -> None:
    """sqrt(4 * 1) + 0 < sqrt(4 * 0.25) + 1.5, though 4 * 1 > 4 * 0.25 + 1.5^2; statistics and counters are left out."""

    def counted(a: float, b: float, statistic: float) -> State:
        rest = {"running_var": torch.full((3,), statistic), "num_batches_tracked": torch.tensor(int(statistic))}
        return {**two_tensors(a, b), **{f"norm.{name}": t for name, t in rest.items()}}

    state, near, far = counted(0, 0, 0), counted(1, 0, 99), counted(0.5, 1.5, 0)
    assert [nearest(state, [far, near]), nearest(state, [near, far])] == [1, 0]


def test_effort_counts_the_models_that_are_asked() -> None:
    s = setting(epochs=2)
    efforts = {("ifca", 6): 2.0, ("ifca", 1): 1.0, ("ifca", 0): 1.0, ("fesem", 6): 1.0}
    efforts |= {(name, m): effort for name in SOFT for m, effort in ((6, 7.0), (0, 1.0))}
    for (name, clusters), effort in efforts.items():
        assert method(name, clusters=clusters).relative_compute(s) == pytest.approx(effort)
    for clients, most in ((10, 99), (40, 10)):
        part = partition_spec(DatasetSpec("mnist", "t", "t"), "equal", clients, 3, None, shift="pyx", level=8)
        assert expected_groups(setting(partition=part)) == min(schemes.of(part).true_groups(part, 10), most) > 5


def test_responsibilities_are_bayes_rule_and_class_shares_have_a_floor() -> None:
    rng = np.random.default_rng(0)
    pi, costs = rng.dirichlet(np.ones(3)), rng.gamma(1.0, size=(3, 50)) * 40
    joint = pi[:, None] * np.exp(-costs)
    q = posterior(torch.from_numpy(pi), torch.from_numpy(costs)).numpy()
    np.testing.assert_allclose(q, (joint / joint.sum(0)).T, rtol=1e-9)
    never = posterior(torch.tensor([0.0, 1.0]), torch.tensor([[1.0], [900.0]]))
    assert never.tolist() == [[0.0, 1.0]], "a model without a share gets no image, and nothing is not a number"
    shares = class_shares(torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    assert shares.tolist() == [[0.75, 0.25, 1e-8], [1e-8] * 3]


def by_hand(costs: np.ndarray, pi: np.ndarray, y: np.ndarray, s: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(q [n, M], counts [M, K]) from losses [M, n]; image by image."""
    m, n = costs.shape
    q, counts = np.empty((n, m)), np.zeros((m, 10))
    for i in range(n):
        joint = np.array([pi[j] * np.exp(-costs[j, i]) / (1 if s is None else s[j, y[i]]) for j in range(m)])
        q[i] = joint / joint.sum()
        counts[:, y[i]] += q[i]
    return q, counts


@soft
@pytest.mark.parametrize("judged_on", ["train", "validation"])
def test_the_expectation_step_of_every_round(name: str, judged_on: str, tmp_path: Path) -> None:
    """pi after each round, and FedRC's class shares, from the models before it; at first they are equal."""
    pi, shares = {i: np.full(2, 0.5) for i in range(6)}, np.full((2, 10), 0.1)

    def after(t: int, it: Any, before: list[State]) -> None:
        total = np.zeros((2, 10))
        for i in it.plan.cohort(t):
            y, costs = DATA.labels[DATA.train[i]].numpy(), losses(LabRun(it, []), before, i, judged_on)
            q, counts = by_hand(costs, pi[i], y, shares if name == "fedrc" else None)
            pi[i] = q.mean(0)
            total += counts
            np.testing.assert_allclose(it.server.personal[i][PI].numpy(), pi[i], rtol=1e-5)
        if name == "fedrc":
            shares[:] = np.maximum(total / total.sum(1, keepdims=True), 1e-8)
            np.testing.assert_allclose(it.server.shared[CLASS_SHARES].numpy(), shares, rtol=1e-4)

    chosen = {} if judged_on == "train" else {"judged_on": judged_on}
    watched(name, tmp_path, grouped_setting(rounds=3, participation=0.7, seed=4), after, **chosen)
    assert max(abs(p[0] - 0.5) for p in pi.values()) > 0.01


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
        before, costs = [client.model(str(m)) for m in range(3)], 0.0
        logged = worker.train(client, request).loss
        for m, state in enumerate(before):
            network = copy.deepcopy(worker.load(state))
            sgd = torch.optim.SGD(network.parameters(), client.lr, 0.9, weight_decay=s.weight_decay)
            for batch in batches:
                rows = data.train[i][batch]
                each = F.cross_entropy(network(worker.batch(rows)), data.labels[rows], reduction="none")
                sgd.zero_grad()
                (each * q[batch, m].float()).mean().backward()
                sgd.step()
                costs += float(each.detach().sum())
            close(client.model(str(m)), network.state_dict(), 1e-4, 1e-6)
        assert logged == pytest.approx(costs / sum(map(len, batches)) / 3, rel=1e-5)  # all shares are a third at first
    assert kinds[0] == kinds[1], "clients of any size ask for the same"


@soft
def test_who_answers_with_which_mixture(name: str, some: LabRun, tmp_path: Path) -> None:
    """A client by its own, found when it is asked if it took part in no round; without labels by all clients' sum."""
    server, states = some.trainer.server, models_of(some.trainer.server)
    assert server.personal.keys() == {0, 1, 3, 4, 5}
    y = DATA.labels[DATA.train[2]].numpy()
    shares = server.shared[CLASS_SHARES].numpy() if CLASS_SHARES in server.shared else None
    late = by_hand(losses(some, states, 2), np.full(2, 0.5), y, shares)[0].mean(0)
    assert abs(late[0] - 0.5) > 1e-3
    weights = np.sum([state[PI].numpy() for state in server.personal.values()], 0)
    for i in range(6):
        pi = late if i == 2 else server.personal[i][PI].numpy()
        np.testing.assert_array_equal(column(some, "own", i), mixed(some, pi, i))
        np.testing.assert_array_equal(column(some, "test_phase", i), mixed(some, weights, i))
    unlabelled = some.trainer.answering(server, 0, UNLABELLED, 3)
    np.testing.assert_allclose(unlabelled.inbox.weights.numpy(), weights / 5, rtol=1e-12)
    assert torch.equal(unlabelled.state[PI], server.initial[PI]), "an unlabelled client has no mixture of its own"
    it = trainer(method(name, clusters=1), DATA, tmp_path / "one", SOME)
    it.resume()
    client = it.client(1, it.server.view(1), 1)
    with pytest.raises(StopIteration) as stop:
        next(expectation(client))
    q, counts = stop.value.value
    assert q.tolist() == [[1.0]] * client.n_train
    assert counts.tolist() == [client.class_counts.tolist()]
