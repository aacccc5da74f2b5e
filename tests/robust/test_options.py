"""Any command with hostile options ends as documented: no traceback, one line where the input is bad."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from command import fedbench
from hypothesis import given
from hypothesis import strategies as st

from fedbench import methods
from fedbench.cli import app
from fedbench.engine import run as engine
from fedbench.errors import FedbenchError
from fedbench.store import Store

#: Whole numbers at and beyond the edges of what is sensible, of 32 and of 64 bits. None is large and sensible: those
#: would be work.
WHOLE = [
    *("0", "1", "2", "3", "-1", "-7", str(2**31 - 1), str(2**31), str(2**32 - 1), str(2**32), str(2**63 - 1)),
    *(str(2**63), str(2**64), str(-(2**63) - 1), str(10**12), str(10**18), str(10**400), "1" * 5000),
]
NUMBERS = [
    *("0", "-0.0", "1", "0.5", "-0.5", "1e-320", "1e300", "-1e300", "1e400", "-1e400", "nan", "-nan", "inf", "-inf"),
    *("1e-400", "0.1.2", "1,5", "0x10", "1_0", "١", "1e", "Infinity", "5e-324", "1.7976931348623157e308"),
]
TEXTS = [
    "",
    " ",
    ".",
    "..",
    "../..",
    "~",
    "~nosuchuser",
    "~nosuchuser/x",
    "-",
    "--json",
    "-1",
    "*",
    "[",
    "[/red]",
    ":",
    ",",
    "x" * 5000,
    "a/" * 3000,
    "x\0y",
    "x\ny",
    "x\ry",
    "\x1b[31m",
    "\udcff",
    "ö",
    "\u202e",
    "😀",
    "None",
    "true",
    ".lock",
    "%s%n",
    "{0}",
    "${HOME}",
    "$(true)",
    "1",
    "feddrm/1",
    "feddrm",
    "../feddrm",
    "nowhere.toml",
    "nowhere.py:X",
    "x.py",
]
#: Nothing here may be written to: a test may run as root. `{tmp}` has links to devices.
PLACES = [
    *("/proc/self/mem", "/dev/stdin", "/proc", "{tmp}", "{tmp}/fifo", "{tmp}/fifo.csv", "{tmp}/full.tex", "{tmp}/loop"),
    *("{tmp}/nowhere/file.csv", "{tmp}/folder.csv", "{tmp}/empty.toml", "{tmp}/binary.toml", "{tmp}/mem.toml"),
    *("{tmp}/zero.csv", "{tmp}/mem.csv", "{tmp}/mem.py", "{tmp}/mem.py:X", "{tmp}/null.json", "{tmp}/file.txt/x.tex"),
    *("{tmp}/empty.py", "{tmp}/empty.py:X", "{tmp}/binary.py", "{tmp}/binary.csv", "/proc/self/mem:X"),
]
ANY = [*WHOLE, *NUMBERS, *TEXTS, *PLACES]

#: Options of the application, which every command takes.
EVERYWHERE = {"--home": "path", "--data": "path", "--debug": "flag"}

#: What a command needs to come as far as the value under test; `{run}`, `{partition}` are ids, `{tmp}` a folder.
ENOUGH: dict[str, list[str]] = {
    "partition": ["digits"],
    "train": ["--method", "fedavg", "--budget", "smoke"],
    "show": ["{run}"],
    "remove": ["{run}"],
    "figure": ["ftw_erm/2"],
    "data show": ["digits"],
    "data fetch": ["digits"],
    "data check": ["digits"],
    "report": ["--table", "feddrm/1"],
    "tables": ["feddrm/1"],
    "demo": ["--budget", "none"],
    "new": ["method", "mine"],
}


@cache
def commands() -> dict[str, Any]:
    """Every command by its words, such as 'data fetch'."""

    def walk(group: Any, before: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, (*before, name))
            else:
                yield " ".join((*before, name)), command

    return dict(walk(typer.main.get_command(app), ()))


@cache
def hyperparameters() -> dict[str, dict[str, type]]:
    """Every method's hyper-parameters: option -> its kind."""
    return {
        name: {f"--{k.replace('_', '-')}": type(f.default) for k, f in methods.load(name)[0].hyperparameters().items()}
        for name in methods.names()
    }


def values(kind: str) -> st.SearchStrategy[str]:
    """Values for an option of that kind: mostly of its kind, sometimes anything."""
    own = {"int": WHOLE, "float": NUMBERS, "path": PLACES + TEXTS}.get(kind, ANY)  # many numbers come as texts
    return st.one_of(st.sampled_from(own), st.sampled_from(own), st.sampled_from(ANY), st.text(max_size=8))


#: Commands that without an argument go through all tables: work, and nothing of an option's value in it.
THOROUGH = ("report", "tables", "demo")


@st.composite
def command_lines(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """One of these commands with up to three options whose values are hostile; now and then one of them twice."""
    name = draw(st.sampled_from(names))
    command = commands()[name]
    options = {max(p.opts, key=len): p for p in command.params if p.param_type_name == "option" and not p.is_eager}
    words = [*name.split(), *draw(st.sampled_from([ENOUGH.get(name, [])] * 2 + [[]] * (name not in THOROUGH)))]
    positional = [p for p in command.params if p.param_type_name == "argument"]
    if positional and draw(st.integers(0, 2)) == 0:
        words = [*name.split(), draw(values("text")), *words[len(name.split()) + 1 :]]
    kinds = {option: "flag" if p.is_flag else p.type.name.split()[0] for option, p in options.items()}
    if name == "train":
        method = draw(st.sampled_from(sorted(hyperparameters())))
        words = [method if word == "fedavg" else word for word in words]
        kinds |= {option: kind.__name__ for option, kind in hyperparameters()[method].items()}
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=3, unique=True)) if kinds else []
    if draw(st.integers(0, 9)) == 0:
        kinds |= EVERYWHERE
        chosen.append(draw(st.sampled_from(sorted(EVERYWHERE))))
    if chosen and draw(st.integers(0, 9)) == 0:
        chosen.append(chosen[0])
    for option in chosen:
        if kinds[option] == "flag":
            words.append(option)
        else:
            value = draw(values(kinds[option]))
            words += draw(st.sampled_from([[option, value], [f"{option}={value}"]]))
    return words


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
    assert said.line.startswith("fedbench: ") == (said.code == 2), said.err
    assert "not enough memory" not in said.line


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
        ["list", "--home", "x" * 5000],
    ],
    ids=" ".join,
)
def test_the_worst_so_far(user: dict[str, str], words: list[str]) -> None:
    ends_well(words, user)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("train",), ("partition",), sorted(commands())], ids=["train", "partition", "every"])
@given(data=st.data())
def test_hostile_options(user: dict[str, str], names: Sequence[str], data: st.DataObject) -> None:
    ends_well(data.draw(command_lines(names)), user)
