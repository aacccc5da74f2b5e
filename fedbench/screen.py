"""The consoles that commands print to, on which what users, plug-ins and artifacts call things never acts; and a bar
for work that may take minutes, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedbench.words import plain


class Screen(Console):
    """A console that prints texts as they stand.

    Markup such as [bold] is none (our own coloured lines are `rich.text.Text`), and control characters in a text, in
    whatever it stands (a table, a tree, a progress bar), are spelt out; only rich's own codes reach the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything that is printed: all of rich passes here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text, keep="\n"))


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
