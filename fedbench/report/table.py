"""Tables by name: tables/PAPER/NUMBER.toml, or a user's own file, checked when read."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedbench import protocol, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.report.check import check, check_means
from fedbench.report.claims import Claim
from fedbench.report.family import SUFFIX, expand, numbers, siblings
from fedbench.report.spec import Column, Place, Row, Table, matches

T = TypeVar("T")

#: Files beside the tables that are none.
_NO_TABLES = ("protocol", "figures")


def names() -> list[str]:
    """The tables that there are, such as 'feddrm/1', in order."""
    return list(_places())


def families() -> list[list[str]]:
    """The same, those of one file together, where the first of them stands."""
    found: dict[Path, list[str]] = {}
    for name, (path, _) in _places().items():
        found.setdefault(path, []).append(name)
    return list(found.values())


def _places() -> dict[str, tuple[Path, str]]:
    """Table -> its file, and its number among those of a family's file (else "")."""
    found: dict[str, tuple[Path, str]] = {}
    for path in resources.TABLES.glob("*/*.toml"):
        if path.name.endswith(SUFFIX):
            found |= {f"{path.parent.name}/{n}": (path, n) for n in numbers(_text(path), path)}
        elif path.stem not in _NO_TABLES:
            found[f"{path.parent.name}/{path.stem}"] = (path, "")
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[str, int, str]:
    paper, _, number = name.partition("/")
    return paper, len(number), number


def _text(path: Path) -> dict[str, Any]:
    """A file's content, parsed once while it stays as it is."""
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, _changed: int) -> dict[str, Any]:
    return resources.read_toml(path)


def headline() -> dict[str, tuple[str, str]]:
    """The headline set: number -> (what it shows, its table)."""
    entries = resources.read_toml(resources.TABLES / "headline.toml")["headline"]
    return {str(e["number"]): (e["name"], e["table"]) for e in entries}


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
        path = Path(file)
        if not path.is_file():
            raise FedbenchError(f"there is no table file {path}", "'fedbench tables' lists the built-in ones")
        return _of_file(path, number)
    places = _places()
    if name not in places:
        raise unknown("table", name, [*places, *shortcuts])
    path, number = places[name]
    return _read(name, path, number)


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
    for name in ("id", "path", "replaced", "chosen", "number", "siblings"):
        if name in raw:
            raise FedbenchError(f"{path}: unknown key '{name}'", "the file's place is the name of the table")
    alike: dict[str, str] = {}
    if number:
        before = id.removesuffix(number)
        alike = {dataset: f"{before}{n}" for dataset, n in siblings(raw, path, number).items()}
        place = f"{path}, table {number}"
    if "values" in raw:
        raw = expand(raw, path, number)
    if isinstance(shared := raw.get("rows"), str):
        known = protocol.load(raw.get("protocol", "")).rows
        if shared not in known:
            raise unknown(f"rows in {path}", shared, known)
        raw = {**raw, "rows": known[shared]}
    rows = [_build(Row, r, f"{place}, row {i}") for i, r in enumerate(_list(raw, "rows", path), 1)]
    claims = [_build(Claim, c, f"{place}, claim {i}") for i, c in enumerate(raw.get("claim", []), 1)]
    columns = [_build(Column, c, f"{place}, column {i}") for i, c in enumerate(_list(raw, "column", path), 1)]
    for pattern_of in ("undefined", "doubtful"):
        places = raw.get(pattern_of, [])
        raw = {**raw, pattern_of: [_build(Place, p, f"{place}, {pattern_of} {i}") for i, p in enumerate(places, 1)]}
    columns = [dataclasses.replace(c, of=_spelt_out(c, columns[:i])) if c.of else c for i, c in enumerate(columns)]
    given = {"id": id, "path": path, "number": number, "siblings": alike}
    table = _build(Table, {**raw, **given, "rows": rows, "column": columns, "claim": claims}, place)
    check_means(table)
    whole: dict[str, Column] = {}
    for c in columns:
        whole[c.key] = _inherit(c, whole[c.of[0]] if c.of else table)
    table = dataclasses.replace(table, column=list(whole.values()) if len(whole) == len(columns) else columns)
    check(table)
    return table


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


def _list(raw: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    value = raw.get(name)
    if not isinstance(value, list) or not value:
        raise FedbenchError(f"{path} has no {name}", f"a table needs at least one entry of '{name}'")
    return value


def _build(cls: type[T], raw: Any, where: str) -> T:
    """A dataclass from a TOML table: unknown keys, missing keys and wrong types are errors that say where."""
    if not isinstance(raw, Mapping):
        raise FedbenchError(f"{where} must be a table of keys, not {raw!r}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for name, value in raw.items():
        if name not in fields:
            raise unknown(f"key in {where}", name, fields)
        options = typing.get_args(hints[name]) if isinstance(hints[name], types.UnionType) else (hints[name],)
        allowed = tuple(typing.get_origin(o) or o for o in options)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise FedbenchError(f"{where}: {name} cannot be {value!r}")
    for name, f in fields.items():
        if name not in raw and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise FedbenchError(f"{where} lacks '{name}'")
    return cls(**raw)
