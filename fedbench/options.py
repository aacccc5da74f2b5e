"""Options that are part of an identity: fields of a dataclass with their help, bounds and choices.

A method's hyper-parameters are such fields, and a partitioner's: what is an option of a command is a key of TOML files
and a part of a spec at once.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from fedbench.errors import FedbenchError, unknown
from fedbench.specs import Plain

#: A whole number of an option (epochs, clusters, restarts) is at most this: more is work without end.
MOST = 1_000_000

#: The types that an option may have on the command line, and what its value is called.
VALUES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


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
) -> Any:
    """A field that is at once a command-line option and part of an identity; without a default it must be given. It
    must be one of the choices, at `least` and at `most`, `above` and `below` these bounds; a whole number is at most
    MOST. `stored` is its key in stored specs, where that is another than the field's name. `later` is said of a
    hyper-parameter that came when its method had runs: at its default it is no part of a run's identity."""
    bounds = {"least": least, "above": above, "most": most, "below": below}
    text = {"help": help, "symbol": symbol, "source": source, "choices": choices, "bounds": bounds, "stored": stored}
    text["later"] = later
    return dataclasses.field(default=default, metadata=text)


def of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The options of a dataclass by name (a trailing underscore of Python's is dropped)."""
    return {field.name.rstrip("_"): field for field in dataclasses.fields(cls)}


def parse(owner: str, name: str, kind: Any, given: Any, choices: tuple[str, ...] = (), most: float = MOST) -> Plain:
    """The value of `owner`'s option of this type (one of VALUES) that is given, perhaps as text; a whole number is at
    `most` this. Raises FedbenchError for one that is none."""
    option = name.replace("_", "-")
    try:
        if kind is bool:
            value: Plain = given if isinstance(given, bool) else {"true": True, "false": False}[str(given).lower()]
        else:
            value = kind(given)
        if kind is int and float(given) != value:
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError):
        raise FedbenchError(f"--{option} of {owner} takes {VALUES[kind]}, not '{given}'") from None
    if isinstance(value, int):
        check(value <= most, owner, option, value, f"at most {most:,}")
    if choices and value not in choices:
        raise unknown(f"value of --{option}", str(value), choices)
    return value


def check_bounds(owner: str, option: str, field: dataclasses.Field[Any], value: Plain) -> None:
    """Raise FedbenchError for a number that is out of the bounds of its `option`."""
    bounds = field.metadata.get("bounds", {})
    lower = next(((kind, bounds[kind]) for kind in ("least", "above") if bounds.get(kind) is not None), None)
    upper = next(((kind, bounds[kind]) for kind in ("most", "below") if bounds.get(kind) is not None), None)
    if lower and upper:
        left, right = "[" if lower[0] == "least" else "(", "]" if upper[0] == "most" else ")"
        wanted = f"in {left}{lower[1]:g}, {upper[1]:g}{right}"
    else:
        words = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
        wanted = " and ".join(f"{words[kind]} {bound:g}" for kind, bound in filter(None, (lower, upper)))
    holds: dict[str, Any] = {"least": operator.ge, "above": operator.gt, "most": operator.le, "below": operator.lt}
    for kind, bound in filter(None, (lower, upper)):
        check(bool(holds[kind](value, bound)), owner, option.replace("_", "-"), value, wanted)


def check(condition: bool, owner: str, option: str, value: Plain, wanted: str) -> None:
    """Raise FedbenchError about an option out of range."""
    if not condition:
        raise FedbenchError(f"--{option} of {owner} must be {wanted}, not {value}")
