"""Several tasks at once, each in a thread that waits for somebody else's work, and what they yield as it comes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def at_once(
    tasks: Sequence[Callable[[], Iterator[T]]], slots: int = 1, stop: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """What the tasks yield: one task after another here if there is one slot, else so many at a time in threads.

    What a task raises is raised. At that, and where the caller leaves (an interrupt), no further task begins, `stop` is
    to end those under way, and they are waited for.
    """
    if slots == 1:
        for task in tasks:
            yield from task()
        return
    waiting = deque(tasks)
    results: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()

    def following() -> Callable[[], Iterator[T]] | None:
        with contextlib.suppress(IndexError):
            return waiting.popleft()
        return None

    def serve() -> None:
        try:
            while (task := following()) is not None:
                for item in task():
                    results.put((item,))
        except BaseException as error:
            results.put(error)
        finally:
            results.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(slots, len(tasks)))]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                left -= 1
            else:
                yield result[0]
    finally:
        if left:
            waiting.clear()
            stop()
            for thread in threads:
                thread.join()
