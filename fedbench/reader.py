"""Reads users' TOML files (and JSON) into checked dataclasses.

`toml` parses a file, `read` converts the result to a dataclass. Unknown keys, missing keys and values of a wrong type
are errors at every depth (an integer is a valid float). Every error is one line that names the place in the file:
"mine.toml, row 3, band 2 must be a number, not 'x'". Further rules are annotations: `Annotated[int, Between(0, 15)]`.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import reprlib
import tomllib
import types
import typing
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedbench.errors import FedbenchError, check_known

T = TypeVar("T")

#: Maximal bytes of a file and levels of nested tables and lists, far above those of fedbench's files.
SIZE, DEPTH = 2**20, 20
#: A key with a hundred parts (a.b.c...): the time of tomllib is quadratic in their number.
_LONG_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){100}")


def text(path: Path, what: str, hint: str = "") -> str:
    """Read a user's file as text. Raises FedbenchError if it is missing, unreadable, too large or not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise FedbenchError(f"{path} is {kind}, where a {what} should be", hint)
        with path.open("rb") as f:
            content = f.read(SIZE + 1)
    except FileNotFoundError as error:
        raise FedbenchError(f"there is no {what} {path}", hint) from error
    except (OSError, ValueError) as error:  # ValueError: an impossible path
        why = error.strerror if isinstance(error, OSError) else error
        raise FedbenchError(f"cannot read {path} ({why})", hint) from error
    if len(content) > SIZE:
        raise FedbenchError(f"{path} has more than {SIZE // 2**20} MiB, too much for a {what}")
    try:
        return content.decode().removeprefix("\ufeff")  # byte order mark of some Windows editors
    except UnicodeDecodeError as error:
        raise FedbenchError(f"{path} is not UTF-8 text (at byte {error.start})", "save it as UTF-8") from error


def toml(path: Path, what: str = "TOML file", hint: str = "") -> dict[str, Any]:
    """Parse a TOML file to plain values. Raises FedbenchError, which names the file and the place in it."""
    content = text(path, what, hint)
    if _LONG_KEY.search(content):
        raise FedbenchError(f"{path} is nested more than {DEPTH} deep")
    try:
        raw = tomllib.loads(content)
    except RecursionError as error:
        raise FedbenchError(f"{path} is nested more than {DEPTH} deep") from error
    except ValueError as error:
        raise FedbenchError(f"{path} is not valid TOML: {error}") from error
    _sane(raw, str(path))
    return raw


#: Place of a value: the file, or (outer place, separator, key or number). Only errors need its text (`_spelt`).
_Place = str | tuple[Any, str, str | int]


def _sane(value: Any, place: _Place, depth: int = 0, joint: str = ", ") -> None:
    """Raise FedbenchError for values that no key accepts: dates, NaN, control characters, integers above 64 bits."""
    if depth > DEPTH:
        raise FedbenchError(f"{_spelt(place)} is nested more than {DEPTH} deep")
    if isinstance(value, str):
        if not value.isascii() or not value.isprintable():
            wrong = next((c for c in value if _control(c)), "")
            if wrong:
                raise FedbenchError(f"{_spelt(place)} cannot hold the control character {shown(wrong)}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not (key.isascii() and key.isprintable()):
                _sane(key, (place, ", ", "a key"))
            _sane(item, (place, joint, key), depth + 1, ".")
    elif isinstance(value, list):
        for i, item in enumerate(value, 1):
            _sane(item, (place, " ", i), depth + 1)
    elif isinstance(value, float):
        if value != value:
            raise FedbenchError(f"{_spelt(place)} must be a number, not {shown(value)}")
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            raise FedbenchError(f"{_spelt(place)} must have 64 bits at most, unlike {shown(value)}")
    elif isinstance(value, datetime.date | datetime.time):
        raise FedbenchError(f"{_spelt(place)} cannot be a date or a time", f'for a text put it in quotes: "{value}"')


def _spelt(place: _Place) -> str:
    if isinstance(place, str):
        return place
    before, joint, name = place
    return f"{_spelt(before)}{joint}{shown(name)[1:-1] if isinstance(name, str) else name}"


def read(cls: type[T], raw: Any, where: str, **own: Any) -> T:
    """Create an instance of the dataclass `cls` from a TOML table. `own`: values of fields that are not in the table.

    Fields can be text, numbers, booleans, None, literals, dataclasses, lists, tuples, mappings from text, unions of
    these, Any, and `Annotated` with rules. Raises FedbenchError, which begins with `where` and the place in it.
    """
    _sane(raw, where)
    made: T = _record(cls, raw, where, ", ", own)
    return made


@dataclass(frozen=True)
class Between:
    """Rule: a number, or each number of a list, is in [low, high]."""

    low: float
    high: float

    def check(self, value: Any, where: str) -> None:
        for i, number in enumerate(value if isinstance(value, list | tuple) else [value], 1):
            place = f"{where} {i}" if isinstance(value, list | tuple) else where
            _require(self.low <= number <= self.high, place, f"must lie in {self.low:,} to {self.high:,}, not", number)


@dataclass(frozen=True)
class Among:
    """Rule: a text is one of these names."""

    what: str
    names: tuple[str, ...]

    def check(self, value: str, where: str) -> None:
        check_known(f"{self.what} in {where.rpartition(', ')[0]}", value, self.names)


@dataclass(frozen=True)
class NotEmpty:
    """Rule: a text, list or mapping is not empty."""

    def check(self, value: Any, where: str) -> None:
        if not value:
            raise FedbenchError(f"{where} must not be empty")


@dataclass(frozen=True)
class Some:
    """Rule: the keys of a mapping are fields of a dataclass or in `more`. Checks the values without converting them."""

    of: type
    without: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)  #: key -> type

    def check(self, value: Any, where: str) -> None:
        hints = {k: v for k, v in _hints(self.of).items() if k not in self.without} | dict(self.more)
        _entries(value, hints, where, ".")


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Field name -> type, for a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def _needed(cls: Any) -> list[str]:
    """The names of a dataclass's fields without default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]


def _record(cls: Any, raw: Any, where: str, joint: str, own: Mapping[str, Any]) -> Any:
    if not isinstance(raw, Mapping):
        raise FedbenchError(f"{where} must be a table of keys, not {shown(raw)}")
    for key in own:
        if key in raw:
            raise FedbenchError(f"{where}: unknown key '{key}'", "the file's place and name say it")
    hints = _hints(cls)
    values = _entries(raw, {k: v for k, v in hints.items() if k not in own} if own else hints, where, joint)
    for name in _needed(cls):
        if name not in values and name not in own:
            raise FedbenchError(f"{where} lacks '{name}'")
    try:
        return cls(**values, **own)
    except FedbenchError as error:  # a rule of the dataclass
        raise error.at(where) from error


def _entries(raw: Mapping[str, Any], hints: Mapping[str, Any], where: str, joint: str) -> dict[str, Any]:
    for key in raw:
        check_known(f"key in {where}", key, hints)
    return {
        key: value if type(value) is hints[key] else _value(hints[key], value, f"{where}{joint}{key}")
        for key, value in raw.items()
    }


def _value(hint: Any, value: Any, where: str, joint: str = ".") -> Any:
    kind, inner = _parts(hint)
    if kind is typing.Annotated:
        value = _value(hint.__origin__, value, where, joint)
        for rule in hint.__metadata__:
            rule.check(value, where)
        return value
    if not _fits(hint, value):
        raise FedbenchError(f"{where} must be {_name_of(hint)}, not {shown(value)}")
    if kind is typing.Union:
        return value if type(value) in inner else _value(next(o for o in inner if _fits(o, value)), value, where, joint)
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where, joint, {})
    if kind is Mapping:
        return {key: _value(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is list and all(type(item) is inner[0] for item in value):
        return list(value)
    if kind in (list, tuple):
        each = inner[:1] * len(value) if kind is list or inner[1:] == (...,) else inner
        if len(each) != len(value):
            raise FedbenchError(f"{where} must have {len(each)} entries, not {len(value)}")
        one = where.removesuffix("s") if any(map(dataclasses.is_dataclass, inner)) else where  # "row 3" of rows
        return kind(_value(h, item, f"{one} {i}", ", ") for i, (h, item) in enumerate(zip(each, value, strict=True), 1))
    return float(value) if kind is float else value


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The outer type of an annotation, and its type arguments."""
    if hasattr(hint, "__metadata__"):
        return typing.Annotated, ()
    kind = typing.get_origin(hint) or hint
    return typing.Union if kind is types.UnionType else kind, typing.get_args(hint)


#: Type -> Python types of its values after parsing.
_PARSED: dict[Any, Any] = {
    str: str,
    bool: bool,
    int: int,
    float: (int, float),
    types.NoneType: types.NoneType,
    list: (list, tuple),
    tuple: (list, tuple),
    Any: object,
}


def _fits(hint: Any, value: Any) -> bool:
    """Whether the value has the outer type of the annotation."""
    kind, inner = _parts(hint)
    if kind is typing.Annotated:
        return _fits(hint.__origin__, value)
    if kind is typing.Union:
        return any(_fits(option, value) for option in inner)
    if kind is typing.Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    parsed = _PARSED.get(kind, (dict, Mapping))  # isinstance is faster for dict than for Mapping
    return isinstance(value, parsed) and not (isinstance(value, bool) and kind in (int, float))


def _name_of(hint: Any) -> str:
    kind, inner = _parts(hint)
    if kind is typing.Annotated:
        return _name_of(hint.__origin__)
    if kind in (typing.Union, typing.Literal):
        return " or ".join(repr(o) if kind is typing.Literal else _name_of(o) for o in inner if o is not types.NoneType)
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(kind, "a list" if kind in (list, tuple) else "a table of keys")


_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 2, 60, 60, 60
#: Function: a value as a shortened text for a message.
shown = _short.repr


def _control(character: str) -> bool:
    """Whether a character is a surrogate, or a control character other than a line break or tab."""
    return character not in "\n\t\r" and unicodedata.category(character) in ("Cc", "Cs")


def _require(condition: bool, where: str, what: str, value: Any) -> None:
    if not condition:
        raise FedbenchError(f"{where} {what} {shown(value)}")
