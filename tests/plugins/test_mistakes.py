"""Whose mistake it is, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.plugins.load import load
from fedbench.plugins.mistakes import PluginError, mistake, reported
from tests.support.plugin_files import write

HOOKS = """
import sys
import torch
from helper import divide
def own():
    return {}["key"]
def helpers():
    return divide(0)
def torchs():
    return torch.zeros(2) + torch.zeros(3)
def ends():
    sys.exit(0)
def box():
    yield 1
    raise ValueError("one\\nline")
def refused():
    from fedbench.errors import FedbenchError
    raise FedbenchError("--mu of mine must be positive")
def interrupted():
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        ("own", "mine.py, line 6, in own: KeyError: 'key'"),
        ("helpers", "helper.py, line 2, in divide: ZeroDivisionError: division by zero"),
        ("torchs", "mine.py, line 10, in torchs: RuntimeError: The size of tensor a (2) must match"),
        ("ends", "mine.py, line 12, in ends: SystemExit: 0"),
        ("box", "mine.py, line 15, in box: ValueError: one"),
    ],
)
def test_the_plugins_last_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x):\n    return 1 / x\n"))
    with pytest.raises(PluginError) as caught, reported():
        list(getattr(module, hook)() or ())
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(("hook", "error"), [("refused", FedbenchError), ("interrupted", KeyboardInterrupt)])
def test_what_is_one_line_already_and_an_interrupt_stay(tmp_path: Path, hook: str, error: type[BaseException]) -> None:
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x): ..."))
    with pytest.raises(error) as caught, reported():
        getattr(module, hook)()
    assert type(caught.value) is error


def test_fedbenchs_own_mistakes_stay_tracebacks() -> None:
    with pytest.raises(ZeroDivisionError) as caught, reported():
        _ = 1 / 0
    assert mistake(caught.value) is None
