"""Whatever happens to a file of a store, a command ends in one line or shows a number that is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import PARTITION, TABLE, UNSHRUNK, copy, fedbench, nodes, numbers
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fedbench.store import KINDS, Store
from tests.support.cli_user import SMOKE, Said, interrupted, own_method

pytestmark = pytest.mark.slow
COLUMN = ("--column", "*Dir-0.3")
#: Methods whose runs are complete, one that is interrupted, one that fails.
DONE, STOPPED, FAILS = ("fedavg", "local"), "feddrm", "mine.py:MyMethod"
CLAIM = """
import os, sys
from pathlib import Path
from fedbench.store.claim import hold
with hold(Path(sys.argv[1]), "a run"):
    os._exit(0)
"""

# -- edits ------------------------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.sampled_from([None, True, -1, 0, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "../..", "[/x]"]),
    st.sampled_from([[], {}, [[]], {"": None}, "\ud800", "\x1b[2J", "x\ny", "fedavg", "local", 2027, "0" * 12, 1e400]),
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3), max_leaves=5),
)
ODD = b'\x00\xff\x0a01259"{}[],:ex '
AGES = (-1e9, -1e4, 1e4, 1e9)  #: seconds from now


def _in_its_place(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


#: What becomes of a file. (chmod stops nobody who is root; a link to itself stops everybody.)
WHOLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "not UTF-8": lambda path: path.write_bytes(b'{"sch\xff\xfeema": 1}'),
    "UTF-16": lambda path: path.write_bytes('{"schema": 1}'.encode("utf-16")),
    "no object": lambda path: path.write_text("[]"),
    "an empty object": lambda path: path.write_text("{}"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "gone": Path.unlink,
    "a folder": lambda path: _in_its_place(path, Path.mkdir),
    "a link to itself": lambda path: _in_its_place(path, lambda path: path.symlink_to(path.name)),
    "a link to nowhere": lambda path: _in_its_place(path, lambda path: path.symlink_to("nowhere")),
    "a link to a device": lambda path: _in_its_place(path, lambda path: path.symlink_to("/dev/null")),
    "unreadable": lambda path: path.chmod(0),
}
#: What becomes of its bytes at a place; the number picks one of several values.
BYTES: dict[str, Callable[[bytearray, int, int], object]] = {
    "bit flipped": lambda content, at, pick: content.__setitem__(at, content[at] ^ (1 << pick % 8)),
    "byte put": lambda content, at, pick: content.__setitem__(at, ODD[pick % len(ODD)]),
    "byte inserted": lambda content, at, pick: content.insert(at, ODD[pick % len(ODD)]),
    "byte deleted": lambda content, at, _: content.__delitem__(at),
    "truncated": lambda content, at, _: content.__delitem__(slice(at, None)),
    "repeated": lambda content, at, _: content.extend(content[at:]),
}


@dataclass(frozen=True)
class Edit:
    """What happens to one file of a store. Places are drawn as shares of what a file happens to hold: times make it
    some bytes longer or shorter."""

    file: str
    how: str
    share: float
    pick: int  #: which of several files or values
    value: Any

    def apply(self, home: Path) -> None:
        path = home / self.file
        if self.how in WHOLE:
            WHOLE[self.how](path)
        elif self.how in BYTES:
            content = bytearray(path.read_bytes())
            BYTES[self.how](content, int(self.share * len(content)), self.pick)
            path.write_bytes(bytes(content))
        elif self.how == "dated":
            os.utime(path, (time.time() + AGES[self.pick % len(AGES)],) * 2)
        elif self.how in ("swapped", "copied"):
            mine, there = path.read_bytes(), home / self.other(home)
            path.write_bytes(there.read_bytes())
            if self.how == "swapped":
                there.write_bytes(mine)
        else:
            held = json.loads(path.read_text())
            if places := list(nodes(held)):
                self.put(home, *places[int(self.share * len(places))])
            path.write_text(json.dumps(held, indent=1, sort_keys=True))

    def other(self, home: Path) -> str:
        """Another file, of the same ending if there is one."""
        others = [other for other in files(home) if other != self.file]
        others = [other for other in others if Path(other).suffix == Path(self.file).suffix] or others
        return others[self.pick % len(others)]

    def put(self, home: Path, box: Any, key: Any) -> None:
        """At a place of JSON any value, or another of its kind: another method, seed, id or checksum of this store, or
        a number's next; or the place is left out or renamed."""
        old = box[key]
        if self.how == "left out":
            del box[key]
        elif self.how == "renamed" and isinstance(box, dict):
            box["renamed"] = box.pop(key)
        elif self.how == "put":
            box[key] = self.value
        elif self.how == "plausible" and type(old) in (int, float) and self.pick % 2:
            box[key] = old + 1
        elif self.how == "plausible":
            trees = [json.loads((home / file).read_text()) for file in files(home) if file.endswith(".json")]
            leaves = [box[key] for tree in trees for box, key in nodes(tree)]
            if others := [leaf for leaf in leaves if type(leaf) is type(old) and leaf != old]:
                box[key] = others[self.pick % len(others)]


def files(home: Path) -> list[str]:
    """All files of a store, relative to it, but for locks."""
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and p.name != ".lock")


@st.composite
def edits(draw: st.DrawFn, home: Path) -> Edit:
    """JSON is drawn three times as often as Parquet."""
    names = files(home)
    texts = [name for name in names if name.endswith(".json")]
    name = draw(st.one_of(*[st.sampled_from(texts)] * 3, st.sampled_from(names)))
    groups = [*([how] for how in BYTES), [*WHOLE], ["swapped", "copied"], ["dated"]]
    groups += [["put"], ["left out", "renamed"], *[["plausible"]] * 4] if name in texts else []
    how = draw(st.sampled_from(draw(st.sampled_from(groups))))
    return Edit(name, how, draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 999)), draw(VALUES))


# -- a small store that has everything ---------------------------------------------------------------------------------


def unseal(home: Path) -> None:
    """Take the checksums of themselves out of the manifests and of the checkpoint, as older fedbenches wrote them."""
    for path in (*home.glob("*/*/artifact.json"), *home.glob("work/*/checkpoint.json")):
        value = json.loads(path.read_text())
        value.pop("sha256", None)
        path.write_text(json.dumps(value, indent=1, sort_keys=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this file's stores lie."""
    return tmp_path_factory.mktemp("manifests")


@pytest.fixture(scope="module")
def base(folder: Path, quick: None) -> Path:
    """A store with two runs, one interrupted under the claim of a dead process, and one that failed."""
    home = folder / "base"
    own_method(folder, "from fedbench.errors import FedbenchError; raise FedbenchError('it always does'); yield")
    fedbench("--home", home, *PARTITION)
    for method in (*DONE, folder / FAILS):
        fedbench("--home", home, "train", "--method", method, *SMOKE)
    interrupted("--home", home, "train", "--method", STOPPED, *SMOKE)
    (work,) = home.glob("work/[!.]*")
    subprocess.run([sys.executable, "-P", "-c", CLAIM, work], check=True)
    for pattern, count in {"run/*": 2, "metrics/*": 2, "failed/*": 1, "work/*/claim.json": 1}.items():
        assert len(list(home.glob(pattern))) == count, pattern
    return home


class Truth:
    """What the untouched store shows, once its interrupted run is complete too."""

    def __init__(self, home: Path) -> None:
        assert fedbench("--home", home, "train", "--method", STOPPED, *SMOKE).code == 0
        self.values = numbers(home)
        self.listed = {one["id"]: one["what"] for one in json.loads(fedbench("--home", home, "list", "--json").out)}
        said = [fedbench("--home", home, "evaluate", a.id, "--json") for a in Store(home).list("run")]
        self.headlines = {one["run"]: one["headline"] for s in said for one in json.loads(s.out)}
        assert len(self.values) == len(self.headlines) == len(DONE) + 1

    def holds(self, home: Path) -> None:
        """Whether the table shows the true numbers only, and the list what each artifact is."""
        shown = numbers(home)
        assert shown == {key: self.values.get(key) for key in shown}
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
    return Truth(copy(base, folder / "truth"))


def ids(home: Path) -> list[str]:
    return sorted(p.name for kind in KINDS for p in home.glob(f"{kind}/[!.]*"))


def looks(home: Path) -> list[tuple[str, ...]]:
    """Commands that read."""
    return [
        *[("list",), ("list", "run"), ("report", *TABLE), ("report", *TABLE, "--compare"), ("tables", "feddrm/1")],
        *[("evaluate",), ("evaluate", "--json"), ("evaluate", "--all"), ("train", *TABLE, "-m", "fedavg", *COLUMN)],
        *[("show", id, *options) for id in ids(home) for options in ((), ("--json",))],
    ]


def works(home: Path) -> list[tuple[str, ...]]:
    """Commands that make or remove something."""
    return [
        *[("train", "--method", method, *SMOKE) for method in (*DONE, STOPPED, str(home.parent / FAILS))],
        *[("train", *TABLE, "-m", method, *COLUMN) for method in (DONE[1], STOPPED)],
        *[("evaluate", "--all", "--again", "--json"), ("train", "--method", "fedavg", "--again", *SMOKE), PARTITION],
        *[("remove", id, "--yes") for id in ids(home)],
    ]


@settings(phases=UNSHRUNK, max_examples=settings.default.max_examples // 3)
@given(st.data())
def test_read_after_an_edit(base: Path, folder: Path, truth: Truth, data: st.DataObject) -> None:
    """One edit of any file of the store, then the table, the list and a command that reads."""
    home = edited(base, folder, data)
    truth.holds(home)
    command = data.draw(st.sampled_from(looks(base)))
    said = fedbench("--home", home, *command)
    if "--json" in command and command[0] == "evaluate":
        truth.agrees(said)


@settings(phases=UNSHRUNK, max_examples=settings.default.max_examples // 10)
@given(st.data())
def test_worked_on_after_an_edit(base: Path, folder: Path, truth: Truth, data: st.DataObject) -> None:
    """One edit, then two commands that make something, and what the table and the list show then."""
    home = edited(base, folder, data)
    for command in data.draw(st.lists(st.sampled_from(works(base)), min_size=2, max_size=2)):
        fedbench("--home", home, *command)
    truth.holds(home)


def edited(base: Path, folder: Path, data: st.DataObject) -> Path:
    """A copy of the store, as this fedbench or an older one wrote it, with one edit."""
    home = copy(base, folder / "edited")
    if data.draw(st.booleans(), "as older fedbenches wrote it"):
        unseal(home)
    edit = data.draw(edits(base))
    note(str(edit))
    edit.apply(home)
    return home


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("dataset", "gone"), ("partition", "empty"), ("run", "gone"), ("run", "a folder"), ("metrics", "deep")],
)
def test_made_again_after_damage(base: Path, folder: Path, truth: Truth, kind: str, damage: str) -> None:
    """Whatever a manifest has become: removed as the tool advises and made again, the table is as it was."""
    home = copy(base, folder / "again")
    path = next(home.glob(f"{kind}/[!.]*"))
    WHOLE[damage](path / "artifact.json")
    assert fedbench("--home", home, "remove", path.name, "--yes").code == 0
    for command in (PARTITION, *[("train", "--method", method, *SMOKE) for method in DONE]):
        said = fedbench("--home", home, *command)
        assert said.code == 0, said.err
    values = numbers(home)
    assert len(values) == len(DONE)
    assert values.items() <= truth.values.items()
