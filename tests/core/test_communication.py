"""Bytes of a round are those of what goes to and fro: counted here by hand from what the hooks send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.conformance.lab import setting
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.simulation import initialise
from fedbench.core.state import size_in_bytes
from fedbench.methods.base import Method, cross_entropy
from fedbench.models import build
from tests.support.lab import federation, method, train

DATA = federation((40, 30, 30))
CLIENTS = 3
FEW = setting(rounds=3, window=1, steps=2)
#: The network's tensors as all start from them.
START = initialise(method("fedavg"), lambda: build(FEW.model, shape=DATA.shape, classes=10, seed=1), DATA, FEW)[1]


def size(*prefixes: str) -> int:
    """Bytes of the network's tensors whose names begin so, of all clients."""
    return CLIENTS * size_in_bytes({n: t for n, t in START.items() if n.startswith(prefixes or ("",))})


WHOLE, HEAD = size(), size("head.")
BODY = WHOLE - HEAD


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


@dataclass(frozen=True)
class HeadAlone(Method):
    """Trains the head, and shares everything: the server has the body already."""

    name = "head_alone"

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, trains=("head.",))


@dataclass(frozen=True)
class Report:
    """A tensor of 12 bytes in two places, one of 3, and two numbers."""

    vector: Tensor
    again: list[Tensor]
    small: Tensor
    numbers: tuple[int, float]


REPORT = CLIENTS * (12 + 3 + 2 * 8)


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
class EverySecond(Uploads):
    """Communicates in odd rounds only."""

    def communicates(self, t: int, rounds: int) -> bool:
        return t % 2 == 1


@dataclass(frozen=True)
class Sends(Method):
    """Sends a message down from the second round on, and of the model the head once more under another name."""

    name = "sends"

    def broadcast(self, server: Server, client: Client) -> None:
        client.state = {**client.state, "again": client.state["head.bias"], "more": torch.zeros(5)}
        if server.round > 1:
            client.inbox = report()


@dataclass(frozen=True)
class Clustered(Method):
    """Two clusters from the first round on, one of a client alone: each is sent its model in place of the shared."""

    name = "clustered"

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        super().aggregate(server, cohort, t)
        body = {n: t for n, t in server.shared.items() if not n.startswith("head.")}
        server.models, server.assigned = [body, dict(body)], {c.index: int(c.index == 1) for c in cohort}


@dataclass(frozen=True)
class Question:
    """Of 4 bytes."""

    threshold: Tensor


ASKED = CLIENTS * 4


@dataclass(frozen=True)
class Asks(Method):
    """Asks twice before the first round and once after every other."""

    name = "asks"
    at: tuple[int, ...] = (0, 1, 2, 3)

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question(torch.zeros(1)) if t in self.at and k < 1 + (t == 0) else None

    def reply(self, client: Client) -> None:
        client.upload = report()


def ifca(clusters: int) -> Callable[[], Method]:
    return lambda: method("ifca", clusters=clusters)


CHOICE = 8 * CLIENTS  #: the number of the model that the client chose


@pytest.mark.parametrize(
    ("how", "up", "down"),
    [
        (lambda: method("fedavg"), [WHOLE] * 3, [WHOLE] * 3),
        (OwnHead, [BODY] * 3, [BODY] * 3),
        (OwnModel, [WHOLE] * 3, [WHOLE] * 3),
        (HeadAlone, [HEAD] * 3, [WHOLE] * 3),
        (Uploads, [WHOLE + REPORT] * 3, [WHOLE] * 3),
        (Sends, [WHOLE] * 3, [WHOLE + CLIENTS * 20 + further for further in (0, REPORT, REPORT)]),
        *((ifca(n), [WHOLE + CHOICE] * 3, [n * WHOLE] * 3) for n in (1, 2, 3)),
        (Clustered, [WHOLE] * 3, [WHOLE] * 3),
        # Questions before the first round are counted in it.
        (lambda: Asks((0,)), [WHOLE + 2 * REPORT, WHOLE, WHOLE], [WHOLE + 2 * ASKED, WHOLE, WHOLE]),
        # Those after a round are counted in it. What the clients look at is what they would be sent with the next
        # round; after the last one it is sent for the question alone.
        (lambda: Asks((1, 2, 3)), [WHOLE + REPORT] * 3, [WHOLE + ASKED, WHOLE + ASKED, 2 * WHOLE + ASKED]),
        (EverySecond, [WHOLE + REPORT, 0, WHOLE + REPORT], [WHOLE, 0, WHOLE]),
    ],
)
def test_bytes_up_and_down(how: Callable[[], Method], up: list[int], down: list[int], tmp_path: Path) -> None:
    assert 0 < HEAD < BODY
    lines = train(how(), DATA, tmp_path, FEW).trainer.checkpoint.rounds
    assert [line["bytes_up"] for line in lines] == up
    assert [line["bytes_down"] for line in lines] == down


def test_who_takes_no_part_sends_nothing(tmp_path: Path) -> None:
    run = train(Uploads(), DATA, tmp_path, setting(rounds=6, window=1, steps=1, participation=0.5))
    cohorts = [len(run.trainer.plan.cohort(t)) for t in range(1, 7)]
    assert len(set(cohorts)) > 1
    lines: Any = run.trainer.checkpoint.rounds
    assert [CLIENTS * line["bytes_up"] for line in lines] == [n * (WHOLE + REPORT) for n in cohorts]
    assert [CLIENTS * line["bytes_down"] for line in lines] == [n * WHOLE for n in cohorts]
