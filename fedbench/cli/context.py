"""What every command of a call has: the store, the data folders, and the consoles that it prints to."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbench.machine import DEBUG
from fedbench.screen import Screen
from fedbench.store import Store, default_home
from fedbench.words import folders_of, path_of

if TYPE_CHECKING:
    from fedbench.results.frame import Frame

#: Width of output to a file or a pipe, in characters: enough for every list.
FILE_WIDTH = 160


@dataclass
class GlobalOptions:
    """The application's options, set once for each call."""

    home: Path | None = None
    roots: list[Path] = field(default_factory=list)
    debug: bool = False


_context = GlobalOptions()


def configure(home: Path | None, data: str | None, debug: bool) -> None:
    """Set the application's options for the command of this call."""
    where, folders = ("--data", data) if data is not None else ("FEDBENCH_DATA", os.environ.get("FEDBENCH_DATA", ""))
    _context.home = None if home is None else path_of(str(home), "--home")
    _context.roots = folders_of(folders, where)
    _context.debug = debug
    os.environ.pop(DEBUG, None)
    if debug:
        os.environ[DEBUG] = "1"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection for commands that only read and print: they create few reference cycles, and the
    collector would take a tenth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def home() -> Path:
    """The folder of the store of this call."""
    return default_home().absolute() if _context.home is None else _context.home.absolute()


def store() -> Store:
    """The store of this call."""
    return Store(_context.home)


def frame(shipped: bool = True) -> Frame:
    """The runs of the store and, if `shipped`, of result packs; prints a line for each pack that cannot be read."""
    from fedbench.results.frame import Frame

    return Frame.of(store(), lambda problem: err().print(str(problem), markup=False)) if shipped else Frame(store())


def roots() -> list[Path]:
    """Folders with the user's data sets, in order of preference."""
    return list(_context.roots)


def debug() -> bool:
    """Whether --debug was given."""
    return _context.debug


def out() -> Console:
    """A console for results on standard output: in colour on a terminal, else plain."""
    console = Screen()
    if not console.is_terminal:
        console.soft_wrap = True
        if "COLUMNS" not in os.environ:
            console.width = FILE_WIDTH
    return console


def err() -> Console:
    """A console for progress and remarks on standard error; lines are wrapped only on a terminal."""
    console = Screen(stderr=True)
    console.soft_wrap = not console.is_terminal
    return console
