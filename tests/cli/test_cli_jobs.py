"""`--jobs N`: several runs at a time, each in a process of its own, on one store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import SMOKE, fedbench, good, own_method, slow_method
from tests.support.waiting import rounds_saved, rounds_under_way, until

PARTITION = ("partition", "digits", "--dir", "0.3", "--clients", "4")
TRAIN = ("train", *SMOKE, "--executor", "cores", "--every", "1")


def predictions(home: Path) -> dict[str, bytes]:
    """Run's id -> the bytes of its predictions."""
    return {run.id: run.file("predictions.parquet").read_bytes() for run in Store(home).list("run")}


def test_the_same_bytes_as_one_after_another(home: Path, tmp_path: Path) -> None:
    here, log = tmp_path / "here", tmp_path / "log.jsonl"
    methods = ("-m", "fedavg", "-m", "local", "-m", "ditto")
    for store in (home, here):
        good(*PARTITION, "--home", store)
    said = good(*TRAIN, *methods, "--jobs", "2", "--log", log, "--json")
    good(*TRAIN, *methods, "--home", here)
    assert predictions(home) == predictions(here)
    assert len(predictions(home)) == 3
    assert [one["method"] for one in json.loads(said.out)] == ["fedavg", "local", "ditto"], "in the order asked for"
    processes = {run.provenance["process"] for run in Store(home).list("run")}
    assert len(processes) == 2
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for run in Store(home).list("run"):  # each training by itself is told in order
        own = [event for event in events if event["runs"] == [run.id]]
        assert [event["event"] for event in own] == ["start", *["round"] * (len(own) - 2), "end"]
        assert [event["loss"] for event in own[1:-1]] == run.table("rounds").column("loss").to_pylist()
        assert own[-1]["complete"]
    assert not list(home.glob("work/[!.]*"))


@pytest.mark.slow
def test_a_sweep_goes_on_where_a_worker_dies(home: Path, tmp_path: Path) -> None:
    deadly = own_method(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL); yield")
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--executor", "cores", "--seeds", "0-1", "--jobs", "2")
    said = fedbench(*sweep, "-m", "fedavg", "-m", deadly, "--half", "0.25")
    assert said.code == 1
    assert "2 of 4 runs made" in said.err
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert all("was ended by signal 9; if memory ran out, take fewer --jobs" in line for line in failed)
    assert len(list((home / "failed").iterdir())) == 2
    mended = own_method(tmp_path)
    assert "2 of 2 runs made" in good(*sweep, "-m", mended, "--half", "0.25").err
    assert len(predictions(home)) == 4


def test_a_mistake_in_a_users_file_is_told_by_its_line(home: Path, tmp_path: Path) -> None:
    good(*PARTITION)
    said = fedbench(*TRAIN, "-m", own_method(tmp_path, "yield 1 / 0"), "--jobs", "2")
    assert said.code == 2
    assert said.line.startswith("fedbench: ")
    assert "mine.py, line 21, in local: ZeroDivisionError: division by zero" in said.line
    (failed,) = (home / "failed").iterdir()
    assert "yield 1 / 0" in json.loads(failed.read_text())["log"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_gone_on(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Whatever ends the driver: its workers save their last rounds, end, and the same command goes on from there."""
    own, slow = slow_method(tmp_path)
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--rounds", "30", "-m", own, "--half", "0.25,0.5")
    command = [sys.executable, "-m", "fedbench", *sweep, "--executor", "cores", "--jobs", "2"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: sum(round >= 2 for round in rounds_under_way(home)) == 2, child, seconds=120)
    child.send_signal(number)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert said.splitlines()[-1] == "stopped. The same command goes on from the rounds that are saved."
        assert "Traceback" not in said
    until(lambda: not list(home.glob("work/*/claim.json")), seconds=120)
    saved = rounds_saved(home)
    assert len(saved) == 2
    assert min(saved) >= 2
    slow.unlink()
    assert "2 of 2 runs made" in good(*command[3:]).err
    events = [run.table("rounds").num_rows for run in Store(home).list("run")]
    assert events == [30, 30]


def test_without_ray_one_line_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("on_ray", "cluster"):
        monkeypatch.delitem(sys.modules, f"fedbench.engine.engines.{name}", raising=False)
    said = fedbench(*TRAIN, "digits", "-m", "local", "--engine", "ray")
    assert said.code == 2
    assert "--engine ray needs Ray, which is not installed" in said.line
    assert said.line.endswith("pip install 'fedbench-fl[ray]'")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--jobs", "0"), "--jobs must be at least 1, not 0"),
        (("--jobs", "2", "--cpus-per-run", "9999"), "--cpus-per-run 9999 of"),
        (("--cpus-per-run", "1"), "--cpus-per-run goes with --jobs or --engine ray; add --jobs 2"),
        (("--jobs", "2", "--gpus-per-run", "1"), "--gpus-per-run goes with --engine ray"),
        (("--engine", "ray", "--jobs", "2"), "--jobs does not go with --engine ray; --cpus-per-run says"),
        (("--engine", "ray", "--cpus-per-run", "0"), "--cpus-per-run and --gpus-per-run are numbers above 0"),
        (("--engine", "ray", "--device", "cuda:0"), "--device cuda:0 does not go with --engine ray; --gpus-per-run 1"),
        (("--engine", "ray", "--device", "cpu", "--gpus-per-run", "1"), "--device cpu does not go with --gpus-per-run"),
        (("--engine", "rey"), "unknown engine 'rey'; did you mean 'ray'?"),
        (("--engine", "ray:10001"), "unknown engine 'ray:10001'"),
        (("--engine", "ray://host"), "unknown engine 'ray://host'; did you mean 'ray://HOST:PORT'?"),
        (("--device", "cuda:0,cuda:999"), " here"),  # or no GPU at all
        (("--device", "cuda:0,cuda:0"), "--device cannot be 'cuda:0,cuda:0'"),
        (("--device", "cuda:x"), "--device cannot be 'cuda:x'; auto, cpu, cuda, or GPUs: cuda:0,cuda:1"),
    ],
)
@pytest.mark.parametrize("command", [("train", "-m", "local"), ("sweep", "digits", "-m", "local")])
def test_bad_input_is_one_line(ready: Path, command: tuple[str, ...], options: tuple[str, ...], text: str) -> None:
    before = predictions(ready)
    said = fedbench(*command, *SMOKE, *options)
    assert said.code == 2
    assert text in said.line
    assert said.err.count("\n") == 1
    assert predictions(ready) == before
