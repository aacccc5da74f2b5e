"""Tables by name: tables/PAPER/NUMBER.toml, or a user's own file, checked when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedbench import protocol, reader, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.reports.table.check import check, check_means
from fedbench.reports.table.family import SUFFIX, expand, numbers, siblings
from fedbench.reports.table.own import beside, titled
from fedbench.reports.table.spec import Column, Table, matches

#: Files beside the tables that are none.
_NO_TABLES = ("protocol", "figures", "measured")


def names() -> list[str]:
    """The tables that there are, such as 'feddrm/1', in order."""
    return list(_places(resources.TABLES))


def families() -> list[list[str]]:
    """The same, those of one file together, where the first of them stands."""
    members: dict[Path, list[str]] = {}
    for name, (path, _) in _places(resources.TABLES).items():
        members.setdefault(path, []).append(name)
    return list(members.values())


@cache
def _places(folder: Path) -> dict[str, tuple[Path, str]]:
    """Table -> its file, and its number among those of a family's file (else "")."""
    places: dict[str, tuple[Path, str]] = {}
    for path in folder.glob("*/*.toml"):
        if path.name.endswith(SUFFIX):
            places |= {f"{path.parent.name}/{n}": (path, n) for n in numbers(_text(path), path)}
        elif path.stem not in _NO_TABLES:
            places[f"{path.parent.name}/{path.stem}"] = (path, "")
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
    """The table of that name ('feddrm/1'), headline number ('1') or TOML file ('./mine.toml').

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
    places = _places(resources.TABLES)
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
    alike: dict[str, str] = {}
    if number:
        before = id.removesuffix(number)
        alike = {dataset: f"{before}{n}" for dataset, n in siblings(raw, path, number).items()}
        place = f"{path}, table {number}"
    if "values" in raw:
        raw = expand(raw, path, number)
    own = {"id": id, "path": path, "number": number, "siblings": alike, "replaced": False, "chosen": []}
    raw = beside(_with_shared_rows(raw, path), path)
    table = reader.read(Table, raw, place, **own)
    for what in ("rows", "column"):
        if not getattr(table, what):
            raise FedbenchError(f"{path} has no {what}", f"a table needs at least one entry of '{what}'")
    columns = [
        dataclasses.replace(c, of=_spelt_out(c, table.column[:i])) if c.of else c for i, c in enumerate(table.column)
    ]
    rows = [titled(row, f"{path}, row {i}") for i, row in enumerate(table.rows, 1)]
    table = dataclasses.replace(table, rows=rows, column=columns)
    check_means(table)
    whole: dict[str, Column] = {}
    for c in columns:
        whole[c.key] = _inherit(c, whole[c.of[0]] if c.of else table)
    table = dataclasses.replace(table, column=list(whole.values()) if len(whole) == len(columns) else columns)
    check(table)
    return table


def _with_shared_rows(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content with the rows in it that its protocol has for several tables, where it names them."""
    name, rules = raw.get("rows"), raw.get("protocol")
    if not (isinstance(name, str) and isinstance(rules, str)):
        return raw
    known = protocol.load(rules).rows
    if name not in known:
        raise unknown(f"rows in {path}", name, known)
    return {**raw, "rows": known[name]}


def _spelt_out(column: Column, before: Sequence[Column]) -> list[str]:
    """The columns that it is a mean over, with those in place of patterns that they match."""
    found: dict[str, None] = {}
    for key in column.of:
        hits = [c.key for c in before if matches(c.key, key)] if "*" in key else [key]
        found.update(dict.fromkeys(hits or [key]))
    return list(found)


def _inherit(column: Column, source: Table | Column) -> Column:
    """The column with what it leaves out."""
    names = ("metric", "statistic", "unit", "decimals", "best", "tolerance", "tolerance_stds")
    given = (column.std_decimals, column.decimals, source.std_decimals, source.decimals)
    return dataclasses.replace(
        column,
        **{n: getattr(source, n) for n in names if getattr(column, n) is None},
        std_decimals=next(d for d in given if d is not None),
    )
