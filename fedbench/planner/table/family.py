"""Templates: a table's file with `values` is a template; one that also has `tables` is a family of tables.

In a template, the placeholder `{name}` is replaced by a value and `{name.key}` by a value's key; a text that is only
a placeholder becomes the value itself, of any type. An entry of a list with `each = ["name", "other in name.key"]` is
repeated for all combinations of these values, the last varying fastest. `values.NAME` lists the values of a name:
plain ones, or tables of keys.

A family's `tables` names its tables ("12-19" are eight); they are the combinations of the `axes`, which are names of
values, the last varying fastest. `own.NUMBER` holds the content of one table only: lists are appended to the
family's, other values replace them. If an axis is called `dataset`, `--dataset` selects the table on other data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedbench import reader
from fedbench.errors import FedbenchError, check_known, unknown

#: Suffix of a family's file.
SUFFIX = ".family.toml"

#: TOML files in a paper's folder that are no tables.
_NO_TABLES = ("protocol", "figures", "measured", "references")

#: Most tables of a family, and most characters and values in a table: far more than any needs.
TABLES, FILLED = 1000, 10**6

_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)*)\}")
_EACH = re.compile(r"([a-z_]+)(?: in ([a-z_]+(?:\.[a-z_]+)*))?")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class TemplateKeys:
    """The keys of a template besides those of a table."""

    values: Mapping[str, list[Any]]
    tables: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def table_files(folder: Path) -> list[Path]:
    """The files of a paper's folder that hold a table or a family of tables."""
    return [path for path in folder.glob("*.toml") if path.stem not in _NO_TABLES]


def numbers(raw: Mapping[str, Any], path: Path) -> list[str]:
    """The names of a family's tables. Raises FedbenchError unless there is one per combination of the axes."""
    return _names(_head(raw, path), path)


def expand(raw: Mapping[str, Any], path: Path, number: str = "") -> dict[str, Any]:
    """The content of a template's file, or of a family's table, with values filled in. Raises FedbenchError."""
    head, scope = _head(raw, path), {}
    if number:
        chosen = list(product(*(head.values[axis] for axis in head.axes)))[_names(head, path).index(number)]
        scope = dict(zip(head.axes, chosen, strict=True))
    body = {k: v for k, v in raw.items() if k not in _HEAD}
    filled: dict[str, Any] = _Filler(path).fill(body, {**head.values, **scope})
    for key, value in _Filler(path).fill(head.own.get(number, {}), scope).items():
        both = isinstance(value, list) and isinstance(filled.get(key, []), list)
        filled[key] = [*filled.get(key, []), *value] if both else value
    return filled


def siblings(raw: Mapping[str, Any], path: Path, number: str) -> dict[str, str]:
    """Data set -> the family's table that differs from `number` only in the axis `dataset`."""
    head = _head(raw, path)
    if "dataset" not in head.axes:
        return {}
    for i, value in enumerate(values := head.values["dataset"], 1):
        if not (isinstance(value, Mapping) and isinstance(value.get("id"), str)):
            raise FedbenchError(f"{path}, values.dataset {i} lacks 'id'", "the axis dataset needs the name of each one")
    at, names = head.axes.index("dataset"), _names(head, path)
    places = list(product(*(range(len(head.values[axis])) for axis in head.axes)))
    here = places[names.index(number)]
    alternatives = (p for p in places if all(p[k] == here[k] for k in range(len(head.axes)) if k != at))
    return {values[p[at]]["id"]: names[places.index(p)] for p in alternatives}


_HEAD = tuple(f.name for f in fields(TemplateKeys))


def _head(raw: Mapping[str, Any], path: Path) -> TemplateKeys:
    """The head of a template. Raises FedbenchError if its parts do not match."""
    head = reader.read(TemplateKeys, {k: v for k, v in raw.items() if k in _HEAD}, str(path))
    for axis in head.axes:
        check_known(f"values in {path}", axis, head.values)
        if head.axes.count(axis) > 1:
            raise FedbenchError(f"{path}: axes holds '{axis}' twice")
    if head.tables or head.axes or head.own:
        names = _names(head, path)
        for name in head.own:
            check_known(f"table in {path}, own", name, names)
    return head


def _names(head: TemplateKeys, path: Path) -> list[str]:
    made = prod(len(head.values[axis]) for axis in head.axes)
    names: list[str] = []
    for text in head.tables:
        ends = _RANGE.fullmatch(text)
        span = range(int(ends[1]), int(ends[2]) + 1) if ends else None
        if max(made, len(names) + len(span or ())) > TABLES:
            raise FedbenchError(f"{path} has more than {TABLES:,} tables")
        names += [text] if span is None else map(str, span)
    if len(names) != made or len(set(names)) != made:
        raise FedbenchError(f"{path} names {len(set(names))} tables, but its axes make {made}")
    return names


class _Filler:
    """Fills placeholders and repeats entries, up to FILLED characters and values."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0

    def fill(self, node: Any, scope: Mapping[str, Any]) -> Any:
        """The node with all placeholders filled and all entries with `each` repeated."""
        if isinstance(node, str):
            whole = _PLACEHOLDER.fullmatch(node)
            return self._counted(self._find(whole[1], scope) if whole else self._text(node, scope))
        if isinstance(node, dict):
            return {key: self.fill(value, scope) for key, value in node.items()}
        if isinstance(node, list):
            return [filled for entry in node for filled in self._repeat(entry, scope)]
        return self._counted(node)

    def _text(self, node: str, scope: Mapping[str, Any]) -> str:
        parts = _PLACEHOLDER.split(node)  # text and names in turn
        for i, name in enumerate(parts[1::2]):
            value = self._find(name, scope)
            if isinstance(value, dict | list):
                raise FedbenchError(f"{self.path}: {{{name}}} is a {_named(value)}, which cannot stand within a text")
            parts[2 * i + 1] = self._counted(str(value))
        return "".join(parts)

    def _repeat(self, entry: Any, scope: Mapping[str, Any]) -> Iterator[Any]:
        if not isinstance(entry, dict) or "each" not in entry:
            yield self.fill(entry, scope)
            return
        each = reader.read(_Each, {"each": entry["each"]}, str(self.path)).each
        yield from self._loop(each, {k: v for k, v in entry.items() if k != "each"}, scope)

    def _loop(self, each: list[str], entry: Mapping[str, Any], scope: Mapping[str, Any]) -> Iterator[Any]:
        if not each:
            yield self.fill(entry, scope)
            return
        parts = _EACH.fullmatch(each[0])
        if parts is None:
            raise FedbenchError(f"{self.path}: each = '{each[0]}' is neither 'name' nor 'name in other.key'")
        values = self._find(parts[2] or parts[1], scope)
        if not isinstance(values, list):
            raise FedbenchError(f"{self.path}: each = '{each[0]}' needs a list, not {reader.shown(values)}")
        for value in values:
            self._counted(None)
            yield from self._loop(each[1:], entry, {**scope, parts[1]: value})

    def _find(self, dotted: str, scope: Mapping[str, Any]) -> Any:
        value: Any = scope
        for name in dotted.split("."):
            if not isinstance(value, dict) or name not in value:
                raise unknown(f"value in {self.path}", dotted, value if isinstance(value, dict) else [])
            value = value[name]
        return value

    def _counted(self, value: Any) -> Any:
        """The value; adds its size to the total. Raises FedbenchError above the limit."""
        self.size += _size(value)
        if self.size > FILLED:
            raise FedbenchError(f"{self.path} makes too large a table", "its 'each' or its placeholders multiply")
        return value


@dataclass(frozen=True)
class _Each:
    each: list[str]


def _named(value: Any) -> str:
    return "list" if isinstance(value, list) else "table of keys"


def _size(value: Any) -> int:
    """Number of characters and values in it."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()), 1)
    return sum(map(_size, value), 1) if isinstance(value, list) else len(value) if isinstance(value, str) else 1
