"""The command line's frame: exit codes, one line an error, options anywhere, and what a stopped one leaves."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer.main

import fedbench
from fedbench.__main__ import hoist, main
from fedbench.cli import PANELS, context
from fedbench.errors import FedbenchError
from tests.support.cli_user import bad, good
from tests.support.cli_user import fedbench as call


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["list", "--home", "X"], ["--home", "X", "list"]),
        (["data", "show", "digits", "--debug"], ["--debug", "data", "show", "digits"]),
        (["a", "--data=D", "b", "-o", "c", "--home", "H"], ["--data=D", "--home", "H", "a", "b", "-o", "c"]),
        (["train", "--", "--home", "X"], ["train", "--", "--home", "X"]),
        (["partition", "--dataset", "d", "--homes"], ["partition", "--dataset", "d", "--homes"]),
    ],
)
def test_hoist(given: list[str], expected: list[str]) -> None:
    assert hoist(given) == expected


def test_options_of_the_application_after_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("--home", tmp_path, "list"), ("list", "--home", tmp_path), ("list", f"--home={tmp_path}")):
        assert str(tmp_path) in good(*arguments).out.replace("\n", "")
        assert context.store().home == tmp_path
    monkeypatch.setenv("FEDBENCH_DATA", os.pathsep.join(["a", "b"]))
    good("list", "--home", tmp_path)
    assert context.roots() == [Path("a"), Path("b")]
    good("list", "--home", tmp_path, "--data", "c")
    assert context.roots() == [Path("c")]
    assert good("--version").out == f"fedbench {fedbench.__version__}\n"
    listed = good("--help-all").out
    files = {file for names in PANELS.values() for file in names.values()}
    declared = [typer.main.get_group(importlib.import_module(f"fedbench.cli.{file}").app) for file in files]
    names = {name for group in declared for name in ([group.name] if group.name else group.commands)}
    assert names == {name for panel in PANELS.values() for name in panel}
    assert all(f" {name} " in listed for name in names)


def test_bad_input_is_one_line_with_debug_its_traceback_and_our_own_mistakes_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(FedbenchError("no run 'x'", "train one")) == "no run 'x'; train one"
    assert str(FedbenchError("no run 'x'")) == "no run 'x'"
    said = call("show", "xyz", "--home", tmp_path)
    assert (said.code, said.err.count("\n"), said.err.startswith("fedbench: no dataset")) == (2, 1, True)
    said = call("show", "xyz", "--home", tmp_path, "--debug")
    assert (said.code, "Traceback" in said.err, "FedbenchError: no dataset" in said.err) == (2, True, True)
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    monkeypatch.setattr(context, "configure", Mock(side_effect=[KeyboardInterrupt, ZeroDivisionError]))
    assert call("list").code == 130
    with pytest.raises(ZeroDivisionError):
        main(["list"])
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before


def test_ctrl_c_stops_a_command_that_a_script_has_in_its_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a shell lets ignore it; what called the command finds its own handler again."""
    monkeypatch.setattr(context, "configure", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert call("list").code == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_comes_twice_at_once_stops_a_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout` sends it, to the command and to its group: what the first stops is saved before it ends."""
    saved: list[str] = []

    def stopped(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            saved.append("whole")
            monkeypatch.setattr("fedbench.__main__.ONCE", 0)
            signal.raise_signal(signal.SIGTERM)
            saved.append("in spite of a later one")

    monkeypatch.setattr(context, "configure", stopped)
    assert call("list").code == 130
    assert saved == ["whole"]


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


#: `partition digits` that tells for as long as it is in the middle of writing.
WRITING = """
import sys, time
from fedbench.store import Writer
def table(self, *_, **__):
    while True:
        print("writing", flush=True)
        time.sleep(0.1)
Writer.table = table
from fedbench.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("number", "ignored"),
    [
        (signal.SIGTERM, False),
        *(pytest.param(number, False, marks=pytest.mark.slow) for number in (signal.SIGHUP, signal.SIGINT)),
        pytest.param(signal.SIGHUP, True, marks=pytest.mark.slow, id="as under nohup"),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow, id="in the background of a script"),
    ],
)
def test_a_stopped_command_clears_up_behind_itself(tmp_path: Path, number: signal.Signals, ignored: bool) -> None:
    """A hangup that is ignored stays so, Ctrl-C does not; what a killed one leaves behind `store clean` removes."""
    command = [sys.executable, "-c", WRITING, "partition", "digits", "--iid", "--home", str(tmp_path)]
    # A shell's background jobs ignore interrupts, and so would their children.
    before = signal.SIG_IGN if ignored else signal.SIG_DFL
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, before),
    )
    assert child.stdout.readline() == "writing\n"
    assert list((tmp_path / "dataset").glob(".*"))
    child.send_signal(number)
    ignored = ignored and number != signal.SIGINT
    if ignored:
        assert [child.stdout.readline() for _ in range(5)] == ["writing\n"] * 5, "it goes on"
        child.kill()
    _, err = child.communicate(timeout=60)
    if ignored:
        good("store", "clean", "--home", tmp_path)
    else:
        assert (child.returncode, err.splitlines()[-1]) == (130, "fedbench: stopped")
        assert "Traceback" not in err
    assert list((tmp_path / "dataset").iterdir()) == []


def test_the_systems_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say, a store of another user's."""

    def refuse(folder: Path) -> list[str]:
        if folder.name == "run":
            raise PermissionError(13, "Permission denied", str(folder))
        return []

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("fedbench.store.folder.os.listdir", refuse)
    assert bad("list", "--home", tmp_path) == f"fedbench: cannot use {tmp_path / 'run'} (Permission denied)"


#: Takes away what only Unix has, and trains.
WITHOUT_UNIX = """
import os, signal, sys
sys.modules["resource"] = None
del signal.SIGHUP, os.sysconf, os.sched_getaffinity
from fedbench.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_it_trains_where_the_system_is_no_unix(tmp_path: Path) -> None:
    words = ["train", "digits", "--iid", "--clients", "2", "-m", "fedavg", "--rounds", "1", "--home", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", WITHOUT_UNIX, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([*tmp_path.glob("run/*/artifact.json")]) == 1
