"""What every method must satisfy, found by the registry, so that a new file is covered as it is: `fedbench check`, and
what holds of the built-in ones alone: whom a method serves, with which models it answers, and what rounds cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbench import methods
from fedbench.conformance import agreement, learning, runs
from fedbench.conformance.lab import Recorder, stop_after
from fedbench.conformance.subject import DATA, FEW, Subject
from fedbench.conformance.suite import DECLARED, RUNS, TRAINING, Check, outcomes
from fedbench.core import validation
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Client, ClientUpdate, Collect, Train
from fedbench.core.federation import Federation
from fedbench.core.images import Piece
from fedbench.core.plan import Plan
from fedbench.core.simulation import PERSONALISING, learning_rate, new_client
from fedbench.core.state import State
from fedbench.core.trainer import Interrupted
from fedbench.core.validation import consider
from fedbench.methods.base import HEAD, Method
from fedbench.planner.table import cost
from fedbench.specs import Setting
from tests.support.cases import CASES, UNLIKE, label
from tests.support.formula_lab import column, images
from tests.support.frames import refused
from tests.support.groups_lab import drifted, grouped_federation, grouped_setting, network
from tests.support.lab import LabRun, federation, method, own, same, setting, staged, train, trainer

every = pytest.mark.parametrize("name", methods.names())


def few(**changes: Any) -> Setting:
    return setting(**{**FEW, **changes})


@pytest.fixture(scope="module", params=CASES, ids=label)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A case. Its tests follow one another, so that the run that most of them share is trained once."""
    name, chosen = request.param
    return Subject(tmp_path_factory.mktemp("subject"), name, chosen)


def test_the_cohorts_of_these_tests_vary() -> None:
    sizes = {len(Plan(few(), DATA.n_train, (8, 8)).cohort(t)) for t in range(1, 5)}
    assert len(sizes) > 1
    assert min(sizes) > 0


def unlike(subject: Subject) -> bool:
    return subject.name in UNLIKE and not subject.overrides


def test_its_runs_pass_every_check(subject: Subject) -> None:
    """But those that further runs would show: `learns`, of which here is seen that the loss falls; crops, which are the
    executors' business; and for variants of a method, that the seed matters, and vectors."""
    left_out = {runs.same_seed_same_bits, runs.test_labels_change_nothing, runs.clients_answer_alone}
    left_out |= {runs.stop_and_resume, agreement.executors_agree, learning.learns}
    left_out |= set() if unlike(subject) else {learning.crops_of_colour_images}
    if subject.overrides:
        left_out |= {runs.another_seed_other_bits, learning.vectors_of_numbers}
    passes([check for check in (*RUNS, *TRAINING) if check.proves not in left_out], subject)
    if not subject.overrides:
        first, *others = (p.loss for p in subject.reference.run.reports)
        assert min(others) < first


def test_what_must_change_nothing_changes_nothing(subject: Subject) -> None:
    """Made again, by two cores, with other labels on test images, without votes, stopped after the first round and
    after the third: one run in place of four of `fedbench check`, which say what it was if it is not the same."""
    labels = DATA.labels.clone()
    for rows in DATA.test:
        labels[rows] = (labels[rows] + 3) % DATA.classes
    garbled, s, where = replace(DATA, labels=labels), subject.few(votes=False), subject.place()
    for t in (1, 3):
        assert subject.stopped(garbled, s, t, where, executor="cores").checkpoint.round == t
    ours, theirs = subject.train(garbled, s, where=where, executor="cores"), subject.reference.run
    columns = [name for name in ours.predictions.column_names if name != "label"]
    answers = (run.predictions.select(columns) for run in (ours, theirs))
    tables = (run.trainer.clients_table() for run in (ours, theirs))
    if not (same(ours.tensors, theirs.tensors) and pa.Table.equals(*answers) and pa.Table.equals(*tables)):
        passes([check for check in (*RUNS, *TRAINING) if check.proves is not learning.learns], subject)
        raise AssertionError("every check alone holds, and all together do not")


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
def test_it_learns(name: str, tmp_path: Path) -> None:
    learning.learns(Subject(tmp_path, name))


def test_executors_agree(subject: Subject) -> None:
    """Steps that are captured are those of stacks: methods whose requests are unlike one another's suffice. One client
    a core is above, and in core/test_parity.py."""
    agreement.executors_agree(subject, ("stacked", "graphed") if unlike(subject) else ("stacked",))


SIX = replace(grouped_setting().partition, clients=6)
DRIFTING = drifted(
    grouped_federation((0, 0, 1, 1), 60), grouped_federation((1, 0, 1, 0), 60), (1, 0, 1, 0), (0, 0, 1, 1)
)
GROUPED = grouped_federation((0, 1, 2, 0, 1, 2), 60)
DRIFTS = grouped_setting(rounds=5, drifts=(4,))
COMING = grouped_setting(rounds=4, cohort=3, partition=SIX)
SCENARIOS: dict[str, tuple[str, dict[str, Any], Federation, Setting]] = {
    "drift": ("flux", {"start": 2}, DRIFTING, DRIFTS),
    "random": ("flux", {"start": 2, "clustering": "prior", "assignment": "random"}, GROUPED, COMING),
    "soft": ("flux_soft", {"start": 2}, DRIFTING, DRIFTS),
    # Its first round trains all models.
    "fesem": ("fesem", {"clusters": 3, "variant": "fedrc"}, GROUPED, grouped_setting(rounds=2, epochs=1)),
    "cfl": ("cfl", {"variant": "feddrift"}, GROUPED, COMING),
    "separate": ("apfl_flux", {"separate": True}, GROUPED, COMING),
    "feddrift": ("feddrift", {"judged_on": "part", "delta": 0.06}, GROUPED, COMING),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_executors_and_a_resumed_run_agree(scenario: str, tmp_path: Path) -> None:
    name, chosen, data, s = SCENARIOS[scenario]

    def run(where: str, executor: str, **more: Any) -> LabRun:
        return train(method(name, **chosen), data, tmp_path / where, s, executor=executor, plan=Recorder, **more)

    reference = run("sequential", "sequential")
    if name.startswith("flux"):  # anew when data drift
        clustered = reference.trainer.checkpoint.rounds[-1]["figure_clustering_round"]
        assert clustered == 4 if s.drifts else clustered >= 2
    agreement.compare(run("stacked", "stacked"), reference, "by stacks")
    with pytest.raises(Interrupted):
        run("cores", "cores", observe=stop_after(s.rounds - 1))
    resumed = run("cores", "cores")
    assert same(resumed.tensors, reference.tensors)
    assert resumed.predictions.equals(reference.predictions)


@every
def test_what_it_says_of_itself_passes_every_check(name: str, tmp_path: Path) -> None:
    passes(DECLARED, Subject(tmp_path, name))


def passes(checks: Sequence[Check], subject: Subject) -> None:
    """Raises what the first check that fails has raised, with the names of all that fail."""
    failed = [outcome for outcome in outcomes(subject, checks, lambda check: None) if not outcome.holds]
    if failed:
        error = failed[0].error or AssertionError(failed[0].why)
        error.add_note(f"fails: {', '.join(outcome.check.name for outcome in failed)}")
        raise error


def test_cohorts_and_first_batches_are_those_of_every_method(subject: Subject) -> None:
    """Two to four batches of every client's first request."""
    drawn, s = subject.reference.plan.draws, subject.few()
    plan = Plan(s, DATA.n_train, (8, 8))
    for t in range(1, 5):
        assert drawn["cohort", t] == plan.cohort(t)
    asked = [(key, value) for key, value in drawn.items() if key[0] == "batches"]
    first = {(t, client): batches for (what, client, t, phase), batches in asked if phase == 1}
    assert first, "it never trained"
    for (t, client), batches in first.items():
        expected = [b.tolist() for b in plan.batches(client, t, 1, s.epochs, s.steps)]
        assert batches[: len(expected)] == expected[: len(batches)]


def test_a_cohort_that_has_not_moved_leaves_the_server_where_it_was(subject: Subject, tmp_path: Path) -> None:
    """The weights of every average sum to one, whatever the sizes of the clients."""
    if subject.name in ("fedas", "fednova"):
        pytest.skip("the server's step is made of what its clients say beside their models")
    how = subject.method()
    it = trainer(how, DATA, tmp_path, few())
    before = dict(it.server.shared)
    cohort = [it.client(i, it.server.view(i), 1) for i in (0, 2, 3)]
    for client in cohort:
        how.broadcast(it.server, client)
    how.aggregate(it.server, cohort, 1)
    assert it.server.shared.keys() == before.keys()
    for key, value in before.items():
        torch.testing.assert_close(it.server.shared[key], value, rtol=1e-6, atol=1e-7)


def test_traffic_is_of_what_the_server_holds(subject: Subject) -> None:
    """What is sent is counted in bytes of its tensors; that every executor counts alike is among the checks."""
    run = subject.reference.run.trainer
    held = (*run.server.tensors().values(), *run.server.initial.values())
    stored = sum(t.numel() * t.element_size() for t in held)
    for direction in ("bytes_up", "bytes_down"):
        sent = [line[direction] for line in run.checkpoint.rounds]
        assert all(isinstance(b, int) and 0 <= b <= 2 * DATA.clients * stored for b in sent)
        assert any(sent) is any(not run.method.is_personal(n) for n in run.server.initial)


@every
def test_it_is_named_as_its_file_and_keeps_what_exists(name: str, tmp_path: Path) -> None:
    cls, source = methods.load(name)
    assert source is None
    assert cls.name == name
    initial = trainer(cls(), DATA, tmp_path).server.initial
    for prefix in cls.personal:
        assert any(key.startswith(prefix) for key in initial), f"'{prefix}' is no tensor's prefix"


def passed(how: Method, s: Setting, where: Path) -> tuple[int, int]:
    """Of a round's local work: (images that the network met in training, as often as it did; its parameters)."""
    alike = replace(DATA, groups=[0] * DATA.clients)  # of an IID partition, as its setting says
    it, images = trainer(how, alike, where, s), 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal images
        images += len(inputs[0]) if module.training else 0

    model: nn.Module = it.executor.worker.model  # type: ignore[attr-defined]
    next(layer for layer in model.modules() if not list(layer.children())).register_forward_pre_hook(count)
    it.resume()
    round = it.begin()
    it.executor.run(it.enter(round, round.cohort), how.local)
    return images, sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def fedavgs_round(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setting], tuple[int, int]]:
    """Setting -> what passes in FedAvg's first round."""
    return cache(lambda s: passed(method("fedavg"), s, tmp_path_factory.mktemp("fedavg")))


@every
def test_effort_is_that_of_the_local_work(name: str, tmp_path: Path, fedavgs_round: Any) -> None:
    """Images that pass in training, against FedAvg's; of whole batches, as who asks for gradients has no short one."""
    how, s = methods.load(name)[0](), Subject(tmp_path, name).setting(rounds=1, window=1, epochs=2, tail="drop")
    if how.trains:
        (images, size), (others, other) = passed(how, s, tmp_path), fedavgs_round(s)
        expected = images / others * round(size / other)  # through all of its networks
        assert how.relative_compute(s) == pytest.approx(expected)
    assert how.relative_compute(setting(steps=3)) >= 1


THREE = federation((60, 40, 50))
TEST_PHASE = setting(rounds=1, window=1, votes=False, test_phase=True)
#: The methods that do not serve everybody.
SERVES = {
    **dict.fromkeys(
        (
            "apfl",
            "confree",
            "fedas",
            "fedbn",
            "feddrm",
            "fedper",
            "fedproto",
            "fedrep",
            "fedrod",
            "lg_fedavg",
            "local",
            "mr_mtl",
        ),
        frozenset({MEMBER}),
    ),
    **dict.fromkeys(
        ("apfl_flux", "cfl", "ditto", "fedala", "feddrift", "fitw_erm", "ftw_erm", "haccs", "kmeans_bound", "pfedme"),
        frozenset({MEMBER, UNLABELLED}),
    ),
    **dict.fromkeys(("fedpac", "pfedfda"), frozenset({MEMBER, UNSEEN})),
}


@pytest.mark.parametrize("name", methods.names())
def test_only_who_serves_them_answers_clients_without_labels(name: str, tmp_path: Path) -> None:
    how = method(name)
    assert len(set(how.serves)) == len(how.serves)
    assert set(how.serves) == SERVES.get(name, {MEMBER, UNSEEN, UNLABELLED})
    s = Subject(tmp_path, name).setting(rounds=1, window=1, votes=False, test_phase=True)
    columns = train(how, THREE, tmp_path, s).predictions.column_names
    assert ("test_phase" in columns) == (UNLABELLED in how.serves)


def test_untrained_parts_are_served_to_nobody_in_silence(tmp_path: Path) -> None:
    """A hook that is there says nothing of what it does."""
    hooks: dict[str, Any] = {"personal": HEAD, "serve": lambda self, server, client: None}
    line = r"own keeps head\.weight with each client.*name it in `unlabelled_has`.*leave 'unlabelled' out"
    refused(line, trainer, own(**hooks), THREE, tmp_path, TEST_PHASE)
    trainer(own(**hooks), THREE, tmp_path, setting(votes=False))
    for declared in ({"unlabelled_has": HEAD}, {"serves": (MEMBER,)}):
        trainer(own(**hooks, **declared), THREE, tmp_path, TEST_PHASE)


def test_everybody_comes_once_more_without_labels_after_the_last_round(tmp_path: Path) -> None:
    served, kinds = list[Any](), list[Any]()
    how = own(
        serve=lambda self, server, client: served.append((client.index, client.kind)),
        personalise=lambda self, client: kinds.append((client.index, client.kind)),
    )
    train(how, THREE, tmp_path, setting(rounds=2, window=1, votes=False, test_phase=True))
    assert served == kinds == [(i, kind) for kind in (MEMBER, UNLABELLED) for i in range(3)]


#: Four rounds at a rate at which the last one is not the best.
FOUR, SETTING = grouped_federation((0, 1, 0, 1), 60), grouped_setting(rounds=4, lr=1.5)


def validation_loss(run: LabRun, data: Federation) -> float:
    """The loss of the shared model on all clients' validation images (training images if there are none)."""
    rows = torch.cat([v if len(v) else t for v, t in zip(data.validation, data.train, strict=True)])
    with torch.no_grad():
        scores = network(data, run.trainer.server.shared)(images(data, rows))
        return float(F.cross_entropy(scores, data.labels[rows]))


@pytest.mark.parametrize("held_back", [True, False])
def test_the_best_round_answers(held_back: bool, tmp_path: Path) -> None:
    data = FOUR if held_back else staged(FOUR, (FOUR.train, [rows[:0] for rows in FOUR.train]))
    rounds = [train("fedavg", data, tmp_path / str(t), replace(SETTING, rounds=t)) for t in (1, 2, 3, 4)]
    losses = [validation_loss(run, data) for run in rounds]
    best = int(np.argmin(losses))
    assert best < 3, "the last round would be answered by anyway"
    run = train("fedavg", data, tmp_path / "run", replace(SETTING, select="best"))
    assert same(run.shared, rounds[-1].shared), "training is FedAvg's"
    kept = run.trainer.server.best
    assert kept is not None
    assert kept.loss == pytest.approx(losses[best], rel=1e-4)
    for name, value in rounds[best].shared.items():
        assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value))
    told = rounds[best].predictions.to_pandas()
    for asked in ("own", "test_phase"):
        assert run.predictions.to_pandas()[asked].tolist() == told[asked].tolist()


def test_while_the_loss_falls_it_is_fedavg_and_models_of_other_data_do_not_compete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a drift to data of which no model knows anything, the last stage's rounds answer."""
    data, s = grouped_federation((0, 0, 0), 200), grouped_setting(rounds=4)
    run, plain = (train("fedavg", data, tmp_path / str(how), replace(s, select=how)) for how in ("best", None))
    assert run.predictions.equals(plain.predictions)
    rounds = zip(run.trainer.checkpoint.rounds, plain.trainer.checkpoint.rounds, strict=True)
    assert [line["bytes_up"] - other["bytes_up"] for line, other in rounds] == [2 * 8 * 3] * 4  # a loss and a number
    before, after = grouped_federation((0, 0, 0, 0), 200), grouped_federation((2, 2, 2, 2), 200, concept=True)
    data = drifted(before, after, [2] * 4, [2] * 4)
    for n, empty in ((5, None), (6, 5)):  # nobody may join in the round of the drift
        monkeypatch.setattr(Plan, "cohort", lambda _, t, empty=empty: [] if t == empty else [0, 1, 2, 3])
        run = train("fedavg", data, tmp_path / str(n), grouped_setting(rounds=n, drifts=(5,), select="best"))
        kept = run.trainer.server.best
        assert kept is not None
        for name, value in run.shared.items():
            assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value)), "the one round of its stage"


def test_a_stopped_run_remembers_its_best_round(tmp_path: Path) -> None:
    s = replace(SETTING, select="best")
    whole = train("fedavg", FOUR, tmp_path / "whole", s)
    with pytest.raises(Interrupted):
        train("fedavg", FOUR, tmp_path / "stopped", s, observe=stop_after(2))
    resumed = train("fedavg", FOUR, tmp_path / "stopped", s)
    assert resumed.predictions.equals(whole.predictions)
    assert same(resumed.tensors, whole.tensors)
    refused("answer without scores", train, "fedem", FOUR, tmp_path / "2", replace(SETTING, select="best"))


@pytest.mark.parametrize("name", ["ditto", "ifca", "pfedfda"])
def test_of_a_personalised_method_the_personal_models_are_compared(name: str, tmp_path: Path) -> None:
    """The kept loss is the least, over the rounds, of what each round's clients would answer with."""
    kept = train(name, FOUR, tmp_path / "best", replace(SETTING, lr=0.1, rounds=2, select="best")).trainer.server.best
    assert kept is not None
    ends = [train(name, FOUR, tmp_path / str(t), replace(SETTING, lr=0.1, rounds=t)) for t in (1, 2)]
    assert any(same({n: t.numpy() for n, t in kept.server.items()}, end.tensors) for end in ends)


@pytest.mark.parametrize("name", ["fedavgft", "fedbabu"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_who_fine_tunes_at_the_end_is_judged_fine_tuned_in_every_round(
    name: str, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last round would else be the best, whatever it has come to: it alone would be fine-tuned. With a schedule the
    rate is the last round's."""
    how, s = method(name, finetune_epochs=2), replace(SETTING, lr=0.4, schedule=schedule)
    rates: list[float] = []

    def noted(self: Any, client: Client) -> Any:
        rates.append(client.lr)
        return personalise(self, client)

    personalise = type(how).personalise
    monkeypatch.setattr(type(how), "personalise", noted)
    kept = train(how, FOUR, tmp_path / "best", replace(s, select="best")).trainer.server.best
    assert kept is not None
    judged = rates[:4]  # in the first round
    monkeypatch.undo()
    if schedule == "cosine":
        assert set(judged) == {learning_rate(s, 4)}
        return
    ends = [train(how, FOUR, tmp_path / str(t), replace(s, rounds=t)).trainer for t in (1, 2, 3, 4)]
    losses = []
    for end in ends:
        consider(end, end.server, range(4))
        assert end.server.best is not None
        losses.append(end.server.best.loss)
    assert kept.loss == min(losses)
    assert losses.index(min(losses)) < 3


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([float("nan"), float("inf"), 2.0, 3.0])

    def sums(run: Any, clients: Any, right: bool) -> list[validation.Sum]:
        return [validation.Sum(0.5 if right else next(told), 1)]

    monkeypatch.setattr(validation, "_sums", sums)
    kept = train("fedavg", FOUR, tmp_path, replace(SETTING, select="best")).trainer.server.best
    assert kept is not None
    assert kept.loss == 2.0


FIVE = federation((70, 40, 55, 30, 45))


@pytest.mark.parametrize("name", ["fedrep", "fedpac", "lg_fedavg", "fedrod", "apfl"])
@pytest.mark.parametrize("votes", [True, False])
def test_the_answers_are_those_of_the_models_before_the_servers_step(
    name: str, votes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches states that are taken after the server's step, of another client or of another round, and an answer that
    leaves `personalise` out."""
    how, trained, s = method(name, score="after_local"), {}, setting(rounds=3, participation=0.6, seed=5, votes=votes)
    assert how.answers_after_local
    assert method(name).answers_after_local is (name != "apfl"), "the default"
    step = type(how).aggregate

    def recording(self: Any, server: Any, cohort: list[Client], t: int) -> None:
        trained.update({(t, c.index): {n: v.clone() for n, v in c.state.items()} for c in cohort})
        step(self, server, cohort, t)

    with monkeypatch.context() as patch:
        patch.setattr(type(how), "aggregate", recording)
        run = train(how, FIVE, tmp_path / "run", s)
    other = train(method(name, score="after_aggregate"), FIVE, tmp_path / "other", s)
    t, client, own, theirs = column(run, "round"), column(run, "client"), column(run, "own"), column(other, "own")
    plan, moved = Plan(s, FIVE.n_train, FIVE.shape[:2]), 0
    assert set(plan.cohort(3)) != set(plan.cohort(2)), "in every evaluated round some are away, but not always the same"
    for number in (2, 3):
        assert 0 < len(plan.cohort(number)) < FIVE.clients
        for i in range(FIVE.clients):
            rows = (t == number) & (client == i)
            if i in plan.cohort(number):
                expected = answers_of(run, trained[number, i], i, number)
                assert own[rows].tolist() == expected.tolist(), (number, i)
                moved += int((own[rows] != theirs[rows]).sum())
            else:
                assert own[rows].tolist() == theirs[rows].tolist(), "who is away answers from what the server gives"
    assert moved, "the server's step changes no answer, so this test could not tell"
    if votes:
        each = column(run, "votes")
        assert each[np.arange(len(each)), client].tolist() == own.tolist()
        assert (each != each[:, :1]).any(), "all models answer alike"


def answers_of(run: LabRun, state: State, index: int, t: int) -> np.ndarray:
    it = run.trainer
    client = new_client(index, t, dict(state), it.context, it.federation, it.plan, PERSONALISING)
    it.executor.run([client], it.method.personalise)
    (labels,) = it.executor.map(lambda w, c: w.answers([c], [[Piece(c.work.test_rows, None)]])[0], [client])
    return labels


ROUNDS, EPOCHS = 5, 2


def counting(how: Method, passes: list[int]) -> Method:
    """The method, which adds the forward passes an image of all that its clients ask for; training counts as three."""

    def counted(update: ClientUpdate | None, client: Client) -> ClientUpdate:
        answer = None
        while update is not None:
            try:
                request = update.send(answer)
            except StopIteration:
                return
            models = 1 if isinstance(request.model, str) else len(request.model)
            if isinstance(request, Train):
                passes.append(3 * models * client.n_train * (request.epochs or EPOCHS) * request.repeat)
            else:
                images = models * len(client.work.rows_of(request.split, request.part))
                passes.append(images if isinstance(request, Collect) else 3 * images)
            answer = yield request

    def hook(name: str) -> Any:
        return lambda self, client: counted(getattr(type(how), name)(self, client), client)

    kind = type("Counting", (type(how),), {name: hook(name) for name in ("local", "reply")})
    made: Method = kind(**{f.name: getattr(how, f.name) for f in dataclasses.fields(how)})
    return made


@pytest.mark.parametrize("name", cost.METHODS)
def test_costs_are_what_runs_send_and_compute(name: str, tmp_path: Path) -> None:
    data, passes = grouped_federation(size=50), list[int]()
    data = replace(data, images=data.images.repeat_interleave(2, 1).repeat_interleave(2, 2))
    s = grouped_setting(model="lenet5_flux", rounds=ROUNDS, epochs=EPOCHS, lr=0.01, test_phase=False)
    it = trainer(counting(method(name), passes), data, tmp_path, s)
    it.run()
    lines = it.checkpoint.rounds
    clients, clusters = data.clients, 2.0
    if name == "feddrift":  # has a model more or less from round to round, and none before the first
        held = [line["figure_clusters"] for line in lines[:-1]]
        clusters = sum(held) / len(held)
    c = cost.Case(
        "lenet5_flux",
        data.shape,
        data.classes,
        clients=clients,
        clusters=clusters,
        samples=data.n_train[0],
        validation=len(data.validation[0]),
        rounds=ROUNDS,
        epochs=EPOCHS,
        components=10,
        inner_steps=5,
        clustering_round=int(lines[-1].get("figure_clustering_round", 4)),
    )
    found = cost.cost(name, c)
    assert found.bytes_up == pytest.approx(sum(line["bytes_up"] for line in lines) / (clients * ROUNDS))
    assert found.bytes_down == pytest.approx(sum(line["bytes_down"] for line in lines) / (clients * ROUNDS))
    beside = cost.PROJECTION * c.network.latents / ROUNDS if name == "flux" else 0  # makes no pass
    assert (found.client - beside) / c.network.forward == pytest.approx(sum(passes) / (clients * ROUNDS))
