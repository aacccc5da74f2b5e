"""Statistics over seeds: the value after the last round, or at a run's best round, and the ± over its seeds."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid, legend
from fedbench.reports.render import render
from fedbench.reports.runs import select
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.reports.table.spec import Table

MINE = """
title = "Mine"
protocol = "pfedfda"
metric = "client_accuracy"
statistic = "final"
decimals = 4
seeds = [3, 5, 8]
rows = [{ label = "FedAvg", method = "fedavg" }]
[[column]]
label = "Average"
metric = "client_accuracy_mean"
dataset = "cifar10"
partition = { scheme = "iid" }
[[column]]
label = "Client 2"
client = 2
dataset = "cifar10"
partition = { scheme = "iid" }
[[column]]
label = "Worst"
metric = "client_accuracy_min"
dataset = "cifar10"
partition = { scheme = "iid" }
"""


def mine(tmp_path: Path, text: str = MINE) -> Table:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return tables.load(str(path))


def train(lab: Any, table: Table, rounds: dict[int, dict[int, tuple[float, float]]]) -> None:
    """One run a seed; rounds[seed][t] are the accuracies of two clients after round t (0 elsewhere)."""
    for seed, by_round in rounds.items():
        setting = find(table, "small", lab.store, [], seeds=[seed]).settings["Average"][0]
        assert set(by_round) <= set(setting.evaluated_rounds())
        each = {c: (lambda t, c=c, r=by_round: r.get(t, (0.0, 0.0))[c]) for c in (0, 1)}
        lab.run(setting, "fedavg", each=each, views=("plain",), rules="pfedfda")


def cells(grid: Grid) -> dict[str, tuple[str, str]]:
    return {h.label: (e.text, e.spread) for h, e in zip(grid.heads, grid.lines[0].entries, strict=True)}


FINAL = {3: {20: (0.5, 0.75)}, 5: {20: (0.625, 0.75)}, 8: {20: (0.25, 1.0)}}


def test_final_is_the_last_round_with_the_spread_of_the_seeds(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path)
    train(lab, table, {**FINAL, 3: {15: (1.0, 1.0), **FINAL[3]}})  # a better round before the last does not count
    grid = build(table, "small", lab.store, [])
    means, second = [0.625, 0.6875, 0.625], [0.75, 0.75, 1.0]
    assert cells(grid) == {
        "Average": (f"{statistics.mean(means):.4f}", f"{statistics.stdev(means):.4f}"),
        "Client 2": (f"{statistics.mean(second):.4f}", f"{statistics.stdev(second):.4f}"),
        "Worst": (f"{statistics.mean([0.5, 0.625, 0.25]):.4f}", f"{statistics.stdev([0.5, 0.625, 0.25]):.4f}"),
    }
    said = next(line for line in grid.about if line.startswith("Value after the last round"))
    assert "± is the standard deviation (ddof 1) over seeds; mean of 3 seeds: 3, 5, 8" in said


def test_best_round_is_one_round_of_a_run_for_all_columns(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path, MINE.replace('"final"', '"best_round"').replace("[3, 5, 8]", "[3]"))
    # Round 10 has the best mean, round 15 the best second client and round 5 the best worst one.
    train(lab, table, {3: {5: (0.5, 0.5), 10: (0.9, 0.4), 15: (0.1, 0.8), 20: (0.2, 0.2)}})
    grid = build(table, "small", lab.store, [])
    assert cells(grid) == {"Average": ("0.6500", ""), "Client 2": ("0.4000", ""), "Worst": ("0.4000", "")}
    said = next(line for line in grid.about if "selected on test data" in line)
    assert said.startswith("Value at the evaluated round of the best mean client accuracy")
    assert "±" not in said  # of one seed
    assert "seed 3" in said


def test_each_run_has_a_best_round_of_its_own(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path, MINE.replace('"final"', '"best_round"').replace("[3, 5, 8]", "[3, 5]"))
    train(lab, table, {3: {5: (0.5, 0.75)}, 5: {20: (0.25, 0.5)}})
    assert cells(build(table, "small", lab.store, []))["Client 2"][0] == "0.6250"


def test_programs_get_every_seed(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path)
    train(lab, table, FINAL)
    grid = build(table, "small", lab.store, [])
    found = json.loads(render([grid], "json"))[0]["cells"][1]
    assert found["per_seed"] == {"3": 0.75, "5": 0.75, "8": 1.0}
    assert (found["n"], found["seeds"]) == (3, 3)
    assert found["std"] == found["seed_std"] == pytest.approx(statistics.stdev([0.75, 0.75, 1.0]))
    line = list(csv.DictReader(io.StringIO(render([grid], "csv"))))[1]
    assert line["per_seed"] == "3:0.75 5:0.75 8:1.0"
    assert float(line["value"]) == pytest.approx(2.5 / 3)


def test_a_value_of_some_of_its_seeds_is_marked(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path)
    train(lab, table, {3: FINAL[3]})
    grid = build(table, "small", lab.store, [])
    entry = grid.lines[0].entries[1]
    assert (entry.text, entry.spread, entry.mark, entry.state) == ("0.7500", "", "‡", State.MISSING)
    assert ("‡", "not of all its seeds yet") in legend(grid)
    assert r"0.7500$^{\ddagger}$" in render([grid], "latex")
    train(lab, table, {seed: FINAL[seed] for seed in (5, 8)})
    whole = build(table, "small", lab.store, [])
    assert whole.lines[0].entries[1].mark == ""
    assert not legend(whole)


def test_a_client_that_is_not_there_is_told(lab: Any, tmp_path: Path) -> None:
    table = mine(tmp_path, MINE.replace("client = 2", "client = 7"))
    train(lab, table, {3: FINAL[3]})
    grid = build(table, "small", lab.store, [], seeds=[3])
    assert any("lack client_accuracy of client 7 after round 20" in text for text in grid.problems)
    assert grid.lines[0].entries[1].state is State.DAMAGED
    assert grid.lines[0].entries[0].state is State.DONE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("client = 2\n", "", "Client 2: client_accuracy needs a client; client = 1 is the first"),
        ("client = 2", "client = 0", "Client 2: clients are counted from 1, not 0"),
        ("client = 2", 'client = 2\nstatistic = "clients"', "a client goes with statistic final or best_round"),
        ("client = 2", 'client = 2\nmetric = "average_accuracy"', "average_accuracy is no client's"),
        ('"final"', '"finale"', "unknown statistic .*did you mean 'final'"),
    ],
)
def test_faulty_columns(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINE
    with pytest.raises(FedbenchError, match=message):
        mine(tmp_path, MINE.replace(old, new, 1))


def test_tolerances_of_columns_and_bands_of_rows(lab: Any, tmp_path: Path) -> None:
    text = MINE.replace("decimals = 4", "decimals = 4\ntolerance = 0.1").replace("[3, 5, 8]", "[3]")
    text = text.replace('"client_accuracy_mean"', '"client_accuracy_mean"\ntolerance = 0.01')
    rows = "table,row,group,column,value,std\nmine,FedAvg,,Average,0.6,\nmine,FedAvg,,Client 2,0.7,\n"
    (tmp_path / "reported.csv").write_text(rows + "mine,FedAvg,,Worst,0.9,\n")
    table = mine(tmp_path, text)
    train(lab, table, {3: FINAL[3]})  # 0.625, 0.75 and 0.5
    grid = build(table, "small", lab.store, [], compare=True)
    assert [e.within for e in grid.lines[0].entries] == [False, True, False]
    assert "Tolerance: ±0.01 (Average); ±0.1 (Client 2, Worst)." in grid.notes
    banded = mine(tmp_path, text.replace('method = "fedavg"', 'method = "fedavg", band = [0.5, 0.7]'))
    grid = build(banded, "small", lab.store, [], compare=True)
    assert [e.within for e in grid.lines[0].entries] == [True, False, True]  # its ends count
    assert "Tolerance: FedAvg in 0.5 to 0.7." in grid.notes
    with pytest.raises(FedbenchError, match=r"row FedAvg: a band is \[low, high\], not \[0.7, 0.5\]"):
        mine(tmp_path, text.replace('method = "fedavg"', 'method = "fedavg", band = [0.7, 0.5]'))


def test_rows_that_the_seeds_cannot_tell_apart_share_a_mark(lab: Any, tmp_path: Path) -> None:
    """In a column, and in the mean over others, by seed."""
    rows = '{ label = "FedAvg", method = "fedavg" }, { label = "Local", method = "local" }, '
    mean = '[[column]]\nlabel = "Mean"\nof = ["Average", "Client 2"]\n'
    text = MINE.replace('{ label = "FedAvg", method = "fedavg" }', rows + '{ label = "FT", method = "fedavgft" }')
    table = mine(tmp_path, text + mean)
    for method, values in {
        "fedavg": (0.5, 0.625, 0.75),
        "local": (0.5, 0.5, 0.75),
        "fedavgft": (0.1, 0.2, 0.1),
    }.items():
        for seed, value in zip((3, 5, 8), values, strict=True):
            setting = find(table, "small", lab.store, [], seeds=[seed]).settings["Average"][0]
            each = {c: (lambda t, v=value: v) for c in (0, 1)}
            lab.run(setting, method, each=each, views=("plain",), rules="pfedfda")
    grid = build(table, "small", lab.store, [])
    average, second, worst, of = zip(*(line.entries for line in grid.lines), strict=True)
    assert [[e.rank for e in column] for column in (average, second, worst, of)] == [[1, 1, 2]] * 4
    assert of[0].value.per_seed == {3: 0.5, 5: 0.625, 8: 0.75}
    assert "bold: best and all within two standard errors of it over the seeds" in render([grid], "markdown")
    runs = select(lab.store, ["method=fedavg,local,fedavgft"])
    assert [line.entries[0].rank for line in side_by_side(runs, ["client_accuracy_mean"])[0].lines] == [1, 2, 1]
