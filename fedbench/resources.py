"""Where the declarative files are: beside the package in a checkout, inside it in an installed wheel; and papers of
one's own, which are folders as those of `tables/`."""

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
#: Names folders of papers that are always there, separated as those of PATH are.
PAPERS = "FEDBENCH_PAPERS"

#: The papers that this process was given by their paths: name -> the path as it was given.
_given: dict[str, Path] = {}


def papers() -> dict[str, Path]:
    """The folder of every paper by its name: fedbench's own, and those of the user's.

    Raises FedbenchError where FEDBENCH_PAPERS names no folder of tables, or one that is called as another.
    """
    return {**_shipped(TABLES), **of_user()}


def paper(name: str) -> Path | None:
    """The folder of one paper; None if there is no such paper."""
    return _shipped(TABLES).get(name) or of_user().get(name)


def of_user() -> dict[str, Path]:
    """The papers that are not fedbench's own."""
    named = [Path(text).expanduser() for text in os.environ.get(PAPERS, "").split(os.pathsep) if text]
    for folder in named:
        if not _holds_tables(folder):
            raise FedbenchError(f"{PAPERS} names {folder}, which is no folder of tables", "mend the variable")
    return {**{_name(folder): folder for folder in named}, **_given}


def named(text: str) -> str:
    """What fedbench calls a paper, or a table or figure of one, of which `text` is the path ('./mine', './mine/1'), as
    if FEDBENCH_PAPERS named the folder; any other text as it is. Raises FedbenchError as `papers`."""
    paper = text.partition("/")[0]
    if paper in _shipped(TABLES) or ".toml" in text or paper in of_user():
        return text
    path = Path(text).expanduser()
    places = [(path, ""), (path.parent, f"/{path.name}")] if "/" in text else [(path, "")]
    for folder, rest in places:
        if _holds_tables(folder):
            name = _name(folder)
            _given[name] = folder
            return name + rest
    return text


def page(folder: Path) -> tuple[str, str]:
    """The title and the first paragraph, in one line of Markdown, of a paper's README.md; "" where there is none."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    title, first, *_ = [*text.split("\n\n"), ""]
    return title.removeprefix("# "), " ".join(first.split())


def place(name: str) -> str:
    """The name of a paper, table or figure as a later command understands it: of one that was given by its path, the
    path."""
    paper, slash, rest = name.partition("/")
    return f"{_given[paper].as_posix()}{slash}{rest}" if paper in _given else name


@cache
def _shipped(tables: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(tables.iterdir()) if path.is_dir()}


def _holds_tables(folder: Path) -> bool:
    return os.path.isdir(folder) and any(folder.glob("*.toml"))  # a name may be too long to ask a path


def _name(folder: Path) -> str:
    """The name of a user's paper. Raises FedbenchError for one that another paper has."""
    whole = folder.resolve()
    other = _shipped(TABLES).get(whole.name)
    if other and other.resolve() != whole:
        raise FedbenchError(
            f"the paper {folder} is called as fedbench's own {whole.name}", "give the folder another name"
        )
    return whole.name
