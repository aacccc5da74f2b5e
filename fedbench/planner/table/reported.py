"""The paper's numbers: `reported.csv` in the folder of a table's file, one line per cell, in the printed unit.

Its columns are table, row, group, column, value and std; group and std may be empty.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from pathlib import Path

from fedbench import reader
from fedbench.errors import FedbenchError, check_known
from fedbench.planner.table.family import SUFFIX, numbers, table_files

#: (row label, column key) -> (value, ± or None).
Reported = dict[tuple[str, str], tuple[float, float | None]]

#: A number as papers print it; float() also takes 8_0 and the digits of any script.
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")

FIELDS = ("table", "row", "group", "column", "value", "std")


def reported(
    path: Path,
    tables: Collection[str],
    rows: Collection[str],
    columns: Collection[str],
    most: Mapping[str, float] | None = None,
    known: Collection[str] = (),
) -> Reported:
    """The paper's values of a table's cells; empty if the file does not exist.

    `most`: column's key -> largest value, of columns whose values are shares; the least is 0. `known`: all tables that
    the file may name, `tables` among them; empty: any.

    Raises FedbenchError for lines of `tables` with an unknown row or column, a repeated cell, an invalid number or one
    that is no share, for lines of an unknown table, and for a file that is unreadable or has other columns.
    """
    if not path.exists():
        return {}
    values: Reported = {}
    changed = path.stat()
    for line, cell in _lines(path, changed.st_mtime_ns, changed.st_size):
        where = f"{path}, line {line}"
        if known:
            check_known(f"table in {where}", cell["table"], known)
        if cell["table"] not in tables:
            continue
        key = f"{cell['group']}/{cell['column']}" if cell["group"] else cell["column"]
        for kind, name, those in (("row", cell["row"], rows), ("column", key, columns)):
            check_known(f"{kind} of table {cell['table']} in {where}", name, those)
        if (cell["row"], key) in values:
            raise FedbenchError(f"{where}: {cell['row']}, {key} of table {cell['table']} has a value already")
        std = _number(cell["std"], f"{where}: std") if cell["std"] else None
        if std is not None and std < 0:
            raise FedbenchError(f"{where}: std cannot be negative, as '{cell['std']}' is")
        value = _number(cell["value"], f"{where}: value")
        if most and key in most and not 0 <= value <= most[key]:
            raise FedbenchError(f"{where}: value must lie in 0..{most[key]:g}, as {key} does, not '{cell['value']}'")
        values[cell["row"], key] = value, std
    return values


def tables_in(folder: Path) -> Collection[str]:
    """The tables that the reported.csv of a folder may name: those of its files, and those that they say they are
    reported in. Empty if that depends on a template."""
    names: set[str] = set()
    for path in table_files(folder):
        try:
            changed = path.stat()
            names |= _names_in(path, changed.st_mtime_ns, changed.st_size)
        except (FedbenchError, OSError):  # told by the command that reads this table
            return ()
    return () if any("{" in name for name in names) else names


@cache
def _names_in(path: Path, changed: int, size: int) -> frozenset[str]:
    """The tables of a file, and those that they say they are reported in. Kept while the file is the same: each table
    of a paper asks for the names of all."""
    raw = reader.toml(path, "table file")
    names = {*numbers(raw, path)} if path.name.endswith(SUFFIX) else {path.stem}
    for part in (raw, *(raw.get("own", {}).values() if isinstance(raw.get("own"), dict) else ())):
        names |= {str(name) for name in part.get("reported_in", ())}
    return frozenset(names)


@lru_cache(maxsize=16)
def _lines(path: Path, changed: int, size: int) -> list[tuple[int, dict[str, str]]]:
    """(number of the line, its values by column). Kept while the file is the same: all tables of a paper read it."""
    lines: list[tuple[int, dict[str, str]]] = []
    text = csv.reader(io.StringIO(reader.text(path, "CSV file"), newline=""), strict=True)
    try:
        head = next(text, [])
        for name in head:
            check_known(f"column in {path}", name, FIELDS)
        if missing := [name for name in FIELDS if head.count(name) != 1]:
            raise FedbenchError(f"{path} must have one column '{missing[0]}'", f"its first line: {','.join(FIELDS)}")
        for cells in text:
            if cells and len(cells) != len(head):
                raise FedbenchError(f"{path}, line {text.line_num} has {len(cells)} values, not {len(head)}")
            if cells:
                lines.append((text.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise FedbenchError(f"{path}, line {text.line_num} is not valid CSV ({error})") from error
    return lines


def _number(text: str, where: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
        raise FedbenchError(f"{where} must be a number, not '{text}'")
    return number
