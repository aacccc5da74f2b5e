"""Consoles for commands, on which control characters and markup in texts of users, plug-ins and artifacts have no
effect; and a progress bar for work that can take minutes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedbench.words import plain


class Screen(Console):
    """A console that prints texts literally.

    It does not interpret markup such as [bold] (fedbench's coloured lines are `rich.text.Text`), and escapes control
    characters, also in tables, trees and progress bars. Only rich's own control codes reach the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is printed, escaped; rich calls this for everything."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text, keep="\n"))


#: Work with fewer items is done before anybody could read a bar.
LEAST = 5_000


@contextlib.contextmanager
def bar(title: str, count: int) -> Iterator[Callable[[int], None]]:
    """Context with a progress bar of `count` items; yields a function to call with a number of completed items.

    There is no bar if stderr is not a terminal, if `count` is below LEAST, or if another display, such as that of a
    run, uses the terminal.
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
