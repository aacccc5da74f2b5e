"""Rows with a budget of their own: their runs stand in settings of their own, and the table says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.reports.table.spec import Table

MINE = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "final"
decimals = 3
rows = [
  { label = "Plain", method = "feddrm" },
  { label = "Long", method = "fedavg", train = { lr = 0.5 }, budget = { small = { rounds = 300 } } },
]
[[column]]
label = "IID"
dataset = "cifar10"
partition = { scheme = "iid" }
train = { rounds = 30, window = 1 }
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return tables.load(str(path))


def test_a_row_of_its_own_budget_asks_for_other_runs(lab: Any, table: Table) -> None:
    cells = find(table, "small", lab.store, [])
    plain, long = (line[0].specs[0].setting for line in cells.grid)
    assert (plain.rounds, long.rounds, plain.lr, long.lr) == (30, 300, 0.01, 0.5)
    assert long.budget == "small"
    assert cells.settings["IID"] == (plain,)
    at_paper = find(table, "paper", lab.store, [])
    assert [line[0].specs[0].setting.rounds for line in at_paper.grid] == [30, 30]  # nothing declared: the column's
    assert at_paper.grid[1][0].specs[0].setting.lr == 0.5
    assert {job.setting.rounds for job in cells.runs(State.MISSING)} == {30, 300}


def test_the_table_says_so(lab: Any, table: Table) -> None:
    about = build(table, "small", lab.store, []).about
    assert any(line.startswith("Budget small: 30 rounds") for line in about)
    assert "Long: lr = 0.5, 300 rounds." in about
    assert not any(line.startswith("Plain:") for line in about)


def test_each_run_stands_in_its_own_row(lab: Any, table: Table) -> None:
    plain, long = (line[0].specs[0].setting for line in find(table, "small", lab.store, []).grid)
    lab.run(plain, "feddrm", value=0.25)
    lab.run(long, "fedavg", value=0.5)
    # The row's method at the table's own budget is another run, and gets a row of its own that tells it apart.
    lab.run(plain, "fedavg", value=0.125, title="Long")
    lab.run(plain, "local", value=0.75, title="Local")
    lab.run(long, "local", value=0.875, title="Elsewhere")
    lines = build(table, "small", lab.store, [], extra=True).lines
    assert [(line.label, line.kind, line.entries[0].text) for line in lines] == [
        ("Plain", "paper", "0.250"),
        ("Long", "paper", "0.500"),
        ("Local", "extra", "0.750"),
        ("Long (30 rounds)", "extra", "0.125"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr = 0.5", "lrr = 0.5", "unknown key .*row [0-9]+, train 'lrr'; did you mean 'lr'"),
        ("small = {", "smal = {", "unknown budget .*row Long 'smal'; did you mean 'small'"),
        (
            "{ rounds = 300 }",
            "{ round = 300 }",
            "unknown key .*budget.small 'round'; did you mean 'rounds'",
        ),
        ("{ rounds = 300 }", "{ seed = 3 }", "unknown key .*'seed'"),
    ],
)
def test_faulty_rows(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINE
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(old, new, 1))
    with pytest.raises(FedbenchError, match=message):
        tables.load(str(path))


def test_the_protocols_hyper_parameters_of_a_budget_are_said(lab: Any) -> None:
    small = build(tables.load("ftw_erm/13"), "small", lab.store, []).notes
    assert "M = 10, M = 20, M = 40, M = 50, M = 100, M = 200, M = 500: restarts = 1." in small
    assert not any("restarts" in line for line in build(tables.load("ftw_erm/13"), "paper", lab.store, []).notes)
