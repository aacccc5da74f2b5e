"""Paths of the TOML files, which are next to the package in a checkout and inside it in an installed wheel; and of the
user's papers, which are folders like those in `tables/`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from fedbench.errors import FedbenchError

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


TABLES = _folder("tables")
RECIPES = _folder("data_recipes")
#: Environment variable: the user's papers, each a folder or in a folder of such, separated like PATH.
PAPERS = "FEDBENCH_PAPERS"

#: Name -> path of the papers that commands of this process named by path.
_given: dict[str, Path] = {}


def papers() -> dict[str, Path]:
    """Name -> folder of all papers, fedbench's and the user's.

    Raises FedbenchError if FEDBENCH_PAPERS names a folder without tables, or if two papers have one name.
    """
    return {**_shipped(TABLES), **of_user()}


def paper(name: str) -> Path | None:
    """The folder of one paper; None if there is no such paper."""
    return _shipped(TABLES).get(name) or of_user().get(name)


def of_user() -> dict[str, Path]:
    """Name -> folder of the user's papers. Raises FedbenchError like `papers`."""
    named: dict[str, Path] = {}
    for text in filter(None, os.environ.get(PAPERS, "").split(os.pathsep)):
        folder = Path(os.path.expanduser(text))  # Path.expanduser raises for an unknown user
        inside = [] if holds_tables(folder) else [one for one in _folders(folder) if holds_tables(one)]
        if not inside and not holds_tables(folder):
            raise FedbenchError(
                f"{PAPERS} names {folder}, which neither is nor contains a folder of tables", "correct the variable"
            )
        for one in inside or [folder]:
            _add(named, one)
    for folder in _given.values():
        _add(named, folder)
    return named


def named(text: str) -> str:
    """The name of a paper, or of its table or figure, from a path ('./mine', './mine/1'). Also registers the paper, as
    if FEDBENCH_PAPERS named it. Returns any other text unchanged. Raises FedbenchError like `papers`."""
    paper = text.partition("/")[0]
    if paper in _shipped(TABLES) or ".toml" in text or paper in of_user():
        return text
    path = Path(os.path.expanduser(text))
    places = [(path, ""), (path.parent, f"/{path.name}")] if "/" in text else [(path, "")]
    for folder, rest in places:
        if holds_tables(folder):
            name = _add(of_user(), folder)
            _given[name] = folder
            return name + rest
    return text


def page(folder: Path) -> tuple[str, str]:
    """(title, first paragraph) of a paper's README.md, each as one line of Markdown; "" if missing."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    title, first, *_ = [*text.split("\n\n"), ""]
    return title.removeprefix("# "), " ".join(first.split())


def place(name: str) -> str:
    """The name of a paper, table or figure for a later command: its path if it was given by path."""
    paper, slash, rest = name.partition("/")
    return f"{_given[paper].as_posix()}{slash}{rest}" if paper in _given else name


@cache
def _shipped(tables: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(tables.iterdir()) if path.is_dir()}


def holds_tables(folder: Path) -> bool:
    """Whether it is the folder of a paper: one with TOML files."""
    return os.path.isdir(folder) and any(folder.glob("*.toml"))  # Path.is_dir raises for a name that is too long


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError:
        return []


def _add(papers: dict[str, Path], folder: Path) -> str:
    """Add a user's paper under its name, which is returned. Raises FedbenchError if another one has that name."""
    name = _name(folder)
    other = papers.get(name, folder)
    if other.resolve() != folder.resolve():
        raise FedbenchError(
            f"two papers are called {name}: {other} and {folder}", "give one of the folders another name"
        )
    papers[name] = folder
    return name


def _name(folder: Path) -> str:
    """The name of a user's paper. Raises FedbenchError if a built-in paper has the same name."""
    resolved = folder.resolve()
    other = _shipped(TABLES).get(resolved.name)
    if other and other.resolve() != resolved:
        raise FedbenchError(
            f"the paper {folder} has the name of fedbench's own {resolved.name}", "give the folder another name"
        )
    return resolved.name
