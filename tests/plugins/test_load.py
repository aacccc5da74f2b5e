"""Plug-ins: what belongs to the source of one, and how it runs apart, with the modules of its own folder, from the text
that was hashed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.plugins.load import load, statements
from fedbench.plugins.mistakes import PluginError
from fedbench.plugins.source import read
from tests.support.plugin_files import write


def modules(file: Path) -> set[str]:
    return set(read(file).modules)


KIT = {"kit____init__": "", "kit__tool": "from . import base\nx = base.x", "kit__base": "x = 7", "kit__unused": ""}
OF_KIT = {"mine", "kit", "kit.tool", "kit.base"}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        *(
            (statement, {"mine", "helper"})
            for statement in (
                "import helper\nx = helper.x", "import helper as h\nx = h.x", "from helper import x",
                "from helper import *", "from . import helper\nx = helper.x", "from .helper import x",
                "import importlib, helper\nx = helper.x",
                "class A:\n    def late(self):\n        from helper import x\n        return x\nx = A().late()",
                "import typing\nif typing.TYPE_CHECKING:\n    import numpy\nelse:\n    import helper\nx = helper.x",
                "try:\n    import helper\nexcept ImportError: pass\nx = helper.x",
            )
        ),
        *(
            (statement, OF_KIT)
            for statement in (
                "import kit.tool\nx = kit.tool.x", "import kit.tool as t\nx = t.x", "from kit import tool\nx = tool.x",
                "from kit.tool import x",
            )
        ),
        ("from plain.part import x", {"mine", "plain", "plain.part", "helper"}),
        ("import math\nimport numpy as np\nfrom fedbench.core import client\nx = 7", {"mine"}),
    ],
)  # fmt: skip
def test_every_form_of_import(tmp_path: Path, statement: str, expected: set[str]) -> None:
    texts = {"helper": "x = 7", "plain__part": "import helper\nx = helper.x", **KIT}
    file = write(tmp_path, mine=statement, **texts)
    before = read(file)
    assert set(before.modules) == expected
    assert load(file)[0].x == 7
    assert "helper" not in sys.modules
    assert str(tmp_path) not in sys.path
    write(tmp_path, helper="x = 8", kit__base="x = 8")
    assert (read(file).digest == before.digest) == (expected == {"mine"})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"mine": "import one", "one": "from two import x", "two": "import three", "three": "", "four": ""},
         {"mine", "one", "two", "three"}),
        ({"mine": "from kit.deep import tool", "kit____init__": "", "kit__deep____init__": "", "kit__base": "",
          "kit__deep__tool": "from .. import base\nfrom ...outside import x"},
         {"mine", "kit", "kit.deep", "kit.deep.tool", "kit.base"}),
        ({"mine": "import helper", "helper": "import mine"}, {"mine", "helper"}),
        ({"mine": "import sys, fedbench.core.client", "sys": "", "fedbench____init__": ""}, {"mine"}),
        ({"mine": "import numpy, nowhere", "numpy__part": ""}, {"mine"}),
        ({"mine": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\n", "helper": ""}, {"mine"}),
    ],
    ids=["of a helper", "packages", "a circle", "built in", "installed before a mere folder", "for type checkers"],
)  # fmt: skip
def test_what_belongs_to_the_source(tmp_path: Path, texts: dict[str, str], expected: set[str]) -> None:
    assert modules(write(tmp_path, **texts)) == expected


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


def test_names_and_places_count(tmp_path: Path) -> None:
    texts = [{"a": "x = 1", "b": "x = 2"}, {"a": "x = 2", "b": "x = 1"}, {"a____init__": "x = 1", "b": "x = 2"}]
    files = [write(tmp_path / str(i), mine="import a, b", **more) for i, more in enumerate([*texts, texts[0]])]
    first, *others, again = (read(file).digest for file in files)
    assert first == again
    assert first not in others


def test_helpers_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    text = (
        "import helper\nx = helper.x\ndef late():\n    from helper import x\n    import other\n    return x + other.x\n"
    )
    one, _ = load(write(tmp_path / "one", mine=text, helper="x = 1", other="x = 10"))
    two, _ = load(write(tmp_path / "two", mine=text, helper="x = 2", other="x = 20"))
    assert (one.x, two.x) == (1, 2)
    assert (one.late(), two.late()) == (11, 22)


def test_a_run_keeps_the_text_that_was_hashed(tmp_path: Path) -> None:
    """A helper that is first imported in a hook may have been edited since."""
    file = write(tmp_path, mine="def late():\n    import helper\n    return helper.x", helper="x = 1")
    before, first = load(file)
    write(tmp_path, helper="x = 2")
    after, second = load(file)
    assert first.digest != second.digest
    assert (before.late(), after.late()) == (1, 2)


def test_a_module_is_there_once(tmp_path: Path) -> None:
    """The plug-in that its own helper imports is the plug-in itself; and what did not change does not run again."""
    file = write(tmp_path, mine="x = object()\nimport helper\n", helper="import mine\n")
    module, _ = load(file)
    assert module.helper.mine is module
    assert load(file)[0] is module


FAILS = "def f():\n    x = 0\n    return 1 / x\nf()\n"


@pytest.mark.parametrize(
    ("text", "helper", "line"),
    [
        ("import sys\nsys.exit(0)", "", r"mine\.py, line 2: SystemExit: 0"),
        ("raise SystemExit", "", r"mine\.py, line 1: SystemExit"),
        ("import helper", FAILS, r"helper\.py, line 3, in f: ZeroDivisionError: division by zero"),
        ("import no_such_module", "", r"mine\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('one\\ntwo')", "", r"mine\.py, line 1: RuntimeError: one"),
        ("class Own(BaseException): pass\nraise Own", "", r"mine\.py, line 2: Own"),
        ("from .. import above", "", r"mine\.py, line 1: ImportError: attempted relative import beyond top-level"),
        ("from helper import x", "from mine import y", r"helper\.py, line 1: ImportError: cannot import name 'y'"),
        ("def f(:\n", "", r"mine\.py, line 1: SyntaxError: invalid syntax"),
        ("import helper", "x = 1\n  y = 2\n", r"helper\.py, line 2: IndentationError: unexpected indent"),
        (f"x = {'-' * 5000}1", "", r"mine\.py: RecursionError"),
    ],
)
def test_a_mistake_at_import_is_one_line(tmp_path: Path, text: str, helper: str, line: str) -> None:
    file = write(tmp_path, mine=text, helper=helper)
    for _ in range(2):  # nothing of it stays
        with pytest.raises(PluginError, match=f"cannot load .*{line}") as caught:
            load(file)
        assert "\n" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt):  # which stays one
        load(write(tmp_path, mine="raise KeyboardInterrupt"))


def test_a_module_past_the_import_statements_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder is on Python's path importlib finds it; what it does then no digest would tell."""
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path, mine="import importlib\nimportlib.import_module('hidden_helper')", hidden_helper="x = 1")
    with pytest.raises(FedbenchError, match=r"mine\.py loads .*hidden_helper\.py without an import statement"):
        load(file)
    sys.modules.pop("hidden_helper")


def test_what_it_imports_of_fedbench_is_known(tmp_path: Path) -> None:
    text = "from helper import Thing\n"
    module, _ = load(write(tmp_path, mine=text, helper="from fedbench import rng\nclass Thing: pass\n"))
    assert any(one.module == "fedbench" and one.names == ("rng",) for one in statements(module.Thing))
    assert statements(dict) == ()


def test_odd_names_of_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a:b c" / "~x"
    write(folder, mine="import helper\nx = helper.x", helper="x = 3")
    file = (folder / "mine.py").rename(folder / "my-own.v2.py")
    assert load(file)[0].x == 3
