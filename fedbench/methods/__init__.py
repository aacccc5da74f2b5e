"""Federated-learning methods, one file each; a method's name is its file's name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    from fedbench.methods.base import Method

_HERE = Path(__file__).parent
#: What a method may be called; its title may be any text.
_NAME = re.compile(r"[\w-]+")


def names() -> list[str]:
    """The methods that there are, by their files (nothing is imported)."""
    return sorted(p.stem for p in _HERE.glob("*.py") if p.stem not in ("__init__", "base"))


def load(name: str) -> tuple[type[Method], str | None]:
    """The method class of that name, and None; or for 'FILE.py:Class' that class and its file's SHA-256."""
    if ".py:" in name or name.endswith(".py"):
        return _load_file(name)
    if name not in names():
        raise unknown("method", name, names())
    return _only_class(importlib.import_module(f"fedbench.methods.{name}"), None, name), None


def _load_file(given: str) -> tuple[type[Method], str]:
    file, _, wanted = given.partition(":")
    path = Path(file)
    if not path.is_file():
        raise FedbenchError(f"no file {file} to take the method from")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    spec = importlib.util.spec_from_file_location(f"{__name__}.own_{digest[:12]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise FedbenchError(f"cannot load {file}: {type(error).__name__}: {error}") from error
    cls = _only_class(module, wanted or None, given)
    if not cls.name:
        cls.name = cls.__name__
    if not (isinstance(cls.name, str) and _NAME.fullmatch(cls.name)):
        raise FedbenchError(f"{file} names its method {cls.name!r}", "a name has letters, digits, _ and - only")
    cls.title = str(cls.title or cls.name)
    return cls, digest


def _only_class(module: object, wanted: str | None, given: str) -> type[Method]:
    from fedbench.methods.base import Method

    found = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__  # type: ignore[attr-defined]
    }
    if wanted is not None and wanted not in found:
        raise unknown(f"method class in {given}", wanted, found)
    if wanted is None and len(found) != 1:
        raise FedbenchError(f"{given} defines {len(found)} methods", "name one: FILE.py:Class")
    return found[wanted] if wanted else next(iter(found.values()))
