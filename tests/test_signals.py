"""What a command leaves behind when the system stops it, and the system's refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.__main__ import main

#: `partition digits` that tells when it is in the middle of writing, and then waits.
WRITING = """
import sys, time
from fedbench.store import Writer
def table(self, *_, **__):
    print("writing", flush=True)
    time.sleep(60)
Writer.table = table
from fedbench.__main__ import main
main()
"""


def start(home: Path, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITING, "partition", "digits", "--iid", "--home", str(home)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGHUP, signal.SIGINT))],
)
def test_a_stopped_command_clears_up_behind_itself(tmp_path: Path, number: signal.Signals) -> None:
    # A shell's background jobs ignore interrupts, and so would their children.
    child = start(tmp_path, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    assert list((tmp_path / "dataset").glob(".*"))
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "fedbench: stopped"
    assert "Traceback" not in err
    assert list((tmp_path / "dataset").iterdir()) == []


@pytest.mark.slow
def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    child = start(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=1)
    child.kill()
    child.communicate()
    os.environ["FEDBENCH_HOME"], before = str(tmp_path), os.environ.get("FEDBENCH_HOME")
    try:
        with pytest.raises(SystemExit):
            main(["store", "clean"])
    finally:
        os.environ.pop("FEDBENCH_HOME") if before is None else os.environ.update(FEDBENCH_HOME=before)
    assert list((tmp_path / "dataset").iterdir()) == []


def test_signals_are_as_they_were_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(SystemExit) as stop:
        main(["list", "--home", str(tmp_path)])
    assert stop.value.code == 0
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before


def test_the_systems_refusal_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Say, a store of another user's."""

    def refuse(folder: Path) -> list[str]:
        if folder.name == "run":
            raise PermissionError(13, "Permission denied", str(folder))
        return []

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("fedbench.store.folder.os.listdir", refuse)
    with pytest.raises(SystemExit) as stop:
        main(["list", "--home", str(tmp_path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"fedbench: cannot use {tmp_path / 'run'} (Permission denied)\n"
