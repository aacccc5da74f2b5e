"""What a method can spoil by accident is refused at its own line, or told before it is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.server import Server
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from tests.support.lab import federation, setting, train, trainer

DATA = federation((40, 40))
SHORT = setting(rounds=2, window=2, steps=2)


@dataclass
class Memory:
    """What a server may remember: a count, and one thing more."""

    count: int = 0
    last: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclass
class Guess:
    """A memory that is annotated wrongly."""

    best: Any = None


@dataclass(frozen=True)
class Own(Method):
    """A method that does something to the server after each round, and to clients when they answer."""

    name = "own"
    with_server: Callable[[Server], Any] = lambda server: None
    with_client: Callable[[Client], Any] = lambda client: None
    of_server: Callable[[Server], Mapping[str, Any]] = lambda server: {}

    def start(self, server: Server) -> None:
        server.memory = Memory()

    def aggregate(self, server: Server, cohort: Any, t: int) -> None:
        super().aggregate(server, cohort, t)
        self.with_server(server)

    def round_metrics(self, server: Server) -> Mapping[str, Any]:
        return self.of_server(server)

    def personalise(self, client: Client) -> ClientUpdate | None:
        self.with_client(client)
        return None


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


@pytest.mark.parametrize(("name", "value"), [("round", 99), ("initial", {}), ("rounds", 3), ("counter", 1)])
def test_the_server_keeps_what_is_the_trainers_and_nothing_that_would_not_last(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(AttributeError, match=f"server.{name} "):
        train(Own(with_server=set_to(name, value)), DATA, tmp_path, SHORT)


@pytest.mark.parametrize("name", ["index", "round", "context", "work"])
def test_a_client_cannot_answer_as_another(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=f"client.{name} is the trainer's"):
        train(Own(with_client=set_to(name, torch.tensor([1]))), DATA, tmp_path, SHORT)


@pytest.mark.parametrize("name", ["rounds", "test_rows", "plan", "uplaod"])
def test_a_client_takes_nothing_that_would_be_lost(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=f"client.{name} would be lost: keep tensors in client.state"):
        train(Own(with_client=set_to(name, torch.tensor([1]))), DATA, tmp_path, SHORT)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (
            lambda server: server.memory.last.update({3: "x"}),
            "server.memory/last/3 is 'x', which no message can hold; use a dataclass of tensors, numbers, and "
            "dictionaries or lists of them",
        ),
        (set_to("memory", {"count": 3}), "server.memory is a dict; make it a dataclass, with that as a field"),
        (
            set_to("memory", None),
            "server.memory is nothing after a round and was a Memory after `start`, so that it would not survive a "
            "resume; let `start` make the first one, of the same dataclass",
        ),
        (
            set_to("memory", Guess(torch.ones(1))),
            "server.memory is a Guess after a round and was a Memory after `start`, so that it would not survive a "
            "resume; let `start` make the first one, of the same dataclass",
        ),
        (
            lambda server: setattr(server.memory, "count", 1.5),
            "server.memory/count would not come back from a checkpoint as it is; annotate each field with its type: "
            "tensors, numbers, dict, list, tuple, dataclasses",
        ),
        (
            lambda server: server.shared.update(extra=[1]),
            "own: aggregate leaves server.shared['extra'] as [1], not a tensor",
        ),
        (
            lambda server: server.models.append({"w": 1.5}),
            "own: aggregate leaves server.models[0]['w'] as 1.5, not a tensor",
        ),
        (lambda server: server.assigned.update({0: 2}), "server.assigned[0] is 2, of 0 models"),
    ],
)
def test_what_the_server_cannot_save_is_told_in_the_first_round(
    tmp_path: Path, spoil: Callable[[Server], None], line: str
) -> None:
    it = trainer(Own(with_server=spoil), DATA, tmp_path, SHORT)
    with pytest.raises(FedbenchError) as caught:
        it.run()
    it.executor.close()
    assert str(caught.value) == line
    assert it.server.round == 0


@pytest.mark.parametrize("value", ["many", None, [1.0], torch.zeros(2)])
def test_figures_and_notes_are_numbers(tmp_path: Path, value: object) -> None:
    def note(client: Client) -> None:
        client.metrics["beta"] = value  # type: ignore[assignment]

    with pytest.raises(FedbenchError, match=r"own: figure_elbow is .*, not a number"):
        train(Own(of_server=lambda server: {"elbow": value}), DATA, tmp_path / "figures", SHORT)
    with pytest.raises(FedbenchError, match=r"own: client.metrics\['beta'\] is .*, not a number"):
        train(Own(with_client=note), DATA, tmp_path / "notes", SHORT)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor([2])])
def test_numbers_of_any_kind_are_stored_as_plain_ones(tmp_path: Path, value: Any) -> None:
    def note(client: Client) -> None:
        client.metrics["beta"] = value

    run = train(Own(of_server=lambda server: {"elbow": value}, with_client=note), DATA, tmp_path, SHORT)
    stored = [*(line["figure_elbow"] for line in run.trainer.checkpoint.rounds)]
    stored += [figures["beta"] for figures in run.trainer.checkpoint.notes.values()]
    assert stored == [2, 2, 2, 2]
    assert {type(one) for one in stored} <= {int, float}
    run.trainer.save()


def test_a_client_answers_all_its_images_or_none(tmp_path: Path) -> None:
    short = Own(with_client=set_to("answer", torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(FedbenchError, match=r"client\.answer of client 0 holds 5 answers to its 12 test images"):
        train(short, DATA, tmp_path, dataclasses.replace(SHORT, votes=False))


def test_clusters_numbered_by_any_kind_of_integer_are_saved(tmp_path: Path) -> None:
    def cluster(server: Server) -> None:
        server.models = [dict(server.shared)]
        server.assigned = {0: torch.tensor(0), 1: np.int64(0)}  # type: ignore[dict-item]

    run = train(Own(with_server=cluster), DATA, tmp_path, SHORT)
    assert run.trainer.clients_table()["cluster"].to_pylist() == [0, 0]
    again = Server({}, {}, memory=Memory())
    again.restore(run.trainer.server.tensors())
    assert again.assigned == {0: 0, 1: 0}
