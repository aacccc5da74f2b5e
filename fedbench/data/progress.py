"""A bar for work that may take minutes, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from fedbench.plain import plain

#: Fewer pieces of work than this are done before a bar would be read.
LEAST = 5_000


@contextlib.contextmanager
def bar(title: str, count: int) -> Iterator[Callable[[int], None]]:
    """Give a function that counts so many of `count` pieces of work as done.

    There is no bar where the error stream is no terminal, where there is little to do, or where another display, such
    as that of a run, holds the terminal.
    """
    if count < LEAST or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(plain(title), total=count)
    try:
        bar.start()
    except LiveError:
        yield lambda done: None
        return
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        bar.stop()
