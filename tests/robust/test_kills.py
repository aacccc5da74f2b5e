"""Killed at any change of the store's files and repeated, a command ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import fedbench
from kills import Kill, live, quickly

from fedbench.files import sha256_of

SMOKE = ("--budget", "smoke")
TABLE = ("--table", "1", "--dataset", "digits", *SMOKE)
PARTITION = ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
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


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    """This process and those that are killed mean the same by budget smoke."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FEDBENCH_DATA", "FEDBENCH_HOME", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        quickly(patch.setattr)
        yield


class Stores:
    """Stores in which some commands were run, one after the other, and how many changes the last of them made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.after: dict[tuple[tuple[str, ...], ...], tuple[Path, int]] = {(): (folder / "empty", 0)}

    def made(self, *commands: tuple[str, ...]) -> tuple[Path, int]:
        if commands not in self.after:
            home = self.copy(self.made(*commands[:-1])[0], f"after-{len(self.after)}")
            life = live(home, commands[-1])
            assert life.code == 0, life.err
            self.after[commands] = home, life.changes
        return self.after[commands]

    def copy(self, home: Path, name: str) -> Path:
        to = self.folder / name
        shutil.rmtree(to, ignore_errors=True)
        return Path(shutil.copytree(home, to)) if home.exists() else to


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("kills"))


def content(home: Path) -> list[str]:
    """Everything in a store: of files that are the same bytes by promise the checksum, and the table's numbers."""
    assert fedbench("--home", home, "evaluate", "--all").code == 0  # a table computes what metrics a kill left out
    found = []
    for path in sorted(p for p in home.rglob("*") if p.is_file() and p.name != ".lock"):
        digest = f" {sha256_of(path)}" if path.suffix == ".parquet" and path.stem in EXACT else ""
        found.append(f"{path.relative_to(home)}{digest}")
    return found + [f"{key} = {value}" for key, value in sorted(numbers(home).items())]


def numbers(home: Path) -> dict[str, float]:
    """The numbers of the table."""
    (table,) = json.loads(fedbench("--home", home, "report", *TABLE, "--format", "json").out)
    return {f"{cell['row']}, {cell['column']}": cell["value"] for cell in table["cells"] if cell["value"] is not None}


@pytest.mark.slow
def test_killed_and_repeated(stores: Stores, name: str, case: int, request: pytest.FixtureRequest, tally: Any) -> None:
    """One to three kills, each followed by the same command; in between, the store can be read."""
    command, done_before = COMMANDS[name]
    before, _ = stores.made(*done_before)
    arguments = tuple(word.format(run=next((p.name for p in before.glob("run/[!.]*")), "")) for word in command)
    after, changes = stores.made(*done_before, arguments)
    rng = random.Random(f"{request.config.getoption('--hypothesis-seed') or 0} {name} {case}")
    kills = [Kill.drawn(rng, changes) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if request.config.getoption("--budget", "hundreds") == "hundreds":
        kills = [Kill(signal.SIGKILL, changes // 2)]
    with tally.case():
        try:
            kill_and_repeat(stores, name, before, arguments, kills)
            assert content(stores.folder / "killed") == content(after)
        except AssertionError as error:
            error.add_note(f"fedbench {' '.join(arguments)}: {', then '.join(map(str, kills))} of {changes}")
            raise


def kill_and_repeat(stores: Stores, name: str, before: Path, arguments: tuple[str, ...], kills: list[Kill]) -> None:
    home, shown = stores.copy(before, "killed"), numbers(before) if before.exists() else {}
    for kill in kills:
        life = live(home, arguments, kill)
        assert "Traceback" not in life.err, life.err
        # A repeated command may be over before so many changes; what it removes may be gone.
        assert life.code in {-kill.number, 128 + kill.number, 130, 0} | ({2} if name == "remove" else set()), life
        says_true(life.err, home)
        looked_at = stores.copy(home, "looked-at")
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
