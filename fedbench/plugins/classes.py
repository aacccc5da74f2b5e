"""A user's class from 'FILE.py:Class', or from 'FILE.py' alone where the file has only one of the kind."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from fedbench.errors import FedbenchError, unknown

T = TypeVar("T")


def is_file(reference: str) -> bool:
    """Whether a name that was given means a user's file."""
    return ".py:" in reference or reference.endswith(".py")


class Place(NamedTuple):
    """Where a class stands: the file, and the class's name if it was given."""

    file: Path
    name: str | None
    reference: str  #: as the user wrote it


def place(reference: str, what: str) -> Place:
    """The place of the `what` (such as "method") that is given as 'FILE.py:Class' or 'FILE.py'.

    Raises FedbenchError if there is no such file.
    """
    file, name = (reference, "") if reference.endswith(".py") else reference.rsplit(":", 1)
    try:
        path = Path(os.path.expanduser(file)).absolute()  # Path.expanduser would take './~x' for '~x'
        there = path.is_file()
    except (OSError, ValueError):  # a name too long, say
        there = False
    if not there:
        raise FedbenchError(f"no file {file} to take the {what} from")
    return Place(path, name or None, reference)


def classes(module: ModuleType) -> dict[str, type]:
    """The classes that a module defines itself, by their names."""
    own = vars(module).items()
    return {name: value for name, value in own if inspect.isclass(value) and value.__module__ == module.__name__}


def pick(module: ModuleType, base: type[T], wanted: str | None, reference: str, what: str) -> type[T]:
    """The module's own class derived from `base` that is wanted, or its only one. Raises FedbenchError if there is
    none, or more than one to choose from."""
    own = classes(module)
    fitting = {name: value for name, value in own.items() if issubclass(value, base)}
    if wanted is not None and wanted not in fitting:
        if wanted in own:
            raise FedbenchError(f"{reference} is no {what}", f"derive it from {base.__module__}.{base.__name__}")
        raise unknown(f"{what} class in {reference}", wanted, fitting)
    if wanted is None and len(fitting) != 1:
        raise FedbenchError(f"{reference} defines {len(fitting)} {what}s", "name one: FILE.py:Class")
    return fitting[wanted] if wanted else next(iter(fitting.values()))
