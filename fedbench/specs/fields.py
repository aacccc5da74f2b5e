"""The description of a field, which defines a command's option, its help, and the checks of its values."""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    symbol: str = "",
    source: str = "",
    choices: tuple[str, ...] = (),
    most: float | None = None,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    stored: str = "",
    later: bool = False,
    *,
    limit: float | None = None,
    metavar: str = "",
    typed: str = "",
    called: str = "",
    hint: str = "",
    panel: str = "",
    modifier: bool = False,
) -> Any:
    """A field that a user sets: a key of TOML files, part of a spec's id and, with a help text, an option of a command.
    Required without `default`. `choices`: allowed values; `least`, `most` (inclusive), `above`, `below` (exclusive):
    bounds; `limit`: an upper bound that only keeps work finite. `stored`: key in stored specs, `typed`: name on the
    command line, `called`: name in errors, each if different from the field's name; `hint`: end of errors about its
    value; `metavar`, `panel`: of its line in --help. `later`: a hyper-parameter added when its method had runs
    already, part of the id only if not at its default. `modifier`: a field that partitioners may refuse."""
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "symbol": symbol,
            "source": source,
            "choices": choices,
            "stored": stored,
            "later": later,
            "bounds": {"least": least, "above": above, "most": most, "below": below},
            "limit": limit,
            "metavar": metavar,
            "typed": typed,
            "called": called,
            "hint": hint,
            "panel": panel,
            "modifier": modifier,
        },
    )


def out_of_bounds(field: dataclasses.Field[Any], value: Any) -> str:
    """The required range, such as 'in [0, 1)', if the number is outside its field's bounds; else empty."""
    bounds = {kind: bound for kind, bound in field.metadata.get("bounds", {}).items() if bound is not None}
    if any(not _HOLDS[kind](value, bound) for kind, bound in bounds.items()):
        if len(bounds) == 2:
            (lower, low), (upper, high) = bounds.items()
            return f"in {'[' if lower == 'least' else '('}{low:g}, {high:g}{']' if upper == 'most' else ')'}"
        return " and ".join(f"{_WORDS[kind]} {bound:g}" for kind, bound in bounds.items())
    limit = field.metadata.get("limit")
    return f"at most {limit:,}" if limit is not None and value > limit else ""


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "least": operator.ge,
    "above": operator.gt,
    "most": operator.le,
    "below": operator.lt,
}
_WORDS = {"least": "at least", "above": "above", "most": "at most", "below": "below"}


#: The types of a class's fields by name.
type_hints: Callable[[type], dict[str, Any]] = cache(typing.get_type_hints)


@cache
def described(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """Name -> field, for a spec's fields made by `option`."""
    return {f.name: f for f in dataclasses.fields(cls) if "bounds" in f.metadata}


@cache
def typed(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """Option's name -> field, for a spec's fields that are options of a command (with a help text)."""
    return {f.metadata["typed"] or name: f for name, f in described(cls).items() if f.metadata["help"]}


@cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; a type itself if it is none."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def kind_of(cls: type, field: dataclasses.Field[Any]) -> type:
    """The type of an option's value: the field's without None; tuple for a list."""
    kinds = [one for one in alternatives(type_hints(cls)[field.name]) if one is not types.NoneType]
    kind: type = typing.get_origin(kinds[0]) or kinds[0]
    return kind
