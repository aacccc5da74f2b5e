"""A class of the user's own as FILE.py:Class: the file that it comes from, or if it was written in a notebook or a
script, a file made of its source and of all that the source uses. So a run of it is known by that text, and can be
repeated from the file alone."""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import hashlib
import inspect
import linecache
import symtable
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import write_whole

_FIRST = "from __future__ import annotations\n"
_HINT = "write it into a file, and give FILE.py:{0} or import it from there"


def reference(kind: type, folder: Path) -> str:
    """'FILE.py:Class' of a class; a file made of a notebook's source is put into the folder.

    Raises FedbenchError where nobody can tell what source the class is made of.
    """
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ != "__main__" and file and getattr(module, kind.__name__, None) is kind:
        return f"{file}:{kind.__name__}"
    text = _Source(kind).text
    path = folder / f"{kind.__name__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    return f"{path}:{kind.__name__}"


class _Source:
    """The text of a class and of what it uses: imports in order, and definitions before what uses them."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.imports: set[str] = set()
        self.pieces: dict[str, str] = {}
        self._add(kind.__name__, kind)

    @property
    def text(self) -> str:
        return (
            "\n\n".join([_FIRST + "\n" + "\n".join(sorted(self.imports)), *filter(None, self.pieces.values())]) + "\n"
        )

    def _add(self, name: str, value: Any) -> None:
        if name in self.pieces:
            return
        place = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            self._check_installed(value.__name__)
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
        elif isinstance(value, type | FunctionType) and not _importable(value):
            self._define(name, value)
        elif own := _importable(value):
            self._check_installed(str(place))
            self.imports.add(f"from {place} import {own}" + (f" as {name}" if name != own else ""))
        elif _is_plain(value):
            self.pieces[name] = f"{name} = {value!r}"
        else:
            raise FedbenchError(
                f"{self.kind.__name__} uses {name}, a {type(value).__name__}, whose source cannot be told",
                f"make it inside the class, or {_HINT.format(self.kind.__name__)}",
            )

    def _define(self, name: str, value: type | FunctionType) -> None:
        self.pieces[name] = ""  # it may use itself
        text, namespace = self._statement(name, value), _functions(value)[0].__globals__
        needed, told = _globals_of(text), _annotations_of(text)
        for other in sorted(needed | told):
            outside = other in namespace and not hasattr(builtins, other) and not other.startswith("__")
            if outside and (other in needed or _importable(namespace[other])):  # an annotation is never run
                self._add(other, namespace[other])
        del self.pieces[name]
        self.pieces[name] = text

    def _statement(self, name: str, value: type | FunctionType) -> str:
        """The statement that defines a class or a function in the user's session: all its functions are compiled from
        it. Raises FedbenchError where there is none; of a class without a function nothing is kept to tell it by."""
        codes = {one.__code__ for one in _functions(value)}
        for file in dict.fromkeys(code.co_filename for code in codes):
            text = "".join(linecache.getlines(file))
            for node in _definitions(text):
                if node.name == value.__name__ == name and codes <= _compiled(node, codes):
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
        why = "" if codes else ", which has no function"
        raise FedbenchError(
            f"nobody can tell the source of {value.__qualname__}{why}", _HINT.format(self.kind.__name__)
        )

    def _check_installed(self, module: str) -> None:
        """Raise FedbenchError for a module whose code may change unseen: one that is neither installed nor ours."""
        file = getattr(sys.modules.get(module), "__file__", None)
        installed = ("site-packages", "dist-packages")
        if file is None or module.split(".")[0] == "fedbench" or any(part in installed for part in Path(file).parts):
            return
        if not Path(file).is_relative_to(sysconfig.get_paths()["stdlib"]):
            name = self.kind.__name__
            raise FedbenchError(f"{name} uses {file}, which may change unseen", f"write {name} into a file beside it")


def _definitions(text: str) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """The classes and functions that a text defines; none of a cell with a line of the shell."""
    with contextlib.suppress(SyntaxError):
        yield from (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef))


def _compiled(node: ast.stmt, like: set[CodeType]) -> set[CodeType]:
    """All code in a statement, compiled as `like` was. Code is equal where text and lines are."""
    flags = __future__.annotations.compiler_flag & next(iter(like)).co_flags
    found, waiting = set(), [compile(ast.Module([node], []), "", "exec", flags, dont_inherit=True)]
    while waiting:
        inner = [one for one in waiting.pop().co_consts if isinstance(one, CodeType)]
        found |= set(inner)
        waiting += inner
    return found


def _functions(value: type | FunctionType) -> list[FunctionType]:
    """The functions of a class or a function that were written in the user's session."""
    every = [value] if isinstance(value, FunctionType) else map(_function, vars(value).values())
    return [one for one in every if one is not None and not _importable(one)]


def _function(value: Any) -> FunctionType | None:
    """The function of a method, whatever it is wrapped in."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) and value.__code__.co_filename != "<string>" else None


def _importable(value: Any) -> str:
    """The name by which a value can be imported from its module; empty for one of the user's session."""
    place = getattr(value, "__module__", None)
    name = getattr(value, "__name__", None) or getattr(value, "_name", None)
    if not isinstance(place, str) or place == "__main__" or not isinstance(name, str):
        return ""
    module = sys.modules.get(place)
    return name if module is not None and getattr(module, name, None) is value else ""


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _globals_of(text: str) -> set[str]:
    """The names that a statement takes from outside when it is run, and later."""
    top = symtable.symtable(_FIRST + text, "<session>", "exec")
    names = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    waiting = top.get_children()
    while waiting:
        table = waiting.pop()
        names |= {one.get_name() for one in table.get_symbols() if one.is_global() and one.is_referenced()}
        waiting += table.get_children()
    return names


def _annotations_of(text: str) -> set[str]:
    """The names in annotations, which dataclasses look at."""
    nodes = [getattr(node, "annotation", None) or getattr(node, "returns", None) for node in ast.walk(ast.parse(text))]
    return {one.id for node in nodes if node for one in ast.walk(node) if isinstance(one, ast.Name)}
