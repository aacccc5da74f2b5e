"""The source of a plug-in: a user's file and what it imports from its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.plugins.mistakes import PluginError
from fedbench.plugins.source import read
from tests.support.plugin_files import write


def modules(file: Path) -> set[str]:
    return set(read(file).modules)


def test_only_what_is_imported_from_its_folder_counts(tmp_path: Path) -> None:
    text = "import math\nimport numpy as np\nfrom fedbench.core import client\nfrom nowhere import x\n"
    file = write(tmp_path, mine=text, other="x = 1")
    assert modules(file) == {"mine"}
    alone = read(file).digest
    write(tmp_path, other="x = 2")
    assert read(file).digest == alone


MINE = 'import helper\nclass Mine:\n    """Mine."""\n    x: float = 1.0\n    def f(self): return "a b"\n'
HELPER = "def f():\n    return 1\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("mine", "1.0", "1.0  # a comment", True),
        ("mine", "import", "# a comment\n\nimport", True),
        ("mine", '"""Mine."""', '"""deviates: not at all."""', True),
        ("mine", "1.0", "1.00", True),
        ("mine", "1.0", "1", False),
        ("mine", "a b", "a  b", False),
        ("helper", "def f():", 'def f():\n    """One."""', True),
        ("helper", "return 1", "return (1)", True),
        ("helper", "return 1", "return 2", False),
    ],
)
def test_the_source_is_the_code_not_its_text(tmp_path: Path, file: str, old: str, new: str, same: bool) -> None:
    texts = {"mine": MINE, "helper": HELPER}
    before = read(write(tmp_path, **texts)).digest
    after = read(write(tmp_path, **{**texts, file: texts[file].replace(old, new)})).digest
    assert (before == after) is same


def test_code_too_deep_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"cannot load .*mine\.py: RecursionError"):
        read(write(tmp_path, mine=f"x = {'-' * 5000}1"))


@pytest.mark.parametrize(
    "statement",
    [
        "import helper", "import helper as h", "from helper import x", "from helper import *", "from . import helper",
        "from .helper import x", "def late():\n    from helper import x",
        "try:\n    import helper\nexcept ImportError: pass",
    ],
)  # fmt: skip
def test_a_module_beside_it_is_part_of_the_source(tmp_path: Path, statement: str) -> None:
    file = write(tmp_path, mine=statement, helper="x = 1")
    before = read(file).digest
    assert modules(file) == {"mine", "helper"}
    write(tmp_path, helper="x = 2")
    assert read(file).digest != before


def test_what_a_helper_imports_counts_too(tmp_path: Path) -> None:
    file = write(tmp_path, mine="import one", one="from two import x", two="import three", three="", four="")
    assert modules(file) == {"mine", "one", "two", "three"}


def test_packages_below_the_folder(tmp_path: Path) -> None:
    file = write(
        tmp_path, mine="from kit.deep import tool\nimport plain.part", kit____init__="", kit__deep____init__="",
        kit__deep__tool="from .. import base\nfrom ...outside import x", kit__base="", plain__part="", kit__unused="",
    )  # fmt: skip
    found = modules(file)
    assert found == {"mine", "kit", "kit.deep", "kit.deep.tool", "kit.base", "plain", "plain.part"}


def test_a_circle_ends(tmp_path: Path) -> None:
    file = write(tmp_path, mine="import helper", helper="import mine")
    assert modules(file) == {"mine", "helper"}


def test_names_and_places_count(tmp_path: Path) -> None:
    one = write(tmp_path / "one", mine="import a, b", a="x = 1", b="x = 2")
    two = write(tmp_path / "two", mine="import a, b", a="x = 2", b="x = 1")
    three = write(tmp_path / "three", mine="import a, b", a="x = 1", b="x = 2")
    assert read(one).digest == read(three).digest != read(two).digest


def test_what_is_built_in_and_fedbench_itself_are_never_local(tmp_path: Path) -> None:
    file = write(tmp_path, mine="import sys, fedbench.core.client", sys="", fedbench____init__="")
    assert modules(file) == {"mine"}


def test_an_installed_package_goes_before_a_mere_folder(tmp_path: Path) -> None:
    file = write(tmp_path, mine="import numpy", numpy__part="")
    assert modules(file) == {"mine"}


def test_for_type_checkers_alone(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\n"
    assert modules(write(tmp_path, mine=text, helper="")) == {"mine"}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("mine", "def f(:\n", r"cannot load .*mine\.py, line 1: SyntaxError: invalid syntax"),
        ("helper", "x = 1\n  y = 2\n", r"cannot load .*helper\.py, line 2: IndentationError: unexpected indent"),
    ],
)
def test_what_is_no_python_is_told_by_its_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    file = write(tmp_path, **{"mine": "import helper", "helper": "", name: text})
    with pytest.raises(FedbenchError, match=line) as caught:
        read(file)
    assert "\n" not in str(caught.value)
