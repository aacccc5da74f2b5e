"""Tables as data: complete, strict, and true to the papers' own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.table.claims import FAILS, HOLDS, OPEN, judge

MINE = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
unit = "percent"
rows = [{ label = "Mine", method = "fedavgft" }]
[[column]]
label = "IID"
dataset = "cifar10"
partition = { scheme = "iid" }
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("name", tables.names())
def test_a_column_has_all_of_the_papers_numbers_or_none(name: str) -> None:
    table = tables.load(name)
    columns = {key for _, key in table.reported}
    asked = {
        (row.label, column.key)
        for row in table.rows
        for column in table.columns
        if not row.added and column.key in columns and row.label != column.relative_to
        if not table.undefines(row.label, column.key)
    }
    if name == "flux/2":  # the place of some marks on costs is not known
        asked = {place for place in asked if not _unplaced(*place)}
    assert set(table.reported) == asked


def _unplaced(row: str, column: str) -> bool:
    costs = column.startswith("Low cost/") or column == "Scalability"
    return costs and row not in ("FedAvg", "pFedMe", "ATP", "FLUX")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("feddrm/1", 66), ("feddrm/2", 66), ("feddrm/4", 66), ("pfedfda/1", 96), ("pfedfda/2", 84),
        ("pfedfda/3", 32), ("pfedfda/6", 14), ("pfedfda/7", 49), ("pfedfda/8", 16),
        ("ftw_erm/1", 18), ("ftw_erm/2", 9), ("ftw_erm/3", 4), ("ftw_erm/7", 18), ("ftw_erm/10", 9), ("ftw_erm/13", 7),
        ("ftw_erm/6", 200), ("ftw_erm/8", 100), ("ftw_erm/9", 100), ("ftw_erm/11", 40), ("ftw_erm/12", 4),
    ],
)  # fmt: skip
def test_sizes_are_those_of_the_papers(name: str, cells: int) -> None:
    assert len(tables.load(name).reported) == cells


@pytest.mark.parametrize("name", tables.names())
def test_claims_stand_on_the_papers_own_numbers_as_declared(name: str) -> None:
    table = tables.load(name)
    numbers = {place: value for place, (value, _) in table.trusted.items()}
    rows, columns = [r.label for r in table.rows if not r.added], [c.key for c in table.printed]
    assert table.claim or table.statistic in ("preset", "levels") or table.number or not table.reported
    for claim in table.claim:
        best = {c.key: str(c.best) for c in table.columns}
        verdict = judge(claim, numbers, rows, columns, best, table.no_numbers)
        assert verdict.state == {True: HOLDS, False: FAILS, None: OPEN}[claim.reported], (claim.text, verdict.detail)
        assert verdict.made == (0 if claim.reported is None else verdict.asked)


def test_known_values_of_the_papers() -> None:
    assert tables.load("feddrm/1").reported["FedDRM", "CIFAR-10/Dir-0.3"] == (63.85, 0.18)
    assert tables.load("feddrm/2").reported["FedALA", "CIFAR-100/25-SPC"] == (27.83, 1.59)
    assert tables.load("pfedfda/2").reported["pFedFDA", "CIFAR100/Dir(0.5)"] == (0.385, 0.07)
    assert tables.load("pfedfda/6").reported["FedPAC", "One after another/Total runtime"] == (146.3, None)
    assert tables.load("ftw_erm/1").reported["FTW-ERM", "Client 4"] == (0.7933, 0.0598)
    assert tables.load("ftw_erm/2").reported["FedBN", "Worst client"] == (0.1678, None)
    assert tables.load("ftw_erm/3").reported["FITW-ERM", "Average"] == (0.63, 0.0)
    assert tables.load("ftw_erm/7").reported["FedAvg", "Client 5"] == (0.4476, 0.3649)
    assert tables.load("ftw_erm/10").reported["FedAvg", "Client 1"] == (0.94, 0.0)
    assert tables.load("ftw_erm/13").reported["M = 500", "Bound"] == (206.76, None)


def test_table_4_repeats_tables_1_and_2_at_alpha_0_3() -> None:
    both = tables.load("feddrm/4").reported
    for name, group in (("feddrm/1", "System accuracy"), ("feddrm/2", "Average accuracy")):
        for (row, column), value in tables.load(name).reported.items():
            if column == "CIFAR-10/Dir-0.3":
                assert both[row, f"{group}/α = 0.3"] == value


@pytest.mark.parametrize("name", [n for n in tables.names() if not tables.load(n).counted])
def test_settings_can_be_told_at_every_budget(name: str) -> None:
    from fedbench.reports.status.settings import sketch

    table = tables.load(name)
    for budget in protocol.load(table.protocol).budgets:
        for column in table.measured:
            assert sketch(table, column, budget).rounds >= 1


def test_numbers_mean_the_headline_set() -> None:
    assert [tables.load(n).id for n in "12345"] == [
        "feddrm/1", "feddrm/2", "flux/levels_mnist", "flux/51", "pfedfda/6",
    ]  # fmt: skip


def test_the_nearest_table_is_offered() -> None:
    with pytest.raises(FedbenchError, match="unknown table 'fedrm/1'; did you mean 'feddrm/1'"):
        tables.load("fedrm/1")


def test_a_users_table_needs_one_file(mine: Path) -> None:
    table = tables.load(str(mine))
    assert (table.id, table.reported, table.columns[0].decimals) == ("mine", {}, 2)
    assert table.columns[0].metric == "system_accuracy"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Mine"', 'titel = "Mine"', "unknown key in .*mine.toml 'titel'; did you mean 'title'"),
        ('title = "Mine"', "", "lacks 'title'"),
        ('title = "Mine"', "title = 3", "title must be text, not 3"),
        ('method = "fedavgft"', 'metod = "fedavgft"', "unknown key in .*row 1 'metod'; did you mean 'method'"),
        (', method = "fedavgft"', "", "row Mine needs a method"),
        ('metric = "system_accuracy"', 'metric = "sistem_accuracy"', "unknown metric .*did you mean 'system_accuracy'"),
        ('"last_rounds"', '"last_round"', "unknown statistic .*did you mean 'last_rounds'"),
        ('unit = "percent"', 'unit = "percents"', "unknown unit .*did you mean 'percent'"),
        ('scheme = "iid"', 'schema = "iid"', "unknown key in .*column 1, partition 'schema'; did you mean 'scheme'"),
        ('dataset = "cifar10"', "", "IID lacks a dataset"),
        ('protocol = "feddrm"', "", "lacks 'protocol'"),
        ("[[column]]", "[[columns]]", "unknown key in .* 'columns'; did you mean 'column'"),
        ('rows = [{ label = "Mine", method = "fedavgft" }]', "rows = []", "has no rows"),
        (
            'label = "Mine", method = "fedavgft" }',
            'label = "A", method = "a" }, { label = "A", method = "b" }',
            "two rows are called 'A'",
        ),
        ('title = "Mine"', 'title = "Mine"\nreplaced = true', "unknown key 'replaced'"),
        ('title = "Mine"', 'title = "Mine', "mine.toml is not valid TOML"),
        ("[[column]]", '[[claim]]\ntext = "x"\nkind = "best"\nrows = ["Min"]\n[[column]]', "unknown row .*'Mine'"),
        ("[[column]]", '[[claim]]\ntext = "x"\nkind = "bets"\n[[column]]', "unknown claim kind .*did you mean 'best'"),
        ("[[column]]", "[budget.small]\nround = 3\n[[column]]", "unknown key .*budget.small 'round'.*'rounds'"),
    ],
)
def test_a_faulty_file_is_one_clear_line(mine: Path, old: str, new: str, message: str) -> None:
    assert old in MINE
    mine.write_text(MINE.replace(old, new, 1))
    with pytest.raises(FedbenchError, match=message) as caught:
        tables.load(str(mine))
    assert "\n" not in str(caught.value).removesuffix("\n")


def test_reported_values_of_no_cell_are_an_error(mine: Path) -> None:
    mine.with_name("reported.csv").write_text("table,row,group,column,value,std\nmine,Mini,,IID,1,\n")
    with pytest.raises(FedbenchError, match=r"unknown row of table mine .*'Mini'; did you mean"):
        _ = tables.load(str(mine)).reported


def test_another_data_set_takes_the_templates_columns() -> None:
    table = tables.load("feddrm/1").for_dataset("digits")
    assert [c.key for c in table.columns] == ["digits/Dir-0.3", "digits/5-SPC"]
    assert {c.dataset for c in table.columns} == {"digits"}
    assert (table.reported, table.claim) == ({}, [])
    writers = tables.load("pfedfda/2").for_dataset("digits")
    assert [c.label for c in writers.columns] == ["Dir(0.1)", "Dir(0.5)"]
    both = tables.load("feddrm/4").for_dataset("digits")
    assert {c.group for c in both.columns} == {"System accuracy", "Average accuracy"}
