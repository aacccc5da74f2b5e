"""Imports point one way: from rooms above to rooms below, and never in a circle; files stay short.

What counts: every import statement of every module, also inside functions (they run). For the direction between rooms
also what only a type checker reads (`if TYPE_CHECKING:`), since who reads the file must know that name too; for circles
not, since nothing is imported there. That importing a module imports its package's `__init__` does not count.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from fedbench.imports import PACKAGE, Import, imports

#: Rooms (packages and single modules of fedbench/) from the bottom up; those of a line do not know each other.
FLOORS = (
    ("errors", "plain", "remark", "resources", "streams", "rng"),
    ("files", "imports", "machine", "reader", "screen", "vision", "words"),
    ("measure", "plugins", "specs"),
    ("options",),
    ("store", "models", "theory"),
    ("data", "declaration"),
    ("declared",),
    ("partitions",),
    ("protocol",),
    ("partition_options",),
    ("core",),
    ("ratios",),
    ("methods",),
    ("metrics",),
    ("results",),
    ("conformance", "reports"),
    ("engine",),
    ("observers",),
    ("api",),
    ("cli",),
    ("__main__",),
)
#: Lines of the longest file.
LONGEST = 800


def modules() -> dict[str, Path]:
    """Name -> file of every module."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("fedbench", *path.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


@cache
def both(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules that one imports, without and with what only a type checker reads."""
    tree = ast.parse(MODULES[module].read_bytes())
    every = (list(imports(tree)), list(_all(tree)))
    plain, checked = (dict.fromkeys(n for one in of for n in _named(one) if n != module) for of in every)
    return tuple(plain), tuple(checked)


def imported(module: str, for_checkers: bool) -> tuple[str, ...]:
    return both(module)[for_checkers]


def _all(tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)


def _named(statement: Import) -> Iterator[str]:
    """The modules of fedbench that an import statement names."""
    assert not statement.level, "imports are written out in full"
    for name in statement.names or ("",):
        inside = f"{statement.module}.{name}"
        if inside in MODULES:
            yield inside
        elif statement.module in MODULES:
            yield statement.module


def room(module: str) -> str:
    """Of fedbench itself: "" (its version, which all may ask for)."""
    return module.partition(".")[2].partition(".")[0]


def circles(arrows: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Groups of modules that all lead to one another (Tarjan's strongly connected components of more than one)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in arrows[module]:
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            groups.append(set(stack[at:]))
            del stack[at:]

    for module in arrows:
        if module not in number:
            visit(module)
    return [group for group in groups if len(group) > 1]


def test_the_top_level_is_that_of_the_design() -> None:
    """What a command wrote in passing is not committed beside it."""
    listed = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    top = {name.split("/")[0] for name in listed.stdout.splitlines()}
    rooms = {"fedbench", "tables", "tests", "data_recipes", "pyproject.toml", "README.md", "noxfile.py"}
    papers = {"LICENSE", "CITATION.cff", "CHANGELOG.md", "constraints.txt"}
    assert {name for name in top if not name.startswith(".")} == rooms | papers


def test_every_room_has_its_floor() -> None:
    rooms = {room(module) for module in MODULES} - {""}
    assert rooms <= {name for floor in FLOORS for name in floor}, "name its place in FLOORS"


def test_no_import_points_up() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    upward = {
        f"{module} -> {other}"
        for module in MODULES
        for other in imported(module, True)
        # fedbench itself offers what `api` does, when it is asked for it.
        if room(module) and room(other) not in ("", room(module)) and floor[room(other)] >= floor[room(module)]
    }
    assert not upward


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert circles({module: imported(module, False) for module in MODULES}) == []


@pytest.mark.parametrize(
    ("arrows", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "a"}, [{"a", "b"}]),
        ({"a": "b", "b": "cd", "c": "a", "d": "e", "e": "d"}, [{"d", "e"}, {"a", "b", "c"}]),
    ],
)
def test_circles_are_found(arrows: dict[str, str], expected: list[set[str]]) -> None:
    assert circles(arrows) == expected


def test_no_file_is_too_long() -> None:
    files = [*MODULES.values(), *Path(__file__).parent.rglob("*.py")]
    lines = {path.as_posix(): len(path.read_text().splitlines()) for path in files}
    assert {name: n for name, n in lines.items() if n > LONGEST} == {}
