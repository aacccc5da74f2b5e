"""Killed at any change of the store's files and repeated, a command ends as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from command import PARTITION, TABLE, copy, fedbench, numbers, quickly

from fedbench.files import sha256_of
from tests.support.cli_user import SMOKE

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.utime"}
#: What takes long to import is imported once, so that a process starts at once; not fedbench: its path is the child's.
_HEAVY = [
    *("torch._dynamo", "hypothesis", "pytest", "pyarrow.dataset", "pyarrow.parquet", "safetensors.torch"),
    *("sklearn.datasets", "typer"),
]
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Kill:
    """A signal at the n-th change."""

    number: signal.Signals
    at: int

    @classmethod
    def drawn(cls, rng: random.Random, changes: int) -> Kill:
        """Half of them by the signal that nobody can answer."""
        return cls(rng.choice((signal.SIGKILL, *SIGNALS, signal.SIGKILL)), rng.randint(1, changes))

    def __str__(self) -> str:
        return f"{self.number.name} at change {self.at}"


@dataclass(frozen=True)
class Life:
    """How a process ended: its exit code (negative: of a signal), what it said, and how many changes it had made."""

    code: int
    err: str
    changes: int


def live(home: Path, arguments: Sequence[str], kill: Kill | None = None) -> Life:
    """`fedbench --home HOME ARGUMENTS` in a process of its own, killed as told."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_HEAVY)
    hear, tell = context.Pipe(duplex=False)
    said = home.with_name(f"{home.name}.err")
    process = context.Process(target=_life, args=(home, list(arguments), kill, said, tell))
    process.start()
    tell.close()
    process.join()
    return Life(process.exitcode, said.read_text(), hear.recv() if hear.poll() and kill is None else 0)


def _life(home: Path, arguments: list[str], kill: Kill | None, said: Path, tell: Connection) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(os.open(said if descriptor == 2 else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.pop("FEDBENCH_DATA", None)
    quickly(setattr)
    from fedbench.__main__ import main

    changes = _watch(home, kill)
    try:
        main(["--home", str(home), *arguments])
    finally:
        tell.send(len(changes))


def _watch(home: Path, kill: Kill | None) -> list[str]:
    """From now on, the changes of the store by this process; at the n-th it gets the signal."""
    changes: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or (event == "open" and not arguments[2] & _WRITING):
            return
        path = arguments[0]
        # Of what shutil.rmtree removes only the name is told, and the folder's descriptor.
        inside = event in ("os.remove", "os.rmdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0
        if inside or (isinstance(path, str | os.PathLike) and Path(path).is_relative_to(home)):
            changes.append(event)
            if kill is not None and len(changes) == kill.at:
                signal.raise_signal(kill.number)

    sys.addaudithook(hook)
    return changes


TRAIN = ("train", "--method", "fedavg", *SMOKE)
#: What is killed, and what was done in its store before.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "partition": (PARTITION, ()),
    "train": (TRAIN, (PARTITION,)),
    "again": ((*TRAIN, "--again"), (PARTITION, TRAIN)),
    "evaluate": (("evaluate", "--again"), (PARTITION, TRAIN)),
    "sweep": (("train", *TABLE, "-m", "fedavg", "-m", "local", "--column", "*Dir-0.3"), (PARTITION,)),
    "remove": (("remove", "{run}", "--yes"), (PARTITION, TRAIN)),
}
#: By budget, which commands are killed and in how many cases: of one to three kills each, or in the small budget by one
#: SIGKILL in the middle.
CASES = {"hundreds": (("again",), 1), "thousands": (tuple(COMMANDS), 60)}
#: What must be the same bytes however it was made. (Metrics hold times too; the table compares their accuracies.)
EXACT = ("data", "classes", "samples", "clients", "predictions")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names, count = CASES[metafunc.config.getoption("--budget", "hundreds")]
    metafunc.parametrize(("name", "case"), [(name, case) for name in names for case in range(count)])


class Stores:
    """Stores in which some commands were run, one after the other, and how many changes the last of them made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.after: dict[tuple[tuple[str, ...], ...], tuple[Path, int]] = {(): (folder / "empty", 0)}

    def made(self, *commands: tuple[str, ...]) -> tuple[Path, int]:
        if commands not in self.after:
            home = copy(self.made(*commands[:-1])[0], self.folder / f"after-{len(self.after)}")
            life = live(home, commands[-1])
            assert life.code == 0, life.err
            self.after[commands] = home, life.changes
        return self.after[commands]


@pytest.fixture(scope="module")
def stores(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("kills"))


def content(home: Path) -> list[str]:
    """Everything in a store: of files that are the same bytes by promise the checksum, and the table's numbers."""
    assert fedbench("--home", home, "evaluate", "--all").code == 0  # a table computes what metrics a kill left out
    found = []
    for path in sorted(p for p in home.rglob("*") if p.is_file() and p.name != ".lock"):
        digest = f" {sha256_of(path)}" if path.suffix == ".parquet" and path.stem in EXACT else ""
        found.append(f"{path.relative_to(home)}{digest}")
    return found + [f"{key} = {value}" for key, value in sorted(numbers(home).items())]


@pytest.mark.slow
def test_killed_and_repeated(stores: Stores, name: str, case: int, request: pytest.FixtureRequest) -> None:
    """One to three kills, each followed by the same command; in between, the store can be read."""
    command, done_before = COMMANDS[name]
    before, _ = stores.made(*done_before)
    arguments = tuple(word.format(run=next((p.name for p in before.glob("run/[!.]*")), "")) for word in command)
    after, changes = stores.made(*done_before, arguments)
    rng = random.Random(f"{request.config.getoption('--hypothesis-seed') or 0} {name} {case}")
    kills = [Kill.drawn(rng, changes) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if request.config.getoption("--budget", "hundreds") == "hundreds":
        kills = [Kill(signal.SIGKILL, changes // 2)]
    try:
        kill_and_repeat(stores, name, before, arguments, kills)
        assert content(stores.folder / "killed") == content(after)
    except AssertionError as error:
        error.add_note(f"fedbench {' '.join(arguments)}: {', then '.join(map(str, kills))} of {changes}")
        raise


def kill_and_repeat(stores: Stores, name: str, before: Path, arguments: tuple[str, ...], kills: list[Kill]) -> None:
    home, shown = copy(before, stores.folder / "killed"), numbers(before) if before.exists() else {}
    for kill in kills:
        life = live(home, arguments, kill)
        assert "Traceback" not in life.err, life.err
        # A repeated command may be over before so many changes; what it removes may be gone.
        assert life.code in {-kill.number, 128 + kill.number, 130, 0} | ({2} if name == "remove" else set()), life
        says_true(life.err, home)
        looked_at = copy(home, stores.folder / "looked-at")
        listed = fedbench("--home", looked_at, "list")
        assert (listed.code, "damaged" in listed.err) == (0, False), listed.err
        if name != "remove":
            assert shown.items() <= numbers(looked_at).items(), "what was there before must be there still"
    life = live(home, arguments)
    assert life.code in ({0, 2} if name == "remove" else {0}), life
    cleaned = fedbench("--home", home, "store", "clean")
    assert cleaned.code == 0, cleaned.err


def says_true(err: str, home: Path) -> None:
    """What an interrupted command says that it has saved, it has."""
    saved = [json.loads(path.read_text())["round"] for path in home.glob("work/*/checkpoint.json")]
    if "nothing was saved" in err:
        assert not saved, err
    if stopped := re.search(r"round (\d+) of \d+ is saved", err):
        assert int(stopped[1]) in saved, err
