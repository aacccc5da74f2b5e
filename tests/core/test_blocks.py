"""A round's memory: clients come and go in blocks, uploads are added up and not held, and personal states beyond a
limit lie in files or wait elsewhere: the same bits as with room for everybody."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from fedbench.core import server as module
from fedbench.core import simulation, worker
from fedbench.core import state as state_module
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Shelf
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import equal, federation, method, own, parquet_bytes, same, setting, train, trainer

DATA = federation((30, 40, 20, 25, 30, 35, 20, 45, 30, 20, 25))
SHORT = setting(rounds=3, participation=0.8)
#: Whole second models, control variates, a server that steps from the mean or holds uploads, one of several models,
#: silent rounds, variables of a method's own; and one that shares a part.
METHODS = ["ditto", "scaffold", "fedopt", "fednova", "ifca", "fedavgft", "pfedfda", "fedper"]
IN_FILES = ("ditto", "fedper", "scaffold", "pfedfda")


@pytest.mark.parametrize("name", METHODS)
def test_blocks_and_states_in_files_end_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(name, DATA, tmp_path / "whole", SHORT)
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    sizes = [len(block) for block in trainer(method(name), DATA, tmp_path / "one", SHORT).blocks(range(9))]
    assert sizes[0] == 4
    assert len(sizes) > 1
    equal(train(name, DATA, tmp_path / "blocks", SHORT), whole)
    if name in IN_FILES:
        monkeypatch.setattr(module, "FILE_BYTES", 64)
        monkeypatch.setattr(module, "SHARE", 0)
        far = train(name, DATA, tmp_path / "far", SHORT)
        assert far.trainer.server.personal.near == {}
        assert files(tmp_path / "far")
        equal(far, whole)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [*((name, {}) for name in ("feddrm", "pfedfda", "local")), *(
        (name, {"score": "after_local"}) for name in ("fedrep", "lg_fedavg", "apfl"))],
)  # fmt: skip
def test_personal_states_that_do_not_fit_wait_elsewhere(
    name: str, chosen: dict[str, str], executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where they lie differs, and nothing that is shared is sent away."""
    data, s, how = federation(), setting(rounds=3, window=2, participation=0.8), method(name, **chosen)
    here = train(how, data, tmp_path / "here", s, executor=executor)
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(worker, "_to_host", lambda tensor: (sent.append(tensor), tensor.clone())[1])
    monkeypatch.setattr(simulation, "fits", lambda *_: False)
    elsewhere = train(how, data, tmp_path / "elsewhere", s, executor=executor)
    assert same(elsewhere.tensors, here.tensors)
    assert parquet_bytes(elsewhere.predictions) == parquet_bytes(here.predictions)
    assert sent
    shared = {t.data_ptr() for t in elsewhere.trainer.server.shared.values()}
    assert not shared & {t.data_ptr() for t in sent}


@pytest.mark.parametrize(("piece", "columns"), [(1, 4096), (5000, 64), (64 << 20, 4096), (64 << 20, 1 << 20)])
def test_the_mean_added_up_is_that_of_all_at_once(
    piece: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "PIECE", piece)
    monkeypatch.setattr(state_module, "COLUMNS", columns)
    at_once = own(FedAvg, aggregate=lambda self, server, cohort, t: FedAvg.aggregate(self, server, cohort, t))
    assert (FedAvg().streams, at_once.streams) == (True, False)
    streams, holds = (train(how, DATA, tmp_path / how.name, setting(rounds=1, window=1)) for how in (FedAvg(), at_once))
    assert same(streams.tensors, holds.tensors)
    assert all(method(name).streams for name in ("feddrm", "scaffold", "feddyn", "feddc", "fedopt", "pfedme"))
    assert not any(method(name).streams for name in ("cfl", "ifca", "fednova"))


def test_uploads_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    states: list[weakref.ref[object]] = []
    alive: list[int] = []  # whose states are when a client begins

    def local(self: Method, client: Client) -> ClientUpdate:
        gc.collect()
        alive.append(sum(ref() is not None for ref in states))
        yield Train(cross_entropy)
        states.append(weakref.ref(client.state["head.weight"]))

    gc.freeze()  # what other tests hold need not be looked through again and again
    try:
        train(own(local=local), DATA, tmp_path, setting(rounds=1))
    finally:
        gc.unfreeze()
    assert len(alive) == DATA.clients
    assert max(alive) == 3  # the others of its block


def state(i: int, t: int = 0) -> dict[str, torch.Tensor]:
    return {"own/w": torch.full((3, 2), float(i)) + 0.5 * t, "count": torch.tensor(i + t)}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("personal-*"))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Six clients in files of two."""
    monkeypatch.setattr(module, "FILE_BYTES", 64)
    it = Shelf(tmp_path)
    it.update({i: state(i) for i in range(6)})
    it.put_by(1)
    return it


def test_what_is_put_by_comes_back_and_a_copy_goes_its_own_way(shelf: Shelf, tmp_path: Path) -> None:
    assert (shelf.near, shelf.bytes, len(shelf)) == ({}, 0, 6)
    assert len(files(tmp_path)) == 3
    for i in range(6):
        assert {n: x.tolist() for n, x in shelf[i].items()} == {n: x.tolist() for n, x in state(i).items()}
    assert list(shelf) == list(range(6))
    with pytest.raises(KeyError):
        shelf[6]
    other = shelf.copy()
    other[0] = state(0, 9)
    del other[1]
    assert (shelf[0]["count"], other[0]["count"]) == (0, 9)
    assert (1 in shelf, 1 in other, len(other)) == (True, False, 5)


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
    assert (shelf[0]["count"], shelf[1]["count"]) == (4, 1)


def test_a_damaged_file_is_refused(tmp_path: Path, shelf: Shelf) -> None:
    it = Checkpoint(tmp_path)
    it.save(1, {"shared/w": torch.zeros(1)}, shelf.used())
    (tmp_path / files(tmp_path)[0]).write_bytes(b"nothing")
    with pytest.raises(FedbenchError, match="missing or damaged"):
        Checkpoint(tmp_path).load()
    with pytest.raises(FedbenchError, match="cannot read the personal states"):
        shelf[0]
