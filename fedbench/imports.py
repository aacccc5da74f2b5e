"""What of a source file is code, what it imports, and so which of fedbench's files a result depends on. Nothing is
imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fedbench

PACKAGE = Path(fedbench.__file__).parent

#: Where code can change a number. What lies elsewhere (specs, store, files, claims, the choice of an executor) says
#: what is to be made or where it lies, and ids and checksums hold that fast.
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
#: In these rooms, but looking things up: recipes and files, whose checksums are part of an id, and networks by name,
#: whose files count by themselves. A new data set or network makes no result older.
LOOKUPS = (
    "data/catalogue.py",
    "data/locate.py",
    "methods/declarations.py",
    "models/registry.py",
)


class Import(NamedTuple):
    """An import statement: `from MODULE import NAMES`, or with no names `import MODULE`; `level` counts the dots."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


def imports(tree: ast.AST) -> Iterator[Import]:
    """The import statements of a module, also those inside functions, but for what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)
        elif isinstance(node, ast.If) and _for_type_checkers(node.test):
            yield from imports(ast.Module(node.orelse, []))
        elif not isinstance(node, ast.expr):  # no expression holds a statement
            yield from imports(node)


def _for_type_checkers(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def closure(*files: str, statements: tuple[Import, ...] = ()) -> list[str]:
    """The files of the package, such as 'core/plan.py', that can change what these files compute (and what a file with
    these import statements does): themselves and all that they import, again and again, within ROOMS.

    A package's __init__ counts where the package itself is imported, not where one of its modules is.
    """
    found: set[str] = set()
    waiting = [*files, *(file for one in statements for file in _files(one))]
    while waiting:
        file = waiting.pop()
        if file not in found and _counts(file):
            found.add(file)
            waiting += _imported(file)
    return sorted(found)


def _counts(file: str) -> bool:
    return file not in LOOKUPS and (file in ROOMS or file.split("/")[0] in ROOMS)


@cache
def _imported(file: str) -> tuple[str, ...]:
    """The package's files that one of them imports."""
    _, statements = _read((PACKAGE / file).read_bytes())
    return tuple(dict.fromkeys(name for one in statements for name in _files(one)))


@cache
def _files(statement: Import) -> tuple[str, ...]:
    """The package's files that an import statement names."""
    top, _, inside = statement.module.partition(".")
    if statement.level or top != "fedbench":
        return ()
    base = inside.replace(".", "/")
    named = [_file(f"{base}/{name}".strip("/")) for name in statement.names]
    if None in named or not named:  # a name that is no module lives in the module itself
        named.append(_file(base))
    return tuple(file for file in named if file is not None)


def _file(module: str) -> str | None:
    """The file of a module given as a path within the package, if there is such a module."""
    for file in (f"{module}/__init__.py", f"{module}.py"):  # as Python looks for it
        if module and (PACKAGE / file).is_file():
            return file
    return None


def code(text: bytes) -> bytes:
    """The code of a source file: its syntax tree without comments, layout and docstrings, the same for every version of
    Python. Raises SyntaxError, ValueError or RecursionError for what is no Python."""
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
        if not isinstance(child, ast.expr):  # no expression holds a definition
            _without_docstrings(child)
    return node


def _shape(node: Any) -> str:
    """A syntax tree as text. Empty fields, of which each version of Python has others, are left out."""
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
