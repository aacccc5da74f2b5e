"""The source of a plug-in: a user's file and what its import statements import from the same folder."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedbench.errors import FedbenchError
from fedbench.imports import Import, code, imports
from fedbench.plugins import FILES, PluginError, in_words, mistake, shown


class Module(NamedTuple):
    """A module of a plug-in: its file (a folder for a package without __init__.py) and its text, which is read once."""

    file: Path
    text: bytes

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py" or self.file.suffix != ".py"


@dataclass(frozen=True)
class Plugin:
    """A user's file and all modules that it imports from its folder, by their names relative to that folder."""

    main: str
    modules: dict[str, Module]
    statements: tuple[Import, ...]  #: all import statements in these modules

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file's code (no comments, no docstrings). If the plug-in has more modules: SHA-256 of the
        checksums of all modules and the relative paths of the others."""
        own = self.modules[self.main]
        lines = [hashlib.sha256(code(own.text)).hexdigest()]
        for name, module in sorted(self.modules.items()):
            if name != self.main:
                place = module.file.relative_to(own.file.parent).as_posix()
                lines.append(f"{hashlib.sha256(code(module.text)).hexdigest()} {place}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest() if len(lines) > 1 else lines[0]

    def classes(self, assigned: bool = False) -> set[str]:
        """Names of all classes that the file defines; if `assigned`, also all assigned names, which may be classes."""
        nodes = list(ast.walk(ast.parse(self.modules[self.main].text)))
        names = {n.id for n in nodes if assigned and isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return names | {node.name for node in nodes if isinstance(node, ast.ClassDef)}

    def functions(self) -> set[str]:
        """Names of the functions that the file defines, also within `if` and `try`, but not in classes or functions."""
        found, waiting = set[str](), [*ast.parse(self.modules[self.main].text).body]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif not isinstance(node, ast.ClassDef | ast.AsyncFunctionDef):
                waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        return found


#: File -> the plug-in that another process read from it.
_given: dict[Path, Plugin] = {}


def give(plugin: Plugin) -> None:
    """Take a plug-in as another process read it, in place of its files, which may be missing or other ones here."""
    _given[plugin.modules[plugin.main].file] = plugin
    FILES.update(str(module.file) for module in plugin.modules.values())


def is_there(file: Path) -> bool:
    """Whether `read` finds a plug-in: in a file, or as another process gave it."""
    return file in _given or file.is_file()


def read(file: Path) -> Plugin:
    """The plug-in of a file, as it was given, or found by following import statements; no code is run.

    Raises FedbenchError for a file that cannot be read, and PluginError for one that is not valid Python.
    """
    if file in _given:
        return _given[file]
    main = file.stem.replace(".", "_")
    modules: dict[str, Module] = {}
    statements: list[Import] = []
    waiting = [(main, file)]
    while waiting:
        name, path = waiting.pop()
        if name in modules:
            continue
        modules[name] = module = Module(path, _text(path))
        own = list(imports(_parsed(module)))
        statements += own
        package = name.split(".") if module.is_package else name.split(".")[:-1]
        named = {candidate for one in own for candidate in _named(one, package)}
        waiting += [(n, beside) for n in sorted(named - {main}) if (beside := _locate(file.parent, n))]
    return Plugin(main, modules, tuple(statements))


def _text(path: Path) -> bytes:
    try:
        return b"" if path.is_dir() else path.read_bytes()
    except OSError as error:
        raise FedbenchError(f"cannot read {shown(path)} ({error.strerror})") from error


def _parsed(module: Module) -> ast.Module:
    FILES.add(str(module.file))
    try:
        tree = ast.parse(module.text, str(module.file))
        code(module.text)  # recurses deeper than the parser, so it may fail where parsing does not
        return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = mistake(error) or f"{shown(module.file)}: {in_words(error)}"
        raise PluginError(f"cannot load {line}") from error


def _named(one: Import, package: list[str]) -> Iterator[str]:
    """Modules that a statement may import, relative to the plug-in's folder; for 'from a import b' also 'a.b'."""
    above = one.level - 1 if one.level else len(package)
    if above > len(package):
        return
    base = [*package[: len(package) - above], *filter(None, one.module.split("."))]
    for path in ([*base, name] for name in ("", *one.names)):
        yield from (".".join(path[:k]) for k in range(1, len(path) + 1) if all(path[:k]))


def _locate(folder: Path, name: str) -> Path | None:
    """The file of the module if it is in the folder, else None; for a package without an __init__.py, its folder."""
    top, path = name.split(".")[0], folder.joinpath(*name.split("."))
    if top == "fedbench" or top in sys.builtin_module_names:
        return None
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    if path.is_dir() and any(path.glob("*.py")):
        installed = find_spec(top)  # Python prefers an installed module to a folder without __init__.py
        return path if installed is None or installed.origin is None else None
    return None
