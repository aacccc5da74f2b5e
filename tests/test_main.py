"""The command line's frame: exit codes, one line an error, options anywhere, and a quick start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbench
from fedbench.__main__ import hoist, main
from fedbench.cli import app, context
from fedbench.errors import FedbenchError


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """`fedbench ARGUMENTS` here: (exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


# -- options anywhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["list", "--home", "X"], ["--home", "X", "list"]),
        (["data", "show", "digits", "--debug"], ["--debug", "data", "show", "digits"]),
        (["a", "--data", "D", "b", "--home", "H"], ["--data", "D", "--home", "H", "a", "b"]),
        (["train", "--", "--home", "X"], ["train", "--", "--home", "X"]),
        (["partition", "--dataset", "d", "--homes"], ["partition", "--dataset", "d", "--homes"]),
    ],
)
def test_hoist(given: list[str], expected: list[str]) -> None:
    assert hoist(given) == expected


words = st.lists(st.sampled_from(["list", "--home=X", "--debug", "--json", "--data=D", "-o", "file"]), max_size=8)


@given(words)
def test_hoist_loses_nothing_and_keeps_order(arguments: list[str]) -> None:
    """The application's options first, the others after them, each group in its own order."""
    ours = ("--home=X", "--debug", "--data=D")
    assert hoist(arguments) == [a for a in arguments if a in ours] + [a for a in arguments if a not in ours]


def test_home_and_data_folders_after_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (("--home", tmp_path, "list"), ("list", "--home", tmp_path), ("list", f"--home={tmp_path}")):
        code, out, _ = call(capsys, *arguments)
        assert code == 0
        assert str(tmp_path) in out.replace("\n", "")
        assert context.store().home == tmp_path
    monkeypatch.setenv("FEDBENCH_DATA", os.pathsep.join(["a", "b"]))
    assert call(capsys, "list", "--home", tmp_path)[0] == 0
    assert context.roots() == [Path("a"), Path("b")]
    assert call(capsys, "list", "--home", tmp_path, "--data", "c")[0] == 0
    assert context.roots() == [Path("c")]


# -- errors ---------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line_and_with_debug_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(FedbenchError("no run 'x'", "train one")) == "no run 'x'; train one"
    assert str(FedbenchError("no run 'x'")) == "no run 'x'"
    code, out, err = call(capsys, "show", "xyz", "--home", tmp_path)
    assert (code, out, err.count("\n"), err.startswith("fedbench: no dataset")) == (2, "", 1, True)
    code, _, err = call(capsys, "show", "xyz", "--home", tmp_path, "--debug")
    assert (code, "Traceback" in err, "FedbenchError: no dataset" in err) == (2, True, True)


def test_interrupts_end_a_command_and_our_own_mistakes_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "configure", Mock(side_effect=[KeyboardInterrupt, ZeroDivisionError]))
    assert call(capsys, "list")[0] == 130
    with pytest.raises(ZeroDivisionError):
        main(["list"])


def test_the_reader_may_leave(tmp_path: Path) -> None:
    """`fedbench ... | head -1`: no traceback, no noise."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fedbench", "data", "list", "--json", "--home", str(tmp_path)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize("gone", ["", "__init__.py", "errors.py", "cli/context.py"])
def test_another_distribution_in_place_of_ours(tmp_path: Path, gone: str) -> None:
    """The package index has another `import fedbench`, with an empty __init__.py; when it goes it takes ours along, and
    whatever else of ours has the name of a file of its own."""
    shutil.copytree(Path(fedbench.__file__).parent, tmp_path / "fedbench", ignore=shutil.ignore_patterns("__pycache__"))
    if gone in ("", "__init__.py"):
        (tmp_path / "fedbench" / "__init__.py").write_bytes(b"")
    if gone:
        (tmp_path / "fedbench" / gone).unlink()
    line = (
        "fedbench-fl is not whole: another distribution, fedbench, has put its files in place of ours, or has taken "
        "them away; pip uninstall fedbench fedbench-fl; pip install fedbench-fl"
    )
    found = (
        "import os, sys; sys.path[:] = ['.', *(p for p in sys.path if not os.path.exists(p + '/fedbench/errors.py'))]"
    )
    script = "from fedbench.__main__ import main; main()"  # as pip writes it
    api = "from fedbench.api import train"
    expected = [(script, 2, f"fedbench: {line}"), (api, 1, f"ImportError: {line}")]
    if gone not in ("", "__init__.py"):
        lost = rf"fedbench: fedbench-fl is not whole \(.*{Path(gone).stem}.*\); pip uninstall fedbench fedbench-fl; .*"
        expected = [(script, 2, lost)]
    for code, exit, last in expected:
        command = [sys.executable, "-c", f"{found}; {code}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == exit
        assert last == done.stderr.splitlines()[-1] or re.fullmatch(last, done.stderr.splitlines()[-1])
        assert ("Traceback" in done.stderr) == (code is api)


# -- a quick start --------------------------------------------------------------------------------------------


def test_version_and_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"fedbench {fedbench.__version__}\n", "")
    code, out, err = call(capsys, "--help")
    assert (code, err) == (0, "")
    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback] + ["data"]
    assert len(names) > 8
    for name in names:
        assert f" {name} " in out
