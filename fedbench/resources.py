"""Where the declarative files are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


TABLES = _folder("tables")
RECIPES = _folder("data_recipes")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; an error names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of TOML or of UTF-8
        raise FedbenchError(f"{path} is not valid TOML: {error}") from error
