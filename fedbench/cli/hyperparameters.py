"""The options of methods and partitioners, read from the words of a command that does not declare them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field
from typing import Any

from fedbench.cli.options import declared
from fedbench.cli.parser import parsed_value, twice
from fedbench.errors import FedbenchError, nearest, unknown
from fedbench.methods import declarations
from fedbench.words import option_of

#: If there are more options than this, the error refers to --help instead of listing them.
LINE = 30


def read(
    arguments: Sequence[str], options: Mapping[str, Field[Any]], called: str, *commands: Callable[..., Any]
) -> dict[str, str]:
    """Option -> its text, for the words that are not options of `commands`. Errors name the command `called` (such as
    "train --method prox"). Raises FedbenchError for an option that is unknown, is given twice or has no value."""
    known = {option_of(name): name for name in options}
    out: dict[str, str] = {}
    booleans = (bool, "bool", bool | None, "bool | None")
    flags = {option for option, name in known.items() if options[name].type in booleans}
    for option, value in options_among(arguments, flags):
        if option not in known:
            offered = {*known, *(f"--{own}" for command in commands for own in declared(command))}
            listed = f"fedbench {called.split()[0]} --help" if len(offered) > LINE else ""
            raise unknown(f"option of {called}", option, offered, listed)
        if value is None:
            raise FedbenchError(f"{option} needs a value")
        if known[option] in out:
            raise twice(option)
        out[known[option]] = parsed_value(option, value)
    return out


def options_among(words: Sequence[str], flags: Collection[str] | None = None) -> Iterator[tuple[str, str | None]]:
    """Each option among the words, such as --lr, with its text: "true" for a flag without a text (`flags` None: any
    option can be a flag), None if the text is missing. Raises FedbenchError for any other word."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise FedbenchError(f"unexpected argument '{word}'", "options begin with --")
        option, equals, text = word.partition("=")
        if equals:
            yield option, text
        elif (flags is None or option in flags) and (not rest or rest[0].startswith("--")):
            yield option, "true"
        else:
            yield option, rest.pop(0) if rest else None


def check_spelling(words: Sequence[str], methods: Sequence[str], called: str, command: Callable[..., Any]) -> None:
    """Raise FedbenchError for a misspelt option: one that resembles an option of the command and is no hyper-parameter
    of these methods or of a built-in method."""
    every = (*declarations.built_in().values(), *map(declarations.of, methods))
    theirs = {option_of(name) for one in every for name in one.hyper_parameters}
    own = {f"--{option}" for option in declared(command)}
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if option not in theirs and nearest(option, own):
            raise unknown(f"option of {called}", option, own)
