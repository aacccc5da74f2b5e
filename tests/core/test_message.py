"""Messages and memories: what they may hold, what sending them takes, and that they come back as they were."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core import message
from fedbench.core.state import State
from fedbench.errors import FedbenchError


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
    saved = message.tensors(sent, "memory")
    assert all(isinstance(t, Tensor) and name.startswith("memory/") for name, t in saved.items())
    assert plain(message.restored(Outer, saved, "memory")) == plain(sent)
    message.check_lasting(sent, Outer, "server.memory")


@given(outers)
def test_others_tensors_beside_it_change_nothing(sent: Outer) -> None:
    """Such as those of the shared state, or of another memory whose name begins alike."""
    others = {"shared/memory/number": torch.zeros(1), "memory2/vector": torch.zeros(1), "memory": torch.zeros(1)}
    assert plain(message.restored(Outer, {**others, **message.tensors(sent, "memory")}, "memory")) == plain(sent)


@given(st.lists(tensors, max_size=5), st.integers(0, 3), st.data())
def test_a_tensor_that_stands_twice_is_sent_once(some: list[Tensor], numbers: int, data: st.DataObject) -> None:
    again = data.draw(st.lists(st.sampled_from(some), max_size=5)) if some else []
    once = sum(t.numel() * t.element_size() for t in some)
    sent = {"first": some, "again": dict(enumerate(again)), "numbers": [1.5] * numbers, "nothing": None}
    assert message.size(sent) == once + message.NUMBER * numbers


def test_equal_tensors_are_two() -> None:
    assert message.size([torch.zeros(3), torch.zeros(3)]) == 24
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
    expected = (
        f"{path} is {told}, which no message can hold; "
        "use a dataclass of tensors, numbers, and dictionaries or lists of them"
    )
    for refuse in (lambda: message.check(wrap(value), "client.upload"), lambda: message.tensors(wrap(value), "x")):
        with pytest.raises(FedbenchError, match="which no message can hold") as caught:
            refuse()
        assert "\n" not in str(caught.value)
    with pytest.raises(FedbenchError) as caught:
        message.check(wrap(value), "client.upload")
    assert str(caught.value) == expected


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


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (Loose(best=torch.zeros(1)), "server.memory would not come back from a checkpoint: typing.Any is none of"),
        (Loose(), "server.memory would not come back from a checkpoint: typing.Any is none of"),
    ],
)
def test_a_memory_that_cannot_be_restored_is_told(memory: Loose, told: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        message.check_lasting(memory, Loose, "server.memory")
    assert str(caught.value).startswith(told)
    assert str(caught.value).endswith(
        "; annotate each field with its type: tensors, numbers, dict, list, tuple, dataclasses"
    )


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
