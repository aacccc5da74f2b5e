"""Tables written once: placeholders, repeated entries, families of tables, cells without a number, nested means."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import legend
from fedbench.reports.render import render
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.reports.table.family import expand, numbers, siblings
from fedbench.reports.table.spec import Table
from tests.reports.conftest import Lab

FAMILY = """
tables = ["7-8", "mean_ten", "mean_hundred"]
axes = ["kind", "dataset"]
title = "{dataset.name}, {kind.name}"
protocol = "feddrm"
statistic = "folds"
metric = "average_accuracy"
unit = "percent"
seeds = [3, 5]
rows = [{ label = "FedAvg", method = "fedavg" }, { label = "FedDRM", method = "feddrm" }]
[values]
dataset = [{ id = "cifar10", name = "Ten" }, { id = "cifar100", name = "Hundred" }]
kind = [{ name = "plain", none = ["plain/α = 0.1"], shares = [0.1, 0.3] }, { name = "more", none = [], shares = [0.3] }]
[[column]]
each = ["share in kind.shares"]
hidden = true
group = "{kind.name}"
label = "α = {share}"
dataset = "{dataset.id}"
partition = { scheme = "dirichlet", alpha = "{share}" }
[[column]]
label = "Mean"
of = ["*/α = *"]
spread = "sample"
[[undefined]]
rows = ["FedDRM"]
columns = "{kind.none}"
[own.8]
title = "Eight"
notes = ["Of table 8 alone."]
undefined = []
[own.mean_ten]
undefined = []
[own.mean_hundred]
undefined = []
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    path = tmp_path / "mine.family.toml"
    path.write_text(FAMILY)
    return path


def test_tables_are_the_combinations_of_the_axes(family: Path) -> None:
    told = {n: tables.load(f"{family}:{n}") for n in ("7", "8", "mean_ten", "mean_hundred")}
    assert {n: t.title for n, t in told.items()} == {
        "7": "Ten, plain", "8": "Eight", "mean_ten": "Ten, more", "mean_hundred": "Hundred, more",
    }  # fmt: skip
    assert {n: [c.dataset for c in t.measured] for n, t in told.items()} == {
        "7": ["cifar10"] * 2, "8": ["cifar100"] * 2, "mean_ten": ["cifar10"], "mean_hundred": ["cifar100"],
    }  # fmt: skip
    assert [t.notes for t in told.values()] == [[], ["Of table 8 alone."], [], []]


def test_a_placeholder_alone_keeps_its_type(family: Path) -> None:
    table = tables.load(f"{family}:7")
    assert [c.partition["alpha"] for c in table.measured] == [0.1, 0.3]
    assert [c.key for c in table.columns] == ["plain/α = 0.1", "plain/α = 0.3", "Mean"]
    assert table.columns[-1].of == ["plain/α = 0.1", "plain/α = 0.3"]
    assert [c.key for c in table.printed] == ["Mean"]


def test_another_data_set_is_the_table_beside_it() -> None:
    assert tables.on_dataset(tables.load("flux/12"), "cifar10").id == "flux/32"
    assert tables.on_dataset(tables.load("flux/levels_mnist"), "fashion_mnist").id == "flux/levels_fashion_mnist"
    assert tables.on_dataset(tables.load("flux/12"), "mnist").id == "flux/12"
    own = tables.load("flux/12").for_dataset("digits")
    assert (own.reported, {c.dataset for c in own.columns}) == ({}, {"digits"})


def test_siblings_differ_in_the_data_set_alone(family: Path) -> None:
    raw = tomllib.loads(FAMILY)
    assert siblings(raw, family, "mean_ten") == {"cifar10": "mean_ten", "cifar100": "mean_hundred"}
    assert siblings(raw, family, "8") == {"cifar10": "7", "cifar100": "8"}


def test_the_last_of_each_varies_fastest(tmp_path: Path) -> None:
    raw = {
        "values": {"a": [1, 2], "b": [{"c": ["x", "y"]}]},
        "column": [{"each": ["a", "b", "d in b.c"], "label": "{a}{d}", "n": "{a}"}, {"label": "last"}],
    }
    filled = expand(raw, tmp_path)["column"]
    assert [c["label"] for c in filled] == ["1x", "1y", "2x", "2y", "last"]
    assert [c.get("n") for c in filled] == [1, 1, 2, 2, None]


BOTH = {("fedavg", "plain/α = 0.1"): (0.2, 0.4), ("fedavg", "plain/α = 0.3"): (0.6, 0.6)}


def _train(lab: Lab, table: Table, values: Mapping[tuple[str, str], tuple[float, float]] = BOTH) -> None:
    """One run a seed of (row's method, column key) -> what the seeds 3 and 5 come to."""
    for (method, column), both in values.items():
        for seed, value in zip((3, 5), both, strict=True):
            setting = find(table, "smoke", lab.store, [], seeds=[seed]).settings[column][0]
            lab.run(setting, method, value=value)


def test_folds_means_over_hidden_columns_and_cells_without_a_number(lab: Lab, family: Path) -> None:
    """Hidden columns are measured with a ± of ddof 0, not printed; a mean over a cell without a number has none."""
    table = tables.load(f"{family}:7")
    _train(lab, table)
    cells = find(table, "smoke", lab.store, [])
    assert cells.counts == {State.DONE: 2, State.MISSING: 1}
    assert {(j.method, j.setting.partition.options["alpha"]) for j in cells.runs(State.MISSING)} == {("feddrm", 0.3)}
    grid = build(table, "smoke", lab.store, [])
    assert [h.label for h in grid.heads] == ["Mean"]
    fedavg, feddrm = (line.entries[0] for line in grid.lines)
    assert (fedavg.text, fedavg.spread) == ("45.00", "21.21")  # sample deviation of 30 and 60
    assert (feddrm.state, feddrm.symbol) == (State.UNDEFINED, "N/A")
    assert ("N/A", "not defined") in legend(grid)
    assert grid.counts == {"done": 2, "missing": 1}
    for form in ("latex", "markdown", "html", "csv", "json"):
        assert ("not defined" if form in ("csv", "json") else "N/A") in render([grid], form)


@pytest.mark.parametrize(("spread", "printed"), [("rms", "7.07"), ("mean", "5.00"), ("propagated", "5.00")])
def test_the_spread_of_a_mean_over_cells_with_one_each(lab: Lab, family: Path, spread: str, printed: str) -> None:
    """The parts have 10 (population deviation of 20 and 40) and 0."""
    family.write_text(FAMILY.replace('spread = "sample"', f'spread = "{spread}"'))
    table = tables.load(f"{family}:7")
    _train(lab, table)
    entry = build(table, "smoke", lab.store, []).lines[0].entries[0]
    assert (entry.text, entry.spread) == ("45.00", printed)
    one = build(table, "smoke", lab.store, [], seeds=[3]).lines[0].entries[0]
    assert (one.text, one.spread) == ("40.00", ""), "a single seed has no ±"


def test_means_over_means(lab: Lab, family: Path) -> None:
    nested = '[[column]]\nlabel = "Twice"\nof = ["Mean", "plain/α = 0.3"]\n[[undefined]]'
    family.write_text(FAMILY.replace("[[undefined]]", nested, 1))
    table = tables.load(f"{family}:7")
    _train(lab, table)
    assert [e.text for e in build(table, "smoke", lab.store, []).lines[0].entries] == ["45.00", "52.50"]
    assert [c.key for c in table.only(["Twice"]).columns] == ["plain/α = 0.1", "plain/α = 0.3", "Mean", "Twice"]


def test_a_row_with_a_metric_of_its_own(lab: Lab, family: Path) -> None:
    own = 'method = "fedavg", metrics = { average_accuracy = "system_accuracy" } }'
    family.write_text(FAMILY.replace('method = "fedavg" }', own))
    table = tables.load(f"{family}:mean_ten")
    cells = find(table, "smoke", lab.store, [])
    for setting in cells.settings["more/α = 0.3"]:
        for method in ("fedavg", "feddrm"):
            lab.run(setting, method, metrics={"average_accuracy": lambda t: 0.25, "system_accuracy": lambda t: 0.75})
    assert [line.entries[0].text for line in build(table, "smoke", lab.store, []).lines] == ["75.00", "25.00"]


def test_tolerance_in_the_papers_own_deviations_and_cells_that_are_no_target(lab: Lab, family: Path) -> None:
    text = FAMILY.replace('unit = "percent"', 'unit = "percent"\ntolerance = 2.0\ntolerance_stds = 3.0')
    family.write_text(text)
    table = tables.load(f"{family}:mean_ten")
    _train(lab, table, {("fedavg", "more/α = 0.3"): (0.5, 0.5), ("feddrm", "more/α = 0.3"): (0.5, 0.5)})
    for std, within in (("1.0", [True, False]), ("0.5", [False, False]), ("", [False, False]), ("2", [True, True])):
        rows = f"mean_ten,FedAvg,,Mean,53,{std}\nmean_ten,FedDRM,,Mean,54.5,{std}\n"
        family.with_name("reported.csv").write_text("table,row,group,column,value,std\n" + rows)
        grid = build(tables.load(f"{family}:mean_ten"), "smoke", lab.store, [], compare=True)
        assert [line.entries[0].within for line in grid.lines if line.kind == "paper"] == within
        assert "Tolerance: ±2 points, or 3 of the paper's ± where that is more." in grid.notes
    family.write_text(text + '[[doubtful]]\nrows = ["FedAvg"]\ncolumns = ["Mean"]\n')
    table = tables.load(f"{family}:mean_ten")
    assert set(table.trusted) == {("FedDRM", "Mean")}
    grid = build(table, "smoke", lab.store, [], compare=True)
    assert [e.text for line in grid.lines if line.kind == "reported" for e in line.entries] == ["53.00?", "54.50"]
    assert [line.entries[0].within for line in grid.lines if line.kind == "paper"] == [None, True]


def test_every_built_in_family_names_its_tables_once() -> None:
    names = tables.names()
    assert len(names) == len(set(names))
    assert sorted(n for family in tables.families() for n in family) == sorted(names)
    assert numbers({"tables": ["3-5"], "axes": ["x"], "values": {"x": [1, 2, 3]}}, Path("f")) == ["3", "4", "5"]
