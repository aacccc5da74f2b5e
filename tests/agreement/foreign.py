"""Other projects' code, imported from the folder of a checkout and left unchanged on disk."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from fedbench.errors import FedbenchError
from fedbench.vision import torchvision


class Stub(ModuleType):
    """A library that a project imports and that the compared code does not use: every name is there, those of classes
    as classes, others as mocks."""

    __path__: list[str] = []  # noqa: RUF012  # so that it has submodules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if part := sys.modules.get(f"{self.__name__}.{name}"):
            return part
        return type(name, (mock.MagicMock,), {}) if name[0].isupper() else mock.MagicMock(name=name)


class Settings(dict[str, Any]):
    """A dictionary whose entries are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


@contextlib.contextmanager
def importable(folder: Path, imports: Sequence[str] = (), uses: Sequence[str] = ()) -> Iterator[None]:
    """Let modules be imported from a folder, and forget them afterwards, since projects use the same names (utils,
    models). Prints nothing of theirs.

    `imports`: libraries for which there is a stub where they are not installed; `uses`: those that must be there.
    Raises FedbenchError without them, or without the folder.
    """
    if not folder.is_dir():
        raise FedbenchError(f"there is no folder {folder}", "name the folder of a checkout")
    if lacking := [name for name in uses if missing(name)]:
        raise FedbenchError(f"the code in {folder} needs {' and '.join(lacking)}", "install what it requires")
    torchvision()  # which most of them import; here, also where a wheel lacks its operators
    before = set(sys.modules)
    for name in imports:
        if missing(name):
            parts = name.split(".")
            for k in range(len(parts)):
                sys.modules.setdefault(".".join(parts[: k + 1]), Stub(".".join(parts[: k + 1])))
    sys.path.insert(0, str(folder))
    silenced = logging.root.manager.disable
    logging.disable()
    random_states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silenced)
        sys.path.remove(str(folder))
        new = {name: sys.modules[name] for name in set(sys.modules) - before}
        for name in [name for name, module in new.items() if isinstance(module, Stub) or within(module, folder)]:
            del sys.modules[name]
        random.setstate(random_states[0])
        np.random.set_state(random_states[1])
        torch.set_rng_state(random_states[2])


def within(module: ModuleType, folder: Path) -> bool:
    """Whether a module, or a package without a file, is from this folder."""
    file = getattr(module, "__file__", None)
    paths = [file] if file else list(getattr(module, "__path__", []))
    return any(Path(path).is_relative_to(folder) for path in paths)


def missing(name: str) -> bool:
    """Whether a library cannot be imported."""
    try:
        importlib.import_module(name)
    except ImportError:
        return True
    return False


def commit(folder: Path) -> str:
    """The commit of a checkout. Raises FedbenchError if there is none, or if its code was changed."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        return None if done.returncode else done.stdout.strip()

    found, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    if found is None or changed is None:
        raise FedbenchError(f"{folder} is not a checkout of git", "clone the project")
    if changed:
        raise FedbenchError(f"{folder} differs from its commit: {changed.splitlines()[0]}", "clone the project anew")
    return found


def installed(package: str) -> str:
    """The version of an installed package, as its project tags it. Raises FedbenchError if it is not installed."""
    try:
        return f"v{version(package)}"
    except PackageNotFoundError:
        raise FedbenchError(f"{package} is not installed", f"pip install '{package}[simulation]'") from None
