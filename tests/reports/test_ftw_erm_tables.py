"""FTW-ERM's tables: what they ask for, and the configuration tables that need no run."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.render import render
from fedbench.reports.status.cells import Cells, find
from fedbench.reports.status.index import State
from fedbench.reports.status.others import others
from fedbench.resources import TABLES
from tests.support.latex import compiled, fits
from tests.support.real_images import RealImages

MEASURED = ("ftw_erm/1", "ftw_erm/2", "ftw_erm/3", "ftw_erm/7", "ftw_erm/10", "ftw_erm/13")
LAYOUTS = ("ftw_erm/6", "ftw_erm/8", "ftw_erm/9", "ftw_erm/11", "ftw_erm/12")
OURS = ["ftw_erm", "fitw_erm", "fedsgd", "fedbn", "grayscale", "kmeans_bound"]


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The laboratory with this paper's methods and data sets."""
    monkeypatch.setattr(methods, "names", lambda: OURS)
    for name in ("fashion_mnist", "mnist"):
        lab.dataset(name)
    return lab


def cells(lab: Any, name: str, budget: str = "paper", **options: Any) -> Cells:
    return find(tables.load(name), budget, lab.store, [], **options)


# -- the tables that are measured --------------------------------------------------------------------------------


def test_all_numbers_of_the_paper_are_there() -> None:
    with (TABLES / "ftw_erm" / "reported.csv").open(newline="", encoding="utf-8") as f:
        lines = list(csv.DictReader(f))
    counts = Counter(line["table"] for line in lines)
    assert sum(counts[name.partition("/")[2]] for name in MEASURED) == 65
    assert counts == {
        "1": 18,
        "2": 9,
        "3": 4,
        "7": 18,
        "10": 9,
        "13": 7,
        "6": 200,
        "8": 100,
        "9": 100,
        "11": 40,
        "12": 4,
    }
    # 1, 3, 7 and 10 print a ± everywhere, the others nowhere.
    assert {line["table"] for line in lines if line["std"]} == {"1", "3", "7", "10"}
    assert sum(bool(line["std"]) for line in lines) == 18 + 4 + 18 + 9


@pytest.mark.parametrize("name", ["ftw_erm/1", "ftw_erm/7", "ftw_erm/10"])
def test_reported_averages_are_the_means_of_the_clients(name: str) -> None:
    reported, table = tables.load(name).reported, tables.load(name)
    for row in (r.label for r in table.rows if not r.added):
        clients = [value for (label, column), (value, _) in reported.items() if label == row and column != "Average"]
        unit = 10.0 ** -(table.columns[0].decimals or 0)
        assert reported[row, "Average"][0] == pytest.approx(np.mean(clients), abs=1.01 * unit)


@pytest.mark.parametrize(
    ("name", "runs", "rounds"),
    [
        ("ftw_erm/1", 30, {5000, 15000}), ("ftw_erm/2", 4, {200000}), ("ftw_erm/3", 30, {5000}),
        ("ftw_erm/7", 12, {20000, 200000}), ("ftw_erm/10", 25, {5000}), ("ftw_erm/13", 7, {1}),
    ],
)  # fmt: skip
def test_runs_at_the_papers_budget(here: Any, name: str, runs: int, rounds: set[int]) -> None:
    jobs = cells(here, name).runs(State.MISSING)
    assert len(jobs) == runs
    assert {job.setting.rounds for job in jobs} == rounds
    assert {(job.setting.steps, job.setting.batch_size, job.setting.passes) for job in jobs} == {(1, 64, "endless")}


def test_every_seed_draws_its_partition_anew_and_all_rows_share_it(here: Any) -> None:
    table = cells(here, "ftw_erm/1")
    for column in table.grid[0]:
        assert [j.setting.partition.seed for j in column.specs] == [0, 1, 2, 3, 4]
        assert [j.setting.seed for j in column.specs] == [0, 1, 2, 3, 4]
    assert len({j.setting.partition.id for c in table.all for j in c.specs}) == 5
    (seven,) = {j.setting.partition.seed for c in cells(here, "ftw_erm/1", seeds=[7]).all for j in c.specs}
    assert seven == 7


def test_a_protocol_with_one_partition_keeps_it_for_all_seeds(lab: Any) -> None:
    jobs = [j for c in cells(lab, "feddrm/1", seeds=[1, 2]).all for j in c.specs]
    assert {j.setting.partition.seed for j in jobs} == {2025}


def test_layouts_and_networks(here: Any) -> None:
    first = {name: cells(here, name).grid[0][0].specs[0].setting for name in MEASURED}
    told = {n: (s.partition.scheme, s.partition.clients, s.cohort, s.model, s.lr) for n, s in first.items()}
    assert told == {
        "ftw_erm/1": ("mixture", 5, None, "lenet_tanh", 1e-3),
        "ftw_erm/2": ("mixture", 100, 5, "resnet18_bn", 1e-4),
        "ftw_erm/3": ("colored", 2, None, "lenet5_binary", 1e-3),
        "ftw_erm/7": ("mixture", 5, None, "resnet18_bn", 1e-4),
        "ftw_erm/10": ("mixture", 2, None, "lenet_tanh", 1e-3),
        "ftw_erm/13": ("mixture", 1, None, "lenet_tanh", 1e-3),
    }


def test_fedbn_gets_ten_times_the_rounds_in_table_7_alone(here: Any) -> None:
    for budget in ("paper", "small", "smoke"):
        lines = {line[0].row.label: line[0].specs[0].setting for line in cells(here, "ftw_erm/7", budget).grid}
        assert lines["FedBN"].rounds == 10 * lines["FedAvg"].rounds
        assert lines["FedBN"].budget == budget
    about = build(tables.load("ftw_erm/7"), "paper", here.store, []).about
    assert "Budget paper: 20000 rounds of one batch a client, resnet18_bn." in about
    assert "FedBN: 200000 rounds." in about
    two = {line[0].row.label: line[0].specs[0].setting.id for line in cells(here, "ftw_erm/2").grid}
    assert len({*two.values()}) == 1


def test_rows_with_estimated_ratios_are_ours_and_stand_below(here: Any) -> None:
    setting = cells(here, "ftw_erm/3").grid[0][0].specs[0].setting
    here.run(setting, "ftw_erm", each={0: lambda t: 0.75, 1: lambda t: 0.5}, views=("plain",), rules="ftw_erm")
    hdrm = {"ratios": "hdrm"}
    here.run(setting, "ftw_erm", hdrm, each={0: lambda t: 0.25, 1: lambda t: 0.5}, views=("plain",), rules="ftw_erm")
    grid = build(tables.load("ftw_erm/3"), "paper", here.store, [], seeds=[0], compare=True)
    assert [(line.label, line.kind) for line in grid.lines] == [
        ("Grayscale (upper bound)", "paper"), ("reported", "reported"), ("FTW-ERM", "paper"), ("reported", "reported"),
        ("FITW-ERM", "paper"), ("reported", "reported"), ("FedAvg", "paper"), ("reported", "reported"),
        ("FTW-ERM (HDRM)", "added"), ("FITW-ERM (HDRM)", "added"),
    ]  # fmt: skip
    texts = {line.label: line.entries[0].text for line in grid.lines if line.kind != "reported"}
    assert (texts["FTW-ERM"], texts["FTW-ERM (HDRM)"]) == ("0.62", "0.38")
    assert all(line.entries[0].reported is None for line in grid.lines if line.kind == "added")


def test_the_bound_of_table_13_is_read_from_the_run(here: Any) -> None:
    for line, bound in zip(cells(here, "ftw_erm/13").grid, (10.3, 20.0, 20.0, 20.0, 30.0, 50.0, 170.0), strict=True):
        (job,) = line[0].specs
        here.run(job.setting, "kmeans_bound", job.params, whole={"ratio_bound": bound}, rules="ftw_erm")
    grid = build(tables.load("ftw_erm/13"), "paper", here.store, [], compare=True)
    shown = [line.entries[0] for line in grid.lines if line.kind == "paper"]
    assert [e.text for e in shown] == ["10.30", "20.00", "20.00", "20.00", "30.00", "50.00", "170.00"]
    # The bands of the protocol, not one tolerance: M = 20 is out of 14 to 17; 170 is as good as 206.76.
    assert [e.within for e in shown] == [True, False, True, True, True, True, True]
    assert grid.stub == "Clusters"
    states = {ours.claim.text.split()[0]: ours.state for ours, _ in grid.verdicts}
    assert states == {"A": "fails", "With": "holds"}  # 50 is no reasonable estimate of 20


def test_an_extra_run_bears_the_methods_plain_name(here: Any) -> None:
    setting = cells(here, "ftw_erm/3").grid[0][0].specs[0].setting
    here.run(setting, "ftw_erm", {"ratios": "hdrm", "divergence": "ukl"}, each={0: lambda t: 0.5}, rules="ftw_erm")
    assert list(others(cells(here, "ftw_erm/3"))) == ["FTW-ERM (divergence = ukl, ratios = hdrm)"]


# -- the tables of the clients' data -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_configuration_tables_equal_the_paper_to_the_digit(lab: Any, name: str) -> None:
    grid = build(tables.load(name), "small", lab.store, [], compare=True)
    for ours, theirs in zip(grid.lines[::2], grid.lines[1::2], strict=True):
        assert (ours.kind, theirs.kind) == ("paper", "reported")
        assert [e.text for e in ours.entries] == [e.text for e in theirs.entries]
        assert {e.within for e in ours.entries} == {True}
        assert {e.delta for e in theirs.entries} == {"="}
    assert (grid.stub, grid.budget) == ("Data", "")
    assert grid.about == (f"Follows from preset '{tables.load(name).preset}': needs no run, and no budget applies.",)


def test_probabilities_of_a_row_sum_to_one(lab: Any) -> None:
    for line in build(tables.load("ftw_erm/6"), "small", lab.store, []).lines:
        assert sum(e.value.mean for e in line.entries if e.value) == pytest.approx(100)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('preset = "two"', 'preset = "tow"', "unknown preset in .*'tow'; did you mean 'two'"),
        ("smallest = { train = 6000, test = 1000 }\n", "", "lacks 'smallest'"),
        ('side = "test"', 'side = "tset"', "row Client 1, test needs a client .from 1. and side = 'train' or 'test'"),
        ("category = 3\n", "", "Class/3: class_count needs a category: the class, from 0"),
        ('metric = "class_count"', 'metric = "class_counts"', "unknown metric .*did you mean 'class_count'"),
        ('metric = "class_count"', 'metric = "flip_probability"', "flip_probability is about no category"),
    ],
)
def test_faulty_configuration_tables(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (TABLES / "ftw_erm" / "11.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(FedbenchError, match=message):
        tables.load(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Client 2, test", client = 2', '"Client 2, test", client = 3', "Client 2, test: preset two has 2 clients"),
        ("category = 9", "category = 10", "Class/9: preset two has 10 classes"),
        ('preset = "two"', 'preset = "colored"', "preset colored is no mixture"),
    ],
)
def test_what_a_layout_does_not_have(lab: Any, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (TABLES / "ftw_erm" / "11.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(FedbenchError, match=message):
        build(tables.load(str(tmp_path / "mine.toml")), "small", lab.store, [])


CHECK = """
import sys
from pathlib import Path
from fedbench.reports import render, table as tables
from fedbench.reports.layout.build import build
from fedbench.store import Store
grid = build(tables.load("ftw_erm/9"), "small", Store(Path(sys.argv[1])), [])
print(render.render([grid], "csv").count("done,5862.0,"))
print(sorted({"torch", "sklearn", "scipy", "PIL"} & set(sys.modules)))
"""


def test_class_counts_need_no_torch(store: Any) -> None:
    run = subprocess.run([sys.executable, "-c", CHECK, str(store.home)], capture_output=True, text=True)
    assert run.stdout.split() == ["5", "[]"], run.stderr


# -- in print ----------------------------------------------------------------------------------------------------


def test_the_widest_tables_fit_a_page(here: Any, tmp_path: Path) -> None:
    for job in cells(here, "ftw_erm/1", seeds=[0, 1]).runs(State.MISSING):
        each = {k: (lambda t, v=0.1 * k + 0.01 * job.setting.seed: v) for k in range(5)}
        here.run(job.setting, job.method, job.params, each=each, views=("plain",), rules="ftw_erm")
    wide = ("ftw_erm/1", "ftw_erm/6", "ftw_erm/8", "ftw_erm/13")
    grids = [build(tables.load(n), "paper", here.store, [], compare=True, seeds=[0, 1]) for n in wide]
    assert grids[0].lines[0].entries[1].spread == "0.0071"
    assert fits(compiled(tmp_path, render(grids, "latex", standalone=True)))


@pytest.mark.data
@pytest.mark.parametrize(("name", "dataset"), [("ftw_erm/8", "cifar10"), ("ftw_erm/9", "fashion_mnist")])
def test_the_smallest_classes_are_those_of_the_images(real_images: RealImages, name: str, dataset: str) -> None:
    whole = real_images.load(dataset)
    smallest = {
        side: int(np.bincount(whole.labels[whole.split == k]).min()) for k, side in enumerate(("train", "test"))
    }
    assert tables.load(name).smallest == smallest
