"""`fedbench train --table` with several seeds: in one stack where the executor stacks clients."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedbench.core import executors
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.trainer import Progress
from fedbench.methods.base import Method, cross_entropy
from fedbench.store import Artifact, Store
from tests.support.cli_user import SMOKE, cells, fedbench, good

TABLE = """
title = "Three seeds"
protocol = "feddrm"
metric = "average_accuracy"
statistic = "last_rounds"
unit = "percent"
decimals = 1
best = "max"
view = "crop"
seeds = [1, 2, 3]
rows = [{ label = "FedAvg", method = "fedavg" }]

[budget.smoke]
steps = 2
batch_size = 16

[[column]]
label = "Dir-0.3"
dataset = "digits"
partition = { scheme = "dirichlet", alpha = 0.3 }
"""


@pytest.fixture
def table(tmp_path: Path, home: Path) -> str:
    """A table of one cell with three seeds, and a partition that is there already."""
    path = tmp_path / "seeds.toml"
    path.write_text(TABLE)
    return str(path)


def train(table: str, *more: str) -> tuple[str, ...]:
    return ("train", "--table", table, *SMOKE, *more)


def runs(home: Path) -> dict[int, Artifact]:
    """The runs by seed."""
    return {a.manifest["spec"]["setting"]["seed"]: a for a in Store(home).list("run")}


def work(home: Path) -> list[Path]:
    """Folders of runs under way."""
    return list((home / "work").glob("[!.]*"))


def clear(home: Path) -> None:
    for run in runs(home).values():
        good("remove", run.id, "--yes")


def test_the_runs_are_those_of_one_after_another(table: str, home: Path) -> None:
    assert good(*train(table, "--executor", "cores")).line == "3 of 3 runs made"
    single = runs(home)
    frames = {seed: run.frame("predictions") for seed, run in single.items()}
    assert [run.provenance.get("together") for run in single.values()] == [None] * 3
    clear(home)
    said = good(*train(table, "--executor", "stacked"))
    assert said.line == "3 of 3 runs made"
    assert "(1/3) FedAvg digits Dir-0.3, seeds 1, 2, 3: round 4 of 4" in said.err
    assert said.err.count("round 4 of 4") == 1
    joint = runs(home)
    assert {seed: run.id for seed, run in joint.items()} == {seed: run.id for seed, run in single.items()}
    for seed, run in joint.items():
        assert run.provenance["together"] == 3
        assert run.provenance["executor"] == "stacked"
        assert run.manifest["inputs"] == single[seed].manifest["inputs"]
        frame = run.frame("predictions")
        assert (frame["own"] == frames[seed]["own"]).mean() > 0.99
        assert (frame["own"] == frames[seed % 3 + 1]["own"]).mean() < 0.99, "each seed is a run of its own"
        assert frame.drop(columns=["own", "votes"]).equals(frames[seed].drop(columns=["own", "votes"]))
    assert work(home) == []
    cell = cells(good("report", "--table", table, "--format", "json", *SMOKE))["FedAvg"]["Dir-0.3"]
    assert (cell["state"], cell["runs"]) == ("done", " ".join(joint[s].id for s in (1, 2, 3)))
    assert good(*train(table, "--executor", "stacked")).line.startswith("nothing to run")


@pytest.mark.parametrize(("executor", "together"), [("cores", None), ("stacked", 3)])
def test_left_alone_they_go_together_where_stacks_are_faster(
    table: str, home: Path, monkeypatch: pytest.MonkeyPatch, executor: str, together: int | None
) -> None:
    flop = 1e9 if executor == "stacked" else 0.0
    monkeypatch.setitem(executors.RULES, "cpu", executors.RULES["cpu"]._replace(flop=flop, clients=2))
    assert good(*train(table)).line == "3 of 3 runs made"
    assert [run.provenance["executor"] for run in runs(home).values()] == [executor] * 3
    assert [run.provenance.get("together") for run in runs(home).values()] == [together] * 3
    assert work(home) == []


def test_the_missing_seeds_only(table: str, home: Path) -> None:
    said = good(*train(table, "--seed", "2", "--executor", "stacked"))
    assert said.line == "1 of 1 runs made"
    assert "1 run to make, budget " in said.err
    assert "together" not in runs(home)[2].provenance
    assert good(*train(table, "--executor", "stacked")).line == "2 of 2 runs made"
    assert {seed: run.provenance.get("together") for seed, run in runs(home).items()} == {1: 2, 2: None, 3: 2}


def test_one_that_diverges_does_not_lose_the_others(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: Counter[tuple[int, int]] = Counter()

    def local(self: Method, client: Client) -> ClientUpdate:
        seed = client.setting.seed
        worked[seed, client.round] += client.index == 0
        yield Train(cross_entropy, lr=1e30 if (seed, client.round) == (2, 3) else None)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "local", local)
        said = fedbench(*train(table, "--executor", "stacked"))
    assert said.code == 1
    assert "not together: training diverged: client " in said.err
    assert said.err.count("failed: ") == 1
    assert said.line.startswith("failed: (2/3) FedAvg digits Dir-0.3, seed 2: training diverged: client ")
    assert set(runs(home)) == {1, 3}
    assert [f.stem for f in (home / "failed").iterdir()] == [p.name for p in work(home)]
    # Two rounds together, the third in vain (for those who had begun it), and from there each by itself.
    assert {worked.pop((seed, 3)) for seed in (1, 2, 3)} <= {1, 2}
    assert worked == {(s, t): 1 for s in (1, 2, 3) for t in (1, 2, 4) if (s, t) != (2, 4)}
    assert good(*train(table, "--executor", "stacked")).line == "1 of 1 runs made"
    assert list((home / "failed").iterdir()) == work(home) == []


def test_what_fails_at_once_leaves_nothing(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(Method, "local", broken)
    said = fedbench(*train(table, "--executor", "stacked"))
    assert said.code == 1
    assert "not together: ZeroDivisionError: no luck" in said.err
    assert said.err.count("failed: ") == 3
    assert len(list((home / "failed").iterdir())) == 3
    assert work(home) == []


def test_what_another_process_holds_is_left_to_it(table: str, home: Path) -> None:
    good(*train(table, "--executor", "stacked"))
    held = runs(home)[2].id
    clear(home)
    with Store(home).claim(held):
        said = good(*train(table, "--executor", "stacked"))
        assert f"2 of 3 runs made\nleft to process {os.getpid()} on " in said.err
        assert said.line.endswith(": (2/3) FedAvg digits Dir-0.3, seed 2")
        assert {seed: run.provenance.get("together") for seed, run in runs(home).items()} == {1: 2, 3: 2}
        assert [p.name for p in work(home)] == [held]
    assert good(*train(table, "--executor", "stacked")).line == "1 of 1 runs made"


def test_an_interrupt_saves_all_of_them(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def listen(progress: Progress) -> None:
        heard.append(progress.round)
        if heard == [1, 2, 3]:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedbench.observers.bars._lines", lambda *_: listen)
    said = fedbench(*train(table, "--executor", "stacked"))
    assert said.code == 130
    assert said.line == "stopped; round 3 of 4 is saved. The same command goes on from there."
    assert len(work(home)) == 3
    assert runs(home) == {}
    assert json.loads(good(*train(table, "--executor", "stacked", "--json")).out)["failed"] == []
    assert heard == [1, 2, 3, 4]
    assert [run.provenance["together"] for run in runs(home).values()] == [3, 3, 3]


def test_all_of_them_again(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(*train(table, "--executor", "stacked"))
    before = {seed: run.manifest["provenance"] for seed, run in runs(home).items()}
    for room in ("engine.sweep", "engine.job"):
        monkeypatch.setattr(f"fedbench.{room}.other_code", lambda provenance: True)
    assert good(*train(table, "--executor", "stacked", "--again")).line == "3 of 3 runs made"
    after = {seed: run.manifest["provenance"] for seed, run in runs(home).items()}
    assert all(after[seed] != before[seed] for seed in (1, 2, 3))
    assert [p["together"] for p in after.values()] == [3, 3, 3]
