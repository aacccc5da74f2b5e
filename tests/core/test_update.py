"""What a hook gives in the place of a client update is told by the names of method and hook, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedbench.core import executors
from fedbench.core.client import Client, ClientUpdate, Collect, Gradient, Train, logits
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from tests.support.lab import federation, setting, train

DATA = federation((40, 30))
SHORT = setting(rounds=1, window=1, steps=2)


@dataclass(frozen=True)
class Question:
    """Asks for nothing in particular."""


@dataclass(frozen=True)
class Own(Method):
    """Hooks that give whatever a test wants."""

    name = "own"
    in_local: Callable[[Client], Any] = lambda client: None
    in_reply: Callable[[Client], Any] = lambda client: None
    in_personalise: Callable[[Client], Any] = lambda client: None

    def ask(self, server: Any, t: int, k: int) -> Question | None:
        return None if k else Question()

    def local(self, client: Client) -> Any:
        return self.in_local(client)

    def reply(self, client: Client) -> Any:
        return self.in_reply(client)

    def personalise(self, client: Client) -> Any:
        return self.in_personalise(client)


def told(how: Method, where: Path, executor: str = "sequential") -> str:
    with pytest.raises(FedbenchError) as caught:
        train(how, DATA, where, SHORT, executor=executor)
    return str(caught.value)


@pytest.mark.parametrize("executor", executors.EXECUTORS)
@pytest.mark.parametrize("hook", ["local", "reply", "personalise"])
def test_a_request_that_is_returned(hook: str, executor: str, tmp_path: Path) -> None:
    how = Own(**{f"in_{hook}": lambda client: Train(cross_entropy)})
    expected = f"own: {hook} returns Train(...), and what is returned is not done; write `yield Train(...)`"
    assert told(how, tmp_path, executor) == expected


@pytest.mark.parametrize("executor", executors.EXECUTORS)
def test_a_request_that_is_returned_after_others(executor: str, tmp_path: Path) -> None:
    """It would be dropped without a word: a generator's return value goes nowhere."""

    def update(client: Client) -> Any:
        yield Collect(logits)
        return Gradient(cross_entropy)

    expected = "own: local returns Gradient(...), and what is returned is not done; write `yield Gradient(...)`"
    assert told(Own(in_local=update), tmp_path, executor) == expected


@pytest.mark.parametrize("executor", executors.EXECUTORS)
@pytest.mark.parametrize(("value", "words"), [(None, "None"), ((1, 2), "a tuple"), (0.5, "0.5")])
def test_what_is_yielded_is_a_request(value: Any, words: str, executor: str, tmp_path: Path) -> None:
    def update(client: Client) -> Any:
        yield Train(cross_entropy)
        yield value

    expected = f"own: local yields {words}, not a request; yield Train(...) or Gradient(...) or Collect(...)"
    assert told(Own(in_local=update), tmp_path, executor) == expected


def test_a_state_that_is_returned(tmp_path: Path) -> None:
    how = Own(in_personalise=lambda client: client.state)
    assert told(how, tmp_path) == "own: personalise returns a dict; yield requests, and return nothing"


def test_a_box_made_elsewhere_is_one(tmp_path: Path) -> None:
    def update(client: Client) -> ClientUpdate:
        yield Train(cross_entropy)

    run = train(Own(in_local=update, in_reply=lambda client: None), DATA, tmp_path, SHORT)
    assert run.trainer.checkpoint.rounds[0]["images"] > 0


@pytest.mark.parametrize("hook", ["start", "broadcast", "aggregate", "learn", "serve"])
def test_what_changes_in_place_returns_nothing(hook: str, tmp_path: Path) -> None:
    """A state that `serve` or `broadcast` returns would be dropped without a word."""
    kind = dataclass(frozen=True)(type("Other", (Own,), {hook: lambda self, server, *more: server.shared}))
    function = vars(kind)[hook]
    function.__name__ = hook
    expected = (
        f"own: {hook} returns a dict, and what is returned is lost; "
        "change the server or the client that it is handed, and return nothing"
    )
    assert told(kind(), tmp_path) == expected
