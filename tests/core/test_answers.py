"""What every model answers: batched paths against one image and one model at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.core import answers, executors, worker
from fedbench.core.answers import Alike, Answers, Heads, Router, own_answers, together, vote
from fedbench.core.client import Client, Collect
from fedbench.core.executors import Executor
from fedbench.core.federation import Federation, resized_crop, to_input
from fedbench.core.plan import Plan
from fedbench.core.state import State, state_of
from fedbench.core.trainer import Trainer
from fedbench.core.worker import CHUNK, Piece
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import client, federation, own, setting, train, trainer

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
    """All of them at once."""
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
        stream = PLAN.crops("test", 2, owner.index, 0)
        assert stream is not None
        windows = stream.draw(len(DATA.test[owner.index]))
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


@pytest.mark.parametrize("make", [shared_body, all_different])
@pytest.mark.parametrize("view", ["crop", "plain"])
def test_votes_are_those_of_single_images_and_models(make, view: str, executor: Executor) -> None:  # type: ignore[no-untyped-def]
    who = make()
    rows, own, votes = brute_force(who, view)
    assert len(np.unique(own)) > 3, "answers too alike to show anything"
    assert (votes != own[:, None]).any()
    assert view == "plain" or not np.array_equal(votes, brute_force(who, "plain")[2]), "the views are not told apart"
    got = answer(who, executor, view, None)
    np.testing.assert_array_equal(got.rows, rows)
    np.testing.assert_array_equal(got.own, own)
    np.testing.assert_array_equal(got.votes, votes)
    assert got.own.dtype == np.uint16
    assert got.routes == {}
    alone = own_answers(who, executor, [view], lambda _: None)[view]
    np.testing.assert_array_equal(alone.rows, rows)
    np.testing.assert_array_equal(alone.own, own)
    assert alone.votes is None
    assert alone.routes == {}
    assert all(c.state == {} for c in who), "a personal model is dropped once it has answered"


def test_a_shared_body_is_the_same_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    original, passes = Heads.answers, list[int]()

    def spy(self: Heads, *given):  # type: ignore[no-untyped-def]
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
    class TwoHeads(type(MODEL)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            z = self.features(x)
            return self.head(z) + z[:, :10]

    other = copy.deepcopy(MODEL)
    other.__class__ = TwoHeads
    assert not one_pass(shared_body(), other)


@pytest.mark.parametrize("make", [shared_body, all_different])
@pytest.mark.parametrize("limit", ["a general path", "small pieces", "few votes", "few heads", "a file"])
def test_clients_in_blocks_and_large_tables_vote_the_same(
    make: Callable[[], list[Client]], limit: str, executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By heads on a common body or model by model; two clients, a few images, votes or heads at a time; in a file."""
    whole = vote(make(), [make()], executor, ["crop", "plain"])
    monkeypatch.setattr(answers, "CHUNK", 4 if limit == "small pieces" else 16)
    if limit == "a general path":
        monkeypatch.setattr(Heads, "of", lambda *_: None)
    elif limit == "a file":
        monkeypatch.setattr(answers, "SHARE", 0)
    elif limit != "small pieces":
        monkeypatch.setattr(answers, "BYTES", 16 * 2 * 2 if limit == "few votes" else 16 * 10 * 4)
    who = make()
    got = vote(who, [who[:2], who[2:]], executor, ["crop", "plain"], folder=tmp_path)
    for view in ("crop", "plain"):
        assert isinstance(got[view].votes, answers.Filed) == (limit == "a file")
        np.testing.assert_array_equal(whole[view].votes[:], got[view].votes[:])  # type: ignore[index]
        np.testing.assert_array_equal(whole[view].votes[7:30], got[view].votes[7:30])  # type: ignore[index]
        np.testing.assert_array_equal(whole[view].own, got[view].own)


def test_a_later_block_with_a_body_of_its_own_answers_by_itself(executor: Executor) -> None:
    """And nobody can be routed then."""
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
    labels = whole.labels[image]
    return replace(whole, images=whole.images[:70], image=image, labels=labels)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that went through a network to be answered."""
    images: list[int] = []
    scores = worker.Worker.scores

    def watched(self: worker.Worker, request: Collect, piece: Piece) -> torch.Tensor:
        rows = piece.rows if self.federation.image is None else self.federation.image[piece.rows]
        images.extend(rows.tolist())
        return scores(self, request, piece)

    monkeypatch.setattr(worker.Worker, "scores", watched)
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
    distinct = len({int(i) for rows in data.test for i in data.image_of_rows[rows]})
    assert distinct <= len(once) <= models * distinct
    seen.clear()
    monkeypatch.setattr(Alike, "models", lambda self, clients: {})
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
    assert len(Alike(it.server, it.executor).models(clients)) == len(SIZES)
    it, clients = fedavgs(replace(data, scaling=data.scaling_of_rows.clone()), tmp_path / "b")
    assert Alike(it.server, it.executor).models(clients) == {}
    assert len(own_answers(clients, it.executor, ["plain"], lambda _: None)["plain"].own) == sum(data.n_test)


def test_small_clients_are_a_job_together(tmp_path: Path) -> None:
    data = federation((200, 300, 400, 100, 90))
    _, clients = fedavgs(data, tmp_path)
    assert [[c.index for c in block] for block in together([[c] for c in clients])] == [[0, 1], [2, 3], [4]]
    assert together([clients[:2], [clients[3]], [clients[4]]]) == [clients[:2], clients[3:]]
    assert sum(len(rows) for rows in data.train[:2]) <= CHUNK
    assert np.array_equal(answers.rows_of(clients[:1]), data.test[0].numpy())
