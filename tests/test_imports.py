"""Import statements, and the files of the package that they lead to."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench import imports as module
from fedbench.imports import Import, closure, imports


def names(text: str) -> list[Import]:
    return list(imports(ast.parse(text)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a.b as c, d", [Import("a.b"), Import("d")]),
        ("from a import b, c as d", [Import("a", ("b", "c"))]),
        ("from . import a", [Import("", ("a",), 1)]),
        ("from ..a import *", [Import("a", ("*",), 2)]),
        ("def f():\n    try:\n        import a\n    except ImportError:\n        import b", [Import("a"), Import("b")]),
        ("class A:\n    def f(self):\n        from a import b", [Import("a", ("b",))]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", [Import("b")]),
        ("import typing\nif typing.TYPE_CHECKING:\n    import a", [Import("typing")]),
        ("if fast:\n    import a", [Import("a")]),
    ],
)
def test_statements_at_any_level(text: str, found: list[Import]) -> None:
    assert names(text) == found


def test_a_closure_follows_imports_within_the_rooms() -> None:
    plan = closure("core/plan.py")
    assert plan == ["core/plan.py", "rng.py"]
    assert {"core/executors.py", "core/worker.py", "core/state.py"} <= set(closure("core/trainer.py"))
    assert closure("cli/train.py") == [], "no room where numbers are made"


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        (Import("fedbench.rng", ("stream",)), {"rng.py"}),
        (Import("fedbench", ("rng",)), {"rng.py"}),
        (Import("fedbench.rng"), {"rng.py"}),
        (Import("fedbench.partitions.transforms.corruption", ("blur",)), {"partitions/transforms/corruption/blur.py"}),
        (
            Import("fedbench.partitions.transforms.corruption", ("corrupt",)),
            {"partitions/transforms/corruption/__init__.py"},
        ),
        (Import("core", ("rng",)), set()),
        (Import("core", ("rng",), 1), set()),
    ],
)
def test_statements_of_a_file_outside(statement: Import, parts: set[str]) -> None:
    found = set(closure(statements=(statement,)))
    assert parts <= found
    assert found or not parts


def test_nothing_is_imported_to_find_out() -> None:
    code = (
        "import sys; from fedbench.imports import closure; closure('engine/training.py'); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_package_comes_before_a_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Python; another distribution may have put models.py beside models/."""
    (tmp_path / "models").mkdir()
    for name in ("models.py", "models/__init__.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    assert module._file("models") == "models/__init__.py"
