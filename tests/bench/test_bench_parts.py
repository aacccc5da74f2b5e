"""The parts of the benchmark: what it counts, what it compares, and how it tells of it. (The speeds: test_speed.py.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import flops
import machine
import numpy as np
import ours
import peak
import printed
import pytest
import record
import speed
import torch
from measure import Bench
from ours import Ours
from rows import Row, judge, measured
from station import Failed, Station
from torch import nn
from usual import Usual
from ways import EXPERIMENTS, USUAL, Way
from workloads import WORKLOADS, Workload

from fedbench.core.executors import available_cores

CPU = torch.device("cpu")
TINY = Workload(
    "tiny", "digits_cnn", (8, 8, 1), (30, 20, 17), 8, lr=0.05, momentum=0.9, weight_decay=5e-4, tail="drop", epochs=2
)


def test_flops_of_layers_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(5 * 6 * 4, 7))
    convolution, linear = 2 * 5 * 6 * 4 * 3 * 9, 2 * 120 * 7
    assert flops.forward(model, (6, 4, 3)) == convolution + linear
    # Backward: the weights' gradients, and the inputs' but for the pixels.
    assert flops.training(model, (6, 4, 3)) == 2 * convolution + 3 * linear


@pytest.mark.parametrize(
    ("key", "device", "clients", "steps", "images"),
    [
        # Dir(0.5) over 60,000 images, 80 % for training: whole batches of 50, as the partition's own tests pin it.
        ("a", "cpu", 100, None, None),
        ("b10", "cpu", 10, 10 * 75, 48_000),
        ("b1200", "cpu", 1200, 2 * 1200, 120_000),
        ("c", "cpu", 8, 8, 8 * 128),
        ("c", "cuda", 8, 80, 80 * 128),
        ("d", "cuda", 8, 0, 8 * 18_000),
    ],
)
def test_the_workloads_are_those_of_the_papers(key, device, clients, steps, images) -> None:
    workload = WORKLOADS[key](device)
    assert len(workload.train) == clients
    if key == "a":
        assert sum(workload.train) == pytest.approx(48_000, abs=100)
        assert min(workload.train) >= 50
        steps = sum(n // 50 for n in workload.train)
        images = 50 * steps
    assert workload.work == (steps, images)


@pytest.mark.parametrize("tail", ["drop", "keep"])
@pytest.mark.parametrize("passes", [{"epochs": 2}, {"epochs": None, "steps": 5}])
def test_both_ways_do_the_same_work(tail: str, passes: dict) -> None:
    workload = replace(TINY, tail=tail, **passes)
    run, usual = Ours(workload, CPU, executor="sequential"), Usual(workload, CPU)
    assert run.repeat() > 0
    assert usual.repeat() > 0
    assert (usual.steps, usual.images) == workload.work
    assert run.images == workload.work[1]


def test_both_ways_end_with_the_same_weights() -> None:
    # One batch holds all of a client's images, so their order does not matter.
    workload = replace(TINY, batch=30, epochs=3)
    run, usual = Ours(workload, CPU, executor="sequential"), Usual(workload, CPU)
    start = {name: t.numpy().copy() for name, t in usual.models[0].state_dict().items()}
    run.trainer.commit(run.round())
    usual.repeat()
    theirs = {name: t.numpy() for name, t in usual.models[0].state_dict().items()}
    mine = {name: t.numpy() for name, t in run.trainer.server.shared.items()}
    assert ours.difference(mine, theirs) < 1e-4
    assert ours.difference(start, theirs) > 1e-2


def test_both_ways_answer_alike() -> None:
    workload = replace(TINY, train=(8, 8, 8), test=20, steps=1, epochs=None, answers=True)
    run, usual = Ours(workload, CPU, executor="sequential"), Usual(workload, CPU)
    votes = run.votes()
    assert votes.shape == (60, 3)
    assert len(np.unique(votes)) > 1
    assert np.array_equal(usual.evaluate().numpy().T, votes)


def test_the_difference_is_relative_to_each_parameter() -> None:
    reference = {"w": np.array([100.0, -200.0]), "b": np.array([0.001, 0.002])}
    moved = {"w": np.array([100.0, -200.2]), "b": np.array([0.001, 0.002 + 4e-6])}
    assert ours.difference(moved, reference) == pytest.approx(2e-3)
    votes = np.zeros((4, 2), np.uint16)
    assert ours.difference({"votes": votes + np.eye(4, 2, dtype=np.uint16)}, {"votes": votes}) == 0.25


def test_executors_are_compared_over_rounds_that_train() -> None:
    cores = ours.outcome(TINY, CPU, "fp32", "cores", {})
    assert ours.difference(cores, ours.outcome(TINY, CPU, "fp32", ours.REFERENCE)) == 0
    start = {name: t.numpy() for name, t in TINY.build().state_dict().items()}
    assert ours.difference(cores, start) > 1e-2


@pytest.mark.slow
def test_peak_gives_each_figure() -> None:
    figures = peak.measure(CPU, "fp32", seconds=0.001)
    assert set(figures) == {"product", "conv_product", "convolution", "copy"}
    assert all(figure > 0 for figure in figures.values())


def test_the_profile_finds_the_convolutions_of_other_threads() -> None:
    run = Ours(TINY, CPU, executor="cores")
    run.repeat()
    found = machine.profile(run.repeat, CPU, available_cores(), top=100)
    shares = dict(found["shares"])
    assert any("conv" in name for name in shares)
    assert 0 < sum(shares.values()) <= 1 + 1e-9
    assert 0 < found["busy"] <= 1.5


def row(workload: str, way: str, seconds: tuple[float, ...], usual: tuple[float, ...] = ()) -> Row:
    prepared = {"scale": "1 of 10 local steps", "steps": 8, "images": 1024}
    finished = {"flops": 4e11, "peak_mb": 812.4, "parity": None if way == "usual" else 3e-7}

    def repeats(seconds: tuple[float, ...]) -> list[dict[str, float]]:
        return [{"seconds": s, "others": 0.01 * s} for s in seconds]

    return measured(workload, way, prepared, repeats(seconds), finished, repeats(usual))


@pytest.fixture
def bench() -> Bench:
    """A measurement as it would have come out."""
    out = Bench(["c", "a"], "cpu")
    out.facts = {"device": "a CPU", "kind": "cpu", "cores": 2, "torch": "2.0", "revision": "0123456789abcdef+"}
    out.peak = {"product": 200.0, "conv_product": 190.0, "convolution": 500.0, "copy": 70.0}
    for one in (
        row("c", "cores", (1.0, 2.0, 4.0), (3.0, 2.0, 4.4)),
        row("c", "stacked", (8.0, 8.0, 8.0), (3.0, 2.0, 4.4)),
        Row("a", "cores", error="ValueError: no"),
    ):
        out._add(one)
    out._add(row("c", "usual", (3.0, 2.0, 4.4)), first_of="c")
    return out


def test_a_row_is_its_median_and_the_ratio_that_of_pairs(bench: Bench) -> None:
    usual, cores, stacked, failed = bench.rows
    assert (cores.client_steps_s, cores.images_s, cores.gflops) == (4, 512, 200)
    assert cores.share_of_peak == pytest.approx(0.4)
    assert cores.ratio == pytest.approx(1.1)  # of 3, 1 and 1.1; the medians' ratio would be 1.5
    assert (usual.way, usual.ratio) == ("usual", 1.0)
    assert [r.best for r in bench.rows] == [False, True, False, False]
    assert (cores.met, stacked.met, failed.met) == (False, None, False)  # 1.2x and 1.8x were asked for
    assert bench.missed == [cores, failed]


def test_variants_have_no_targets_and_wait_for_no_one(bench: Bench) -> None:
    bench.deadline = 0.0  # of time.monotonic(): long ago
    bench._try("c", EXPERIMENTS)
    late = bench.rows[-len(EXPERIMENTS) :]
    assert {r.error for r in late} == {"not run: out of time"}
    assert [r.met for r in late] == [None] * len(late)
    winner = row("c", EXPERIMENTS[0].title, (0.1,), (9.0,))
    winner.experiment = True
    bench._add(winner)
    assert [r.way for r in bench.rows if r.best] == ["cores"]


def test_a_gpu_must_also_reach_its_share_of_products() -> None:
    quick = row("c", "graphed", (1.0,), (5.0,))  # 400 GFLOP/s
    for speed_of_products, met in ((700.0, True), (900.0, False)):
        judge([quick], "cuda", 1000.0, speed_of_products)
        assert quick.met is met


def test_the_table_shows_every_row_and_what_failed(bench: Bench) -> None:
    text = printed.plain(bench)
    lines = text.splitlines()
    assert lines[0] == "a CPU, 2 cores, torch 2.0, fp32"
    assert "500 GFLOP/s (convolution)" in lines[1]
    assert "(c) GN ResNet-18, 8 clients, batch 128 [1 of 10 local steps]" in lines
    cells = next(line for line in lines if line.startswith("cores *")).split()
    assert cells == ["cores", "*", "4.0", "512", "200.0", "40.0%", "812", "4%", "1.10", "3.0e-07", "1.2x", "NO"]
    assert any(line.startswith("cores") and line.endswith("ValueError: no  1.8x  NO") for line in lines)


def test_what_others_take_is_not_what_we_take() -> None:
    others = machine.Others()
    if others.before is None:
        pytest.skip("the system does not tell")
    theirs = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until = time.perf_counter() + 0.6
        while time.perf_counter() < until:
            pass
        share = others.share()
    finally:
        theirs.kill()
        theirs.wait()
    # One core of them is the other process's, if it got it; one was ours and does not count.
    assert 0.02 < share <= 1 - 0.2 / os.cpu_count()


def test_records_are_read_as_they_were_written(bench: Bench, tmp_path) -> None:
    path = tmp_path / "record.csv"
    record.append(bench, path)
    record.append(bench, path)
    lines = record.read(path)
    assert [(line["workload"], line["way"]) for line in lines] == 2 * [("c", "usual"), ("c", "cores"), ("c", "stacked")]
    assert (lines[1]["gflops"], lines[1]["ratio"], lines[1]["parity"]) == (200.0, 1.1, 3e-7)
    assert (lines[0]["parity"], lines[0]["revision"]) == (None, "0123456789+")


def test_the_kept_record_can_be_read() -> None:
    for line in record.read():
        assert tuple(line) == record.FIELDS
        assert line["workload"] in WORKLOADS
        assert line["images_s"] > 0


def test_a_child_measures_and_tells_what_went_wrong() -> None:
    with Station("cpu", "fp32", "b10", Way("none such", "none such")) as station:
        assert station.loaded() == "cpu"
        with pytest.raises(Failed, match="unknown executor 'none such'"):
            station.ask("prepare")
        assert station.ask("facts")["kind"] == "cpu"  # it goes on
    with Station("cpu", "fp32", "b10", USUAL) as station:
        station.process.kill()
        with pytest.raises(Failed, match="died"):
            station.loaded()


def test_arguments() -> None:
    assert speed.parse(["--only", "b,a"]).only == ["b10", "b1200", "a"]
    assert speed.parse(["--executors", "cores,auto"]).executors == ["cores", "auto"]
    with pytest.raises(SystemExit):
        speed.parse(["--only", "a,z"])


def test_json_holds_everything(bench: Bench) -> None:
    told = json.loads(json.dumps(bench.as_dict()))
    assert [r["way"] for r in told["rows"]] == ["usual", "cores", "stacked", "cores"]
    assert told["peak"]["copy"] == 70.0
