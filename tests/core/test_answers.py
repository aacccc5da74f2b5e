"""What every model answers: batched paths against one image and one model at a time; what is kept of the models answers
again; clients that never train and join for the answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.conformance.lab import stop_after
from fedbench.core import answers, executors, votes, worker
from fedbench.core.answers import Answers, SharedAnswers, merged, own_answers
from fedbench.core.client import MEMBER, Client, ClientUpdate, Collect, Train, logits
from fedbench.core.executors import Executor
from fedbench.core.federation import Federation
from fedbench.core.images import CHUNK, Piece, resized_crop, to_input
from fedbench.core.kept import PLAIN, Models
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.state import State, name_in, state_of
from fedbench.core.tables import rounds
from fedbench.core.trainer import Interrupted, Trainer
from fedbench.core.votes import Heads, Router, vote
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.fedavg import FedAvg
from fedbench.specs import Setting
from tests.support.formula_lab import column
from tests.support.frames import refused
from tests.support.keep_lab import BRIEF, kept, network
from tests.support.keep_lab import DATA as KEPT
from tests.support.keep_lab import models as models_of
from tests.support.lab import client, federation, method, own, parquet_bytes, setting, train, trainer

DATA = federation((40, 30, 50), color=True)
SETTING = setting(augment="crop")
PLAN = Plan(SETTING, DATA.n_train, DATA.shape[:2])


def build(seed: int) -> nn.Module:
    model = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=seed)
    with torch.no_grad():  # an untrained net answers much the same to all; centred, its answers spread over classes
        z = model.features(to_input(DATA.images))
        model.head.bias.copy_(-(z @ model.head.weight.T).mean(0))
    return model


MODEL = build(1)


def answer(who: list[Client], executor: Executor, view: str, router: Router | None) -> Answers:
    return vote(who, [who], executor, [view], router)[view]


def clients(states: list[State]) -> list[Client]:
    return [client(DATA, PLAN, i, state, t=2) for i, state in enumerate(states)]


def shared_body() -> list[Client]:
    """Clients with one body (the same tensors) and a head each."""
    body, heads = state_of(MODEL), []
    for i in range(DATA.clients):
        noise = torch.randn(MODEL.head.weight.shape, generator=torch.Generator().manual_seed(i)) * 0.1
        weight = body["head.weight"] + noise
        z = MODEL.features(to_input(DATA.images)).detach()
        heads.append({"head.weight": weight, "head.bias": -(z @ weight.T).mean(0)})
    return clients([{**body, **head} for head in heads])


def all_different() -> list[Client]:
    return clients([state_of(build(20 + i)) for i in range(DATA.clients)])


@pytest.fixture(params=[*executors.EXECUTORS])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    it = executors.make(request.param, MODEL, DATA, PLAN.setting)
    yield it
    it.close()


def brute_force(who: list[Client], view: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, own, votes) by one forward pass an image and a model."""
    rows, own, votes = [], [], []
    voters = [copy.deepcopy(MODEL) for _ in who]
    for model, voter in zip(voters, who, strict=True):
        model.load_state_dict(voter.state)
    for owner in who:
        windows = PLAN.crops("test", 2, owner.index, 0).draw(len(DATA.test[owner.index]))
        for row, window in zip(DATA.test[owner.index].tolist(), windows, strict=True):
            image = DATA.images[row : row + 1]
            if view == "crop":
                image = resized_crop(image, torch.from_numpy(window[None]))
            with torch.no_grad():
                answers = [int(model(to_input(image)).argmax()) for model in voters]
            rows.append(row)
            own.append(answers[owner.index])
            votes.append(answers)
    return np.array(rows), np.array(own), np.array(votes)


@cache
def expected(make: Callable[[], list[Client]], view: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return brute_force(make(), view)


@pytest.mark.parametrize("make", [shared_body, all_different])
@pytest.mark.parametrize("limit", ["none", "a general path", "small pieces", "few votes", "few heads"])
def test_votes_are_those_of_single_images_and_models(
    make: Callable[[], list[Client]], limit: str, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By heads on a common body or model by model; all at once, or few clients, images, votes or heads at a time."""
    if limit != "none":
        for module in (answers, votes):
            monkeypatch.setattr(module, "CHUNK", 4 if limit == "small pieces" else 16)
    if limit == "a general path":
        monkeypatch.setattr(Heads, "of", lambda *_: None)
    elif limit.startswith("few"):
        monkeypatch.setattr(votes, "BYTES", 16 * 2 * 2 if limit == "few votes" else 16 * 10 * 4)
    who = make()
    got = vote(who, [who] if limit == "none" else [who[:2], who[2:]], executor, ["crop", "plain"])
    alone = own_answers(who, executor, ["crop", "plain"], lambda _: None)
    for view in ("crop", "plain"):
        rows, own, all_votes = expected(make, view)
        assert len(np.unique(own)) > 3, "answers too alike to show anything"
        assert (all_votes != own[:, None]).any()
        assert got[view].own.dtype == np.uint16
        np.testing.assert_array_equal(got[view].votes, all_votes)
        assert alone[view].votes is None
        for one in (got[view], alone[view]):
            np.testing.assert_array_equal(one.rows, rows)
            np.testing.assert_array_equal(one.own, own)
            assert one.routes == {}
    assert not np.array_equal(got["crop"].votes, got["plain"].votes), "the views are not told apart"
    assert all(c.state == {} for c in who), "a personal model is dropped once it has answered"


def test_a_shared_body_is_the_same_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    original, passes = Heads.answers, list[int]()

    def spy(self: Heads, *given):
        passes.append(len(self.columns))
        return original(self, *given)

    monkeypatch.setattr(Heads, "answers", spy)

    def one_pass(who: list[Client], model: nn.Module = MODEL) -> bool:
        passes.clear()
        answer(who, executors.make("sequential", model, DATA, PLAN.setting), "plain", None)
        assert passes in ([], [len(who)])
        return bool(passes)

    who = shared_body()
    assert one_pass(who)
    # A method's own variables answer nothing, so they may differ (pFedFDA keeps a beta a client).
    for i, one in enumerate(who):
        one.state["gaussian.beta"] = torch.tensor([float(i)])
    assert one_pass(who)
    # Equal values in other tensors are not taken for the same: to compare them would cost more than it saves.
    body = next(n for n in who[1].state if n.startswith("backbone."))
    who[1].state[body] = who[1].state[body].clone()
    assert not one_pass(who)
    assert not one_pass(all_different())

    # A network that answers with more than its head on the features: heads alone would be another model's answers.
    class TwoHeads(type(MODEL)):
        def forward(self, x: Tensor) -> Tensor:
            z = self.features(x)
            return self.head(z) + z[:, :10]

    other = copy.deepcopy(MODEL)
    other.__class__ = TwoHeads
    assert not one_pass(shared_body(), other)


def test_a_later_block_with_a_body_of_its_own_answers_by_itself(executor: Executor) -> None:
    first, second = shared_body(), all_different()
    who = [*first[:2], second[2]]
    _, own, all_votes = brute_force(who, "plain")
    got = vote(who, [who[:2], who[2:]], executor, ["plain"])["plain"]
    np.testing.assert_array_equal(got.votes, all_votes)
    np.testing.assert_array_equal(got.own, own)
    for clients, blocks in ((who, [who[:2], who[2:]]), (second, [second])):
        with pytest.raises(FedbenchError, match="same body"):
            vote(clients, blocks, executor, ["plain"], lambda model, backbone, shares: {"a": backbone.argmax(1)})


def test_the_router_sees_trunk_features_and_log_shares(executor: Executor) -> None:
    who = shared_body()
    seen: list[tuple[Tensor, Tensor]] = []

    def router(model: nn.Module, backbone: Tensor, log_shares: Tensor) -> dict[str, Tensor]:
        seen.append((backbone, log_shares))
        return {"first": backbone.argmax(1) % 3, "share": log_shares.argmax().expand(len(backbone))}

    got: Answers = answer(who, executor, "plain", router)
    x = to_input(DATA.images[got.rows])
    with torch.no_grad():
        features = MODEL.backbone(x)
    np.testing.assert_array_equal(got.routes["first"], features.argmax(1) % 3)
    assert got.routes["first"].dtype == np.int32
    assert set(got.routes["share"].tolist()) == {int(np.argmax(DATA.n_train))}
    torch.testing.assert_close(seen[0][1].exp(), torch.tensor(DATA.n_train) / sum(DATA.n_train))
    assert got.votes is not None


SIZES = (40, 30, 50, 20)


def copied() -> Federation:
    """Clients 2 and 3 hold the images of clients 0 and 1 once more, and fewer of them."""
    whole = federation((40, 30, 40, 30), skew=float("inf"))
    image = torch.arange(140)
    image[70:] -= 70
    return replace(whole, images=whole.images[:70], image=image, labels=whole.labels[image])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that went through a network to be answered."""
    images: list[int] = []
    output = worker.Worker.output

    def watched(self: worker.Worker, request: Collect, piece: Piece, position: Tensor) -> Tensor:
        rows = piece.rows if self.federation.image is None else self.federation.image[piece.rows]
        images.extend(rows.tolist())
        return output(self, request, piece, position)

    monkeypatch.setattr(worker.Worker, "output", watched)
    return images


@pytest.mark.parametrize("executor", ["sequential", "cores", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_an_image_is_answered_once_by_each_model_and_for_every_client(
    name: str, executor: str, tmp_path: Path, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = copied()
    s = setting(rounds=1, votes=False)
    shared = train(name, data, tmp_path / "together", s, executor=executor)
    once = list(seen)
    models = max(1, len(shared.trainer.server.models))
    distinct = len({int(i) for rows in data.test for i in data.image_at(rows)})
    assert distinct <= len(once) <= models * distinct
    seen.clear()
    monkeypatch.setattr(SharedAnswers, "models", lambda self, clients: {})
    apart = train(name, data, tmp_path / "apart", s, executor=executor)
    assert shared.predictions.equals(apart.predictions)
    if executor != "stacked":
        assert len(seen) == sum(len(rows) for rows in data.test) > len(once)


def test_who_answers_otherwise_is_asked_itself(tmp_path: Path) -> None:
    """Client 1 moves its bias away as it answers, and client 2 answers by other logits."""

    def threes(model: Any, batch: Any) -> Tensor:
        out: Tensor = model(batch.x)
        return out + 1000 * torch.eye(10)[3]

    def personalise(self: Method, client: Client) -> None:
        if client.index == 1:
            client.state["head.bias"] = client.state["head.bias"] + torch.arange(10.0) * 100
        if client.index == 2:
            client.answers_by = Collect(threes)

    run = train(own(personalise=personalise), federation(SIZES), tmp_path, setting(rounds=1, votes=False))
    answers, client = run.predictions["own"].to_numpy(), run.predictions["client"].to_numpy()
    assert set(answers[client == 1]) == {9}
    assert set(answers[client == 2]) == {3}
    assert set(answers[client == 0]) - {3, 9} or set(answers[client == 3]) - {3, 9}


def fedavgs(data: Federation, where: Path) -> tuple[Trainer, list[Client]]:
    """FedAvg before its first round, and the clients as they would answer."""
    it = trainer(FedAvg(), data, where, setting())
    return it, [it.answering(it.server, i, "member", 1) for i in range(data.clients)]


def test_images_that_clients_see_in_ways_of_their_own_are_not_shared(tmp_path: Path) -> None:
    data = federation(SIZES)
    it, clients = fedavgs(data, tmp_path / "a")
    assert len(SharedAnswers(it.server, it.executor).models(clients)) == len(SIZES)
    it, clients = fedavgs(replace(data, scaling=data.scaling_of_rows.clone()), tmp_path / "b")
    assert SharedAnswers(it.server, it.executor).models(clients) == {}
    assert len(own_answers(clients, it.executor, ["plain"], lambda _: None)["plain"].own) == sum(data.n_test)


def test_small_clients_are_a_job_together(tmp_path: Path) -> None:
    data = federation((200, 300, 400, 100, 90))
    _, clients = fedavgs(data, tmp_path)
    assert [[c.index for c in block] for block in merged([[c] for c in clients])] == [[0, 1], [2, 3], [4]]
    assert merged([clients[:2], [clients[3]], [clients[4]]]) == [clients[:2], clients[3:]]
    assert sum(len(rows) for rows in data.train[:2]) <= CHUNK


@dataclass(frozen=True)
class Doubled(Method):
    name, title = "doubled", "Doubled"

    def twice(self, model: Any, batch: Any) -> torch.Tensor:
        return 2 * logits(model, batch)

    def personalise(self, client: Any) -> None:
        client.answers_by = Collect(self.twice)


def places(it: Models) -> set[str]:
    return {key.split("/")[0] for key in it.tensors}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (method("fedavg"), {"server"}),
        (method("ditto", personal_epochs=1), {"server", "client"}),
        (method("ifca", clusters=2), {"server", "cluster"}),
        (method("flux", start=1), {"server", "cluster"}),
        (method("feddrm"), {"server", "client"}),
        (method("pfedfda"), {"server", "client"}),
        (method("fedrep", score="after_local"), {"server", "client"}),  # a body that was there before the mean
        (method("fedavgft", finetune_rounds=1), {"server", "client"}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_kept_models_answer_again_as_they_did(tmp_path: Path, how: Method, expected: set[str]) -> None:
    executor = "stacked" if how.name in ("ditto", "flux") else "sequential"
    run = kept(how, tmp_path / "kept", executor, votes=False)
    without = kept(how, tmp_path / "plain", executor, keep=frozenset(), votes=False)
    assert parquet_bytes(run.predictions) == parquet_bytes(without.predictions), "keeping changes nothing"
    assert without.trainer.checkpoint.models() is None
    it, plain = models_of(run), network(run).eval()
    assert places(it) == expected
    after = run.predictions.to_pandas().query("round == 2 and view == 'plain'").set_index("sample")
    assert after["own"].nunique() > 2, "answers too alike to show anything"
    alike = 0
    for i, one in enumerate(it.clients):
        assert (one.output, one.alone) == (PLAIN, "")
        (model,) = one.models
        plain.load_state_dict({name: it.state(i)[name_in(model, name)] for name in plain.state_dict()})
        rows = KEPT.test[i]
        with torch.no_grad():
            again = plain(to_input(KEPT.images[KEPT.image_at(rows)])).argmax(1).numpy()
        alike += int((again == after["own"][KEPT.sample[rows]].to_numpy()).sum())
    assert alike > 0.98 * len(after)  # but for rounding, which decides between equals


@pytest.mark.parametrize(
    ("how", "models", "output"),
    [
        (method("apfl"), ("", "own"), "method:mixture"),
        (method("fedproto"), ("",), "fedbench.methods.fedproto:nearness"),
        (Doubled(), ("",), "method:twice"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_kept_models_name_what_a_client_answers_by(
    tmp_path: Path, how: Method, models: tuple[str, ...], output: str
) -> None:
    for one in models_of(kept(how, tmp_path, votes=False)).clients:
        assert (one.models, one.output, one.alone) == (models, output, "")


def test_of_clients_that_no_single_model_answers_for_the_reason_is_kept(tmp_path: Path) -> None:
    """Of a mixture, and of clients who answer with classes alone; a function without a name is no such reason."""

    def with_classes(self: Method, client: Any) -> None:
        client.answer = torch.zeros(client.count("test"), dtype=torch.long)

    def by_lambda(self: Method, client: Any) -> None:
        client.answers_by = Collect(lambda model, batch: model(batch.x))

    mixture = models_of(kept(method("fedem", clusters=2), tmp_path / "mixture", votes=False))
    assert {"0/head.weight", "1/head.weight"} <= mixture.layer("server").keys()
    classes = models_of(kept(own(personalise=with_classes, takes_votes=False), tmp_path / "classes"))
    for it in (mixture, classes):
        assert all("several models answer together" in one.alone for one in it.clients)
    (named, *_) = models_of(kept(own(personalise=by_lambda), tmp_path / "lambdas")).clients
    assert (named.output.endswith("by_lambda.<locals>.<lambda>"), named.alone) == (True, "")


def test_an_interrupted_run_goes_on_keeping(tmp_path: Path) -> None:
    """It keeps what it was begun with, whoever goes on; after the last round too."""
    for t in (1, 2):
        how, folder = method("ditto", personal_epochs=1), tmp_path / str(t)
        with pytest.raises(Interrupted):
            kept(how, folder, observe=stop_after(t))
        resumed = train(how, KEPT, folder, setting(**BRIEF))
        whole = kept(how, tmp_path / f"whole {t}")
        ours, theirs = models_of(resumed), models_of(whole)
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(torch.equal(t, theirs.tensors[name]) for name, t in ours.tensors.items())


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "models.safetensors").write_bytes(b"nothing")
    refused("cannot read the models", Models.read, tmp_path / "models.safetensors")


SIX = federation((60, 50, 40, 45, 35, 40))
PARTITION = replace(setting().partition, clients=6, unseen=2)


def with_newcomers(**changes: Any) -> Setting:
    return setting(partition=PARTITION, **changes)


def without(data: Federation, clients: int) -> Federation:
    rows = np.flatnonzero(data.client < clients)
    arrays = (data.images.numpy(), data.labels.numpy(), data.client, data.sample, data.is_test)
    return Federation.of(*(a[rows] for a in arrays), 10)


def test_newcomers_are_in_no_cohort() -> None:
    for changes in ({}, {"participation": 0.6}, {"cohort": 3}, {"cohort": 3, "full_last_round": True}):
        plan = Plan(with_newcomers(**changes, rounds=8), SIX.n_train, (8, 8))
        assert {i for t in range(1, 9) for i in plan.cohort(t)} == {0, 1, 2, 3}
    copies = replace(PARTITION, unseen_as=("fog-3",))
    assert Plan(setting(partition=copies, cohort=2), [10] * 8, (8, 8)).trainees == 4


@pytest.mark.parametrize("name", ["fedavg", "fedavgft", "pfedfda"])
def test_training_is_that_of_a_federation_without_them(name: str, tmp_path: Path) -> None:
    how = method(name, **({"finetune_epochs": 1} if name == "fedavgft" else {}))
    both = train(how, SIX, tmp_path / "both", with_newcomers(rounds=2))
    alone = train(how, without(SIX, 4), tmp_path / "alone", setting(rounds=2))
    assert both.tensors.keys() == alone.tensors.keys()
    assert all(np.array_equal(both.tensors[n], t) for n, t in alone.tensors.items())
    table, other = both.predictions.drop_columns(["votes"]), alone.predictions.drop_columns(["votes"])
    assert table.filter(np.array(table["client"].to_numpy() < 4)).equals(other)
    assert set(table["client"].to_pylist()) == set(range(6))
    lines, others = both.trainer.checkpoint.rounds, alone.trainer.checkpoint.rounds
    for key in ("participants", "images", "loss", "bytes_up", "bytes_down"):
        assert [line[key] for line in lines] == [line[key] for line in others]
    # What is shown while it trains is about the clients that train.
    assert both.accuracy == pytest.approx(alone.accuracy)


def own_number(self: Method, server: Server, client: Client) -> None:
    """Gives newcomers a head that answers one class to everything: their own number."""
    if client.kind != MEMBER:
        weight, bias = (torch.zeros_like(client.state[name]) for name in ("head.weight", "head.bias"))
        bias[client.index] = 1.0
        client.state = {**client.state, "head.weight": weight, "head.bias": bias}


def members_train(self: Method, client: Client) -> ClientUpdate | None:
    if client.kind == MEMBER:
        yield Train(cross_entropy)


@pytest.mark.parametrize("votes", [True, False])
def test_an_unseen_client_answers_from_what_it_is_served(votes: bool, tmp_path: Path) -> None:
    """All clients are asked; that newcomers have no vote is the metrics' business."""
    run = train(own(serve=own_number, personalise=members_train), SIX, tmp_path, with_newcomers(votes=votes))
    client, answers = column(run, "client"), column(run, "own")
    for newcomer in (4, 5):
        assert set(answers[client == newcomer]) == {newcomer}
    assert len(set(answers[client < 4])) > 2
    if votes:
        assert (column(run, "votes")[:, 4:] == (4, 5)).all()


def test_a_method_without_a_procedure_refuses_newcomers() -> None:
    for name in ("local", "feddrm", "fedbn"):
        s = with_newcomers(**({"steps": 1, "momentum": 0.0} if name == "fedbn" else {}))
        refused(f"{name} has no procedure for clients that did not train", Job.of, s, name, {})
    assert Job.of(with_newcomers(), "fedavgft", {})


@pytest.mark.parametrize("executor", ["sequential", "cores", "stacked"])
def test_parts_of_the_work_are_timed(executor: str, tmp_path: Path) -> None:
    def local(self: Method, client: Client) -> ClientUpdate:
        yield Train(cross_entropy)
        if client.round == 2:
            with client.timed("estimation"):
                torch.linalg.eigh(torch.rand(60, 60))

    table = rounds(train(own(local=local), SIX, tmp_path, executor=executor).trainer.checkpoint.rounds)
    network, estimation = (np.array(table[f"part_{p}_seconds"].to_pylist()) for p in ("network", "estimation"))
    assert (network > 0).all()
    assert estimation[0] == estimation[2] == 0 < estimation[1]
    if executor == "sequential":
        assert (network + estimation <= np.array(table["client_seconds"].to_pylist())).all()
