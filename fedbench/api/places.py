"""Where Python works: the store, the folders with data, the screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedbench.store import Store
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.screen import Screen

#: A store, or the folder of one; None: that of FEDBENCH_HOME, else ~/.fedbench.
Home: TypeAlias = Store | Path | str | None


def store_of(home: Home) -> Store:
    """The store that is meant."""
    return home if isinstance(home, Store) else Store(home)


def roots() -> list[Path]:
    """The folders of FEDBENCH_DATA, where the user keeps data sets."""
    folders = os.environ.get("FEDBENCH_DATA", "")
    return [path_of(one, "FEDBENCH_DATA") for one in folders.split(os.pathsep) if one]


def screen() -> Screen:
    """Standard error, for progress and remarks."""
    from fedbench.screen import Screen

    return Screen(stderr=True)


def say(line: str) -> None:
    """A remark, on standard error."""
    screen().print(line, soft_wrap=True)
