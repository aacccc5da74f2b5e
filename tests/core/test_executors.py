"""Executors: order of results, errors and interrupts in the middle of a round; what a hook may give them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench import models
from fedbench.core import executors
from fedbench.core.client import Client, ClientUpdate, Collect, Gradient, Train, logits
from fedbench.core.executors import Cores, Executor, available_cores
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.core.worker import Cancelled, Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from tests.support.lab import client, federation, own, setting, train

DATA = federation()
PLAN = Plan(setting(), DATA.n_train, DATA.shape[:2])
MODEL = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=1)


def make(name: str) -> Executor:
    return executors.make(name, MODEL, DATA, PLAN.setting)


@pytest.mark.parametrize("name", executors.EXECUTORS)
def test_results_come_in_the_order_of_the_items(name: str) -> None:
    executor = make(name)

    def job(worker: Worker, item: int) -> int:
        time.sleep(0.002 * (5 - item))
        return item * item

    torch.set_num_threads(2)
    try:
        executor = make(name)
        assert executor.map(job, range(5)) == [0, 1, 4, 9, 16]
        assert executor.map(job, []) == []
        assert executor.model is MODEL
        assert set(executor.map(lambda *_: torch.get_num_threads(), range(4))) == {1}, "one a client"
        assert torch.get_num_threads() == 2, "the caller's stays"
        executor.close()
    finally:
        torch.set_num_threads(1)


def test_no_worker_serves_two_at_a_time() -> None:
    executor = Cores(MODEL, DATA, PLAN.setting, cores=3)
    busy: set[int] = set()
    lock = threading.Lock()

    def job(worker: Worker, item: int) -> bool:
        with lock:
            free = id(worker) not in busy
            busy.add(id(worker))
        time.sleep(0.002)
        with lock:
            busy.discard(id(worker))
        return free

    assert all(executor.map(job, range(30)))
    executor.close()


class Stop(BaseException):
    """Stands for a Ctrl-C."""


@pytest.mark.parametrize("error", [ValueError, Stop, KeyboardInterrupt])
def test_an_error_stops_the_others_and_the_executor_works_on(error: type[BaseException]) -> None:
    executor = Cores(MODEL, DATA, PLAN.setting, cores=2)
    started: list[int] = []
    cancelled: list[int] = []

    def job(worker: Worker, item: int) -> int:
        started.append(item)
        if item == 0:
            time.sleep(0.02)
            raise error
        if worker.cancel.wait(5):
            cancelled.append(item)
        raise Cancelled

    with pytest.raises(error):
        executor.map(job, range(20))
    # Nobody is left at work, and what had not begun never begins.
    assert sorted(started) != list(range(20))
    assert set(started) - {0} == set(cancelled)
    assert executor.map(lambda worker, item: not worker.cancel.is_set(), [1, 2, 3]) == [True] * 3
    executor.close()


def test_a_busy_worker_hears_of_the_interrupt() -> None:
    executor = make("sequential")
    assert isinstance(executor, executors.Sequential)
    who = client(DATA, PLAN, 0, state_of(MODEL))
    executor.worker.cancel.set()
    with pytest.raises(Cancelled):
        executor.worker.collect(who, Collect(lambda m, b: b.x))


def test_unknown() -> None:
    with pytest.raises(FedbenchError, match="unknown executor 'sequental'; did you mean 'sequential'"):
        make("sequental")
    assert available_cores() >= 1


def test_on_a_gpu_each_worker_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After what the main stream has been asked, and done before the job's answer is used; the GPU is a stand-in."""
    events: list[tuple[str, int]] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            events.append(("new", id(self)))

        def wait_stream(self, other: str) -> None:
            assert other == "main"
            events.append(("waits", id(self)))

        def synchronize(self) -> None:
            events.append(("is done", id(self)))

    @contextlib.contextmanager
    def stream(own: Stream) -> Iterator[None]:
        events.append(("begins", id(own)))
        yield
        events.append(("ends", id(own)))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "main")
    executor = Cores(MODEL, DATA, PLAN.setting, cores=2)
    executor.device = torch.device("cuda")
    assert executor.map(lambda worker, item: item, range(7)) == list(range(7))
    executor.close()
    streams = [id for what, id in events if what == "new"]
    assert len(streams) == len({*streams}) <= 2
    for one in streams:
        order = [what for what, id in events if id == one]
        assert order == ["new", *["waits", "begins", "ends", "is done"] * (len(order) // 4)]
    assert len(events) == len(streams) + 4 * 7


TWO = federation((40, 30))
SHORT = setting(rounds=1, window=1, steps=2)


@dataclass(frozen=True)
class Question:
    """Asks for nothing in particular."""


def giving(hook: str, does: Callable[[Any], Any]) -> Method:
    """A method of which a hook gives what that makes of the client or the server that it is handed."""

    def given(self: Method, handed: Any, *more: Any) -> Any:
        return does(handed)

    given.__name__ = hook
    return own(**{"ask": lambda self, server, t, k: None if k else Question(), "reply": nothing, hook: given})


def nothing(self: Method, client: Client) -> None:
    """An answer to the question."""


def returned(client: Client) -> Any:
    """A request after others: it would be dropped without a word, for a generator's return value goes nowhere."""
    yield Collect(logits)
    return Gradient(cross_entropy)


def yielding(value: Any) -> Callable[[Client], Any]:
    def update(client: Client) -> Any:
        yield Train(cross_entropy)
        yield value

    return update


NOT_DONE = "and what is returned is not done; write `yield {}(...)`"
LOST = "and what is returned is lost; change the server or the client that it is handed, and return nothing"
MISTAKES: list[tuple[Method, str]] = [
    *(
        (giving(hook, lambda client: Train(cross_entropy)), f"{hook} returns Train(...), {NOT_DONE.format('Train')}")
        for hook in ("local", "reply", "personalise")
    ),
    (giving("local", returned), f"local returns Gradient(...), {NOT_DONE.format('Gradient')}"),
    *(
        (giving("local", yielding(value)),
         f"local yields {words}, not a request; yield Train(...) or Gradient(...) or Collect(...)")
        for value, words in ((None, "None"), ((1, 2), "a tuple"), (0.5, "0.5"))
    ),
    (giving("personalise", lambda client: client.state),
     "personalise returns a dict; yield requests, and return nothing"),
    *(
        (giving(hook, lambda server: server.shared), f"{hook} returns a dict, {LOST}")
        for hook in ("start", "broadcast", "aggregate", "learn", "serve")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("how", "line"), MISTAKES, ids=[line.split(",")[0] for _, line in MISTAKES])
def test_what_a_hook_gives_wrongly_is_one_line(how: Method, line: str, tmp_path: Path) -> None:
    for executor in executors.EXECUTORS:
        with pytest.raises(FedbenchError) as caught:
            train(how, TWO, tmp_path / executor, SHORT, executor=executor)
        assert str(caught.value) == f"own: {line}"


def test_a_box_made_elsewhere_is_one(tmp_path: Path) -> None:
    def update(client: Client) -> ClientUpdate:
        yield Train(cross_entropy)

    run = train(giving("local", update), TWO, tmp_path, SHORT)
    assert run.trainer.checkpoint.rounds[0]["images"] > 0
