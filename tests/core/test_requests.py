"""Requests on sides of a client's data, optimisers that begin anew, clusters, and clients without labels; messages and
memories: what they may hold, what sending them takes, and that they come back as they were."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench import models
from fedbench.core import executors, message
from fedbench.core.client import (
    NO_LABEL,
    SPLITS,
    UNLABELLED,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Context,
    Gradient,
    Loss,
    Train,
)
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.simulation import new_client
from fedbench.core.state import State, state_of
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec
from tests.support.frames import refused
from tests.support.lab import client, federation, own, setting, staged, train, trainer


def held(data: Federation, n: int) -> Federation:
    return staged(data, ([rows[n:] for rows in data.train], [rows[:n] for rows in data.train]))


DATA = federation((60, 40))
HELD = held(DATA, 5)


def seen(model: Any, batch: Batch) -> torch.Tensor:
    return torch.cat([batch.y[:, None].float(), batch.position[:, None].float(), model(batch.x)], 1)


def ask(request: Any, executor: str, data: Federation = HELD, same: bool = True) -> list[Any]:
    """What each client is answered; `same`: they hold one model, else each its own."""
    s = setting()
    nets = [models.build(s.model, shape=data.shape, classes=10, seed=0 if same else i) for i in range(data.clients)]
    states = [state_of(nets[0])] * data.clients if same else [state_of(net) for net in nets]
    plan = Plan(s, data.n_train, data.shape[:2])
    clients = [client(data, plan, i, states[i]) for i in range(data.clients)]
    answers: dict[int, Any] = {}

    def update(c: Client) -> ClientUpdate:
        answers[c.index] = yield request

    runner = executors.make(executor, nets[0], data, s)
    try:
        runner.run(clients, update)
    finally:
        runner.close()
    return [answers[i] for i in range(data.clients)]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(
    ("split", "part"), [("train", None), ("validation", None), ("validation", (1, 4)), ("test", (2, 9))]
)
def test_a_side_or_a_part_of_it(executor: str, same: bool, split: str, part: Any) -> None:
    found = ask(Collect(seen, split=split, part=part), executor, same=same)
    whole = ask(Collect(seen, split=split), "sequential", same=same)
    for i, (rows, labels) in enumerate(found):
        side = {"train": HELD.train, "validation": HELD.validation, "test": HELD.test}[split][i]
        cut = slice(*part) if part else slice(None)
        true = torch.full_like(side, NO_LABEL) if split == "test" else HELD.labels[side]
        assert torch.equal(labels, true[cut])
        assert torch.equal(rows[:, 0].long(), true[cut]), "test labels are not given out"
        assert rows[:, 1].tolist() == list(range(len(side)))[cut]
        assert torch.allclose(rows[:, 2:], whole[i].rows[cut, 2:], atol=1e-5)


def entropy(model: Any, batch: Batch) -> Loss:
    p = F.log_softmax(model(batch.x), 1)
    return Loss(-(p.exp() * p).sum(1).mean())


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_gradient_on_a_part_of_the_test_images(executor: str) -> None:
    for i, answer in enumerate(ask(Gradient(entropy, split="test", part=(3, 8)), executor)):
        net = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=0)
        images = HELD.images[HELD.test[i][3:8]].permute(0, 3, 1, 2).float() / 127.5 - 1
        entropy(net, Batch(images, torch.zeros(5), torch.zeros(5), {})).total.backward()
        for name, p in net.named_parameters():
            assert torch.allclose(answer.gradient[name], p.grad, atol=1e-5)
        assert answer.images == 5


@pytest.mark.parametrize("executor", ["sequential", "stacked", "graphed"])
@pytest.mark.parametrize("rule", [{"momentum": 0.9}, {"momentum": 0.0, "optimizer": "adamw", "lr": 0.005}])
def test_the_optimizer_begins_anew_with_every_pass(rule: dict[str, Any], executor: str) -> None:
    """Two epochs of one request are two requests of one epoch, but for the order of the second pass."""

    def after(s: Any, *epochs: int) -> list[dict[str, Any]]:
        net = models.build(s.model, shape=DATA.shape, classes=10, seed=3)
        clients = [client(DATA, OneOrder(s, DATA.n_train, DATA.shape[:2]), i, state_of(net)) for i in range(2)]

        def update(c: Client) -> ClientUpdate:
            for n in epochs:
                yield Train(cross_entropy, epochs=n)

        runner = executors.make(executor, net, DATA, s)
        runner.run(clients, update)
        runner.close()
        return [c.state for c in clients]

    s = setting(batch_size=16, **rule)
    expected, restarted, kept = after(s, 1, 1), after(replace(s, momentum_restarts=True), 2), after(s, 2)
    for ours, its, other in zip(restarted, expected, kept, strict=True):  # the second has fewer steps a pass
        for name, value in its.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5)
        assert any(float((other[n] - v).abs().max()) > 1e-3 for n, v in its.items()), "without, it goes on"


class OneOrder(Plan):
    """Every pass goes through the images in their stored order."""

    def batches(self, client: int, t: int, phase: int, epochs: int | None, steps: int | None) -> Any:
        n = self.n_train[client]
        for _ in range(epochs or 0):
            yield from np.array_split(np.arange(n), range(self.setting.batch_size, n, self.setting.batch_size))


def test_a_client_without_labels_has_none(tmp_path: Path) -> None:
    met: list[Any] = []

    def peek(self: Method, client: Client) -> ClientUpdate | None:
        """Notes what a client has in the test phase; everybody is answered 3 there."""
        if client.kind != UNLABELLED:
            return
        rows, labels = yield Collect(seen, split="test")
        met.append([client.count("train"), client.count("validation"), client.class_counts.sum(), *labels])
        client.answer = torch.full((len(rows),), 3)

    without, table = (
        train(
            own(personalise=peek), HELD, tmp_path / str(on), setting(rounds=2, votes=False, test_phase=on)
        ).predictions
        for on in (False, True)
    )
    assert "test_phase" not in without.column_names
    # After the last round alone.
    assert met == [[0, 0, 0, *[NO_LABEL] * n] for n in HELD.n_test]
    assert table.to_pandas().groupby("round")["test_phase"].count().to_dict() == {1: 0, 2: sum(HELD.n_test)}
    assert set(table.column("test_phase").drop_null().to_pylist()) == {3}


def test_drift_moves_on_to_the_next_stage() -> None:
    none = [rows[:0] for rows in DATA.train]
    stages = [([rows[:10] for rows in DATA.train], none), ([rows[10:20] for rows in DATA.train], DATA.test)]
    data = staged(DATA, *stages)
    part = partition_spec(DatasetSpec("digits", "", ""), "equal", 2, 1, shift="px", level=1, phases=2)
    s = setting(rounds=4, drifts=(3,), partition=part)
    plan = Plan(s, data.n_train, data.shape[:2])
    for t, stage in ((1, 0), (2, 0), (3, 1), (4, 1)):
        c = new_client(1, t, {}, Context.of(data, s), data, plan)
        assert torch.equal(c.work.rows, stages[stage][0][1])
        assert torch.equal(c.work.validation_rows, stages[stage][1][1])
        if stage:
            assert torch.equal(c.class_counts, torch.bincount(data.labels[c.work.rows], minlength=10).float())


def test_copies_of_an_image_need_no_memory_of_their_own() -> None:
    index = np.array([0, 2, 2, 1, 0, 3])
    images = np.arange(4 * 4, dtype=np.uint8).reshape(4, 2, 2, 1)
    labels, who, test = np.arange(6) % 3, np.array([0, 0, 0, 1, 1, 1]), np.array([False, False, True] * 2)
    parts = [
        Federation.of(images, labels, who, np.arange(6), test, 3, image=index),
        Federation.of(images[index] + 50, labels, who, np.arange(6), test, 3),
    ]
    plain = [Federation.of(p, labels, who, np.arange(6), test, 3) for p in (images[index], images[index] + 50)]
    joined: Sequence[Federation] = Federation.joined(parts)
    for found, expected in (*zip(parts, plain, strict=True), *zip(joined, plain, strict=True)):
        for i in range(2):
            a, b = (
                Worker(torch.nn.Linear(1, 1), data, setting(), Event()).batch(data.train[i])
                for data in (found, expected)
            )
            assert torch.equal(a, b)
            assert torch.equal(found.labels[found.test[i]], expected.labels[expected.test[i]])


PLAIN = federation((24, 18, 18))
GROUPED = replace(held(PLAIN, 4), groups=[0, 1, 1], test_groups=[1, 0, 1])
SETTING = setting(rounds=2, window=1, steps=2, test_phase=True, votes=False)


def garbled(data: Federation) -> Federation:
    """Other labels of the test images, and as many groups, of other clients."""
    labels = data.labels.clone()
    for rows in data.test:
        labels[rows] = (labels[rows] + 3) % data.classes
    return replace(data, labels=labels, groups=[1, 0, 1], test_groups=[0, 0, 1])


def facts(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: facts(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [facts(item) for item in value]
    if isinstance(value, Context | Server):
        return {f.name: facts(getattr(value, f.name)) for f in fields(value) if f.name != "fresh"}
    if isinstance(value, Client):  # all that it shows, but for what is the executor's
        names = {f.name for f in fields(Client)} - {"work"}
        names |= {name for name, _ in inspect.getmembers(Client, lambda member: isinstance(member, property))}
        sides = {(n, split): getattr(value, n)(split) for n in ("count", "images", "labels") for split in SPLITS}
        return facts({**{name: getattr(value, name) for name in names}, **sides})
    return value


def labels_seen(model: Any, batch: Any) -> Tensor:
    return batch.y.float()


def nothing(model: Any, batch: Any) -> Loss:
    return Loss(model(batch.x).square().mean(), logged=batch.y.float().sum())


def curious(noted: list[Any]) -> Method:
    """Looks at everything that its hooks are handed, in each of them, and writes it down."""

    def note(hook: str, does: Callable[..., Any] = lambda self, *handed: None) -> Any:
        def noting(self: Method, *handed: Any) -> Any:
            given = does(self, *handed)
            noted.extend(
                (hook, facts(one)) for one in handed if isinstance(one, Context | Server | Client | list | tuple)
            )
            return given

        return noting

    def look(hook: str) -> Any:
        def looking(self: Method, client: Client) -> ClientUpdate:
            noted.append((hook, facts(client)))
            for split in SPLITS:
                if client.count(split):
                    rows, labels = yield Collect(labels_seen, split=split)
                    gradient = yield Gradient(nothing, split=split, part=(0, 2))
                    noted.append((hook, split, rows.tolist(), labels.tolist(), gradient.loss))

        return looking

    return own(
        ask=lambda self, server, t, k: None if k else message.Question(),
        build=note("build", lambda self, model, context: model),
        variables=note("variables", lambda *_: {}),
        aggregate=note("aggregate", Method.aggregate),
        **{hook: note(hook) for hook in ("start", "learn", "broadcast", "serve")},
        **{hook: look(hook) for hook in ("reply", "local", "personalise")},
    )


def test_no_hook_is_shown_a_test_label_or_a_group(tmp_path: Path) -> None:
    """With other labels of test images and other groups every hook sees the same, to the last number."""
    ours, theirs = list[Any](), list[Any]()
    for noted, data in ((ours, GROUPED), (theirs, garbled(GROUPED))):
        train(curious(noted), data, tmp_path / str(id(noted)), SETTING)
    assert {note[0] for note in ours} == {
        "build",
        "variables",
        "start",
        "reply",
        "learn",
        "broadcast",
        "local",
        "aggregate",
        "serve",
        "personalise",
    }
    assert any(note[1].get("kind") == UNLABELLED for note in ours if isinstance(note[1], dict))
    for a, b in zip(ours, theirs, strict=True):
        assert a == b
    # Training and validation labels are there, and would tell if they changed.
    assert {(note[1], set(note[2]) == {NO_LABEL}) for note in ours if len(note) == 5} == {
        ("train", False),
        ("validation", False),
        ("test", True),
    }


def test_the_facts_of_a_context_and_of_a_client() -> None:
    """A fact more is to be thought about: may every method know it?"""
    context = Context.of(GROUPED, SETTING)
    assert {f.name for f in fields(Context)} == {
        "setting",
        "clients",
        "trainees",
        "classes",
        "task",
        "shape",
        "n_train",
        "groups",
        "fresh",
        "strata",
        "device",
    }
    # What is not the executor's, of which no method sees anything.
    assert {f.name for f in fields(Client)} == {
        "index",
        "round",
        "lr",
        "context",
        "class_counts",
        "work",
        "state",
        "received",
        "kind",
        "inbox",
        "upload",
        "answers_by",
        "answer",
        "metrics",
        "logged",
    }
    assert (context.clients, context.trainees, context.classes, context.shape) == (3, 3, 10, (8, 8, 1))
    assert context.n_train == tuple(GROUPED.n_train)
    assert context.groups == 2, "their number alone"
    assert [table.shape for table in context.strata] == [(3, 10), (3, 10)]
    joined = replace(SETTING.partition, clients=3, unseen=1)
    assert Context.of(GROUPED, replace(SETTING, partition=joined)).trainees == 2
    # The function that makes fresh networks carries the seed's with it, and nothing of the federation.
    fresh = inspect.getclosurevars(context.fresh).nonlocals
    assert fresh.keys() == {"build", "device"}
    assert not any(isinstance(value, Federation | Tensor) for value in (*fresh.values(), *fresh["build"].args))


def test_labels_of_a_side(tmp_path: Path) -> None:
    client = trainer(Method(), GROUPED, tmp_path, SETTING).client(1, {}, 1)
    for split, side in {"train": GROUPED.train, "validation": GROUPED.validation, "test": GROUPED.test}.items():
        expected = GROUPED.labels[side[1]]
        assert torch.equal(client.labels(split), torch.full_like(expected, NO_LABEL) if split == "test" else expected)
        assert torch.equal(client.images(split), GROUPED.images[side[1]])
        assert client.count(split) == len(side[1])


@dataclass(frozen=True)
class Inner:
    mean: Tensor
    count: int


@dataclass(frozen=True)
class Outer:
    number: float
    whole: int
    flag: bool
    vector: Tensor | None
    inner: Inner | None
    states: dict[int, State]
    several: list[Tensor]
    parts: dict[str, Inner]
    pairs: list[tuple[int, Tensor]]
    any_many: tuple[float, ...]
    nested: Inner = field(default_factory=lambda: Inner(torch.zeros(1), 0))


INNER = Inner(torch.tensor([1.5, float("inf")]), 2**63 - 1)
EMPTY = Outer(-0.0, -(2**63), False, None, None, {}, [], {}, [], (), Inner(torch.zeros(()), 0))
FULL = Outer(
    1e-320,
    7,
    True,
    torch.tensor([2**62, -1]),
    INNER,
    {7: {"w": torch.rand(2, 3), "own/b.0": torch.zeros(0)}, 2: {"a": INNER.mean}},
    [torch.zeros(2) for _ in range(12)],
    {"b": INNER, "a": Inner(torch.ones(1), -1)},
    [(3, torch.ones(2)), (-4, INNER.mean)],
    (0.1, float("-inf")),
    INNER,
)


def plain(value: Any) -> Any:
    """The value with tensors as their places in memory, to be compared: the very same tensors come back, and
    dictionaries in their order."""
    if isinstance(value, Tensor):
        return ("tensor", id(value))
    if dataclasses.is_dataclass(value):
        return type(value), {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [plain(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("sent", [EMPTY, FULL], ids=["empty", "full"])
def test_a_message_comes_back_by_its_fields(sent: Outer) -> None:
    """Among others' tensors: of the shared state, or of another memory whose name begins alike."""
    saved = message.tensors(sent, "memory")
    assert all(isinstance(t, Tensor) and name.startswith("memory/") for name, t in saved.items())
    others = {"shared/memory/number": torch.zeros(1), "memory2/vector": torch.zeros(1), "memory": torch.zeros(1)}
    for beside in ({}, others):
        assert plain(message.restored(Outer, {**beside, **saved}, "memory")) == plain(sent)
    message.check_lasting(sent, Outer, "server.memory")


def test_a_tensor_that_stands_twice_is_sent_once() -> None:
    some = [torch.zeros(4, dtype=torch.int64), torch.zeros(2, 3), torch.zeros(())]
    sent = {"first": some, "again": dict(enumerate(some[1:])), "numbers": [1.5] * 3, "nothing": None}
    assert message.size(sent) == 32 + 24 + 4 + 3 * message.NUMBER
    assert message.size([torch.zeros(3), torch.zeros(3)]) == 24, "equal tensors are two"
    assert message.size(Inner(torch.zeros(3, dtype=torch.uint8), 7)) == 3 + 8
    assert message.size(None) == 0


@pytest.mark.parametrize("value", ["yes", b"yes", {1, 2}, Inner, torch.float32])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda value: Inner(value, 0), "client.upload/mean"),
        (lambda value: Inner([1.0, value], 0), "client.upload/mean/1"),
        (lambda value: Inner({3: {"w": value}}, 0), "client.upload/mean/3/w"),
    ],
)
def test_what_no_message_can_hold_is_told_by_its_path(value: Any, wrap: Any, path: str) -> None:
    line = "which no message can hold; use a dataclass of tensors, numbers, and dictionaries or lists of them"
    assert refused("", lambda: message.check(wrap(value), "client.upload")) == f"{path} is {value!r}, {line}"
    refused(f".*{line}$", message.tensors, wrap(value), "x")


@dataclass
class Loose:
    """A memory whose annotation says too little."""

    best: Any = None


@dataclass
class Counts:
    rate: int = 0
    states: dict[int, State] = field(default_factory=dict)
    last: State | None = None


OTHERWISE = "would not come back from a checkpoint as it is"
NO_TYPE = "server.memory would not come back from a checkpoint: typing.Any is none of .*"


@pytest.mark.parametrize(
    ("memory", "line"),
    [
        (Loose(best=torch.zeros(1)), NO_TYPE),
        (Loose(), NO_TYPE),
        (Counts(rate=1.5), f"server.memory/rate {OTHERWISE}"),
        (Counts(states={3: {}}), f"server.memory/states {OTHERWISE}"),
        (Counts(last={}), f"server.memory/last {OTHERWISE}"),
        (Counts(states={"3": {"w": torch.zeros(1)}}), f"server.memory/states {OTHERWISE}"),
    ],
)
def test_a_memory_that_would_not_come_back_as_it_is_is_told(memory: Loose | Counts, line: str) -> None:
    """Catches what a resume would change without a word: a rounded number, an entry with nothing in it."""
    told = f"^{line}; annotate each field with its type: tensors, numbers, dict, list, tuple, dataclasses$"
    refused(told, message.check_lasting, memory, type(memory), "server.memory")
    message.check_lasting(Counts(2, {3: {"w": torch.zeros(1)}}, None), Counts, "server.memory")
    message.check_lasting(Counts(), Counts, "server.memory")


EQUAL = federation((40, 40))
SHORT = setting(rounds=2, window=2, steps=2)


@dataclass
class Memory:
    count: int = 0
    last: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)


def spoiling(
    with_server: Callable[[Server], Any] = lambda server: None,
    with_client: Callable[[Client], Any] = lambda client: None,
    **figures: Any,
) -> Method:
    """A method that does something to the server after each round, and to clients when they answer."""

    def aggregate(self: Method, server: Server, cohort: Any, t: int) -> None:
        Method.aggregate(self, server, cohort, t)
        with_server(server)

    return own(
        start=lambda self, server: setattr(server, "memory", Memory()),
        aggregate=aggregate,
        round_metrics=lambda self, server: figures,
        personalise=lambda self, client: with_client(client),
    )


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


@pytest.mark.parametrize(
    ("whose", "name", "line"),
    [
        *(("server", name, "") for name in ("round", "initial", "rounds", "counter")),
        *(("client", name, "is the trainer's") for name in ("index", "round", "context", "work")),
        *(
            ("client", name, "would be lost: keep tensors in client.state")
            for name in ("rounds", "test_rows", "plan", "uplaod")
        ),
    ],
)
def test_what_is_the_trainers_and_what_would_be_lost_cannot_be_set(
    tmp_path: Path, whose: str, name: str, line: str
) -> None:
    how = spoiling(**{f"with_{whose}": set_to(name, torch.tensor([1]))})
    with pytest.raises(AttributeError, match=f"{whose}.{name} {line}"):
        train(how, EQUAL, tmp_path, SHORT)


OTHER_MEMORY = (
    "server.memory is {} after a round and was a Memory after `start`, so that it would not survive a resume; let "
    "`start` make the first one, of the same dataclass"
)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (
            lambda server: server.memory.last.update({3: "x"}),
            "server.memory/last/3 is 'x', which no message can hold; use a dataclass of tensors, numbers, and "
            "dictionaries or lists of them",
        ),
        (set_to("memory", {"count": 3}), "server.memory is a dict; make it a dataclass, with that as a field"),
        (set_to("memory", None), OTHER_MEMORY.format("nothing")),
        (set_to("memory", Loose(torch.ones(1))), OTHER_MEMORY.format("a Loose")),
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
    it = trainer(spoiling(spoil), EQUAL, tmp_path, SHORT)
    assert refused("", it.run) == line
    it.executor.close()
    assert it.server.round == 0


@pytest.mark.parametrize("value", ["many", None, [1.0], torch.zeros(2)])
def test_figures_and_notes_are_numbers(tmp_path: Path, value: object) -> None:
    def note(client: Client) -> None:
        client.metrics["beta"] = value

    refused(r"own: figure_elbow is .*, not a number", train, spoiling(elbow=value), EQUAL, tmp_path / "figures", SHORT)
    with pytest.raises(FedbenchError, match=r"own: client.metrics\['beta'\] is .*, not a number"):
        train(spoiling(with_client=note), EQUAL, tmp_path / "notes", SHORT)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor([2])])
def test_numbers_of_any_kind_are_stored_as_plain_ones(tmp_path: Path, value: Any) -> None:
    def note(client: Client) -> None:
        client.metrics["beta"] = value

    run = train(spoiling(with_client=note, elbow=value), EQUAL, tmp_path, SHORT)
    stored = [*(line["figure_elbow"] for line in run.trainer.checkpoint.rounds)]
    stored += [figures["beta"] for figures in run.trainer.checkpoint.notes.values()]
    assert stored == [2, 2, 2, 2]
    assert {type(one) for one in stored} <= {int, float}
    run.trainer.save()


def test_a_client_answers_all_its_images_or_none(tmp_path: Path) -> None:
    short = spoiling(with_client=set_to("answer", torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(FedbenchError, match=r"client\.answer of client 0 holds 5 answers to its 12 test images"):
        train(short, EQUAL, tmp_path, dataclasses.replace(SHORT, votes=False))


def test_clusters_numbered_by_any_kind_of_integer_are_saved(tmp_path: Path) -> None:
    def cluster(server: Server) -> None:
        server.models = [dict(server.shared)]
        server.assigned = {0: torch.tensor(0), 1: np.int64(0)}

    run = train(spoiling(cluster), EQUAL, tmp_path, SHORT)
    assert run.trainer.clients_table()["cluster"].to_pylist() == [0, 0]
    again = Server({}, {}, memory=Memory())
    again.restore(run.trainer.server.tensors())
    assert again.assigned == {0: 0, 1: 0}
