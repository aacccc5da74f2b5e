"""Whatever happens to a file of a store, a command ends in one line or shows a number that is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import manifests
import pytest
from command import fedbench
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from kills import quickly

from fedbench.core import trainer
from fedbench.store import KINDS, Store
from tests.support.cli_user import Said

pytestmark = pytest.mark.slow
SMOKE = ("--budget", "smoke")
CELLS = ("--table", "1", "--dataset", "digits", *SMOKE)
COLUMN = ("--column", "*Dir-0.3")
PARTITION = ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
#: Methods whose runs are complete, one that is interrupted, one that fails.
DONE, STOPPED, FAILS = ("fedavg", "local"), "feddrm", "fails.py:Fails"

#: An example is one edit and two commands: made smaller, it would say no more.
QUICK = settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))

METHOD = '''
"""Fails."""

from dataclasses import dataclass

from fedbench.errors import FedbenchError
from fedbench.methods.base import Method


@dataclass(frozen=True)
class Fails(Method):
    """Fails."""

    title = "Fails"

    def local(self, client):
        raise FedbenchError("it always does")
        yield
'''
CLAIM = """
import os, sys
from pathlib import Path
from fedbench.store.claim import hold
with hold(Path(sys.argv[1]), "a run"):
    os._exit(0)
"""


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    """No data folder; three rounds of two small steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FEDBENCH_DATA", "FEDBENCH_HOME", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        quickly(patch.setattr)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this file's stores lie."""
    return tmp_path_factory.mktemp("manifests")


@pytest.fixture(scope="module")
def base(folder: Path, _quick: None) -> Path:
    """A store with two runs, one interrupted under the claim of a dead process, and one that failed."""
    home = folder / "base"
    (folder / "fails.py").write_text(METHOD)

    def stop(progress: trainer.Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    fedbench("--home", home, *PARTITION)
    for method in (*DONE, folder / FAILS):
        fedbench("--home", home, "train", "--method", method, *SMOKE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbench.observers.bars._lines", lambda *_: stop)
        with pytest.raises(AssertionError, match="exit code 130"):
            fedbench("--home", home, "train", "--method", STOPPED, *SMOKE)
    (work,) = home.glob("work/[!.]*")
    subprocess.run([sys.executable, "-P", "-c", CLAIM, work], check=True)
    for pattern, count in {"run/*": 2, "metrics/*": 2, "failed/*": 1, "work/*/claim.json": 1}.items():
        assert len(list(home.glob(pattern))) == count, pattern
    return home


class Truth:
    """What the untouched store shows, once its interrupted run is complete too."""

    def __init__(self, home: Path) -> None:
        assert fedbench("--home", home, "train", "--method", STOPPED, *SMOKE).code == 0
        self.values = {key: cell["value"] for key, cell in cells(home).items() if cell["state"] == "done"}
        self.listed = {one["id"]: one["what"] for one in json.loads(fedbench("--home", home, "list", "--json").out)}
        said = [fedbench("--home", home, "evaluate", a.id, "--json") for a in Store(home).list("run")]
        self.headlines = {one["run"]: one["headline"] for s in said for one in json.loads(s.out)}
        assert len(self.values) == len(self.headlines) == len(DONE) + 1

    def holds(self, home: Path) -> None:
        """Whether the table shows the true numbers only, and the list what each artifact is."""
        for key, cell in cells(home).items():
            if cell["value"] is not None:
                assert cell["value"] == self.values.get(key), f"{key} shows {cell}"
        self.agrees(fedbench("--home", home, "list", "--json"))

    def agrees(self, said: Said) -> None:
        """Whether what `list` or `evaluate` says as JSON is true."""
        for one in json.loads(said.out) if said.out else ():
            if "headline" in one:
                assert one["headline"] == self.headlines.get(one["run"]), one
            elif "what" in one and "damaged" not in str(one):
                assert one["what"] == self.listed.get(one["id"]), one


@pytest.fixture(scope="module")
def truth(base: Path, folder: Path) -> Truth:
    return Truth(manifests.copy(base, folder / "truth"))


def cells(home: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of the table, by row and column."""
    said = fedbench("--home", home, "report", *CELLS, "--format", "json")
    if said.code == 2:
        return {}
    (table,) = json.loads(said.out)
    return {(cell["row"], cell["column"]): cell for cell in table["cells"]}


def ids(home: Path) -> list[str]:
    return sorted(p.name for kind in KINDS for p in home.glob(f"{kind}/[!.]*"))


def looks(home: Path) -> list[tuple[str, ...]]:
    """Commands that read."""
    return [
        *[("list",), ("list", "run"), ("report", *CELLS), ("report", *CELLS, "--compare"), ("tables", "feddrm/1")],
        *[("evaluate",), ("evaluate", "--json"), ("evaluate", "--all"), ("train", *CELLS, "-m", "fedavg", *COLUMN)],
        *[("show", id, *options) for id in ids(home) for options in ((), ("--json",))],
    ]


def works(home: Path) -> list[tuple[str, ...]]:
    """Commands that make or remove something."""
    return [
        *[("train", "--method", method, *SMOKE) for method in (*DONE, STOPPED, str(home.parent / FAILS))],
        *[("train", *CELLS, "-m", method, *COLUMN) for method in (DONE[1], STOPPED)],
        *[("evaluate", "--all", "--again", "--json"), ("train", "--method", "fedavg", "--again", *SMOKE), PARTITION],
        *[("remove", id, "--yes") for id in ids(home)],
    ]


@settings(QUICK, max_examples=settings.default.max_examples // 3)
@given(st.data())
def test_read_after_an_edit(base: Path, folder: Path, truth: Truth, data: st.DataObject) -> None:
    """One edit of any file of the store, then the table, the list and a command that reads."""
    home = edited(base, folder, data)
    truth.holds(home)
    command = data.draw(st.sampled_from(looks(base)))
    said = fedbench("--home", home, *command)
    if "--json" in command and command[0] == "evaluate":
        truth.agrees(said)


@settings(QUICK, max_examples=settings.default.max_examples // 10)
@given(st.data())
def test_worked_on_after_an_edit(base: Path, folder: Path, truth: Truth, data: st.DataObject) -> None:
    """One edit, then two commands that make something, and what the table and the list show then."""
    home = edited(base, folder, data)
    for command in data.draw(st.lists(st.sampled_from(works(base)), min_size=2, max_size=2)):
        fedbench("--home", home, *command)
    truth.holds(home)


def edited(base: Path, folder: Path, data: st.DataObject) -> Path:
    """A copy of the store, as this fedbench or an older one wrote it, with one edit."""
    home = manifests.copy(base, folder / "edited")
    if data.draw(st.booleans(), "as older fedbenches wrote it"):
        manifests.unseal(home)
    name, (what, apply) = data.draw(manifests.edits(base))
    note(f"{name}: {what}")
    apply(home / name)
    return home


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("dataset", "gone"), ("partition", "empty"), ("run", "gone"), ("run", "a folder"), ("metrics", "deep")],
)
def test_made_again_after_damage(base: Path, folder: Path, truth: Truth, kind: str, damage: str, tally: Any) -> None:
    """Whatever a manifest has become: removed as the tool advises and made again, the table is as it was."""
    home = manifests.copy(base, folder / "again")
    with tally.case():
        path = next(home.glob(f"{kind}/[!.]*"))
        manifests.WHOLE[damage](path / "artifact.json")
        assert fedbench("--home", home, "remove", path.name, "--yes").code == 0
        for command in (PARTITION, *[("train", "--method", method, *SMOKE) for method in DONE]):
            said = fedbench("--home", home, *command)
            assert said.code == 0, said.err
        values = {key: cell["value"] for key, cell in cells(home).items() if cell["state"] == "done"}
        assert len(values) == len(DONE)
        assert values.items() <= truth.values.items()
