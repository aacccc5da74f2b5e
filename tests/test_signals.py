"""What a command leaves behind when the system stops it, and the system's refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.__main__ import main
from tests.support.cli_user import bad, good

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
    ],
)
def test_a_stopped_command_clears_up_behind_itself(tmp_path: Path, number: signal.Signals, ignored: bool) -> None:
    """What is ignored stays ignored, and what a killed one leaves behind `store clean` removes."""
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
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    assert list((tmp_path / "dataset").glob(".*"))
    child.send_signal(number)
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


def test_signals_are_as_they_were_afterwards(tmp_path: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(SystemExit) as stop:
        main(["list", "--home", str(tmp_path)])
    assert stop.value.code == 0
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before


def test_the_systems_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say, a store of another user's."""

    def refuse(folder: Path) -> list[str]:
        if folder.name == "run":
            raise PermissionError(13, "Permission denied", str(folder))
        return []

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("fedbench.store.folder.os.listdir", refuse)
    assert bad("list", "--home", tmp_path) == f"fedbench: cannot use {tmp_path / 'run'} (Permission denied)"
