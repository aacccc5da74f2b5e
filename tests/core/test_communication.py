"""Bytes of a round are those of what goes to and fro: counted here by hand from what the hooks send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import size_in_bytes
from fedbench.methods.base import Method, cross_entropy
from tests.support.lab import federation, method, setting, train, trainer

DATA = federation((40, 30, 30))
CLIENTS = 3
FEW = setting(rounds=3, window=1, steps=2)


def bytes_of(how: Method | str, where: Path, s: Any = FEW) -> tuple[list[int], list[int]]:
    """Bytes up and down, round by round."""
    lines = train(how, DATA, where, s).trainer.checkpoint.rounds
    return [line["bytes_up"] for line in lines], [line["bytes_down"] for line in lines]


def size(where: Path, *prefixes: str) -> int:
    """Bytes of the network's tensors whose names begin so."""
    it = trainer(method("fedavg"), DATA, where, FEW)
    it.executor.close()
    return size_in_bytes({n: t for n, t in it.server.shared.items() if n.startswith(prefixes or ("",))})


def test_fedavg_sends_the_shared_state_both_ways(tmp_path: Path) -> None:
    each = size(tmp_path / "one")
    assert bytes_of("fedavg", tmp_path) == ([CLIENTS * each] * 3, [CLIENTS * each] * 3)


@dataclass(frozen=True)
class OwnHead(Method):
    """Keeps the head with its client."""

    name = "own_head"
    personal = ("head.",)


@dataclass(frozen=True)
class OwnModel(Method):
    """Has a second model of each client's own, which trains too."""

    name = "own_model"
    personal_models = ("own",)

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy)
        yield Train(cross_entropy, model="own", prox=1.0)


def test_what_is_personal_is_not_sent(tmp_path: Path) -> None:
    body = CLIENTS * size(tmp_path / "body", "backbone.", "projection.")
    assert bytes_of(OwnHead(), tmp_path / "head") == ([body] * 3, [body] * 3)
    whole = CLIENTS * size(tmp_path / "whole")
    assert bytes_of(OwnModel(), tmp_path / "model") == ([whole] * 3, [whole] * 3)


@dataclass(frozen=True)
class HeadAlone(Method):
    """Trains the head, and shares everything."""

    name = "head_alone"

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, trains=("head.",))


def test_what_did_not_change_is_not_sent(tmp_path: Path) -> None:
    """The server has the body already; the clients are sent all that is shared."""
    head, whole = (CLIENTS * size(tmp_path / name, *of) for name, of in (("head", ("head.",)), ("whole", ())))
    assert 0 < head < whole
    assert bytes_of(HeadAlone(), tmp_path) == ([head] * 3, [whole] * 3)


@dataclass(frozen=True)
class Report:
    """A tensor of 12 bytes in two places, one of 3, and two numbers."""

    vector: Tensor
    again: list[Tensor]
    small: Tensor
    numbers: tuple[int, float]


REPORT = 12 + 3 + 2 * 8


def report() -> Report:
    vector = torch.zeros(3)
    return Report(vector, [vector], torch.zeros(3, dtype=torch.uint8), (1, 0.5))


@dataclass(frozen=True)
class Uploads(Method):
    """Sends a message up, beside the model."""

    name = "uploads"

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy)
        client.upload = report()


@dataclass(frozen=True)
class Sends(Method):
    """Sends a message down from the second round on, and of the model the head once more under another name."""

    name = "sends"

    def broadcast(self, server: Server, client: Client) -> None:
        client.state = {**client.state, "again": client.state["head.bias"], "more": torch.zeros(5)}
        if server.round > 1:
            client.inbox = report()


def test_messages_are_sent_beside_the_state(tmp_path: Path) -> None:
    each = size(tmp_path / "one")
    up = [CLIENTS * (each + REPORT)] * 3
    assert bytes_of(Uploads(), tmp_path / "up") == (up, [CLIENTS * each] * 3)
    down = [CLIENTS * (each + 20 + further) for further in (0, REPORT, REPORT)]
    assert bytes_of(Sends(), tmp_path / "down") == ([CLIENTS * each] * 3, down)


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_ifca_is_sent_all_its_models_and_sends_one(clusters: int, tmp_path: Path) -> None:
    each = CLIENTS * size(tmp_path / "one")
    choice = 8 * CLIENTS  # the number of the model that the client chose
    found = bytes_of(method("ifca", clusters=clusters), tmp_path / "ifca")
    assert found == ([each + choice] * 3, [clusters * each] * 3)


@dataclass(frozen=True)
class Clustered(Method):
    """Two clusters from the first round on, one of a client alone: each holds its own model."""

    name = "clustered"

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        super().aggregate(server, cohort, t)
        body = {n: t for n, t in server.shared.items() if not n.startswith("head.")}
        server.models, server.assigned = [body, dict(body)], {c.index: int(c.index == 1) for c in cohort}


def test_who_has_a_cluster_is_sent_its_model_in_the_place_of_the_shared_one(tmp_path: Path) -> None:
    each = CLIENTS * size(tmp_path / "one")
    assert bytes_of(Clustered(), tmp_path) == ([each] * 3, [each] * 3)


@dataclass(frozen=True)
class Question:
    """Of 4 bytes."""

    threshold: Tensor


@dataclass(frozen=True)
class Asks(Method):
    """Asks twice before the first round and once after every other."""

    name = "asks"
    at: tuple[int, ...] = (0, 1, 2, 3)

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question(torch.zeros(1)) if t in self.at and k < 1 + (t == 0) else None

    def reply(self, client: Client) -> None:
        client.upload = report()


def test_the_questions_before_the_first_round_are_counted_in_it(tmp_path: Path) -> None:
    each = CLIENTS * size(tmp_path / "one")
    up = [each + 2 * CLIENTS * REPORT, each, each]
    assert bytes_of(Asks((0,)), tmp_path / "asks") == (up, [each + 2 * CLIENTS * 4, each, each])


def test_the_questions_after_a_round_are_counted_in_it(tmp_path: Path) -> None:
    """What the clients look at is what they would be sent with the next round; after the last one it is sent for the
    question alone."""
    each = CLIENTS * size(tmp_path / "one")
    up = [each + CLIENTS * REPORT] * 3
    down = [each + CLIENTS * 4, each + CLIENTS * 4, 2 * each + CLIENTS * 4]
    assert bytes_of(Asks((1, 2, 3)), tmp_path / "asks") == (up, down)


@dataclass(frozen=True)
class EverySecond(Uploads):
    """Communicates in odd rounds only."""

    name = "every_second"

    def communicates(self, t: int, rounds: int) -> bool:
        return t % 2 == 1


def test_a_round_without_communication_sends_nothing(tmp_path: Path) -> None:
    each = size(tmp_path / "one")
    up, down = bytes_of(EverySecond(), tmp_path / "run")
    assert (up[0], up[1], up[2]) == (CLIENTS * (each + REPORT), 0, CLIENTS * (each + REPORT))
    assert (down[0], down[1]) == (CLIENTS * each, 0)


def test_who_takes_no_part_sends_nothing(tmp_path: Path) -> None:
    each, s = size(tmp_path / "one"), setting(rounds=6, window=1, steps=1, participation=0.5)
    run = train(Uploads(), DATA, tmp_path / "run", s)
    cohorts = [len(run.trainer.plan.cohort(t)) for t in range(1, 7)]
    assert len(set(cohorts)) > 1
    lines = run.trainer.checkpoint.rounds
    assert [line["bytes_up"] for line in lines] == [n * (each + REPORT) for n in cohorts]
    assert [line["bytes_down"] for line in lines] == [n * each for n in cohorts]
