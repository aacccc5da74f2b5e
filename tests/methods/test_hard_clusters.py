"""IFCA and FeSEM: which model a client takes, what becomes of the models, and who answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench import models
from fedbench.core.augment import to_input
from fedbench.core.client import Client
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.state import State, size_in_bytes, state_of
from fedbench.core.trainer import Interrupted, Progress
from fedbench.engine.association import known_association
from fedbench.errors import FedbenchError
from fedbench.methods.fesem import nearest
from fedbench.methods.parts.clustered import expected_groups
from fedbench.methods.parts.lowest_loss import Choice
from fedbench.partitions import schemes
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec
from tests.support.groups_lab import bare_client, grouped_federation, grouped_setting
from tests.support.lab import Run, finish, method, same, setting, train, trainer
from tests.support.models_lab import DATA, SOME, accuracy, given, losses, mixed_answers, two_models
from tests.support.sgd_oracle import averaged

NAMES = ("ifca", "fesem")
each = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", params=NAMES)
def some(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return two_models(request.param, tmp_path_factory.mktemp(request.param))


@each
def test_one_model_is_fedavg(name: str, tmp_path: Path) -> None:
    run = train(method(name, clusters=1), DATA, tmp_path / name, SOME)
    fedavg = train("fedavg", DATA, tmp_path / "fedavg", SOME)
    (model,) = run.trainer.server.models
    assert same({n: t.numpy() for n, t in model.items()}, fedavg.shared)
    assert run.predictions.equals(fedavg.predictions)
    assert [line["loss"] for line in run.trainer.checkpoint.rounds] == [
        line["loss"] for line in fedavg.trainer.checkpoint.rounds
    ]


@pytest.mark.parametrize(("name", "seed"), [("ifca", 1), ("fesem", 2)])
def test_two_concepts_are_learnt_apart(name: str, seed: int, tmp_path: Path) -> None:
    """One model for both is right for half of the clients at most."""
    s = grouped_setting(rounds=8, epochs=3, seed=seed)
    data = grouped_federation(size=120, concept=True)
    run = train(name, data, tmp_path, s)
    assert len(run.trainer.server.models) == 2, "as many as there are groups"
    assert accuracy(run, data) > (0.75 if name == "ifca" else 0.6)


@each
def test_the_first_choice_is_the_lowest_loss(name: str, tmp_path: Path) -> None:
    """Of models from the run's seed and those after it."""
    s = grouped_setting(rounds=1, lr=1e-9)
    run = train(method(name, clusters=3), DATA, tmp_path, s)
    fresh = [state_of(models.build(s.model, shape=DATA.shape, classes=DATA.classes, seed=s.seed + k)) for k in range(3)]
    chosen = [int(losses(run, DATA, fresh, i).mean(1).argmin()) for i in range(6)]
    assert [run.trainer.server.assigned[i] for i in range(6)] == chosen
    assert len(set(chosen)) > 1
    for m in set(range(3)) - set(chosen):
        assert all(torch.equal(run.trainer.server.models[m][n], t) for n, t in fresh[m].items()), "nobody's model moved"


def test_an_initial_seed_is_that_of_all_models(tmp_path: Path) -> None:
    states = []
    for seed in (1, 2):
        it = trainer(method("ifca", clusters=2), DATA, tmp_path / str(seed), grouped_setting(seed=seed, init_seed=9))
        it.resume()
        states.append(it.server.models[1])
    nine_and_one = state_of(models.build("digits_cnn", shape=DATA.shape, classes=10, seed=10))
    assert all(torch.equal(state[n], t) for state in states for n, t in nine_and_one.items())


def test_ifca_chooses_in_every_round_and_keeps_what_it_chose_last(tmp_path: Path) -> None:
    """After each round, whoever took part stands where its losses under the round's models say."""
    run = train(method("ifca", clusters=2), DATA, tmp_path / "two", SOME)
    before: list[State] = []
    expected: dict[int, int] = {}
    moved = 0

    def after(progress: Progress) -> None:
        nonlocal before, moved
        if progress.doing:
            return
        t, server = progress.round, it.server
        for i in it.plan.cohort(t):
            choice = int(losses(run, DATA, before, i).mean(1).argmin())
            moved += expected.get(i, choice) != choice
            expected[i] = choice
        assert server.assigned == expected
        before = server.models

    it = trainer(method("ifca", clusters=2), DATA, tmp_path / "watched", grouped_setting(rounds=6, participation=0.6))
    it.resume()
    before = it.server.models
    it.run(after)
    assert moved, "no client ever changed its mind"


def test_who_never_took_part_chooses_when_asked(some: Run) -> None:
    server = some.trainer.server
    absent = set(range(6)) - {i for t in (1, 2, 3) for i in some.trainer.plan.cohort(t)}
    assert absent
    assert server.assigned.keys() == set(range(6)) - absent
    for i in range(6):
        best = int(losses(some, DATA, server.models, i).mean(1).argmin()) if i in absent else server.assigned[i]
        weights = np.eye(2)[best]
        np.testing.assert_array_equal(given(some, i), mixed_answers(some, DATA, server.models, weights, i))


def test_clients_without_labels_are_answered_by_the_ensemble(some: Run) -> None:
    server = some.trainer.server
    weights = np.bincount(list(server.assigned.values()), minlength=2) / len(server.assigned)
    assert 0 < weights[0] != weights[1] > 0
    ours = np.concatenate([given(some, i, "test_phase") for i in range(6)])
    by_hand = np.concatenate([mixed_answers(some, DATA, server.models, weights, i) for i in range(6)])
    evenly = np.concatenate([mixed_answers(some, DATA, server.models, np.full(2, 0.5), i) for i in range(6)])
    np.testing.assert_array_equal(ours, by_hand)
    assert not np.array_equal(ours, evenly)


@each
def test_the_ensemble_does_not_know_the_clients_distributions_after_a_drift(name: str, tmp_path: Path) -> None:
    """Known association leads to the cluster of the test distribution, of which who has no labels learns nothing."""
    still = train(method(name, clusters=2), DATA, tmp_path / "still", SOME)
    drifted = replace(DATA, test_groups=[DATA.groups[0]] * len(DATA.groups))
    it = trainer(method(name, clusters=2), drifted, tmp_path / "moved", SOME)
    it.associate = partial(known_association, groups=drifted.groups, test_groups=drifted.test_groups)
    moved = finish(it)
    assert it.associate(it.server.assigned) != it.server.assigned
    assert moved.predictions.column("test_phase").equals(still.predictions.column("test_phase"))
    assert not moved.predictions.column("own").equals(still.predictions.column("own"))


def member(index: int, n: int, state: State, choice: int | None = None) -> Client:
    """A client with so many training images that has trained this state, and tells its choice of a model."""
    return bare_client(index, n, state, {}, None if choice is None else Choice(choice))


def two_tensors(a: float, b: float) -> State:
    return {"w": torch.full((4,), float(a)), "b": torch.full((1,), float(b))}


@each
def test_models_are_averaged_by_cluster_and_training_images(name: str) -> None:
    """The empty cluster keeps its model; FeSEM moves client 2, IFCA leaves it where it chose to be."""
    before = [two_tensors(0, 0), two_tensors(10, 10), two_tensors(-50, -50)]
    server = Server(two_tensors(0, 0), {}, models=before)
    first, second = (0, 1) if name == "ifca" else (None, None)  # FeSEM's server finds it
    cohort = [
        member(0, 30, two_tensors(1, 1), first),
        member(1, 10, two_tensors(9, 9), second),
        member(2, 20, two_tensors(8, 8), first),
    ]
    method(name).aggregate(server, cohort, 1)
    of_last = 0 if name == "ifca" else 1
    assert server.assigned == {0: 0, 1: 1, 2: of_last}
    expected = [(30 * 1 + 20 * 8) / 50, 9.0] if name == "ifca" else [1.0, (10 * 9 + 20 * 8) / 30]
    for m, value in enumerate(expected):
        torch.testing.assert_close(server.models[m], two_tensors(value, value))
    assert server.models[2] is before[2]


@each
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


def test_a_model_of_zeros_answers_evenly_and_learns_but_its_last_bias(tmp_path: Path) -> None:
    """It has loss ln 10, and of its gradient only that of the last bias is not zero."""
    s = grouped_setting(rounds=1, lr=0.5, momentum=0.0)
    it = trainer(method("ifca", clusters=2, unchosen="zero"), DATA, tmp_path, s)
    it.resume()
    far = {n: torch.full_like(t, 3.0) if t.is_floating_point() else t for n, t in it.server.models[1].items()}
    it.server.models = [{n: torch.zeros_like(t) for n, t in far.items()}, far]
    zeros = it.server.models[0]
    run = finish(it)
    np.testing.assert_allclose(losses(run, DATA, [zeros], 0), np.log(10), rtol=1e-6)
    assert set(it.server.assigned.values()) == {0}, "everybody takes it: the other answers one class"
    moved = {n for n, t in it.server.models[0].items() if t.any()}
    (last,) = moved
    assert it.server.models[0][last].shape == (10,)
    assert not any(t.any() for t in it.server.models[1].values()), "nobody chose the other, and so it is zeros, too"


def test_in_fedrcs_code_fesems_client_that_moves_contributes_what_it_received() -> None:
    """Client 2 has trained model 0 until it came nearer to model 1: its 8 is lost, and model 1 counts in its place."""
    before = [two_tensors(0, 0), two_tensors(10, 10), two_tensors(-50, -50)]
    server = Server(two_tensors(0, 0), {}, models=list(before), assigned={0: 0, 1: 1, 2: 0})
    cohort = [member(0, 30, two_tensors(1, 1)), member(1, 10, two_tensors(9, 9)), member(2, 20, two_tensors(8, 8))]
    method("fesem", variant="fedrc").aggregate(server, cohort, 2)
    assert server.assigned == {0: 0, 1: 1, 2: 1}
    moved = (10 * 9 + 20 * 10) / 30
    for model, value in zip(server.models, (1.0, moved, -50.0), strict=True):
        torch.testing.assert_close(model, two_tensors(value, value))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_in_fedrcs_code_fesems_first_round_trains_all_models(executor: str, tmp_path: Path) -> None:
    """Each by a third of the loss, which is a third of the learning rate; then the lowest loss decides. In the second
    round a client trains its cluster's model alone, by all of the loss."""
    s = grouped_setting(rounds=2, epochs=1)
    it = trainer(method("fesem", clusters=3, variant="fedrc"), DATA, tmp_path, s, executor=executor)
    it.resume()
    initial, plan = it.server.models, Plan(s, DATA.n_train, DATA.shape[:2])
    net = models.build(s.model, shape=DATA.shape, classes=DATA.classes, seed=1)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net(to_input(DATA.images[rows])), DATA.labels[rows])

    def after(state: State, i: int, t: int, request: int, share: float) -> State:
        net.load_state_dict(state)
        descent = torch.optim.SGD(net.train().parameters(), s.lr * share, s.momentum)
        for position in plan.batches(i, t, request, 1, None):
            descent.zero_grad()
            loss(DATA.train[i][torch.from_numpy(position)]).backward()  # type: ignore[no-untyped-call]
            descent.step()
        return state_of(net)

    def loss_of(state: State, i: int) -> float:
        net.load_state_dict(state)
        with torch.no_grad():
            return float(net.eval() and loss(DATA.train[i]))

    def mean(states: dict[int, State], chosen: dict[int, int], before: list[State]) -> list[State]:
        out = list(before)
        for m in set(chosen.values()):
            who = [i for i in states if chosen[i] == m]
            out[m] = averaged([states[i] for i in who], [DATA.n_train[i] for i in who])
        return out

    chosen, kept = {}, {}
    for i in range(DATA.clients):
        mine = [after(state, i, 1, m + 1, 1 / 3) for m, state in enumerate(initial)]
        chosen[i] = int(np.argmin([loss_of(state, i) for state in mine]))
        kept[i] = mine[chosen[i]]
    assert len(set(chosen.values())) > 1
    first = mean(kept, chosen, list(initial))
    second, moved = {}, {}
    for i in range(DATA.clients):
        second[i] = after(first[chosen[i]], i, 2, 1, 1.0)
        moved[i] = nearest(second[i], first)
        second[i] = second[i] if moved[i] == chosen[i] else first[moved[i]]
    finish(it)
    assert it.server.assigned == moved
    for ours, theirs in zip(it.server.models, mean(second, moved, first), strict=True):
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=2e-5)


def test_fesem_measures_tensor_by_tensor() -> None:
    """sqrt(4 * 1) + 0 < sqrt(4 * 0.25) + 1.5, though 4 * 1 > 4 * 0.25 + 1.5^2; statistics and counters are left out."""
    state = {**two_tensors(0, 0), "norm.running_var": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(0)}
    near = {
        **two_tensors(1, 0),
        "norm.running_var": torch.full((3,), 99.0),
        "norm.num_batches_tracked": torch.tensor(9),
    }
    far = {**two_tensors(0.5, 1.5), "norm.running_var": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(0)}
    assert nearest(state, [far, near]) == 1
    assert nearest(state, [near, far]) == 0
    rng = np.random.default_rng(5)
    drawn = [{"a": rng.normal(size=(3, 2)), "b": rng.normal(size=5)} for _ in range(41)]
    by_hand = [sum(np.sqrt(((drawn[40][n] - d[n]) ** 2).sum()) for n in ("a", "b")) for d in drawn[:40]]
    as_tensors = [{n: torch.from_numpy(v) for n, v in d.items()} for d in drawn]
    assert nearest(as_tensors[40], as_tensors[:40]) == int(np.argmin(by_hand))


@pytest.mark.parametrize("executor", ["stacked", "cores"])
def test_two_models_come_out_alike_of_every_executor_and_of_a_resumed_run(
    executor: str, some: Run, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt

    how = some.trainer.method
    with pytest.raises(Interrupted):
        train(how, DATA, tmp_path, SOME, executor=executor, observe=interrupt)
    run = train(how, DATA, tmp_path, SOME, executor=executor)
    ours, its = run.trainer.server, some.trainer.server
    assert ours.assigned == its.assigned
    assert run.trainer.clients_table().equals(some.trainer.clients_table())
    tolerance = {"rtol": 0.0, "atol": 0.0} if executor == "cores" else {"rtol": 1e-4, "atol": 1e-5}
    assert ours.tensors().keys() == its.tensors().keys()
    for key, t in its.tensors().items():
        torch.testing.assert_close(ours.tensors()[key], t, **tolerance)


def test_bytes_of_one_and_of_all_models(some: Run) -> None:
    one = size_in_bytes(some.trainer.server.models[0])
    lines = some.trainer.checkpoint.rounds
    counts = [line["participants"] for line in lines]
    ifca = some.trainer.method.name == "ifca"
    choice = 8 if ifca else 0  # the number of the model; FeSEM's server finds it
    assert [line["bytes_up"] for line in lines] == [(one + choice) * n for n in counts]
    met: set[int] = set()
    for t, line in enumerate(lines, 1):
        cohort = set(some.trainer.plan.cohort(t))
        offered = cohort if ifca else cohort - met  # FeSEM sends all models to who has no cluster yet
        met |= cohort
        assert line["bytes_down"] == one * (len(cohort) + len(offered))
    assert [line["figure_clusters"] for line in lines] == [2.0] * 3


def test_an_unseen_client_takes_the_model_of_the_lowest_loss(tmp_path: Path) -> None:
    part = partition_spec(DatasetSpec("digits", "t", "t"), "iid", 6, 1, 0.7, unseen=2)
    run = train(method("ifca", clusters=2), DATA, tmp_path, grouped_setting(rounds=2, partition=part, test_phase=None))
    server = run.trainer.server
    assert server.assigned.keys() == {0, 1, 2, 3}
    for i in (4, 5):
        best = np.eye(2)[int(losses(run, DATA, server.models, i).mean(1).argmin())]
        np.testing.assert_array_equal(given(run, i), mixed_answers(run, DATA, server.models, best, i))


def test_effort_counts_the_models_that_are_asked() -> None:
    s = setting(epochs=2)
    assert method("ifca", clusters=6).relative_compute(s) == pytest.approx(2.0)
    assert method("ifca", clusters=1).relative_compute(s) == method("ifca").relative_compute(s) == 1.0
    assert method("fesem", clusters=6).relative_compute(s) == 1.0
    for clients, most in ((10, 99), (40, 10)):
        part = partition_spec(DatasetSpec("mnist", "t", "t"), "equal", clients, 3, None, shift="pyx", level=8)
        there = schemes.of(part).true_groups(part, 10)
        assert expected_groups(setting(partition=part)) == min(there, most) > 5


@each
def test_wrong_numbers_of_models(name: str) -> None:
    with pytest.raises(FedbenchError, match=f"--clusters of {name} must be at least 0"):
        method(name, clusters=-1)
