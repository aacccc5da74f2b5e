"""Imports point one way: from rooms above to rooms below, and never in a circle; files stay short.

What counts: every import statement of every module, also inside functions (they run). For the direction between rooms
also what only a type checker reads (`if TYPE_CHECKING:`), since who reads the file must know that name too; for circles
not, since nothing is imported there. That importing a module imports its package's `__init__` does not count.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fedbench.imports import PACKAGE, Import, imports

#: Rooms (packages and single modules of fedbench/) from the bottom up; those of a line do not know each other.
FLOORS = (
    ("errors", "groups", "rng"),
    ("resources", "words"),
    ("files", "imports", "machine", "reader", "screen", "vision"),
    ("measure", "plugins", "specs"),
    ("options",),
    ("store", "models"),
    ("data", "declaration"),
    ("partitions",),
    ("protocol",),
    ("partition_options",),
    ("core",),
    ("ratios",),
    ("methods",),
    ("metrics",),
    ("results",),
    ("planner",),
    ("conformance", "engine", "reports"),
    ("observers",),
    ("api",),
    ("cli",),
    ("__main__",),
)
#: Lines of the longest file.
LONGEST = 800


MODULES = {
    ".".join(("fedbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def named(statements: Iterable[Import]) -> list[str]:
    """The modules of fedbench that import statements name."""
    found = {}
    for statement in statements:
        assert not statement.level, "imports are written out in full"
        for name in statement.names or ("",):
            inside = f"{statement.module}.{name}"
            found[inside if inside in MODULES else statement.module] = None
    return [module for module in found if module in MODULES]


def every_import(tree: ast.AST) -> Iterator[Import]:
    """With what only a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)


def room(module: str) -> str:
    """Of fedbench itself: "" (its version, which all may ask for)."""
    return module.partition(".")[2].partition(".")[0]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return {module: ast.parse(path.read_bytes()) for module, path in MODULES.items()}


def test_the_top_level_is_that_of_the_design() -> None:
    """What a command wrote in passing is not committed beside it."""
    listed = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    top = {name.split("/")[0] for name in listed.stdout.splitlines()}
    rooms = {"fedbench", "tables", "tests", "data_recipes", "pyproject.toml", "README.md", "noxfile.py"}
    papers = {"LICENSE", "CITATION.cff", "CHANGELOG.md", "constraints.txt"}
    assert {name for name in top if not name.startswith(".")} == rooms | papers


def test_no_import_points_up(trees: dict[str, ast.AST]) -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert {room(module) for module in MODULES} - {""} <= floor.keys(), "name its place in FLOORS"
    upward = {
        f"{module} -> {other}"
        for module, tree in trees.items()
        for other in named(every_import(tree))
        # fedbench itself offers what `api` does, when it is asked for it.
        if room(module) and room(other) not in ("", room(module)) and floor[room(other)] >= floor[room(module)]
    }
    assert not upward


def test_no_modules_import_one_another_in_a_circle(trees: dict[str, ast.AST]) -> None:
    """Raises CycleError, which names one, else."""
    TopologicalSorter(
        {module: [other for other in named(imports(tree)) if other != module] for module, tree in trees.items()}
    ).prepare()


def test_no_file_is_too_long() -> None:
    files = [*MODULES.values(), *Path(__file__).parent.rglob("*.py")]
    lines = {path.as_posix(): len(path.read_text().splitlines()) for path in files}
    assert {name: n for name, n in lines.items() if n > LONGEST} == {}
