"""What methods declare. Built-in declarations are stored in declarations.json in this folder, so that reports do not
need torch; a user's file is imported.

    python -m fedbench.methods.declarations      rewrites the file; run it after any change of a declaration
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.declaration import Declaration, HyperParameter, of_class
from fedbench.measure import Measure
from fedbench.methods import load, names

FILE = Path(__file__).with_name("declarations.json")


@cache
def built_in() -> dict[str, Declaration]:
    """Return the declarations of all built-in methods, by name."""
    return {name: of(name) for name in names()}


@cache
def measures() -> dict[str, Measure]:
    """Return all measures of the built-in methods, by name."""
    return {one.name: one for method in built_in().values() for one in method.measures}


def of(method: str) -> Declaration:
    """Return the declaration of a built-in method, of 'FILE.py:Class' or of the only method in 'FILE.py'.

    Raises FedbenchError for an unknown method, and as `fedbench.methods.load` for a user's file.
    """
    return _kept().get(method) or of_class(*load(method))


@cache
def _kept() -> dict[str, Declaration]:
    return {name: _made(raw) for name, raw in json.loads(FILE.read_text(encoding="utf-8")).items()}


def _made(raw: Mapping[str, Any]) -> Declaration:
    values = _tuples(raw)
    values["hyper_parameters"] = {name: HyperParameter(**_tuples(one)) for name, one in raw["hyper_parameters"].items()}
    values["measures"] = tuple(Measure(**one) for one in raw["measures"])
    return Declaration(**values)


def _tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


def main() -> None:
    """Write the file."""
    declared = {name: asdict(of_class(*load(name))) for name in names()}
    FILE.write_text(json.dumps(declared, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
