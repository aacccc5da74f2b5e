"""A user's own methods, networks, partitioners and data sets in a table: files, seen from the table's folder; and what
a row is called by its method."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedbench import declared, models
from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.plain import plain
from fedbench.plugins.classes import is_file
from fedbench.reports.table.spec import Row

#: Lists of a table's content, and what one entry of each is called.
_ENTRIES = {"rows": "row", "column": "column"}


def beside(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
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
        title = declared.of(row.method).title
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
