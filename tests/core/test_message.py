"""Messages and memories: what they may hold, what sending them takes, and that they come back as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core import message
from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from tests.support.lab import federation, own, setting, train, trainer


@dataclass(frozen=True)
class Inner:
    """A part of a message."""

    mean: Tensor
    count: int


@dataclass(frozen=True)
class Outer:
    """Everything that a message may hold."""

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


tensors = st.one_of(
    st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(torch.tensor),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4).map(torch.tensor),
    st.integers(0, 2**31).map(lambda seed: torch.rand((2, 3), generator=torch.Generator().manual_seed(seed))),
    st.builds(torch.zeros, st.just(())),
)
wholes = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
#: Names of tensors: such as 'own/backbone.0.weight'.
names = st.text("abc./_0", min_size=1, max_size=8)
states = st.dictionaries(names, tensors, min_size=1, max_size=3)
inners = st.builds(Inner, tensors, wholes)
outers = st.builds(
    Outer,
    floats,
    wholes,
    st.booleans(),
    st.none() | tensors,
    st.none() | inners,
    st.dictionaries(st.integers(0, 2000), states, max_size=4),
    st.lists(tensors, max_size=12),
    st.dictionaries(st.text("abc_", min_size=1, max_size=3), inners, max_size=3),
    st.lists(st.tuples(wholes, tensors), max_size=3),
    st.lists(floats, max_size=3).map(tuple),
    inners,
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


@given(outers)
def test_a_message_comes_back_by_its_fields(sent: Outer) -> None:
    """Among others' tensors: of the shared state, or of another memory whose name begins alike."""
    saved = message.tensors(sent, "memory")
    assert all(isinstance(t, Tensor) and name.startswith("memory/") for name, t in saved.items())
    others = {"shared/memory/number": torch.zeros(1), "memory2/vector": torch.zeros(1), "memory": torch.zeros(1)}
    for beside in ({}, others):
        assert plain(message.restored(Outer, {**beside, **saved}, "memory")) == plain(sent)
    message.check_lasting(sent, Outer, "server.memory")


@given(st.lists(tensors, max_size=5), st.integers(0, 3), st.data())
def test_a_tensor_that_stands_twice_is_sent_once(some: list[Tensor], numbers: int, data: st.DataObject) -> None:
    again = data.draw(st.lists(st.sampled_from(some), max_size=5)) if some else []
    once = sum(t.numel() * t.element_size() for t in some)
    sent = {"first": some, "again": dict(enumerate(again)), "numbers": [1.5] * numbers, "nothing": None}
    assert message.size(sent) == once + message.NUMBER * numbers
    assert message.size([torch.zeros(3), torch.zeros(3)]) == 24, "equal tensors are two"
    assert message.size(Inner(torch.zeros(3, dtype=torch.uint8), 7)) == 3 + 8
    assert message.size(None) == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("yes", "'yes'"),
        (b"yes", "b'yes'"),
        ({1, 2}, "{1, 2}"),
        (Inner, "<class 'test_message.Inner'>"),
        (torch.float32, "torch.float32"),
    ],
)
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda value: Inner(value, 0), "client.upload/mean"),
        (lambda value: Inner([1.0, value], 0), "client.upload/mean/1"),  # type: ignore[arg-type]
        (lambda value: Inner({3: {"w": value}}, 0), "client.upload/mean/3/w"),  # type: ignore[arg-type]
    ],
)
def test_what_no_message_can_hold_is_told_by_its_path(value: Any, told: str, wrap: Any, path: str) -> None:
    line = "which no message can hold; use a dataclass of tensors, numbers, and dictionaries or lists of them"
    with pytest.raises(FedbenchError) as caught:
        message.check(wrap(value), "client.upload")
    assert str(caught.value) == f"{path} is {told}, {line}"
    with pytest.raises(FedbenchError, match=f".*{line}$"):
        message.tensors(wrap(value), "x")


@pytest.mark.parametrize("value", [torch.zeros(2), {"a": torch.zeros(2)}, [1.0], 3])
def test_a_message_is_a_dataclass(value: Any) -> None:
    line = f"client.upload is a {type(value).__name__}; make it a dataclass, with that as a field"
    with pytest.raises(FedbenchError) as caught:
        message.check(value, "client.upload")
    assert str(caught.value) == line
    message.check(None, "client.upload")


@dataclass
class Loose:
    """A memory whose annotations say too little."""

    best: Any = None
    rate: int = 0
    either: Tensor | float | None = None
    states: dict[int, State] = field(default_factory=dict)


@pytest.mark.parametrize("memory", [Loose(best=torch.zeros(1)), Loose()])
def test_a_memory_that_cannot_be_restored_is_told(memory: Loose) -> None:
    told = "server.memory would not come back from a checkpoint: typing.Any is none of .*; annotate each field with "
    with pytest.raises(FedbenchError, match=f"^{told}its type: tensors, numbers, dict, list, tuple, dataclasses$"):
        message.check_lasting(memory, Loose, "server.memory")


@dataclass
class Counts:
    """A memory with a whole number and states by client."""

    rate: int = 0
    states: dict[int, State] = field(default_factory=dict)
    last: State | None = None


@pytest.mark.parametrize(
    ("memory", "path"),
    [
        (Counts(rate=1.5), "server.memory/rate"),  # type: ignore[arg-type]
        (Counts(states={3: {}}), "server.memory/states"),
        (Counts(last={}), "server.memory/last"),
        (Counts(states={"3": {"w": torch.zeros(1)}}), "server.memory/states"),  # type: ignore[dict-item]
    ],
)
def test_a_memory_that_would_come_back_otherwise_is_told(memory: Counts, path: str) -> None:
    """Catches what a resume would change without a word: a rounded number, an entry with nothing in it."""
    with pytest.raises(FedbenchError, match=rf"^{path} would not come back from a checkpoint as it is; annotate"):
        message.check_lasting(memory, Counts, "server.memory")
    message.check_lasting(Counts(2, {3: {"w": torch.zeros(1)}}, None), Counts, "server.memory")
    message.check_lasting(Counts(), Counts, "server.memory")


DATA = federation((40, 40))
SHORT = setting(rounds=2, window=2, steps=2)


@dataclass
class Memory:
    """What a server may remember: a count, and one thing more."""

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
        train(how, DATA, tmp_path, SHORT)


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
    it = trainer(spoiling(spoil), DATA, tmp_path, SHORT)
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
        train(spoiling(elbow=value), DATA, tmp_path / "figures", SHORT)
    with pytest.raises(FedbenchError, match=r"own: client.metrics\['beta'\] is .*, not a number"):
        train(spoiling(with_client=note), DATA, tmp_path / "notes", SHORT)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor([2])])
def test_numbers_of_any_kind_are_stored_as_plain_ones(tmp_path: Path, value: Any) -> None:
    def note(client: Client) -> None:
        client.metrics["beta"] = value

    run = train(spoiling(with_client=note, elbow=value), DATA, tmp_path, SHORT)
    stored = [*(line["figure_elbow"] for line in run.trainer.checkpoint.rounds)]
    stored += [figures["beta"] for figures in run.trainer.checkpoint.notes.values()]
    assert stored == [2, 2, 2, 2]
    assert {type(one) for one in stored} <= {int, float}
    run.trainer.save()


def test_a_client_answers_all_its_images_or_none(tmp_path: Path) -> None:
    short = spoiling(with_client=set_to("answer", torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(FedbenchError, match=r"client\.answer of client 0 holds 5 answers to its 12 test images"):
        train(short, DATA, tmp_path, dataclasses.replace(SHORT, votes=False))


def test_clusters_numbered_by_any_kind_of_integer_are_saved(tmp_path: Path) -> None:
    def cluster(server: Server) -> None:
        server.models = [dict(server.shared)]
        server.assigned = {0: torch.tensor(0), 1: np.int64(0)}  # type: ignore[dict-item]

    run = train(spoiling(cluster), DATA, tmp_path, SHORT)
    assert run.trainer.clients_table()["cluster"].to_pylist() == [0, 0]
    again = Server({}, {}, memory=Memory())
    again.restore(run.trainer.server.tensors())
    assert again.assigned == {0: 0, 1: 0}
