"""Tasks at once: what they yield, what they raise, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fedbench.engine.at_once import at_once


def test_one_after_another_in_this_thread() -> None:
    threads: list[str] = []

    def task(value: int) -> Iterator[int]:
        threads.append(threading.current_thread().name)
        yield value

    assert list(at_once([partial(task, k) for k in range(3)])) == [0, 1, 2]
    assert set(threads) == {threading.current_thread().name}


def test_so_many_at_a_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def task(value: int) -> Iterator[int]:
        both.wait()  # passes only if two are at it
        yield value
        yield -value

    assert sorted(at_once([partial(task, k) for k in range(1, 5)], 2)) == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert list(at_once([], 2)) == []


def test_what_a_task_raises_ends_all() -> None:
    stopped, begun = threading.Event(), []

    def waiting() -> Iterator[int]:
        begun.append("waiting")
        assert stopped.wait(60)
        yield 1

    def failing() -> Iterator[int]:
        raise ZeroDivisionError("no luck")
        yield

    tasks: list[Callable[[], Iterator[int]]] = [waiting, failing, waiting]
    with pytest.raises(ZeroDivisionError, match="no luck"):
        list(at_once(tasks, 2, stopped.set))
    assert stopped.is_set()
    assert 1 <= len(begun) <= 2


def test_who_leaves_early_stops_and_waits() -> None:
    stopped, ended = threading.Event(), []

    def task(value: int) -> Iterator[int]:
        yield value
        assert stopped.wait(60)
        ended.append(value)

    results = at_once([partial(task, k) for k in range(4)], 2, stopped.set)
    assert isinstance(results, Iterator)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert sorted(ended) == [0, 1], "the other two never began"
