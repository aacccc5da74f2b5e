"""The benches (tests/bench, which is not collected) run: what they count and compare, and what they tell of it."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def its() -> Iterator[Any]:
    """The modules of speed.py, which import one another as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).with_name("bench"))
        names = ("ours", "speed", "workloads")
        yield SimpleNamespace(**{name: __import__(name) for name in names})
        for name in names:
            del sys.modules[name]


def tiny(its: Any, **changes: Any) -> Any:
    usual = {"momentum": 0.9, "weight_decay": 5e-4, "tail": "drop", "epochs": 2}
    return its.workloads.Workload("digits_cnn", (8, 8, 1), (30, 20, 17), 8, 0.05, **{**usual, **changes})


def test_the_workloads_are_those_of_the_papers(its: Any) -> None:
    found = {}
    for key, device in (("a", "cpu"), ("b10", "cpu"), ("b1200", "cpu"), ("c", "cpu"), ("c", "cuda"), ("d", "cuda")):
        workload = its.workloads.WORKLOADS[key](device)
        found[key, device] = (len(workload.train), *workload.work)
        if key == "a":  # Dir(0.5) over 60,000 images, 80 % for training: whole batches of 50
            assert sum(workload.train) == pytest.approx(48_000, abs=100)
            assert min(workload.train) >= 50
            steps = sum(n // 50 for n in workload.train)
    assert found == {
        ("a", "cpu"): (100, steps, 50 * steps),
        ("b10", "cpu"): (10, 750, 48_000),
        ("b1200", "cpu"): (1200, 2400, 120_000),
        ("c", "cpu"): (8, 8, 1024),
        ("c", "cuda"): (8, 80, 10_240),
        ("d", "cuda"): (8, 0, 144_000),
    }


def test_both_ways_end_with_the_same_weights_and_answers(its: Any) -> None:
    workload = replace(tiny(its), batch=30, epochs=3)
    run, usual = its.ours.Ours(workload, CPU), its.speed.Usual(workload, CPU)
    start = {name: t.clone() for name, t in usual.models[0].state_dict().items()}
    run.trainer.commit(run.round())
    usual.repeat()
    theirs, mine = usual.models[0].state_dict(), run.trainer.server.shared
    assert all(torch.allclose(mine[name], t, atol=1e-5) for name, t in theirs.items())
    assert not any(torch.allclose(start[name], t, atol=1e-3) for name, t in theirs.items())
    answering = replace(tiny(its), train=(8, 8, 8), test=20, steps=1, epochs=None, answers=True)
    votes = its.ours.Ours(answering, CPU).votes()
    assert votes.shape == (60, 3)
    assert len(np.unique(votes)) > 1
    assert np.array_equal(its.speed.Usual(answering, CPU).evaluate().numpy().T, votes)


def test_a_child_measures_and_tells_what_went_wrong(its: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for kill, why in ((False, "unknown executor 'none such'"), (True, "the process died")):
        with its.speed.Child("b10", "none such", "cpu", "fp32") as one:
            if kill:
                one.process.kill()
            with pytest.raises(its.speed.Failed, match=why):
                one.ask()
    for way in ("cores", its.speed.USUAL):  # which both say no more than that they have done the work
        for changes in ({"tail": "drop"}, {"tail": "keep", "epochs": None, "steps": 5}):
            workload = tiny(its, **changes)
            monkeypatch.setitem(its.speed.WORKLOADS, "tiny", lambda _, workload=workload: workload)
            monkeypatch.setattr("sys.stdin", io.StringIO("repeat\nrepeat\nend\n"))
            about, *repeats, end = its.speed.child("tiny", way, CPU, "fp32")
            assert (about["steps"], about["images"]) == workload.work
            assert len(repeats) == 2
            assert min(end["peak_mb"], *(one["seconds"] for one in repeats)) > 0


def test_workloads_are_measured_in_turn_judged_and_printed(its: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processes: children of this one, which say what they take."""
    order: list[str] = []
    seconds = {"usual": iter((3.0, 2.0, 4.4)), "cores": iter((1.0, 2.0, 4.0))}
    about = {"steps": 8, "images": 1024, "repeats": 3, "scale": "1 of 10 local steps"}

    class Here(contextlib.nullcontext[None]):
        def __init__(self, key: str, way: str, device: str, precision: str) -> None:
            self.way = way

        def __enter__(self) -> Any:
            return self

        def ask(self, command: str = "") -> Any:
            if self.way == "broken":
                raise its.speed.Failed("ValueError: no")
            order.append(f"{self.way} {command}".strip())
            return {"seconds": next(seconds[self.way])} if command == "repeat" else {**about, "peak_mb": 812.4}

    speed = its.speed
    monkeypatch.setattr(speed, "Child", Here)
    rows = speed.in_turn("c", ("broken", "cores"), ("cpu", "fp32"))
    assert order == ["usual", "cores", *["cores repeat", "usual repeat"] * 3, "cores end", "usual end"]
    ratio = pytest.approx(1.1)  # of 3, 1 and 1.1; the medians' ratio would be 1.5
    assert [(row.way, row.ratio, row.error) for row in rows] == [
        ("usual", 1.0, ""),
        ("broken", None, "ValueError: no"),
        ("cores", ratio, ""),
    ]
    for target, met in ((1.0, True), (1.2, False)):
        speed.judge(rows, target)
        assert [row.met for row in rows] == [None, None, met]
    lines = speed.table(rows, "a CPU").splitlines()
    assert lines[0] == "a CPU"
    assert "(c) GN ResNet-18, 8 clients, batch 128 [1 of 10 local steps]" in lines
    shown = next(line for line in lines if line.startswith("cores"))
    assert shown.split() == ["cores", "4.0", "512", "812", "1.10", "1.2x", "NO"]
    assert "broken: ValueError: no" in lines
    failed = [speed.Row("c", "usual"), speed.Row("c", "cores", "ValueError: no")]
    speed.judge(failed, 1.2)
    assert failed[1].met is False, "where all fail the target is missed"
