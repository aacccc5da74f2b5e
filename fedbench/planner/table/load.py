"""Tables by name: tables/PAPER/NUMBER.toml, or a user's own file, checked when read."""

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
# A user's own methods, networks, partitioners and data sets in a table: files, seen from the table's folder; and what
# a row is called by its method.


#: Lists of a table's content, and what one entry of each is called.
_ENTRIES = {"rows": "row", "column": "column"}


def with_paths(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of a table's file with networks, partitioners and data sets that are files of the user's
    ('./net.py:Net', './pets.toml') by their names in specs, and with methods that are by their full paths.

    Raises FedbenchError for a file that is not there, which names the row or the column.
    """
    files = _Files(path.absolute().parent)
    out = {key: value if key in _ENTRIES else files.named(value) for key, value in raw.items()}
    for key, called in _ENTRIES.items():
        if isinstance(entries := raw.get(key), list):
            out[key] = [_entry(one, files, f"{path}, {called}", i) for i, one in enumerate(entries, 1)]
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
    """The row with a label: its own, else its method's title, as the source declares it, with its hyper-parameters.

    Raises FedbenchError for one that has neither label nor method, and for a method that is not there.
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
    """What a row is called, by its method's title and what sets it apart."""
    words = ", ".join(details)
    return plain(f"{title} ({words})" if words else title)


def short(value: object) -> str:
    """A hyper-parameter in print, short where that loses nothing."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


class _Files:
    """The files that one table names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recipes: dict[str, str] = {}  #: data set -> the recipe that it is here

    def named(self, raw: Any) -> Any:
        """A part of the content, with what the files are called."""
        if isinstance(raw, list):
            return [self.named(one) for one in raw]
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
        """The name of a data set, which may be a recipe of the user's, or a folder in PFLlib's, LEAF's or the hub's
        form.

        Raises FedbenchError where two have one name.
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
        return str(self.folder / os.path.expanduser(text))  # Path.expanduser would raise for a user that is none


# -- family ----------------------------------------------------------------------------------------------------
# Tables written once: a file with `values` is a template, one with `tables` besides is a family of tables.
#
# In a template, `{name}` stands for a value and `{name.key}` for a value's key; text that is nothing but one of them
# becomes the value itself, whatever its type. An entry of a list with `each = ["name", "other in name.key"]` is
# repeated for all combinations of these values, the last varying fastest. `values.NAME` lists the values of a name:
# plain ones, or tables of keys.
#
# A family's `tables` names its tables ("12-19" are eight); they are the combinations of the `axes`, which are names of
# values, the last varying fastest. What one table alone has is under `own.NUMBER`: lists go behind the family's, other
# values replace them. Where an axis is called `dataset`, `--dataset` goes from a table to its like on other data.


#: How the name of a family's file ends.
SUFFIX = ".family.toml"

#: Tables of a family, and characters and values that one of them is filled with, at most: far more than any needs.
TABLES, FILLED = 1000, 10**6

_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)*)\}")
_EACH = re.compile(r"([a-z_]+)(?: in ([a-z_]+(?:\.[a-z_]+)*))?")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class Head:
    """The keys of a template that are none of a table."""

    values: Mapping[str, list[Any]]
    tables: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def numbers(raw: Mapping[str, Any], path: Path) -> list[str]:
    """The names of a family's tables. Raises FedbenchError unless they are as many as the axes say."""
    return _names(_head(raw, path), path)


def expand(raw: Mapping[str, Any], path: Path, number: str = "") -> dict[str, Any]:
    """The plain content of a template's file, or of one table of a family. Raises FedbenchError for a faulty one."""
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
    """Data set -> the family's table that differs from `number` in nothing but the axis `dataset`."""
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
    """The head of a template, whose parts fit each other."""
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
    """Fills placeholders and repeats entries, up to a size."""

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
        pieces = _PLACEHOLDER.split(node)  # text and names in turn
        for i, name in enumerate(pieces[1::2]):
            value = self._find(name, scope)
            if isinstance(value, dict | list):
                raise FedbenchError(f"{self.path}: {{{name}}} is a {_named(value)}, which cannot stand within a text")
            pieces[2 * i + 1] = self._counted(str(value))
        return "".join(pieces)

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
        """The value, whose size counts towards the limit."""
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
    """Characters and values in it."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()), 1)
    return sum(map(_size, value), 1) if isinstance(value, list) else len(value) if isinstance(value, str) else 1


# -- load ------------------------------------------------------------------------------------------------------


#: Files beside the tables that are none.
_NO_TABLES = ("protocol", "figures", "measured")


def names() -> list[str]:
    """The tables that there are, such as 'feddrm/1', in order."""
    return list(_every())


def of_names(names_of: Iterable[str]) -> list[str]:
    """The tables of these names; a paper's name or folder stands for all of its own. Raises FedbenchError for one that
    is neither a table nor a paper."""
    chosen: list[str] = []
    for name in map(resources.named, names_of):
        own = [table for table in names() if table.startswith(f"{name}/")]
        if not own and "/" not in name and not name.endswith(".toml") and name not in headline():
            raise unknown("table or paper", name, {*names(), *(table.partition("/")[0] for table in names())})
        chosen += own or [name]
    return list(dict.fromkeys(chosen))


def families() -> list[list[str]]:
    """The same, those of one file together, where the first of them stands."""
    return list(by_key((path, name) for name, (path, _) in _every().items()).values())


def _every() -> dict[str, tuple[Path, str]]:
    return _places(tuple(resources.papers().items()))


@cache
def _places(papers: tuple[tuple[str, Path], ...]) -> dict[str, tuple[Path, str]]:
    """Table -> its file, and its number among those of a family's file (else "")."""
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
    """A file's content, parsed once while it stays as it is."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except OSError:
        return reader.toml(path, "table file", "'fedbench tables' lists the built-in ones")  # says what is wrong


@cache
def _parsed(path: Path, _changed: int) -> dict[str, Any]:
    return reader.toml(path, "table file", "'fedbench tables' lists the built-in ones")


def headline() -> dict[str, tuple[str, str]]:
    """The headline set: number -> (what it shows, its table)."""
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
    """The table of that name ('feddrm/1'), headline number ('1'), paper's folder ('./mine/1') or file ('./mine.toml').

    A file that is a family of tables needs the number of one: './mine.family.toml:2'. Raises FedbenchError for an
    unknown name (the nearest offered) and a faulty file.
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
    """The paper's own table on a data set, where there is one (`siblings`), else this one with its columns on that."""
    other = table.siblings.get(dataset, table.id)
    return table.for_dataset(dataset) if other == table.id else load(other)


def _of_file(path: Path, number: str) -> Table:
    """A table of a user's own file."""
    own = numbers(raw, path) if "tables" in (raw := _text(path)) else []
    if number not in (own or [""]):
        hint = (
            f"{path}:{own[0]} for example; it has {', '.join(own)}"
            if own
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
    own = {"id": id, "path": path, "number": number, "siblings": by_dataset, "replaced": False, "chosen": []}
    raw = with_paths(_with_shared_rows(raw, path), path)
    table = reader.read(Table, raw, place, **own)
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
    """The content with the rows in it that its protocol has for several tables, where it names them: `rows` is a name,
    or has names among its entries."""
    rows, rules = raw.get("rows"), raw.get("protocol")
    entries = [rows] if isinstance(rows, str) else rows
    if not (isinstance(entries, list) and isinstance(rules, str) and any(isinstance(one, str) for one in entries)):
        return raw
    known = protocol.load(rules).rows
    for name in entries:
        if isinstance(name, str) and name not in known:
            raise unknown(f"rows in {path}", name, known)
    return {**raw, "rows": [row for one in entries for row in (known[one] if isinstance(one, str) else [one])]}


def _parts(column: Column, before: Sequence[Column], table: Table) -> list[Column]:
    """The columns that it is a mean over, which stand before it; a * in a key stands for any text."""
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
    """The column with what it leaves out."""
    names = ("metric", "statistic", "unit", "decimals", "best", "tolerance")
    given = (column.std_decimals, column.decimals, source.std_decimals, source.decimals)
    return dataclasses.replace(
        column,
        **{n: getattr(source, n) for n in names if getattr(column, n) is None},
        std_decimals=next(d for d in given if d is not None),
    )
