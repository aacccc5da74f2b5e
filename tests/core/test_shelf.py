"""Personal states beyond a limit lie in files: the same bits, only what changed is written, and a resume finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.core import shelf as module
from fedbench.core import simulation
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.shelf import Shelf
from fedbench.errors import FedbenchError
from tests.support.lab import federation, method, same, setting, train

DATA = federation((30, 40, 20, 25, 30, 35, 20, 45, 30, 20, 25))
#: Whole second models, single tensors, one of a method's own variables.
METHODS = ["ditto", "fedper", "scaffold", "pfedfda"]


def state(i: int, t: int = 0) -> dict[str, torch.Tensor]:
    return {"own/w": torch.full((3, 2), float(i)) + 0.5 * t, "count": torch.tensor(i + t)}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("personal-*"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Six clients in files of two."""
    it = Shelf(tmp_path)
    it.update({i: state(i) for i in range(6)})
    it.put_by(1)
    return it


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 64)


def test_what_is_put_by_comes_back(shelf: Shelf, tmp_path: Path) -> None:
    assert (shelf.near, shelf.bytes, len(shelf)) == ({}, 0, 6)
    assert len(files(tmp_path)) == 3
    for i in range(6):
        assert {n: x.tolist() for n, x in shelf[i].items()} == {n: x.tolist() for n, x in state(i).items()}
    assert list(shelf) == list(range(6))
    with pytest.raises(KeyError):
        shelf[6]


def test_a_copy_goes_its_own_way(shelf: Shelf) -> None:
    other = shelf.copy()
    other[0] = state(0, 9)
    del other[1]
    assert shelf[0]["count"] == 0
    assert other[0]["count"] == 9
    assert 1 in shelf
    assert 1 not in other
    assert len(other) == 5


def test_only_what_changed_is_written_and_files_of_few_are_given_up(shelf: Shelf, tmp_path: Path) -> None:
    before = shelf.used()
    shelf[0] = state(0, 1)
    shelf.put_by(2)
    assert files(tmp_path) == sorted([*before, "personal-000002-0.safetensors"])
    assert before.items() < shelf.used().items(), "half of its first file is still somebody's"
    shelf[1] = state(1, 2)
    shelf.put_by(3)
    assert len(shelf.used().keys() & before.keys()) == 2
    assert [int(shelf[i]["count"]) for i in range(6)] == [1, 3, 2, 3, 4, 5]


def test_a_state_that_was_fetched_ahead_is_not_taken_for_a_newer_one(shelf: Shelf) -> None:
    shelf.ahead([0, 1, 7])
    shelf[0] = state(0, 4)
    assert shelf[0]["count"] == 4
    shelf.put_by(2)
    assert shelf[0]["count"] == 4
    assert shelf[1]["count"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_run_whose_states_lie_in_files_has_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = setting(rounds=4, participation=0.6)
    near = train(method(name), DATA, tmp_path / "near", s)
    monkeypatch.setattr(module, "SHARE", 0)
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    far = train(method(name), DATA, tmp_path / "far", s)
    assert far.trainer.server.personal.near == {}
    assert files(tmp_path / "far")
    assert same(near.tensors, far.tensors)
    assert near.predictions.equals(far.predictions)


def test_a_damaged_file_is_told(tmp_path: Path, shelf: Shelf) -> None:
    it = Checkpoint(tmp_path)
    it.save(1, {"shared/w": torch.zeros(1)}, shelf.used())
    (tmp_path / files(tmp_path)[0]).write_bytes(b"nothing")
    with pytest.raises(FedbenchError, match="missing or damaged"):
        Checkpoint(tmp_path).load()
    with pytest.raises(FedbenchError, match="cannot read the personal states"):
        shelf[0]
