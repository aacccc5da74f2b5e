"""The consoles that commands print to: what users, plug-ins and artifacts call things never acts on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedbench.plain import plain


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
