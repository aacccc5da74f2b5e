"""Classes of a user's session as files: what goes into them, and what cannot be told."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.plugins.load import load
from fedbench.plugins.session import reference
from tests.support.cli_user import refused

Cell = Callable[[str], dict[str, Any]]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Runs the text of a notebook's cell in one namespace, and keeps its source as a notebook does."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    count = 0

    def run(text: str) -> dict[str, Any]:
        nonlocal count
        count += 1
        name = f"<cell {count}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(main))
        return vars(main)

    return run


def text_of(kind: type, folder: Path) -> str:
    return Path(reference(kind, folder).rpartition(":")[0]).read_text()


HELPERS = """
import numpy as np
import torch.nn.functional as F
from dataclasses import dataclass
from typing import ClassVar, Any

SCALE, unused = 0.5, object()
WORDS = ("a", "b")

def twice(x):
    return 2 * x

def helper(x):
    return twice(x) if x else helper(1)

class Base:
    def f(self): return WORDS
"""
MINE = """
@dataclass(frozen=True)
class Mine(Base):
    \"\"\"Mine.\"\"\"
    name: ClassVar[str] = "mine"
    x: float = SCALE
    y: Later = 3

    @property
    def g(self):
        unused = [helper(one) for one in range(3)]
        return np.array(unused), F.relu
"""


def test_a_file_has_all_that_a_class_uses_and_no_more(cell: Cell, tmp_path: Path) -> None:
    cell(HELPERS)
    names = cell("from __future__ import annotations\n" + MINE)
    text = text_of(names["Mine"], tmp_path)
    order = [text.index(part) for part in ("SCALE = 0.5", "def twice", "def helper", "class Mine(Base):")]
    assert order == sorted(order)
    assert text.startswith("from __future__ import annotations\n")
    for part in ("from dataclasses import dataclass\n", "from typing import ClassVar\n", "import numpy as np\n"):
        assert part in text
    assert "import torch.nn.functional as F\n" in text
    assert "WORDS = ('a', 'b')" in text
    assert "object" not in text
    assert "Any" not in text
    module, _ = load(Path(reference(names["Mine"], tmp_path).rpartition(":")[0]))
    assert (module.Mine().x, module.Mine().f(), module.Mine().g[0].tolist()) == (0.5, ("a", "b"), [2, 2, 4])


def test_the_same_definitions_are_the_same_file_and_others_another(cell: Cell, tmp_path: Path) -> None:
    cell(HELPERS)
    mine = "from __future__ import annotations\n" + MINE
    first = reference(cell(mine)["Mine"], tmp_path)
    cell("other = 3")
    assert reference(cell(mine)["Mine"], tmp_path) == first
    cell(HELPERS.replace("2 * x", "3 * x"))
    assert reference(cell(mine)["Mine"], tmp_path) != first, "what it uses has changed"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("later", ["", "class Mine:\n    def f(self): return 3\n"])
def test_of_two_classes_of_a_name_it_is_the_one_whose_code_it_is(cell: Cell, tmp_path: Path, later: str) -> None:
    names = cell("class Mine:\n    def f(self): return 1\nFirst = Mine\nclass Mine:\n    def f(self): return 2\n")
    both = names["First"], names["Mine"]
    cell(later)
    assert [f"return {k}" in text_of(kind, tmp_path) for kind, k in zip(both, (1, 2), strict=True)] == [True, True]


def test_a_class_of_a_file_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_me  # type: ignore[import-not-found]

    assert reference(beside_me.Mine, tmp_path / "sources") == f"{tmp_path / 'beside_me.py'}:Mine"
    monkeypatch.delitem(sys.modules, "beside_me")


ONE = "class Mine:\n    def f(self): return 1\n"
UNKNOWN = "nobody can tell the source of Mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("values = [object()]\nclass Mine:\n    def f(self): return values", "Mine uses values, a list, whose source"),
        ("def make():\n    class Mine:\n        def f(self): pass\n    return Mine\nMine = make()", "nobody can tell"),
        ("Mine = type('Mine', (), {})", f"{UNKNOWN}, which has no function; write it into a file"),
        ("class Mine:\n    x = 1", f"{UNKNOWN}, which has no function; write it into a file"),
        (f"{ONE}def make():\n    class Mine:\n        def f(self): return 2\n    return Mine\nMine = make()", "nobody"),
        (f"{ONE}def other(self): return 2\nMine.f = other", f"{UNKNOWN}; write it into a file"),
        (f"{ONE}Mine.g = lambda self: 2", f"{UNKNOWN}; write it into a file"),
    ],
)
def test_what_cannot_be_told_is_refused(cell: Cell, tmp_path: Path, text: str, message: str) -> None:
    linecache.cache["<another cell>"] = (0, None, ["class Mine:\n", "    x = 2\n"], "<another cell>")
    names = cell(text)
    assert message in refused(lambda: reference(names["Mine"], tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_module_beside_the_notebook_is_refused(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpers_here.py").write_text("def f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = cell("from helpers_here import f\nclass Mine:\n    def g(self): return f()\n")
    with pytest.raises(FedbenchError, match=r"helpers_here.py, which may change unseen; write Mine into a file beside"):
        reference(names["Mine"], tmp_path / "sources")
    monkeypatch.delitem(sys.modules, "helpers_here")
