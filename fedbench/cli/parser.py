"""The classes of the command line: commands that reject silent mistakes, an option given twice or without a value."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from fedbench.cli.options import ALL, grouped
from fedbench.errors import FedbenchError

C = TypeVar("C", bound=Callable[..., Any])


def parsed_value(option: str, text: str) -> str:
    """The value of an option. Raises FedbenchError if it is empty or is the next option."""
    if not text or text.isspace():
        raise FedbenchError(f"{option} needs a value, not nothing", "leave it out, or give one")
    if text.startswith("--"):
        raise FedbenchError(f"{option} needs a value, not the option {text}", "give one, or leave it out")
    return text


def twice(option: str) -> FedbenchError:
    """The error for an option that is given twice."""
    return FedbenchError(f"{option} is given twice", "leave one of the two out")


class _Strict:
    """Checks the option values before the command's parser converts them. Hides nothing with --help-all."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        if ctx.meta.get(ALL):
            params = [copy.copy(one) for one in params]
            for one in params:
                one.hidden = False
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parsed, _, order = self.make_parser(ctx).parse_args(args=list(args))  # type: ignore[attr-defined]
        # The command itself checks the words of an argument that takes any number of them.
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


def flowed(text: str) -> str:
    """A docstring whose paragraphs are a line each: the terminal breaks them, not the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


class Command(_Strict, TyperCommand):
    """A command of fedbench."""


class Group(_Strict, TyperGroup):
    """The application, or a group of commands such as `data`."""


#: Of commands that read the options of methods and partitioners themselves.
OPEN = {"ignore_unknown_options": True, "allow_extra_args": True}


class App(typer.Typer):
    """An application whose commands all make the strict checks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Register a command, as Typer does, with the options that `of_function` finds."""
        register = super().command

        def declare(function: C) -> C:
            about = flowed(function.__doc__ or "")
            register(name, **{"cls": Command, "help": about, **options})(grouped()(function))
            return function

        return declare
