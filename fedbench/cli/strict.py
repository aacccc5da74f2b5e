"""Commands that refuse what would go wrong in silence: an option given twice, and one without its value."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedbench.errors import FedbenchError


def parsed_value(option: str, text: str) -> str:
    """The value of an option, unless it is none: nothing at all, or the next option. Raises FedbenchError then."""
    if not text or text.isspace():
        raise FedbenchError(f"{option} needs a value, not nothing", "leave it out, or give one")
    if text.startswith("--"):
        raise FedbenchError(f"{option} needs a value, not the option {text}", "give one, or leave it out")
    return text


def twice(option: str) -> FedbenchError:
    """The error for an option that is there again."""
    return FedbenchError(f"{option} is given twice", "leave one of the two out")


class _Strict:
    """What is asked of the words before the command's own parser makes values of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parsed, _, order = self.make_parser(ctx).parse_args(args=list(args))  # type: ignore[attr-defined]
        # The words of an argument that takes any number are the command's own to read.
        called = {p.name: max(p.opts, key=len) for p in order if p.nargs != -1}
        for parameter, count in Counter(order).items():
            once = parameter.param_type_name == "option" and not parameter.multiple and not parameter.is_eager
            if once and count > 1:
                raise twice(called[parameter.name])
        for name, words in parsed.items():
            for word in words if isinstance(words, list | tuple) else [words]:
                if isinstance(word, str) and name in called:
                    parsed_value(called[name], word)
        return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]


class Command(_Strict, TyperCommand):
    """A command of fedbench."""


class Group(_Strict, TyperGroup):
    """The application, or a group of commands such as `data`."""


class App(typer.Typer):
    """An application whose commands are all strict."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Register a command, as Typer does."""
        return super().command(name, **{"cls": Command, **options})
