"""What the modules of `fedbench.api` share: the store and data folders, HTML for notebooks, names of users' classes."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedbench.errors import FedbenchError
from fedbench.options import Recorded
from fedbench.reader import shown
from fedbench.specs.base import native
from fedbench.store import Store
from fedbench.words import folders_of, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbench.screen import Screen

#: A store or its folder; None: the folder FEDBENCH_HOME, or ~/.fedbench if that is not set.
Home: TypeAlias = Store | Path | str | None


def store_of(home: Home) -> Store:
    """The store itself, opened if `home` is a folder or None."""
    return home if isinstance(home, Store) else Store(home)


def roots() -> list[Path]:
    """The folders listed in FEDBENCH_DATA, which hold the user's data sets."""
    return folders_of(os.environ.get("FEDBENCH_DATA", ""), "FEDBENCH_DATA")


def screen() -> Screen:
    """A console on standard error, for progress and remarks."""
    from fedbench.screen import Screen

    return Screen(stderr=True)


def say(line: str) -> None:
    """Print a remark on standard error."""
    screen().print(line, soft_wrap=True)


#: Width of the terminal output, in characters.
WIDTH = 120
_FORMAT = '<pre style="line-height:1.25;font-family:monospace;background:none;color:inherit">{code}</pre>'


def coloured(parts: Iterable[RenderableType]) -> str:
    """The terminal output of the parts as coloured HTML."""
    from fedbench.screen import Screen

    # Without force_jupyter=False, rich shows each part as a separate output of the notebook cell.
    shape: dict[str, Any] = {"width": WIDTH, "force_terminal": True, "force_jupyter": False}
    console = Screen(record=True, file=io.StringIO(), color_system="truecolor", **shape)
    for part in parts:
        console.print(part, soft_wrap=False)
    return console.export_html(code_format=_FORMAT, inline_styles=True)


def card(title: str, rows: Mapping[str, str]) -> str:
    """An HTML table of names and values under a title."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(plain(name))}</th>'
        f'<td style="text-align:left">{escape(plain(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="text-align:left;font-weight:bold">{escape(plain(title))}</caption>{cells}</table>'


#: Name of the base class of each kind. These are names because importing most of the classes needs torch.
_BASES = {
    "method": "fedbench.methods.base.Method",
    "model": "fedbench.models.base.FLModel",
    "partitioner": "fedbench.partitions.scheme.Scheme",
}


def name_of(what: Any, called: str = "method") -> str:
    """The name or the 'FILE.py:Class' by which the commands name it. Raises FedbenchError if `what` is not of the kind
    that `called` names, or if it is a class that cannot be imported from a file."""
    if isinstance(what := native(what), str | os.PathLike):
        return str(what)
    kind: Any = what if isinstance(what, type) else type(what)
    bases = [base for name, base in _BASES.items() if name in called]
    if not {f"{one.__module__}.{one.__name__}" for one in kind.__mro__} & {*bases}:
        such = f"a name, FILE.py:Class, or a class derived from {' or '.join(bases)}"
        raise FedbenchError(f"{shown(what)} is no {called}", f"give {such}")
    place = kind.__module__
    if place.startswith(("fedbench.methods.", "fedbench.partitions.schemes.")):
        return str(kind.name) if place.startswith("fedbench.methods.") else place.rpartition(".")[2]
    module, name = sys.modules.get(place), kind.__name__
    file = getattr(module, "__file__", None)
    if place != "__main__" and file and getattr(module, name, None) is kind:
        return f"{file}:{name}"
    what = (
        "a class of __main__ (a notebook's cell, a script)" if place == "__main__" else f"no name in a file of {place}"
    )
    raise FedbenchError(
        f"{name} is {what}, from which no run can be repeated",
        f"write it into a file (in a notebook: %%writefile mine.py), and give mine.py:{name} or import it from there",
    )


def options_of(what: Any) -> dict[str, Any]:
    """The fields that an object was given, or that differ from its class's defaults; empty for a name or a class."""
    if isinstance(what, type) or not dataclasses.is_dataclass(what):
        return {}
    given: frozenset[str] = what.given if isinstance(what, Recorded) else frozenset()
    values = {f.name: (getattr(what, f.name), f.default) for f in dataclasses.fields(what)}
    return {name.rstrip("_"): value for name, (value, default) in values.items() if name in given or value != default}
