"""Clients with the server's model: each image goes through the network once, and each client gets its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.core import answers, worker
from fedbench.core.alike import Alike
from fedbench.core.answers import own_answers, together
from fedbench.core.client import Client, ClientUpdate, Collect
from fedbench.core.federation import Federation
from fedbench.core.pieces import CHUNK, Piece
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import federation, setting, train, trainer

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

    def watched(self: worker.Worker, model: torch.nn.Module, request: Collect, piece: Piece) -> torch.Tensor:
        rows = piece.rows if self.federation.image is None else self.federation.image[piece.rows]
        images.extend(rows.tolist())
        return scores(self, model, request, piece)

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


class Some(FedAvg):
    """Client 1 moves its bias away as it answers, and client 2 answers by other logits."""

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.index == 1:
            client.state["head.bias"] = client.state["head.bias"] + torch.arange(10.0) * 100
        if client.index == 2:
            client.answers_by = Collect(_threes)
        return None


def _threes(model: torch.nn.Module, batch: object) -> torch.Tensor:
    out = model(batch.x)  # type: ignore[attr-defined]
    return out + 1000 * torch.eye(10)[3]


def test_who_answers_otherwise_is_asked_itself(tmp_path: Path) -> None:
    run = train(Some(), federation(SIZES), tmp_path, setting(rounds=1, votes=False))
    own, client = run.predictions["own"].to_numpy(), run.predictions["client"].to_numpy()
    assert set(own[client == 1]) == {9}
    assert set(own[client == 2]) == {3}
    assert set(own[client == 0]) - {3, 9} or set(own[client == 3]) - {3, 9}


def test_images_that_clients_see_in_ways_of_their_own_are_not_shared(tmp_path: Path) -> None:
    data = federation(SIZES)
    it = trainer(FedAvg(), data, tmp_path / "a", setting())
    clients = [it.answering(it.server, i, "member", 1) for i in range(2)]
    assert len(Alike(it.server, it.executor).models(clients)) == 2
    scaled = replace(data, scaling=data.scaling_of_rows.clone())
    it = trainer(FedAvg(), scaled, tmp_path / "b", setting())
    clients = [it.answering(it.server, i, "member", 1) for i in range(2)]
    assert Alike(it.server, it.executor).models(clients) == {}
    assert own_answers(clients, it.executor, ["plain"], lambda _: None)["plain"].own.shape == (
        sum(len(c.work.test_rows) for c in clients),
    )


def test_small_clients_are_a_job_together(tmp_path: Path) -> None:
    data = federation((200, 300, 400, 100, 90))
    it = trainer(FedAvg(), data, tmp_path, setting())
    clients = [it.answering(it.server, i, "member", 1) for i in range(5)]
    assert [[c.index for c in block] for block in together([[c] for c in clients])] == [[0, 1], [2, 3], [4]]
    assert together([clients[:2], [clients[3]], [clients[4]]]) == [clients[:2], clients[3:]]
    assert sum(len(rows) for rows in data.train[:2]) <= CHUNK
    assert np.array_equal(answers.rows_of(clients[:1]), data.test[0].numpy())
