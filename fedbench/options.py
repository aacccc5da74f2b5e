"""Options that are part of a spec's id: dataclass fields with help, bounds and choices.

Hyper-parameters of methods and options of partitioners are such fields. Each is an option of a command, a key in TOML
files and a part of a spec. `converted` converts their values, given as text or in Python, and arguments of public
functions (`checked`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from fedbench.errors import FedbenchError, check_known
from fedbench.reader import shown
from fedbench.specs import Plain
from fedbench.specs.base import native
from fedbench.specs.fields import option as option
from fedbench.specs.fields import out_of_bounds

F = TypeVar("F", bound=Callable[..., Any])

#: Largest integer of an option (epochs, clusters, restarts): a run with more would never finish.
MOST = 1_000_000

#: Type of an option on the command line -> its name in errors.
VALUES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


class Recorded:
    """Base of dataclasses whose objects know which fields they were given (`given`). A value that is given holds, even
    if it is the default; one that is not leaves room for another default, such as a protocol's."""

    given: frozenset[str]

    def __new__(cls, *values: Any, **named: Any) -> Self:
        made = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        object.__setattr__(made, "given", frozenset({*names[: len(values)], *named}))
        return made


def of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Option name -> dataclass field; `from_` has the name "from", because that is a Python keyword."""
    return {field.name.rstrip("_"): field for field in dataclasses.fields(cls)}


def converted(kind: Any, given: Any) -> Any:
    """Convert a Python or NumPy value, or a text, to the type `kind` (a key of VALUES). Raises ValueError for an
    invalid value; booleans and arrays are not numbers."""
    given = os.fspath(given) if kind is str and isinstance(given, os.PathLike) else native(given)
    if kind is bool and isinstance(given, str | bool):
        if (text := str(given).lower()) in ("true", "false"):
            return text == "true"
    elif kind is not bool and isinstance(given, str if kind is str else str | int | float) and type(given) is not bool:
        value = kind(given)
        if kind is not int or float(given) == value:
            return value
    raise ValueError


def parse(
    owner: str, name: str, kind: Any, given: Any, choices: tuple[Any, ...] = (), most: float = MOST, hint: str = ""
) -> Plain:
    """Convert the value of an option of `owner` to `kind` (a key of VALUES); `most` bounds integers. Raises
    FedbenchError with this hint for an invalid value."""
    option = name.replace("_", "-")
    try:
        value: Plain = converted(kind, given)
    except (ValueError, OverflowError):
        raise FedbenchError(f"--{option} of {owner} takes {VALUES[kind]}, not {shown(given)}", hint) from None
    if isinstance(value, int):
        check(value <= most, owner, option, value, f"at most {most:,}")
    if choices:
        check_known(f"value of --{option}", str(value), [*map(str, choices)])
    return value


def check_bounds(owner: str, option: str, field: dataclasses.Field[Any], value: Plain) -> None:
    """Raise FedbenchError for a number outside the bounds of its field."""
    wanted = out_of_bounds(field, value)
    check(not wanted, owner, option.replace("_", "-"), value, wanted)


def check_fields(cls: type, where: str, what: str) -> None:
    """Raise FedbenchError if a user's class has option fields but is not a dataclass, which makes them ineffective."""
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            raise FedbenchError(
                f"{name} of {where} is no {what}, as the class is no dataclass", "write @dataclass(frozen=True) above"
            )


def check(condition: bool, owner: str, option: str, value: Plain, wanted: str) -> None:
    """Raise FedbenchError about an option out of range unless `condition` is true."""
    if not condition:
        raise FedbenchError(f"--{option} of {owner} must be {wanted}, not {value}")


def checked(function: F) -> F:
    """Decorator for public functions: check arguments by their annotations, and convert numbers and booleans like those
    of options. The decorated function raises FedbenchError, which names the argument, for an invalid one."""
    signature, called = inspect.signature(function), function.__qualname__.removesuffix(".__init__")

    @functools.cache  # at the first call: annotations may name classes defined below the function
    def hints() -> dict[str, Any]:
        texts = {name: text for name, text in function.__annotations__.items() if name != "return"}
        return typing.get_type_hints(types.SimpleNamespace(__annotations__=texts), function.__globals__)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*args, **named)
        except TypeError:
            return function(*args, **named)  # raises the usual TypeError
        for name, hint in hints().items():
            if name in given.arguments:
                every = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                value, fit = given.arguments[name], functools.partial(_argument, f"{called}: {name}", hint)
                given.arguments[name] = tuple(map(fit, value)) if every else fit(value)
        return function(*given.args, **given.kwargs)

    return typing.cast(F, call)


def _argument(where: str, hint: Any, value: Any) -> Any:
    such = ""
    with contextlib.suppress(ValueError, OverflowError):
        return _fitted(hint, value)
    with contextlib.suppress(ValueError, OverflowError):
        such = f"such as {[_fitted(typing.get_args(hint)[0], value)]}" if typing.get_origin(hint) is Sequence else ""
    raise FedbenchError(f"{where} must be {_called(hint)}, not {shown(value)}", such)


def _fitted(hint: Any, value: Any) -> Any:
    """Convert a value to an annotation's type. Raises ValueError if that is impossible."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        for option in inner:
            with contextlib.suppress(ValueError, OverflowError):
                return _fitted(option, value)
    elif kind is Sequence:
        return [_fitted(inner[0], one) for one in several(value)]
    elif kind in VALUES:
        value = converted(kind, value)
        if kind is not float or math.isfinite(value):
            return value
    elif kind is Any or isinstance(value, kind):
        return value
    raise ValueError


def several(value: Any) -> list[Any]:
    """The values of a list, tuple, range or one-dimensional array. Raises ValueError for anything else."""
    if isinstance(value, list | tuple | range) or getattr(value, "ndim", None) == 1:
        return list(value)
    raise ValueError


def _called(hint: Any) -> str:
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return " or ".join(_called(one) for one in inner if one is not types.NoneType)
    if kind is Sequence:
        return f"a list, each {_called(inner[0])}"
    return {**VALUES, str: "text"}.get(kind) or f"a{'n' * (kind.__name__[0] in 'AEIOU')} {kind.__name__}"
