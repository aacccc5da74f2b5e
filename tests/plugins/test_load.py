"""Plug-ins run apart: each with the modules of its own folder, from the text that was hashed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.plugins.load import load, statements
from fedbench.plugins.mistakes import PluginError
from tests.support.plugin_files import write


@pytest.mark.parametrize(
    "statement",
    [
        "import helper\nx = helper.x", "from helper import x", "from helper import *",
        "from . import helper\nx = helper.x", "import importlib, helper\nx = helper.x",
        "from .helper import x", "import kit.tool\nx = kit.tool.x", "import kit.tool as t\nx = t.x",
        "from kit import tool\nx = tool.x", "from kit.tool import x", "from plain.part import x",
    ],
)  # fmt: skip
def test_every_form_of_import(tmp_path: Path, statement: str) -> None:
    texts = {
        "helper": "x = 7",
        "kit____init__": "",
        "kit__tool": "from . import base\nx = base.x",
        "kit__base": "x = 7",
    }
    module, _ = load(write(tmp_path, mine=statement, plain__part="import helper\nx = helper.x", **texts))
    assert module.x == 7
    assert "helper" not in sys.modules
    assert str(tmp_path) not in sys.path


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


def test_a_circle_of_names_is_one_line(tmp_path: Path) -> None:
    file = write(tmp_path, mine="from helper import x", helper="from mine import y")
    with pytest.raises(PluginError, match=r"cannot load .*helper\.py, line 1: ImportError: cannot import name 'y'"):
        load(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import sys\nsys.exit(0)", r"mine\.py, line 2: SystemExit: 0"),
        ("raise SystemExit", r"mine\.py, line 1: SystemExit"),
        ("import helper", r"helper\.py, line 3, in f: ZeroDivisionError: division by zero"),
        ("import no_such_module", r"mine\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('one\\ntwo')", r"mine\.py, line 1: RuntimeError: one"),
        ("class Own(BaseException): pass\nraise Own", r"mine\.py, line 2: Own"),
        ("from .. import above", r"mine\.py, line 1: ImportError: attempted relative import beyond top-level package"),
    ],
)
def test_a_mistake_at_import_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = write(tmp_path, mine=text, helper="def f():\n    x = 0\n    return 1 / x\nf()\n")
    for _ in range(2):  # nothing of it stays
        with pytest.raises(PluginError, match=f"cannot load .*{line}") as caught:
            load(file)
        assert "\n" not in str(caught.value)


def test_an_interrupt_stays_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
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
