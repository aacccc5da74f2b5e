"""What methods declare, read from their source: nothing is imported, so that a report needs no torch."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedbench.declaration import PLAIN, Declaration, HyperParameter, first_line
from fedbench.errors import FedbenchError, unknown
from fedbench.imports import PACKAGE
from fedbench.measure import Measure
from fedbench.plugins.load import is_file, place
from fedbench.plugins.mistakes import shown
from fedbench.plugins.source import read

_METHODS = PACKAGE / "methods"
#: What makes a hyper-parameter of a dataclass's field.
_HYPERPARAMETER = "hyperparameter"
_HINT = "write it as a plain value, or as a tuple of Measure(...) of plain values"


@cache
def names() -> list[str]:
    """All methods of fedbench's own, by their files and packages."""
    modules = (*_METHODS.glob("*.py"), *(path.parent for path in _METHODS.glob("*/__init__.py")))
    return sorted({path.stem for path in modules} - {"__init__", "base", "parts"})


@cache
def built_in() -> dict[str, Declaration]:
    """What each of them declares, by name."""
    return {name: of(name) for name in names()}


@cache
def measures() -> dict[str, Measure]:
    """All measures of the built-in methods, by name."""
    return {one.name: one for method in built_in().values() for one in method.measures}


def of(method: str) -> Declaration:
    """What the method of that name, 'FILE.py:Class' or the only one of 'FILE.py' declares.

    Raises FedbenchError for an unknown one, for a file that cannot be parsed, and for what only running it would tell.
    """
    if not is_file(method):
        return _of_built_in(method)
    at = place(method, "method")
    return replace(_declared(*_pick(_Source(at.file), at.name, method)), source=read(at.file).digest)


@cache
def _of_built_in(name: str) -> Declaration:
    file = _file(f"fedbench.methods.{name}", _METHODS) if name.isidentifier() else None
    if file is None:
        raise unknown("method", name, names())
    return _declared(*_pick(_source(file), None, name))


def _pick(source: _Source, wanted: str | None, method: str) -> tuple[ast.ClassDef, _Source]:
    """The class that is wanted, or the only method of a file."""
    own = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}
    if wanted is not None and wanted not in own:
        raise unknown(f"method class in {method}", wanted, own)
    fitting = [wanted] if wanted else [name for name, node in own.items() if _attribute(node, "personal", source)]
    if len(fitting) != 1:
        raise FedbenchError(f"{method} defines {len(fitting)} methods", "name one: FILE.py:Class")
    return own[fitting[0]], source


def _declared(cls: ast.ClassDef, source: _Source) -> Declaration:
    if cls.bases and _attribute(cls, "personal", source) is None:  # not as far as can be seen
        raise _unclear(_last(cls.bases[0]), cls.bases[0], source)
    plain = {name: _plain(cls, name, source) for name in PLAIN}
    if not all(isinstance(one, Measure) for one in plain["measures"]):
        raise _unclear("measures", *(_attribute(cls, "measures", source) or (cls, source)))
    name = _plain(cls, "name", source) or cls.name
    text = inspect.cleandoc(ast.get_docstring(cls) or "")
    return Declaration(
        name=name, title=_plain(cls, "title", source) or name, hyper_parameters=_fields(cls, source), text=text,
        summary=first_line(ast.get_docstring(source.tree), text), **plain,
    )  # fmt: skip


@dataclass(frozen=True)
class _Source:
    """A source file, and what the names at its top stand for."""

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.path.read_bytes(), str(self.path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise FedbenchError(f"cannot read {self.path} ({error})") from error

    @cached_property
    def names(self) -> dict[str, Any]:
        """Name -> the tree of its value, a class, a function, or where it is imported from: (module, name)."""
        names: dict[str, Any] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.setdefault(node.name, node)  # one derived from an import of its own name is not its own base
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
            else:
                names |= dict(_assigned(node))
        return names

    def find(self, name: str) -> tuple[Any, _Source]:
        """What a name stands for, and the file that says so; (module, name) for what comes from elsewhere."""
        value = self.names.get(name)
        if not isinstance(value, tuple):
            return value, self
        module, attribute = value
        for inner, rest in ((f"{module}.{attribute}".rstrip("."), ""), (module, attribute)):
            if (file := _file(inner, self.path.parent)) is not None:
                other = _source(file)
                return other.find(rest) if rest else (other, other)
        return value, self


@cache
def _source(path: Path) -> _Source:
    return _Source(path)


def _file(module: str, folder: Path) -> Path | None:
    """The file of a module of the package, or in a folder."""
    top, *inside = module.split(".")
    path = PACKAGE.joinpath(*inside) if top == PACKAGE.name else folder.joinpath(top, *inside)
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement assigns, each with the tree of its value."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    for target in node.targets if isinstance(node, ast.Assign) else ():
        pairs = [(target, node.value)] if isinstance(node, ast.Assign) else []
        if isinstance(target, ast.Tuple) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def _bases(cls: ast.ClassDef, source: _Source) -> Iterator[tuple[ast.ClassDef, _Source]]:
    """The classes that a class derives from, as far as their source is at hand."""
    for node in cls.bases:
        base, where = _stands_for(node, source)
        if isinstance(base, ast.ClassDef):
            yield base, where


@cache
def _attributes(cls: ast.ClassDef, source: _Source) -> dict[str, tuple[ast.expr, _Source]]:
    """Attribute of a class or of what it derives from -> its value, and where that stands."""
    values: dict[str, tuple[ast.expr, _Source]] = {}
    for base in reversed(list(_bases(cls, source))):
        values |= _attributes(*base)
    return values | {name: (value, source) for node in cls.body for name, value in _assigned(node)}


def _attribute(cls: ast.ClassDef, name: str, source: _Source) -> tuple[ast.expr, _Source] | None:
    """The value of an attribute of a class, and where it stands."""
    return _attributes(cls, source).get(name)


def _plain(cls: ast.ClassDef, name: str, source: _Source) -> Any:
    """The value of what a class declares under a name; that of the base of all methods where it declares nothing."""
    base = _source(_METHODS.parent / "core" / "method.py")
    default = _attribute(base.find("Method")[0], name, base)
    assert default is not None
    usual = _value(*default)
    node, where = _attribute(cls, name, source) or default
    value = _told(name, node, where)
    if type(value) is not type(usual):
        raise _unclear(name, node, where)
    return value


def _fields(cls: ast.ClassDef, source: _Source) -> dict[str, HyperParameter]:
    """The hyper-parameters: the fields of a dataclass, after those of the classes that it derives from."""
    fields: dict[str, HyperParameter] = {}
    for base in reversed(list(_bases(cls, source))):
        fields |= _fields(*base)
    decorators = (node.func if isinstance(node, ast.Call) else node for node in cls.decorator_list)
    if "dataclass" not in map(_last, decorators):
        return fields
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _for_class(node.annotation):
            name = node.target.id
            if node.value is None:
                raise _unclear(name, node, source)
            value = _told(name, node.value, source)
            fields[name.rstrip("_")] = value if isinstance(value, HyperParameter) else HyperParameter(value)
    return fields


def _for_class(annotation: ast.expr) -> bool:
    return _last(annotation.value if isinstance(annotation, ast.Subscript) else annotation) == "ClassVar"


def _stands_for(node: ast.expr, source: _Source) -> tuple[Any, _Source]:
    """What a name, or an attribute of a module's name, stands for."""
    if isinstance(node, ast.Name):
        return source.find(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module, _ = source.find(node.value.id)
        if isinstance(module, _Source):
            return module.find(node.attr)
    return None, source


class _Unclear(Exception):
    """Of an expression that only running it would tell."""


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _told(name: str, node: ast.expr, source: _Source) -> Any:
    """The value of an attribute. Raises FedbenchError, which names it, where it is unclear."""
    try:
        return _value(node, source)
    except (_Unclear, TypeError, ArithmeticError) as error:
        raise _unclear(name, node, source) from error


def _value(node: ast.expr, source: _Source, local: Mapping[str, Any] | None = None) -> Any:
    """The value of an expression of constants, tuples, Measure(...), hyperparameter(...) and names of such, among them
    those of the function (`local`) that it stands in."""

    def value(inner: ast.expr) -> Any:
        return _value(inner, source, local)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in (local or {}):
            return (local or {})[node.id]
        case ast.Tuple():
            parts = [value(one.value) if isinstance(one, ast.Starred) else (value(one),) for one in node.elts]
            return tuple(item for part in parts for item in part)
        case ast.Dict():
            return {value(k): value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
        case ast.JoinedStr():
            return "".join(str(value(p.value if isinstance(p, ast.FormattedValue) else p)) for p in node.values)
        case ast.UnaryOp(op=ast.USub()):
            return -value(node.operand)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        case ast.Call():
            named = {k.arg: value(k.value) for k in node.keywords if k.arg}
            return _called(node.func, [value(one) for one in node.args], named, source)
    inner, where = _stands_for(node, source)
    if isinstance(inner, ast.expr):
        return _value(inner, where)
    raise _Unclear


def _called(function: ast.expr, arguments: list[Any], named: dict[str, Any], source: _Source) -> Any:
    """What a call gives: a measure, a hyper-parameter, a tuple, or what a function of our own returns of such."""
    name = _last(function)
    if name == Measure.__name__:
        return Measure(*arguments, **named)
    if name == "tuple" and len(arguments) == 1 and not named:
        return tuple(arguments[0])
    body, where = _stands_for(function, source)
    if not isinstance(body, ast.FunctionDef) or len(arguments) > len(body.args.args):
        raise _Unclear
    parameters = [one.arg for one in body.args.args]
    local = dict(zip(parameters, arguments, strict=False)) | named
    optional = reversed(list(zip(reversed(parameters), reversed(body.args.defaults), strict=False)))
    local |= {name: _value(default, where) for name, default in optional if name not in local}
    if name == _HYPERPARAMETER:
        return HyperParameter(**{k: v for k, v in local.items() if k in HyperParameter.__dataclass_fields__})
    for line in body.body:
        if isinstance(line, ast.Return) and line.value is not None:
            return _value(line.value, where, local)
        local |= {name: _value(node, where, local) for name, node in _assigned(line)}
    raise _Unclear


def _last(name: ast.expr) -> str:
    """The last part of a dotted name."""
    return name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")


def _unclear(name: str, node: ast.AST, source: _Source) -> FedbenchError:
    line = getattr(node, "lineno", 0)
    return FedbenchError(f"{shown(str(source.path))}, line {line}: nobody can tell '{name}' without running it", _HINT)
