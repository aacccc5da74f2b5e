"""BlazeFL's way does the workload's work (its speed: speed.py --peers)."""

from __future__ import annotations

from dataclasses import replace

import ours
import pytest
import torch
from usual import Usual
from ways import PEERS, of
from workloads import Workload

CPU = torch.device("cpu")
TINY = Workload("tiny", "digits_cnn", (8, 8, 1), (30, 20, 17), 8, lr=0.05, momentum=0.9, weight_decay=5e-4, tail="drop")


def test_peers_are_measured_where_they_are_asked_for() -> None:
    assert of("a", "cpu", peers=True)[-len(PEERS) :] == [*PEERS]
    assert not [way for way in of("a", "cpu") if way in PEERS]


@pytest.mark.parametrize("passes", [{"epochs": 2}, {"steps": 5}])
@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_blazefl_does_the_same_work(tail: str, passes: dict[str, int]) -> None:
    blaze = pytest.importorskip(
        "blaze", reason="needs blazefl[contrib,reproducibility] and Python 3.12", exc_type=ImportError
    )
    run = blaze.Blaze(replace(TINY, tail=tail, **passes), CPU, threads=1)
    assert run.repeat() > 0
    assert (run.steps, run.images) == run.workload.work


def test_blazefl_ends_with_the_same_weights() -> None:
    blaze = pytest.importorskip(
        "blaze", reason="needs blazefl[contrib,reproducibility] and Python 3.12", exc_type=ImportError
    )
    workload = replace(TINY, batch=30, epochs=3, tail="keep")  # a batch holds all of a client's images
    run, usual = blaze.Blaze(workload, CPU, threads=1), Usual(workload, CPU)
    start = {name: t.numpy().copy() for name, t in usual.models[0].state_dict().items()}
    run.repeat()
    usual.repeat()
    theirs, mine = (
        {name: t.numpy() for name, t in m.state_dict().items()} for m in (usual.models[0], run.server.model)
    )
    assert ours.difference(mine, theirs) < 1e-4
    assert ours.difference(start, theirs) > 1e-2
