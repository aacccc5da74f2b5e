"""What a method may know of the federation and of a client: neither a label of a test image nor anybody's group."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core.client import NO_LABEL, SPLITS, UNLABELLED, Client, ClientUpdate, Collect, Context, Gradient, Loss
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.methods.base import Method
from tests.support.lab import federation, setting, train, trainer

PLAIN = federation((24, 18, 18))
DATA = dataclasses.replace(
    PLAIN, train=[rows[4:] for rows in PLAIN.train], validation=[rows[:4] for rows in PLAIN.train],
    groups=[0, 1, 1], test_groups=[1, 0, 1],
)  # fmt: skip
SETTING = setting(rounds=2, window=1, steps=2, test_phase=True, votes=False)


def garbled(data: Federation) -> Federation:
    """Other labels of the test images, and as many groups, of other clients."""
    labels = data.labels.clone()
    for rows in data.test:
        labels[rows] = (labels[rows] + 3) % data.classes
    return dataclasses.replace(data, labels=labels, groups=[1, 0, 1], test_groups=[0, 0, 1])


def facts(value: Any) -> Any:
    """The value as something that can be compared."""
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: facts(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [facts(item) for item in value]
    if isinstance(value, Context | Server):
        return {f.name: facts(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "fresh"}
    if isinstance(value, Client):  # all that it shows, but for what is the executor's
        names = {f.name for f in dataclasses.fields(Client)} - {"work"}
        names |= {name for name, _ in inspect.getmembers(Client, lambda member: isinstance(member, property))}
        sides = {(n, split): getattr(value, n)(split) for n in ("count", "images", "labels") for split in SPLITS}
        return facts({**{name: getattr(value, name) for name in names}, **sides})
    return value


def seen(model: Any, batch: Any) -> Tensor:
    """The labels that come with images."""
    labels: Tensor = batch.y.float()
    return labels


def nothing(model: Any, batch: Any) -> Loss:
    return Loss(model(batch.x).square().mean(), logged=batch.y.float().sum())


@dataclasses.dataclass(frozen=True)
class Question:
    """Nothing in particular."""


@dataclasses.dataclass(frozen=True)
class Curious(Method):
    """Looks at everything that its hooks are handed, in each of them, and writes it down."""

    name = "curious"
    noted: list[Any] = dataclasses.field(default_factory=list)

    def note(self, hook: str, *handed: Any) -> None:
        self.noted.extend([(hook, facts(one)) for one in handed])

    def look(self, hook: str, client: Client) -> ClientUpdate:
        self.note(hook, client)
        for split in SPLITS:
            if client.count(split):
                rows, labels = yield Collect(seen, split=split)
                gradient = yield Gradient(nothing, split=split, part=(0, 2))
                self.noted.append((hook, split, rows.tolist(), labels.tolist(), gradient.loss))

    def build(self, model: Any, context: Context) -> Any:
        self.note("build", context)
        return model

    def variables(self, model: Any, context: Context, generator: Any) -> dict[str, Tensor]:
        self.note("variables", context)
        return {}

    def start(self, server: Server) -> None:
        self.note("start", server)

    def ask(self, server: Server, t: int, k: int) -> Any:
        return None if k else Question()

    def reply(self, client: Client) -> ClientUpdate:
        yield from self.look("reply", client)

    def learn(self, server: Server, cohort: Any, t: int) -> None:
        self.note("learn", server, *cohort)

    def broadcast(self, server: Server, client: Client) -> None:
        self.note("broadcast", server, client)

    def local(self, client: Client) -> ClientUpdate:
        yield from self.look("local", client)

    def aggregate(self, server: Server, cohort: Any, t: int) -> None:
        super().aggregate(server, cohort, t)
        self.note("aggregate", server, *cohort)

    def serve(self, server: Server, client: Client) -> None:
        self.note("serve", server, client)

    def personalise(self, client: Client) -> ClientUpdate:
        yield from self.look("personalise", client)


def test_no_hook_is_shown_a_test_label_or_a_group(tmp_path: Path) -> None:
    """With other labels of test images and other groups every hook sees the same, to the last number."""
    curious = Curious(), Curious()
    for how, data in zip(curious, (DATA, garbled(DATA)), strict=True):
        train(how, data, tmp_path / str(id(how)), SETTING)
    ours, theirs = (how.noted for how in curious)
    assert {note[0] for note in ours} == {
        "build", "variables", "start", "reply", "learn", "broadcast", "local", "aggregate", "serve", "personalise"
    }  # fmt: skip
    assert any(note[1].get("kind") == UNLABELLED for note in ours if isinstance(note[1], dict))
    for a, b in zip(ours, theirs, strict=True):
        assert a == b
    # Training and validation labels are there, and would tell if they changed.
    assert {(note[1], set(note[2]) == {NO_LABEL}) for note in ours if len(note) == 5} == {
        ("train", False), ("validation", False), ("test", True)
    }  # fmt: skip


def test_the_facts_of_a_context_and_of_a_client() -> None:
    """A fact more is to be thought about: may every method know it?"""
    context = Context.of(DATA, SETTING)
    assert {f.name for f in dataclasses.fields(Context)} == {
        "setting", "clients", "trainees", "classes", "task", "shape", "n_train", "groups", "fresh", "strata", "device"
    }  # fmt: skip
    # What is not the executor's, of which no method sees anything.
    assert {f.name for f in dataclasses.fields(Client)} == {
        "index", "round", "lr", "context", "class_counts", "work", "state", "received", "kind", "inbox", "upload",
        "answers_by", "answer", "metrics", "logged",
    }  # fmt: skip
    assert (context.clients, context.trainees, context.classes, context.shape) == (3, 3, 10, (8, 8, 1))
    assert context.n_train == tuple(DATA.n_train)
    assert context.groups == 2, "their number alone"
    assert [table.shape for table in context.strata] == [(3, 10), (3, 10)]
    joined = dataclasses.replace(SETTING.partition, clients=3, unseen=1)
    assert Context.of(DATA, dataclasses.replace(SETTING, partition=joined)).trainees == 2
    # The function that makes fresh networks carries the seed's with it, and nothing of the federation.
    fresh = inspect.getclosurevars(context.fresh).nonlocals
    assert fresh.keys() == {"build", "device"}
    assert not any(isinstance(value, Federation | Tensor) for value in (*fresh.values(), *fresh["build"].args))


@pytest.mark.parametrize("split", SPLITS)
def test_labels_of_a_side(split: str, tmp_path: Path) -> None:
    client = trainer(Method(), DATA, tmp_path, SETTING).client(1, {}, 1)
    rows = {"train": DATA.train, "validation": DATA.validation, "test": DATA.test}[split][1]
    expected = DATA.labels[rows]
    assert torch.equal(client.labels(split), torch.full_like(expected, NO_LABEL) if split == "test" else expected)
    assert torch.equal(client.images(split), DATA.images[rows])
    assert client.count(split) == len(rows)
