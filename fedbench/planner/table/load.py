"""Tables by name: tables/PAPER/NUMBER.toml, or a user's file, checked when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedbench import protocol, reader, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.planner.table.check import check
from fedbench.planner.table.family import SUFFIX, expand, numbers, siblings, table_files
from fedbench.planner.table.own import with_paths
from fedbench.planner.table.spec import Column, Row, Table, matches
from fedbench.words import plain


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


def is_table(word: str) -> bool:
    """Whether a bare word names a table as `load` does; a TOML file that is something else, such as a data set, does
    not."""
    if ".toml" in word:
        path = Path(word.rpartition(":")[0] if not word.endswith(".toml") else word)
        return path.is_file() and bool({"rows", "column", "tables", "template"} & _text(path).keys())
    return word in headline() or resources.named(word) in _every()


def families() -> list[list[str]]:
    """The names of all tables, grouped by file, ordered by the first of each."""
    return list(by_key((path, name) for name, (path, _) in _every().items()).values())


def _every() -> dict[str, tuple[Path, str]]:
    return _places(tuple(resources.papers().items()))


@cache
def _places(papers: tuple[tuple[str, Path], ...]) -> dict[str, tuple[Path, str]]:
    """Table -> (file, number in a family's file or "")."""
    places: dict[str, tuple[Path, str]] = {}
    for paper, path in ((paper, path) for paper, folder in papers for path in table_files(folder)):
        if path.name.endswith(SUFFIX):
            places |= {f"{paper}/{n}": (path, n) for n in numbers(_text(path), path)}
        else:
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
