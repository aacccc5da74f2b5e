"""Options of a method or a partitioner among the words of a command that does not know them itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any, get_type_hints

from typer.models import OptionInfo

from fedbench import declared
from fedbench.cli import strict
from fedbench.errors import FedbenchError, nearest, unknown

#: So many options are read in a line; more are looked up.
LINE = 30


def read(
    arguments: Sequence[str], options: Mapping[str, Field[Any]], called: str, *commands: Callable[..., Any]
) -> dict[str, str]:
    """Option -> its text, of the words that are left of `commands`, which users call `called` (such as "train --method
    prox"). Raises FedbenchError for an option that neither has, one that is given twice or has no value."""
    known = {name.replace("_", "-"): name for name in options}
    out: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise FedbenchError(f"unexpected argument '{word}'", "options begin with --")
        option, equals, value = word.removeprefix("--").partition("=")
        if option not in known:
            offered = {f"--{o}" for o in (*known, *(o for command in commands for o in _options(command)))}
            listed = f"fedbench {called.split()[0]} --help" if len(offered) > LINE else ""
            raise unknown(f"option of {called}", f"--{option}", offered, listed)
        if not equals:
            if options[known[option]].type in (bool, "bool") and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not rest:
                raise FedbenchError(f"--{option} needs a value")
            else:
                value = rest.pop(0)
        if known[option] in out:
            raise strict.twice(f"--{option}")
        out[known[option]] = strict.parsed_value(f"--{option}", value)
    return out


def check_spelling(words: Sequence[str], methods: Sequence[str], called: str, command: Callable[..., Any]) -> None:
    """Raise FedbenchError for an option among the words that is nearly one of the command's own, and no
    hyper-parameter, neither of these methods nor of a built-in one."""
    every = (*declared.built_in().values(), *map(declared.of, methods))
    theirs = {f"--{name.replace('_', '-')}" for one in every for name in one.hyper_parameters}
    own = {f"--{option}" for option in _options(command)}
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if option not in theirs and nearest(option, own):
            raise unknown(f"option of {called}", option, own)


def _options(command: Callable[..., Any]) -> list[str]:
    """The command's own options, as they are typed: not its arguments, and --json where the parameter is as_json."""
    out: list[str] = []
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                # Typer keeps the first name of an annotated option where a default would stand.
                declared = [str(o) for o in (option.default, *(option.param_decls or ())) if str(o).startswith("--")]
                out += [o[2:] for o in declared or [f"--{name.replace('_', '-')}"]]
    return out
