"""The benches (tests/bench, which is not collected) run: what they count and compare, and what they tell of it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bench.engines import seconds

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def its() -> Iterator[Any]:
    """The modules of speed.py, which import one another as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).with_name("bench"))
        names = ("machine", "measure", "ours", "printed", "rows", "speed", "station", "usual", "ways", "workloads")
        yield SimpleNamespace(**{name: __import__(name) for name in names})
        for name in names:
            del sys.modules[name]


def tiny(its: Any, **changes: Any) -> Any:
    usual = {"momentum": 0.9, "weight_decay": 5e-4, "tail": "drop", "epochs": 2}
    return its.workloads.Workload("tiny", "digits_cnn", (8, 8, 1), (30, 20, 17), 8, 0.05, **{**usual, **changes})


def test_of_engines() -> None:
    assert set(seconds("digits", runs=2, rounds=1, repeats=1, ways=("here", "jobs 2"))) == {"here", "jobs 2"}


def test_flops_of_layers_by_hand(its: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(5 * 6 * 4, 7))
    convolution, linear = 2 * 5 * 6 * 4 * 3 * 9, 2 * 120 * 7
    assert its.machine.flops(model, (6, 4, 3), training=False) == convolution + linear
    # Backward: the weights' gradients, and the inputs' but for the pixels.
    assert its.machine.flops(model, (6, 4, 3), training=True) == 2 * convolution + 3 * linear


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
        ("a", "cpu"): (100, steps, 50 * steps), ("b10", "cpu"): (10, 750, 48_000),
        ("b1200", "cpu"): (1200, 2400, 120_000), ("c", "cpu"): (8, 8, 1024),
        ("c", "cuda"): (8, 80, 10_240), ("d", "cuda"): (8, 0, 144_000),
    }  # fmt: skip


@pytest.mark.parametrize("changes", [{"tail": "drop"}, {"tail": "keep", "epochs": None, "steps": 5}])
def test_both_ways_do_the_same_work(its: Any, changes: dict[str, Any]) -> None:
    workload = tiny(its, **changes)
    run, usual = its.ours.Ours(workload, CPU), its.usual.Usual(workload, CPU)
    assert run.repeat() > 0
    assert usual.repeat() > 0
    assert (usual.steps, usual.images) == workload.work
    assert run.images == workload.work[1]


def test_both_ways_end_with_the_same_weights_and_answers(its: Any) -> None:
    workload = replace(tiny(its), batch=30, epochs=3)
    run, usual = its.ours.Ours(workload, CPU), its.usual.Usual(workload, CPU)
    start = {name: t.numpy().copy() for name, t in usual.models[0].state_dict().items()}
    run.trainer.commit(run.round())
    usual.repeat()
    theirs = {name: t.numpy() for name, t in usual.models[0].state_dict().items()}
    mine = {name: t.numpy() for name, t in run.trainer.server.shared.items()}
    assert its.ours.difference(mine, theirs) < 1e-4
    assert its.ours.difference(start, theirs) > 1e-2
    answering = replace(tiny(its), train=(8, 8, 8), test=20, steps=1, epochs=None, answers=True)
    votes = its.ours.Ours(answering, CPU).votes()
    assert votes.shape == (60, 3)
    assert len(np.unique(votes)) > 1
    assert np.array_equal(its.usual.Usual(answering, CPU).evaluate().numpy().T, votes)
    assert its.ours.difference({"votes": votes + np.eye(60, 3, dtype=np.uint16)}, {"votes": votes}) == 3 / 180
    cores = its.ours.outcome(tiny(its), CPU, "fp32", "cores", {})
    assert its.ours.difference(cores, its.ours.outcome(tiny(its), CPU, "fp32", its.ours.REFERENCE)) == 0


def row(its: Any, workload: str, way: str, seconds: tuple[float, ...], usual: tuple[float, ...] = ()) -> Any:
    prepared = {"scale": "1 of 10 local steps", "steps": 8, "images": 1024}
    finished = {"flops": 4e11, "peak_mb": 812.4, "parity": None if way == "usual" else 3e-7}
    repeats = [[{"seconds": s, "others": 0.01 * s} for s in one] for one in (seconds, usual)]
    return its.rows.measured(workload, way, prepared, repeats[0], finished, repeats[1])


def test_the_rows_of_a_measurement_are_judged_printed_and_recorded(its: Any, tmp_path: Path) -> None:
    bench = its.measure.Bench(["c", "a"], "cpu")
    bench.facts = {"device": "a CPU", "kind": "cpu", "cores": 2, "torch": "2.0", "revision": "0123456789abcdef+"}
    bench.peak = {"product": 200.0, "conv_product": 190.0, "convolution": 500.0, "copy": 70.0}
    bench._add(row(its, "c", "cores", (1.0, 2.0, 4.0), (3.0, 2.0, 4.4)))
    bench._add(row(its, "c", "stacked", (8.0, 8.0, 8.0), (3.0, 2.0, 4.4)))
    bench._add(its.rows.Row("a", "cores", error="ValueError: no"))
    bench._add(row(its, "c", "usual", (3.0, 2.0, 4.4)), first_of="c")
    usual, cores, stacked, failed = bench.rows
    assert (cores.client_steps_s, cores.images_s, cores.gflops) == (4, 512, 200)
    assert cores.share_of_peak == pytest.approx(0.4)
    assert cores.ratio == pytest.approx(1.1)  # of 3, 1 and 1.1; the medians' ratio would be 1.5
    assert (usual.way, usual.ratio) == ("usual", 1.0)
    assert [r.best for r in bench.rows] == [False, True, False, False]
    assert (cores.met, stacked.met, failed.met) == (False, None, False)  # 1.2x and 1.8x were asked for
    assert bench.missed == [cores, failed]
    text = its.printed.plain(bench).splitlines()
    assert text[0] == "a CPU, 2 cores, torch 2.0, fp32"
    assert "500 GFLOP/s (convolution)" in text[1]
    assert "(c) GN ResNet-18, 8 clients, batch 128 [1 of 10 local steps]" in text
    told = next(line for line in text if line.startswith("cores *")).split()
    assert told == ["cores", "*", "4.0", "512", "200.0", "40.0%", "812", "4%", "1.10", "3.0e-07", "1.2x", "NO"]
    assert any(line.startswith("cores") and line.endswith("ValueError: no  1.8x  NO") for line in text)
    for _ in range(2):
        its.speed.record(bench, tmp_path / "record.csv")
    lines = list(csv.DictReader((tmp_path / "record.csv").open()))
    assert [line["way"] for line in lines] == 2 * ["usual", "cores", "stacked"]
    assert [lines[1][name] for name in ("gflops", "ratio", "parity", "revision")] == [
        "200",
        "1.1",
        "3e-07",
        "0123456789+",
    ]
    assert its.speed.RECORD.read_text().startswith((tmp_path / "record.csv").read_text().splitlines()[0])
    assert [r["way"] for r in json.loads(json.dumps(bench.as_dict()))["rows"]] == ["usual", "cores", "stacked", "cores"]
    # Variants that are tried have no target, and nothing waits for them.
    bench.deadline = 0.0  # of time.monotonic(): long ago
    tried = its.ways.EXPERIMENTS
    bench._try("c", tried)
    assert {(r.error, r.met) for r in bench.rows[-len(tried) :]} == {("not run: out of time", None)}
    winner = row(its, "c", tried[0].title, (0.1,), (9.0,))
    winner.experiment = True
    bench._add(winner)
    assert [r.way for r in bench.rows if r.best] == ["cores"]
    quick = row(its, "c", "graphed", (1.0,), (5.0,))  # 400 GFLOP/s: a GPU must reach its share of products, too
    for speed_of_products, met in ((700.0, True), (900.0, False)):
        its.rows.judge([quick], "cuda", 1000.0, speed_of_products)
        assert quick.met is met


def test_a_child_measures_and_tells_what_went_wrong(its: Any) -> None:
    station, way = its.station, its.ways.Way("none such", "none such")
    with station.Station("cpu", "fp32", "b10", way) as one:
        assert one.loaded() == "cpu"
        with pytest.raises(station.Failed, match="unknown executor 'none such'"):
            one.ask("prepare")
        assert one.ask("facts")["kind"] == "cpu"  # it goes on
        one.process.kill()
        with pytest.raises(station.Failed, match="died"):
            one.ask("facts")
