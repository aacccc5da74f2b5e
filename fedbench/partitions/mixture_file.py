"""Class weights of a mixture from a CSV file with columns client, split, class, value."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from fedbench.data.guard import readable, reading
from fedbench.data.spreadsheet import decoded, form
from fedbench.errors import FedbenchError

_COLUMNS = ("client", "split", "class", "value")
_SIDES = ("train", "test")


def read_mixture(path: Path, classes: int) -> dict[str, Any]:
    """Read the fields `scheme`, `train_mix` and `test_mix` of a PartitionSpec from the class weights in a CSV file.

    A row gives the weight of a class (0 .. classes - 1) in the train or test split of a client; clients count from 0
    or from 1. Weights need not sum to 1, and a class without a row has weight 0. Additional columns are ignored, except
    that a column `table` must hold one value only.

    Raises FedbenchError if the file cannot be read, lacks a column, a client or one of its splits, or has an invalid or
    duplicate value for an entry.
    """
    weights: dict[tuple[int, str, int], float] = {}
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        client, category = (_whole(where, name, row[name]) for name in ("client", "class"))
        side = row["split"]
        if side not in _SIDES:
            raise FedbenchError(f"{where}: split must be train or test, not '{side}'")
        if not 0 <= category < classes:
            raise FedbenchError(f"{where}: class {category} is not one of the data set's classes 0 to {classes - 1}")
        entry = (client, side, category)
        if entry in weights:
            raise FedbenchError(f"{where}: class {category} of client {client}, {side}, has a value already")
        weights[entry] = _weight(where, row["value"])
    clients = sorted({client for client, _, _ in weights})
    if not clients:
        raise FedbenchError(f"{path} has no class weights", f"its columns are {','.join(_COLUMNS)}")
    if clients[0] not in (0, 1) or clients != list(range(clients[0], clients[0] + len(clients))):
        raise FedbenchError(f"{path}: clients must be counted from 0 or 1 without gaps, not {_few(clients)}")
    for client in clients:
        for side in _SIDES:
            if not any(weights.get((client, side, c)) for c in range(classes)):
                raise FedbenchError(f"{path} gives client {client} no {side} class with a weight above 0")
    mixes = (tuple(tuple(weights.get((k, side, c), 0.0) for c in range(classes)) for k in clients) for side in _SIDES)
    return {"scheme": "mixture", **dict(zip(("train_mix", "test_mix"), mixes, strict=True))}


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of the file's single table with their line numbers."""
    if path.exists() and not path.is_file():  # a folder, or a device that may never end
        raise FedbenchError(f"cannot read {path}: it is no file", "--counts takes a CSV file")
    with readable(path):
        how = form(path)
        text = decoded(path, how)
    with reading(path, "is not a CSV file"):
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=how.separator)
        names = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    lacking = [name for name in _COLUMNS if name not in names]
    if lacking:
        raise FedbenchError(f"{path} has no column '{lacking[0]}'", f"its columns must be {','.join(_COLUMNS)}")
    for line, row in rows:
        if None in row or None in row.values():
            raise FedbenchError(f"{path}, line {line}: has not as many values as the head has columns")
        if how.separator != ",":  # a spreadsheet that separates values otherwise writes 0,5
            row["value"] = row["value"].replace(",", ".")
    tables = sorted({row["table"] for _, row in rows if "table" in row})
    if len(tables) > 1:
        raise FedbenchError(f"{path} holds several tables ({_few(tables)})", "keep the rows of one")
    return rows


def _whole(where: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FedbenchError(f"{where}: {name} must be a whole number, not '{text}'") from None


def _weight(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise FedbenchError(f"{where}: a class weight must be a number from 0 on, not '{text}'")
    return value


def _few(values: list[Any]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
