"""A round's memory: clients come and go block by block, and what they upload is added up and not held."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedbench.core import simulation
from fedbench.core import state as state_module
from fedbench.core.client import Client, ClientUpdate
from fedbench.core.server import Server
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import federation, method, same, setting, train, trainer

DATA = federation((30, 40, 20, 25, 30, 35, 20, 45, 30, 20, 25))
#: Those that stream, those whose server steps from the mean or holds uploads, and one with rounds that are silent.
METHODS = ["ditto", "scaffold", "fedopt", "fednova", "ifca", "fedavgft", "pfedfda"]


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_in_blocks_ends_with_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting(rounds=3, participation=0.8)
    whole = train(method(name), DATA, tmp_path / "whole", s)
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    it = trainer(method(name), DATA, tmp_path / "one", s)
    sizes = [len(block) for block in it.blocks(range(9))]
    assert sizes[0] == 4
    assert len(sizes) > 1
    blocks = train(method(name), DATA, tmp_path / "blocks", s)
    assert same(whole.tensors, blocks.tensors)
    assert whole.predictions.equals(blocks.predictions)
    columns = ("loss", "bytes_up", "bytes_down", "images", "participants")
    for a, b in zip(whole.trainer.checkpoint.rounds, blocks.trainer.checkpoint.rounds, strict=True):
        assert [a[key] for key in columns] == [b[key] for key in columns]


class AtOnce(FedAvg):
    """FedAvg by an `aggregate` of its own: all uploads are there at once."""

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        super().aggregate(server, cohort, t)


@pytest.mark.parametrize(("piece", "columns"), [(1, 4096), (5000, 64), (64 << 20, 4096), (64 << 20, 1 << 20)])
def test_the_mean_added_up_is_that_of_all_at_once(
    piece: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "PIECE", piece)
    monkeypatch.setattr(state_module, "COLUMNS", columns)
    streams, holds = (
        train(how, DATA, tmp_path / type(how).__name__, setting(rounds=2)) for how in (FedAvg(), AtOnce())
    )
    assert FedAvg().streams
    assert not AtOnce().streams
    assert same(streams.tensors, holds.tensors)


class Watched(FedAvg):
    """Counts whose states are alive when a client begins."""

    alive: list[int] = []  # noqa: RUF012 - the test's own
    states: list[weakref.ref[object]] = []  # noqa: RUF012

    def local(self, client: Client) -> ClientUpdate | None:
        gc.collect()
        self.alive.append(sum(ref() is not None for ref in self.states))
        yield from super().local(client) or ()
        self.states.append(weakref.ref(client.state["head.weight"]))


def test_uploads_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    Watched.alive, Watched.states = [], []
    train(Watched(), DATA, tmp_path, setting(rounds=1))
    assert len(Watched.alive) == DATA.clients
    assert max(Watched.alive) == 3  # the others of its block


def test_who_steps_from_the_mean_streams() -> None:
    assert all(method(name).streams for name in ("feddrm", "scaffold", "feddyn", "feddc", "fedopt", "pfedme"))
    assert not any(method(name).streams for name in ("cfl", "ifca", "fednova"))
