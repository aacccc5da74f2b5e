"""Seeds that can prove something: of runs and of partitions, said which; tests over seeds and over clients are families
of their own; too few for a test is said before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedbench.cli.sweep import app
from fedbench.engine.grid import SAME, SweepGrid, partition_seeds
from fedbench.errors import FedbenchError
from fedbench.planner.runs import select
from fedbench.reports.compare.comparison import compare
from fedbench.reports.compare.pairs import enough, in_pairs, pairs_grid, too_few
from fedbench.reports.compare.significance import LEVEL, least_p
from fedbench.results.frame import Frame
from tests.reports.conftest import DIR, Lab, written
from tests.support.frames import refused

TABLE = """
title = "Mine"
protocol = "plain"
metric = "average_accuracy"
statistic = "last"
view = "plain"
seeds = [3, 5]
{draws}
rows = [{{ label = "FedAvg", method = "fedavg" }}]
[[column]]
label = "IID"
dataset = "cifar10"
partition = {{ scheme = "iid"{fixed} }}
"""


@pytest.mark.parametrize(
    ("draws", "fixed", "seeds", "says"),
    [
        ("", "", [0, 0], "mean of 2 seeds: 3, 5, on one draw of the partition."),
        ("partition_seeds = [3, 8]", "", [3, 8], "seeds: 3, 5, each with its own draw of the partition."),
        ("partition_seeds = [3, 8]", ", seed = 4", [4, 4], "on one draw of the partition."),
    ],
)
def test_a_table_draws_its_partitions_anew_if_it_says_so_and_the_note_says_which(
    lab: Lab, tmp_path: Path, draws: str, fixed: str, seeds: list[int], says: str
) -> None:
    lab.dataset("cifar10")
    table = written(tmp_path, TABLE.format(draws=draws, fixed=fixed))
    found = lab.cells(table).settings["IID"]
    assert [setting.seed for setting in found] == [3, 5]
    assert [setting.partition.seed for setting in found] == seeds
    for setting in found:
        lab.run(setting, "fedavg", views=("plain",), rules="plain")
    grid = lab.grid(table)
    assert grid.lines[0].entries[0].value.seeds == 2
    assert says in grid.basis
    assert says.rpartition(", ")[2] in " ".join(grid.reader)


def test_partition_seeds_stand_one_beside_each_seed(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match="partition_seeds stand one beside each of seeds"):
        written(tmp_path, TABLE.format(draws="partition_seeds = [3]", fixed=""))
    assert partition_seeds(SAME, [4, 7]) == [4, 7]
    assert partition_seeds("1-2", [4, 7]) == [1, 2]
    refused("3 partition seeds beside 2 seeds", SweepGrid.of, "digits", ["fedavg"], {}, [0, 1], [0, 1, 2])


def test_pairs_over_seeds_and_over_clients_are_two_families(lab: Lab) -> None:
    there = lab.setting("feddrm/1", DIR)
    at = replace(there, partition=replace(there.partition, clients=8))
    of = {"fedavg": (range(6), 0.5), "local": (range(6), 0.6), "pfedfda": (range(6), 0.55), "fedavgft": (range(1), 0.4)}
    for method, (seeds, accuracy) in of.items():
        for seed in seeds:
            clients = {c: accuracy + c / 100 + seed / 1000 for c in range(8)}
            metrics: dict[str, Any] = {"average_accuracy": lambda _, a=accuracy, s=seed: a + s / 100}
            lab.run(replace(at, seed=seed), method, clients=clients, metrics=metrics)
    side = compare(select(Frame(lab.store)))
    pairs = in_pairs(side)
    by_over = {over: [pair for pair in pairs if pair.over == over] for over in ("seeds", "clients")}
    assert {over: len(family) for over, family in by_over.items()} == {"seeds": 3, "clients": 3}
    for pair in pairs:
        assert pair.test is not None
        assert pair.adjusted == pytest.approx(3 * pair.test.p), "all of a family are as extreme as can be"
    about = " ".join(pairs_grid(side, pairs).about)
    assert "Holm: p corrected for 3 pairs over seeds, and apart for 3 pairs over clients." in about
    assert "6 seeds in 3 pairs: no test can reach 0.05 (p is 0.031 at the least)" in about
    assert "clients in" not in about


@pytest.mark.parametrize(("pairs", "seeds"), [(1, 6), (3, 7), (10, 9), (45, 11)])
def test_how_many_seeds_a_test_needs(pairs: int, seeds: int) -> None:
    assert enough(pairs) == seeds
    assert pairs * least_p(seeds) <= LEVEL < pairs * least_p(seeds - 1)
    assert too_few(seeds, pairs, "seeds") == ""
    assert "no test can reach 0.05" in too_few(seeds - 1, pairs, "seeds")


def test_a_sweep_says_before_training_that_seeds_are_too_few(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(lab.store.home))
    words = ["digits", "-m", "fedavg", "--lr", "0.1,0.2,0.3", "--seeds", "0-4", "--partition-seeds", SAME, "--dry-run"]
    result = CliRunner().invoke(app, [*words, "--test"])
    assert result.exit_code == 0, result.output
    assert "5 seeds: no test can reach 0.05 (p is 0.062 at the least); 7 seeds can." in result.output
    assert "no test" not in CliRunner().invoke(app, words).output
    alone = CliRunner().invoke(app, ["digits", "-m", "fedavg", "--seeds", "0-4", "--dry-run", "--test"])
    assert "no two rows of the sweep are on the same data to test" in str(alone.exception)
