"""Any command with hostile options ends as documented: no traceback, one line where the input is bad."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import hostile_options
import pytest
from command import fedbench
from hypothesis import given

from fedbench.engine import run as engine
from fedbench.errors import FedbenchError
from fedbench.store import Store

#: Bytes that one case may ask for beyond what the process has (where the system counts them).
MEMORY = 2**30
#: Good, work that failed, bad input, interrupted.
CODES = (0, 1, 2, 130)


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """No allocation inside the block may take the process beyond MEMORY more than it has."""
    size = Path("/proc/self/statm")
    if not size.exists():
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(size.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _files(folder: Path) -> None:
    """What the generator's places name: a folder, a pipe, links to devices, empty and binary files."""
    (folder / "folder.csv").mkdir()
    for name in ("fifo", "fifo.csv"):
        os.mkfifo(folder / name)
    for name in ("empty.toml", "empty.py", "file.txt"):
        (folder / name).touch()
    for name in ("binary.toml", "binary.py", "binary.csv"):
        (folder / name).write_bytes(bytes(range(256)))
    links = {"full.tex": "/dev/full", "null.json": "/dev/null", "zero.csv": "/dev/zero", "loop": "loop"}
    for name, target in {**links, **dict.fromkeys(("mem.csv", "mem.toml", "mem.py"), "/proc/self/mem")}.items():
        (folder / name).symlink_to(target)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A user with one run of two steps, deep in folders of the test's own (`../..` leads to none but these), on a
    machine that trains nothing more."""
    folder = tmp_path_factory.mktemp("user") / "a" / "b" / "c"
    folder.mkdir(parents=True)
    _files(folder)

    def refuse(*_: object, **__: object) -> None:
        raise FedbenchError("nothing is trained here")

    def press(_: float) -> None:
        raise KeyboardInterrupt

    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HOME": folder, "FEDBENCH_HOME": folder / "store", "FEDBENCH_DATA": ""}.items():
            patch.setenv(name, str(value))
        os.chdir(folder)
        assert fedbench("partition", "digits", "--dir", "0.3", "--protocol", "feddrm").code == 0
        train = ("train", "--method", "fedavg", "--budget", "smoke", "--rounds", "1", "--steps", "1")
        assert fedbench(*train).code == 0
        patch.setattr(engine, "execute_all", refuse)
        # What is watched is watched until Ctrl-C.
        status = importlib.import_module("fedbench.cli.status")
        patch.setattr(status, "time", SimpleNamespace(sleep=press, time=time.time))
        current = Store().current
        yield {"{run}": current["run"], "{partition}": current["partition"], "{tmp}": str(folder)}
        os.chdir(before)


def ends_well(words: list[str], user: dict[str, str]) -> None:
    """The command ends with one of CODES, and with 2 after one line of its own."""
    for name, value in user.items():
        words = [word.replace(name, value) for word in words]
    with bounded_memory():
        said = fedbench(*words, codes=CODES)
    if "--debug" in words:
        return
    lines = [line for line in said.err.splitlines() if line.startswith("fedbench: ")]
    assert len(lines) == (said.code == 2), said.err
    assert said.err.endswith(f"{lines[0]}\n" if lines else ""), "the reason comes last"
    assert not any("not enough memory" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--method", "ifca", "--budget", "smoke", "--clusters", str(2**31 - 1)],
        ["train", "--method", "fedavg", "--budget", "smoke", "--batch-size", str(2**32)],
        ["train", "--method", "fedavg", "--budget", "smoke", "--rounds", str(10**18)],
        ["partition", "digits", "--protocol", "flux", "--shift", "px", "--level", "1", "--clients", str(10**12)],
        ["partition", "digits", "--counts", "{tmp}/zero.csv"],
        ["partition", "{tmp}/mem.toml", "--iid"],
        ["report", "--table", "feddrm/1", "--json", "--output", "{tmp}/null.json"],
        ["report", "--table", "feddrm/1", "--output", "{tmp}/full.tex"],
        ["theory", "--draws", str(10**18)],
        ["list", "--home", "x" * 5000],
    ],
    ids=" ".join,
)
def test_the_worst_so_far(user: dict[str, str], words: list[str]) -> None:
    ends_well(words, user)


@pytest.mark.slow
@given(hostile_options.command_lines(("train",)))
def test_train(user: dict[str, str], words: list[str]) -> None:
    ends_well(words, user)


@pytest.mark.slow
@given(hostile_options.command_lines(("partition",)))
def test_partition(user: dict[str, str], words: list[str]) -> None:
    ends_well(words, user)


@pytest.mark.slow
@given(hostile_options.command_lines(sorted(hostile_options.commands())))
def test_every_command(user: dict[str, str], words: list[str]) -> None:
    ends_well(words, user)
