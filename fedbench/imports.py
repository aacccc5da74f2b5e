"""Static analysis of source files: their code without comments, their imports, and so the package's files that a
result depends on. The files are parsed, not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fedbench

PACKAGE = Path(fedbench.__file__).parent

#: Folders and files whose code can change a number. The others (specs, store, files, claims, choice of executor) decide
#: what is computed and where it is stored, which ids and checksums verify.
ROOMS = (
    "core",
    "data",
    "methods",
    "models",
    "options.py",
    "partitions",
    "ratios",
    "rng.py",
    "engine/training.py",
)
#: Files in ROOMS that only look things up: recipes and data files, whose checksums are part of an id, and networks by
#: name, whose own files count. Adding a data set or a network must not change the fingerprint of other results.
LOOKUPS = (
    "data/catalogue.py",
    "data/locate.py",
    "methods/declarations.py",
    "models/registry.py",
)


class Import(NamedTuple):
    """An import statement: `from MODULE import NAMES`, or `import MODULE` without names; `level`: leading dots."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


def imports(tree: ast.AST) -> Iterator[Import]:
    """The import statements of a module, also inside functions, except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)
        elif isinstance(node, ast.If) and _for_type_checkers(node.test):
            yield from imports(ast.Module(node.orelse, []))
        elif not isinstance(node, ast.expr):  # expressions contain no statements
            yield from imports(node)


def _for_type_checkers(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def closure(*files: str, statements: tuple[Import, ...] = ()) -> list[str]:
    """The files of the package, such as 'core/plan.py', that can change the results of `files` or of code with these
    import statements: the files and everything that they import, directly or indirectly, within ROOMS.

    A package's __init__ counts if the package itself is imported, not if only one of its modules is.
    """
    found: set[str] = set()
    waiting = [*files, *(file for one in statements for file in _files(one))]
    while waiting:
        file = waiting.pop()
        if file not in found and _can_change_numbers(file):
            found.add(file)
            waiting += _imported(file)
    return sorted(found)


def _can_change_numbers(file: str) -> bool:
    return file not in LOOKUPS and (file in ROOMS or file.split("/")[0] in ROOMS)


@cache
def _imported(file: str) -> tuple[str, ...]:
    """The package's files that a file of the package imports."""
    _, statements = _read((PACKAGE / file).read_bytes())
    return tuple(dict.fromkeys(name for one in statements for name in _files(one)))


@cache
def _files(statement: Import) -> tuple[str, ...]:
    """The package's files that an import statement refers to."""
    top, _, inside = statement.module.partition(".")
    if statement.level or top != "fedbench":
        return ()
    base = inside.replace(".", "/")
    named = [_file(f"{base}/{name}".strip("/")) for name in statement.names]
    if None in named or not named:  # a name that is not a module is defined in the module itself
        named.append(_file(base))
    return tuple(file for file in named if file is not None)


def _file(module: str) -> str | None:
    """The file of a module, which is given as a path such as 'core/plan'; None if there is no such module."""
    for file in (f"{module}/__init__.py", f"{module}.py"):  # in the order that Python uses
        if module and (PACKAGE / file).is_file():
            return file
    return None


def code(text: bytes) -> bytes:
    """The code of a source file: its syntax tree without comments, layout and docstrings, equal in all Python versions.
    Raises SyntaxError, ValueError or RecursionError if the text is not valid Python."""
    return _read(text)[0]


@cache  # methods share most of their files, and a table asks for every method of the store
def _read(text: bytes) -> tuple[bytes, tuple[Import, ...]]:
    """The code of a source file and its import statements."""
    tree = ast.parse(text)
    statements = tuple(imports(tree))
    return _shape(_without_docstrings(tree)).encode(), statements


def _without_docstrings(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # expressions contain no definitions
            _without_docstrings(child)
    return node


def _shape(node: Any) -> str:
    """A syntax tree as text, without empty fields, because these differ between Python versions."""
    if isinstance(node, list):
        return f"[{', '.join([_shape(item) for item in node])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    start = text = f"('{type(node).__name__}'"
    for name in node._fields:
        value = getattr(node, name, None)
        if value is not None and value != []:
            text += f", ('{name}', {_shape(value)})"
    return f"{text},)" if text == start else f"{text})"
