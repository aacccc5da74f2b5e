"""Tables by name: tables/PAPER/NUMBER.toml, or a user's file, checked when read."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedbench import models, protocol, reader, resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.partitions import schemes
from fedbench.planner.table.check import check
from fedbench.planner.table.spec import Column, Row, Table, matches
from fedbench.plugins.load import is_file
from fedbench.words import plain

# -- own -------------------------------------------------------------------------------------------------------
# Files of the user's methods, networks, partitioners and data sets in a table, relative to the table's folder; and the
# labels of rows.


#: List in a table's content -> name of an entry.
_ENTRIES = {"rows": "row", "column": "column"}


def with_paths(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of a table's file, with the user's files in it ('./net.py:Net', './pets.toml') replaced: networks,
    partitioners and data sets by their names in specs, methods by their full paths.

    Raises FedbenchError, naming the row or the column, for a missing file.
    """
    files = _Files(path.absolute().parent)
    out = {key: value if key in _ENTRIES else files.named(value) for key, value in raw.items()}
    for key, called in _ENTRIES.items():
        if isinstance(entries := raw.get(key), list):
            out[key] = [_entry(entry, files, f"{path}, {called}", i) for i, entry in enumerate(entries, 1)]
    if isinstance(template := raw.get("template"), str):
        out["template"] = files.dataset(template)
    return out


def _entry(raw: Any, files: _Files, where: str, number: int) -> Any:
    try:
        return files.named(raw)
    except FedbenchError as error:
        label = raw.get("label", number) if isinstance(raw, Mapping) else number
        raise error.at(f"{where} {label}") from error


def titled(row: Row, where: str) -> Row:
    """The row with a label; the default is its method's title with its hyper-parameters.

    Raises FedbenchError for a row without label and method, and for an unknown method.
    """
    if row.label:
        return row
    if not row.method:
        raise FedbenchError(f"{where} lacks 'label'")
    try:
        title = declarations.of(row.method).title
    except FedbenchError as error:
        if not row.planned:
            raise error.at(where) from error
        title = row.method
    return dataclasses.replace(row, label=called(title, (f"{k} = {short(v)}" for k, v in row.params.items())))


def called(title: str, details: Iterable[str]) -> str:
    """A row's label: its method's title and, in brackets, details."""
    words = ", ".join(details)
    return plain(f"{title} ({words})" if words else title)


def short(value: object) -> str:
    """A hyper-parameter as text, shortened if that loses no digit."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


class _Files:
    """The user's files in a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recipes: dict[str, str] = {}  #: data set -> its recipe in this table

    def named(self, raw: Any) -> Any:
        """A part of the content with files replaced (see `with_paths`)."""
        if isinstance(raw, list):
            return [self.named(item) for item in raw]
        if not isinstance(raw, dict):
            return raw
        out = {key: self.named(value) for key, value in raw.items()}
        names = {
            "model": lambda text: models.named(self._path(text)) if is_file(text) else text,
            "scheme": lambda text: schemes.named(self._path(text)) if is_file(text) else text,
            "method": lambda text: self._path(text) if is_file(text) else text,
            "dataset": self.dataset,
        }
        return out | {key: name(raw[key]) for key, name in names.items() if isinstance(raw.get(key), str)}

    def dataset(self, text: str) -> str:
        """The name of a data set; `text` may be a user's recipe, or a folder in the format of PFLlib, LEAF or the hub.

        Raises FedbenchError if two data sets have the same name.
        """
        from fedbench import data
        from fedbench.data.foreign import HUB

        place = text.removeprefix(HUB)
        if not (text.endswith(".toml") or place.startswith(("./", "../", "/", "~"))):
            return text
        path = self._path(place)
        if text != place:
            return f"{HUB}{path}"
        name = data.called(path)
        if (other := self._recipes.setdefault(name, path)) != path:
            raise FedbenchError(f"two data sets are called {name}: {other} and {path}", "rename one of the files")
        return name

    def _path(self, text: str) -> str:
        return str(self.folder / os.path.expanduser(text))  # Path.expanduser raises for an unknown user


# -- family ----------------------------------------------------------------------------------------------------
# Templates: a file with `values` is a template; one that also has `tables` is a family of tables.
#
# In a template, the placeholder `{name}` is replaced by a value and `{name.key}` by a value's key; a text that is only
# a placeholder becomes the value itself, of any type. An entry of a list with `each = ["name", "other in name.key"]` is
# repeated for all combinations of these values, the last varying fastest. `values.NAME` lists the values of a name:
# plain ones, or tables of keys.
#
# A family's `tables` names its tables ("12-19" are eight); they are the combinations of the `axes`, which are names of
# values, the last varying fastest. `own.NUMBER` holds the content of one table only: lists are appended to the
# family's, other values replace them. If an axis is called `dataset`, `--dataset` selects the table on other data.


#: Suffix of a family's file.
SUFFIX = ".family.toml"

#: Most tables of a family, and most characters and values in a table: far more than any needs.
TABLES, FILLED = 1000, 10**6

_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)*)\}")
_EACH = re.compile(r"([a-z_]+)(?: in ([a-z_]+(?:\.[a-z_]+)*))?")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class Head:
    """The keys of a template besides those of a table."""

    values: Mapping[str, list[Any]]
    tables: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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


_HEAD = tuple(f.name for f in fields(Head))


def _head(raw: Mapping[str, Any], path: Path) -> Head:
    """The head of a template. Raises FedbenchError if its parts do not match."""
    head = reader.read(Head, {k: v for k, v in raw.items() if k in _HEAD}, str(path))
    for axis in head.axes:
        check_known(f"values in {path}", axis, head.values)
        if head.axes.count(axis) > 1:
            raise FedbenchError(f"{path}: axes holds '{axis}' twice")
    if head.tables or head.axes or head.own:
        names = _names(head, path)
        for name in head.own:
            check_known(f"table in {path}, own", name, names)
    return head


def _names(head: Head, path: Path) -> list[str]:
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


# -- load ------------------------------------------------------------------------------------------------------


#: TOML files in a paper's folder that are no tables.
_NO_TABLES = ("protocol", "figures", "measured")


def names() -> list[str]:
    """The names of all tables, such as 'feddrm/1', in order."""
    return list(_every())


def of_names(names_of: Iterable[str]) -> list[str]:
    """The names of these tables; a paper's name or folder gives all its tables. Raises FedbenchError for a name that is
    neither a table nor a paper."""
    chosen: list[str] = []
    for name in map(resources.named, names_of):
        of_paper = [table for table in names() if table.startswith(f"{name}/")]
        if not of_paper and "/" not in name and not name.endswith(".toml") and name not in headline():
            raise unknown("table or paper", name, {*names(), *(table.partition("/")[0] for table in names())})
        chosen += of_paper or [name]
    return list(dict.fromkeys(chosen))


def families() -> list[list[str]]:
    """The names of all tables, grouped by file, ordered by the first of each."""
    return list(by_key((path, name) for name, (path, _) in _every().items()).values())


def _every() -> dict[str, tuple[Path, str]]:
    return _places(tuple(resources.papers().items()))


@cache
def _places(papers: tuple[tuple[str, Path], ...]) -> dict[str, tuple[Path, str]]:
    """Table -> (file, number in a family's file or "")."""
    places: dict[str, tuple[Path, str]] = {}
    for paper, path in ((paper, path) for paper, folder in papers for path in folder.glob("*.toml")):
        if path.name.endswith(SUFFIX):
            places |= {f"{paper}/{n}": (path, n) for n in numbers(_text(path), path)}
        elif path.stem not in _NO_TABLES:
            places[f"{paper}/{path.stem}"] = (path, "")
    return dict(sorted(places.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[str, int, str]:
    paper, _, number = name.partition("/")
    return paper, len(number), number


def _text(path: Path) -> dict[str, Any]:
    """A file's content; cached until the file changes."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except OSError:
        return reader.toml(path, "table file", "'fedbench tables' lists the built-in ones")  # raises a clear error


@cache
def _parsed(path: Path, _changed: int) -> dict[str, Any]:
    return reader.toml(path, "table file", "'fedbench tables' lists the built-in ones")


def headline() -> dict[str, tuple[str, str]]:
    """The headline tables: number -> (title, table's name)."""
    return _headline(resources.TABLES / "headline.toml")


@cache
def _headline(path: Path) -> dict[str, tuple[str, str]]:
    entries = reader.read(_Headlines, reader.toml(path), str(path)).headline
    return {str(e.number): (e.name, e.table) for e in entries}


@dataclass(frozen=True)
class _Headline:
    number: int
    name: str
    table: str


@dataclass(frozen=True)
class _Headlines:
    headline: list[_Headline]


def load(name: str) -> Table:
    """The table with this name ('feddrm/1'), headline number ('1'), path in a paper's folder ('./mine/1') or file
    ('./mine.toml').

    A family's file needs a table's number: './mine.family.toml:2'. Raises FedbenchError for an unknown name (suggesting
    the nearest) and a faulty file.
    """
    shortcuts = headline()
    if name in shortcuts:
        _, name = shortcuts[name]
    file, colon, number = name.rpartition(":")
    if not (colon and file.endswith(".toml")):
        file, number = name, ""
    if file.endswith(".toml"):
        return _of_file(Path(file), number)
    name = resources.named(name)
    places = _every()
    if name not in places:
        raise unknown("table", name, [*places, *shortcuts], "fedbench tables")
    path, number = places[name]
    return _read(name, path, number)


def on_dataset(table: Table, dataset: str) -> Table:
    """The paper's table on a data set (`siblings`) if it exists, else this table with its columns on that data set."""
    other = table.siblings.get(dataset, table.id)
    return table.for_dataset(dataset) if other == table.id else load(other)


def _of_file(path: Path, number: str) -> Table:
    """A table of a user's file."""
    tables = numbers(raw, path) if "tables" in (raw := _text(path)) else []
    if number not in (tables or [""]):
        hint = (
            f"{path}:{tables[0]} for example; it has {', '.join(tables)}"
            if tables
            else f"leave out ':{number}': it is one table"
        )
        raise FedbenchError(f"{path} has no table '{number}'" if number else f"{path} is a family of tables", hint)
    return _read(f"{path.stem}:{number}" if number else path.stem, path, number)


def _read(id: str, path: Path, number: str) -> Table:
    raw, place = _text(path), str(path)
    by_dataset: dict[str, str] = {}
    if number:
        before = id.removesuffix(number)
        by_dataset = {dataset: f"{before}{n}" for dataset, n in siblings(raw, path, number).items()}
        place = f"{path}, table {number}"
    if "values" in raw:
        raw = expand(raw, path, number)
    fixed = {"id": id, "path": path, "number": number, "siblings": by_dataset, "replaced": False, "chosen": []}
    raw = with_paths(_with_shared_rows(raw, path), path)
    table = reader.read(Table, raw, place, **fixed)
    for what in ("rows", "column"):
        if not getattr(table, what):
            raise FedbenchError(f"{path} has no {what}", f"a table needs at least one entry of '{what}'")
    columns: list[Column] = []
    for c in table.column:
        parts = _parts(c, columns, table)
        columns.append(dataclasses.replace(_inherit(c, parts[0] if parts else table), of=[part.key for part in parts]))
    rows = [titled(row, f"{path}, row {i}") for i, row in enumerate(table.rows, 1)]
    table = dataclasses.replace(table, rows=rows, column=columns)
    check(table)
    return table


def _with_shared_rows(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content, with names of the protocol's shared rows replaced by these rows: `rows` may be a name, or a list
    with names among its entries."""
    rows, rules = raw.get("rows"), raw.get("protocol")
    entries = [rows] if isinstance(rows, str) else rows
    if not (isinstance(entries, list) and isinstance(rules, str) and any(isinstance(entry, str) for entry in entries)):
        return raw
    known = protocol.load(rules).rows
    for name in entries:
        if isinstance(name, str) and name not in known:
            raise unknown(f"rows in {path}", name, known)
    return {**raw, "rows": [row for entry in entries for row in (known[entry] if isinstance(entry, str) else [entry])]}


def _parts(column: Column, before: Sequence[Column], table: Table) -> list[Column]:
    """The earlier columns of which a column is the mean; a * in a key matches any text."""
    found: dict[str, Column] = {}
    for key in column.of:
        hits = {c.key: c for c in before if matches(c.key, key)}
        if not hits:
            later = any(key == c.key for c in table.column)
            what = f"column {'before it ' * later}in {table.path}, column {column.key}, of"
            raise unknown(what, key, [c.key for c in before])
        found |= hits
    return list(found.values())


def _inherit(column: Column, source: Table | Column) -> Column:
    """The column with inherited values."""
    names = ("metric", "statistic", "unit", "decimals", "best", "tolerance")
    given = (column.std_decimals, column.decimals, source.std_decimals, source.decimals)
    return dataclasses.replace(
        column,
        **{n: getattr(source, n) for n in names if getattr(column, n) is None},
        std_decimals=next(d for d in given if d is not None),
    )
