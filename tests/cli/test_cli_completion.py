"""What the shell offers at the tab key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.cli import complete

#: The shell asks by these variables; what must not be imported for an answer comes behind it.
ASKING = """
import sys
from fedbench.__main__ import main
try:
    main([])
except SystemExit:
    pass
print("heavy:", sorted({"torch", "sklearn", "pandas", "matplotlib"} & set(sys.modules)))
"""


def offered(line: str, home: Path) -> list[str]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_FEDBENCH_COMPLETE": "complete_bash"}
    environment = {**os.environ, **words, "FEDBENCH_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", ASKING], env=environment, capture_output=True, text=True, check=True)
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "heavy: []"
    return lines


def test_the_shell_asks_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    assert offered("fedbench train dig", tmp_path) == ["digit3", "digit5", "digits"]
    assert offered("fedbench train digits -m fedpro", tmp_path) == ["fedproto", "fedprox"]
    assert "--dir" in offered("fedbench train --d", tmp_path)


@pytest.mark.parametrize(
    ("what", "begin", "answer"),
    [
        ("methods", "ditt", ["ditto"]),
        ("datasets", "cifar1", ["cifar10", "cifar100"]),
        ("tables", "feddrm/1", ["feddrm/1"]),
        ("tables", "5", ["5"]),
        ("protocols", "p", ["pfedfda", "plain"]),
        ("networks", "lenet_", ["lenet_gn", "lenet_tanh"]),
        ("partitioners", "d", ["dirichlet"]),
        ("methods", "no such", []),
    ],
)
def test_names(what: str, begin: str, answer: list[str]) -> None:
    assert getattr(complete, what)(begin) == answer


def test_ids_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    assert complete.runs("") == []
    for id in ("run/ab12", "run/cd34", "partition/ab99"):
        (tmp_path / id).mkdir(parents=True)
    assert complete.runs("ab") == ["ab12"]
    assert complete.artifacts("ab") == ["ab12", "ab99"]
