"""The paper's numbers: `reported.csv` in the folder of a table's file, one line per cell, in the printed unit.

Its columns are table, row, group, column, value and std; group and std may be empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from fedbench import reader
from fedbench.errors import FedbenchError, check_known

#: (row label, column key) -> (value, ± or None).
Reported = dict[tuple[str, str], tuple[float, float | None]]

FIELDS = ("table", "row", "group", "column", "value", "std")


def reported(path: Path, tables: Collection[str], rows: Collection[str], columns: Collection[str]) -> Reported:
    """The paper's values of a table's cells; empty if the file does not exist.

    Raises FedbenchError for lines of `tables` with an unknown row or column, a repeated cell or an invalid number, and
    for a file that is unreadable or has other columns.
    """
    if not path.exists():
        return {}
    values: Reported = {}
    changed = path.stat()
    for line, cell in _lines(path, changed.st_mtime_ns, changed.st_size):
        if cell["table"] not in tables:
            continue
        where = f"{path}, line {line}"
        key = f"{cell['group']}/{cell['column']}" if cell["group"] else cell["column"]
        for kind, name, known in (("row", cell["row"], rows), ("column", key, columns)):
            check_known(f"{kind} of table {cell['table']} in {where}", name, known)
        if (cell["row"], key) in values:
            raise FedbenchError(f"{where}: {cell['row']}, {key} of table {cell['table']} has a value already")
        std = _number(cell["std"], f"{where}: std") if cell["std"] else None
        if std is not None and std < 0:
            raise FedbenchError(f"{where}: std cannot be negative, as '{cell['std']}' is")
        values[cell["row"], key] = _number(cell["value"], f"{where}: value"), std
    return values


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
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FedbenchError(f"{where} must be a number, not '{text}'")
    return number
