"""What every command shares: the store, the data folders, the consoles."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedbench.screen import Screen
from fedbench.store import Store
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.results.shelf import Shelf

#: A file or a pipe has no width of its own: wide enough for every list.
FILE_WIDTH = 160


@dataclass
class Context:
    """Set once a call from the application's options."""

    home: Path | None = None
    roots: list[Path] = field(default_factory=list)
    debug: bool = False


_context = Context()


def configure(home: Path | None, data: str | None, debug: bool) -> None:
    """Keep the application's options for the command that follows."""
    where, folders = ("--data", data) if data is not None else ("FEDBENCH_DATA", os.environ.get("FEDBENCH_DATA", ""))
    _context.home = None if home is None else path_of(str(home), "--home")
    _context.roots = [path_of(p, where) for p in folders.split(os.pathsep) if p]
    _context.debug = debug


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """For commands that read and print: they make hardly any garbage that only Python's collector finds, and its search
    is a tenth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def store() -> Store:
    """The store that this call works on."""
    return Store(_context.home)


def shelf() -> Shelf:
    """The shipped results of this call; packs that cannot be read are told."""
    from fedbench.results.shelf import Shelf

    return Shelf.of(store(), lambda problem: err().print(str(problem), markup=False))


def roots() -> list[Path]:
    """Folders where the user keeps data sets, in order of preference."""
    return list(_context.roots)


def debug() -> bool:
    """Whether --debug was given."""
    return _context.debug


def out() -> Console:
    """Results, on standard output: in colour on a terminal, plain elsewhere."""
    console = Screen()
    if not console.is_terminal:
        console.soft_wrap = True
        if "COLUMNS" not in os.environ:
            console.width = FILE_WIDTH
    return console


def err() -> Console:
    """Progress and remarks, on standard error; a line is broken only where a terminal needs it."""
    console = Screen(stderr=True)
    console.soft_wrap = not console.is_terminal
    return console


def print_json(value: Any) -> None:
    """Machine-readable output: one JSON document, no colour, no wrapping."""
    print(json.dumps(value, indent=1, default=str))
