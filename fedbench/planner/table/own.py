"""Files of the user's methods, networks, partitioners, statistics and data sets in a table, relative to the table's
folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbench import models
from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.planner.table import statistic
from fedbench.plugins.load import is_file

#: List in a table's content -> name of an entry.
_ENTRIES = {"rows": "row", "column": "column"}


def with_paths(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of a table's file, with the user's files in it ('./net.py:Net', './pets.toml') replaced: networks,
    partitioners, statistics and data sets by their names in specs, methods by their full paths.

    Raises FedbenchError, naming the row or the column, for a missing file.
    """
    files = _Files(path.absolute().parent)
    out = {key: value if key in _ENTRIES else files.named(value) for key, value in raw.items()}
    for key, called in _ENTRIES.items():
        if isinstance(entries := raw.get(key), list):
            out[key] = [_entry(entry, files, f"{path}, {called}", i) for i, entry in enumerate(entries, 1)]
    if isinstance(template := raw.get("template"), str):
        out["template"] = files.dataset(template)
    if isinstance(own := raw.get("statistic"), str):
        out["statistic"] = files.statistic(own)
    return out


def _entry(raw: Any, files: _Files, where: str, number: int) -> Any:
    try:
        return files.named(raw)
    except FedbenchError as error:
        label = raw.get("label", number) if isinstance(raw, Mapping) else number
        raise error.at(f"{where} {label}") from error


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
            "statistic": self.statistic,
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

    def statistic(self, text: str) -> str:
        """The name of a statistic; `text` may be a user's function."""
        return statistic.named(self._path(text)) if is_file(text) else text

    def _path(self, text: str) -> str:
        return str(self.folder / os.path.expanduser(text))  # Path.expanduser raises for an unknown user
