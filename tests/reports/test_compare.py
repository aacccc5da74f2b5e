"""Any runs side by side: found by filters, in groups of seeds, their numbers, and tests of methods in pairs."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from fedbench.errors import FedbenchError
from fedbench.metrics.read import headline
from fedbench.metrics.statistics import worst_tenth
from fedbench.planner import table as tables
from fedbench.planner.runs import by_seed, differing, grouped, label, select
from fedbench.reports.compare.comparison import compare
from fedbench.reports.compare.layout import grid, side_by_side
from fedbench.reports.compare.pairs import in_pairs, pairs_grid
from fedbench.reports.compare.significance import critical_value, friedman, holm, least_p, neighbours, wilcoxon
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render import FORMATS, render
from fedbench.reports.render.console import plain, show
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs
from fedbench.specs import Setting
from fedbench.store import Store
from tests.reports.conftest import DIR, SPC, Lab, of_csv
from tests.support.cli_user import good
from tests.support.frames import refused


def twenty(lab: Lab) -> Setting:
    """Twenty clients, of which each has an accuracy of its own in `run`."""
    there = lab.setting("feddrm/1", DIR)
    return replace(there, partition=replace(there.partition, clients=20), lr=0.1, seed=0)


@pytest.fixture
def setting(lab: Lab) -> Setting:
    return twenty(lab)


def run(lab: Lab, setting: Setting, method: str, accuracy: float, spread: float = 0.0, **more: Any) -> str:
    """Clients' accuracies lie evenly around `accuracy`, up to `spread` off."""
    n = setting.partition.trainees
    clients = {c: accuracy + spread * (2 * c / (n - 1) - 1) for c in range(n)}
    whole = {"total_runtime_seconds": 90.0, "bytes_up": 2e6, "bytes_down": 3e6} | more.pop("whole", {})
    metrics = {"average_accuracy": lambda t: accuracy} | more.pop("metrics", {})
    return lab.run(setting, method, clients=clients, metrics=metrics, whole=whole, **more).id


@pytest.fixture(scope="module")
def of_seeds(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """FedAvg and Ditto of three seeds, FedAvg at another learning rate of one."""
    lab = Lab(Store(tmp_path_factory.mktemp("compare") / "store"))
    lab.dataset("cifar10")
    at = twenty(lab)
    for s, (fedavg, ditto) in enumerate(((0.5, 0.7), (0.6, 0.7), (0.7, 0.73))):
        run(lab, replace(at, seed=s), "fedavg", fedavg, 0.1)
        run(lab, replace(at, seed=s), "ditto", ditto, 0.2)
    run(lab, replace(at, lr=0.01), "fedavg", 0.4)
    return lab.store


@pytest.fixture
def seeds(of_seeds: Store, five: None) -> Store:
    return of_seeds


def row(table: Grid, *keys: str) -> Line:
    (line,) = (line for line in table.lines if line.keys == keys)
    return line


def cell(table: Grid, column: str, *keys: str) -> Entry:
    return row(table, *keys).entries[[head.label for head in table.heads].index(column)]


@pytest.mark.parametrize("other", ["EPYC", "Xeon", None])
def test_times_of_several_processors_have_no_best(lab: Lab, setting: Setting, other: str | None) -> None:
    known: dict[str, Any] = {} if other is None else {"processor": other}
    for method, seconds, how in (("fedavg", 60.0, {"processor": "Xeon"}), ("ditto", 90.0, known)):
        run(lab, setting, method, 0.5 if method == "fedavg" else 0.6, whole={"total_runtime_seconds": seconds}, **how)
    table = grid(compare(select(Frame(lab.store))))
    assert [cell(table, "Time", name).rank for name in ("FedAvg", "ditto")] == ([0, 0] if other == "EPYC" else [1, 2])
    assert [cell(table, "Average accuracy", name).rank for name in ("FedAvg", "ditto")] == [2, 1]


def test_a_row_a_group_of_seeds_in_the_order_asked_for_with_its_clients_by_hand(seeds: Store) -> None:
    table = grid(compare(select(Frame(seeds))))
    assert table.keys == ("method", "lr")
    assert [line.keys for line in table.lines] == [("FedAvg", "0.01"), ("FedAvg", "0.1"), ("ditto", "0.1")]
    heads = ["Average accuracy", "std", "worst 10 %", "worst", "Time", "Sent", "Rounds", "Seeds"]
    assert [head.label for head in table.heads] == heads
    assert table.title == "7 runs on cifar10, Dir-0.3"
    entry = cell(table, "Average accuracy", "FedAvg", "0.1")
    fedavg = select(Frame(seeds), ["method=fedavg", "lr=0.1"])
    assert (entry.text, entry.spread, entry.runs) == ("60.00", "10.00", tuple(run.id for run in fedavg))
    assert entry.value.per_seed == pytest.approx({0: 50, 1: 60, 2: 70})
    assert cell(table, "Average accuracy", "FedAvg", "0.01").spread == ""  # one seed has none
    first, second = table.about
    assert first == "Mean ± standard deviation (ddof 1) over 1 to 3 seeds (column Seeds), on one draw of the partition."
    assert second == "After the last round, on test images without augmentation."
    assert table.notes[0].startswith("Average accuracy: of each client's")
    (first, *_) = grid(compare(select(Frame(seeds), ["lr=0.01"]))).about
    assert first.startswith("One run per row, so no ±")
    runs = select(Frame(seeds))
    lines = grid(compare(runs, sort="average_accuracy")).lines
    assert [line.entries[0].text for line in lines] == ["71.00", "60.00", "40.00"]
    assert [line.keys[1] for line in grid(compare(runs, sort="lr")).lines] == ["0.01", "0.1", "0.1"]
    with pytest.raises(FedbenchError, match="unknown key to sort by 'lrr'; did you mean 'lr'"):
        compare(runs, sort="lrr")
    with pytest.raises(FedbenchError, match="unknown metric 'accurracy'"):
        compare(runs, ["accurracy"])
    table = grid(compare(select(Frame(seeds), ["method=ditto"])))
    clients = [[a + 0.2 * (2 * c / 19 - 1) for c in range(20)] for a in (0.7, 0.7, 0.73)]
    for column, of in (("std", stdev), ("worst", min), ("worst 10 %", lambda each: mean(sorted(each)[:2]))):
        entry, by_hand = cell(table, column, "ditto"), [100 * of(each) for each in clients]
        assert entry.value.mean == pytest.approx(mean(by_hand)), column
        assert entry.value.std == pytest.approx(stdev(by_hand), abs=1e-9), column
    for n, worst in ((1, 1), (10, 1), (11, 2), (20, 2), (21, 3)):  # a client at least
        assert worst_tenth(np.arange(n, 0, -1.0)) == mean(range(1, worst + 1))
    assert cell(table, "Sent", "ditto").text == "5,000.0"
    assert cell(table, "Sent", "ditto").spread == "", "as many bytes in each run"
    assert cell(table, "Rounds", "ditto").spread == ""


def test_the_best_is_that_of_each_data_set_and_partition(lab: Lab, setting: Setting) -> None:
    other = replace(lab.setting("feddrm/1", SPC), lr=0.1, seed=0)
    setting = replace(setting, partition=lab.setting("feddrm/1", DIR).partition)
    for at, fedavg, ditto in ((setting, 0.5, 0.6), (other, 0.4, 0.3)):
        run(lab, at, "fedavg", fedavg)
        run(lab, at, "ditto", ditto)
    table = grid(compare(select(Frame(lab.store))))
    assert table.keys[:2] == ("split", "method")
    ranks = {line.keys[:2]: line.entries[0].rank for line in table.lines}
    best, second = [("5-SPC", "FedAvg"), ("Dir-0.3", "ditto")], [("5-SPC", "ditto"), ("Dir-0.3", "FedAvg")]
    assert ranks == {**dict.fromkeys(best, 1), **dict.fromkeys(second, 2)}
    assert "within each data set and partition" in table.about[0]


def test_runs_of_other_rounds_are_marked_apart(lab: Lab, setting: Setting) -> None:
    longer = replace(setting, rounds=2 * setting.rounds)
    for at, method, accuracy in (
        (setting, "fedavg", 0.5),
        (setting, "ditto", 0.6),
        (longer, "fedavg", 0.8),
        (longer, "ditto", 0.7),
    ):
        run(lab, at, method, accuracy)
    table = grid(compare(select(Frame(lab.store))))
    ranks = {line.entries[0].text: line.entries[0].rank for line in table.lines}
    assert ranks == {"50.00": 2, "60.00": 1, "80.00": 1, "70.00": 2}
    assert "within each data set, partition and number of rounds" in table.about[0]


def test_what_goes_with_the_data_is_no_column(lab: Lab, setting: Setting) -> None:
    """Two settings of two papers differ in all they have; only what tells rows apart takes a column."""
    other = replace(setting.partition, clients=7, train_fraction=0.5, shift="none")
    whole = replace(setting, partition=other, batch_size=99, momentum=0.5, schedule="constant", lr=0.2)
    for at, mu in ((setting, 0.1), (whole, 1.0)):
        run(lab, at, "fedavg", 0.5, metrics={"system_accuracy": lambda t: 0.3})
        run(lab, at, "ditto", 0.6, 0.1, overrides={"mu": mu})
    run(lab, replace(setting, weight_decay=0.3), "ditto", 0.7, overrides={"mu": 0.1})
    side = compare(select(Frame(lab.store)))
    assert grid(side).keys == ("clients", "method", "weight_decay")
    (about,) = (line for line in grid(side).notes if line.startswith("Data sets or partitions also differ in"))
    there = set(about.removesuffix(".").partition("in: ")[2].split(", "))
    assert there >= {"train fraction", "shift", "batch size", "lr", "momentum", "schedule", "mu"}
    assert not there & {"clients", "method", "weight decay"}
    assert [line.keys[0] for line in grid(compare(select(Frame(lab.store)), sort="lr")).lines] == ["20"] * 3 + ["7"] * 2
    decay, first, second, paired = pairs_grid(side, in_pairs(side)).lines[-1].keys
    assert (decay, paired) == ("cifar10, Dir-0.3, clients 20", "20 clients")
    assert {text.partition(",")[0] for text in (first, second)} <= {"FedAvg", "ditto"}
    run(lab, whole, "ditto", 0.6, overrides={"mu": 0.2})  # two values on the same data
    assert compare(select(Frame(lab.store))).keys == ["clients", "method", "weight_decay", "mu"]


def test_metrics_that_are_missing_are_said_with_the_reason(lab: Lab, setting: Setting) -> None:
    run(lab, setting, "fedavg", 0.5, metrics={"system_accuracy": lambda t: 0.3})
    run(lab, replace(setting, votes=False), "ditto", 0.5)
    table = grid(compare(select(Frame(lab.store)), ["system_accuracy", "clusters"]))
    entries = {line.keys[0]: [entry.text or entry.symbol for entry in line.entries] for line in table.lines}
    assert entries == {"ditto": ["N/A", "N/A"], "FedAvg": ["30.00", "N/A"]}
    assert "No System accuracy: ditto (ran without the votes of all clients on all test images)." in table.notes
    assert "No clusters: FedAvg, ditto (does not measure it)." in table.notes
    assert table.cautions == ("why numbers are missing",)
    above, _, below = plain([table]).rpartition("━\n")
    assert below.splitlines()[-1] == "  3 more notes: --notes full (why numbers are missing)."
    assert len(below.splitlines()) < len(above.splitlines())
    assert all(text in " ".join(plain([table], "full").split()) for text in table.notes)


def test_damaged_metrics_hide_no_other(lab: Lab, setting: Setting) -> None:
    damaged = lab.run(setting, "ditto", measure=False)  # its predictions are not there
    with pytest.raises(FedbenchError, match=f"no run has metrics: .*{damaged.id}"):
        side_by_side(select(Frame(lab.store)))
    (line,) = grid(compare(select(Frame(lab.store)))).lines  # of the notebook's first page
    assert line.entries == ()
    run(lab, setting, "fedavg", 0.5)
    table = grid(compare(select(Frame(lab.store))))
    assert cell(table, "Average accuracy", "FedAvg").text == "50.00"
    assert cell(table, "Average accuracy", "ditto").symbol == "!"
    (problem,) = table.problems
    assert damaged.id in problem


def test_clients_that_never_train(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=4, unseen=1)
    there = {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.25}
    for method, at in (("fedavg", part), ("local", replace(part, unseen=None))):
        lab.run(replace(setting, partition=at), method, clients=there)
    (table,) = side_by_side(select(Frame(lab.store)))
    texts = {
        line.keys[-1]: line.entries[[h.label for h in table.heads].index("Unseen clients")] for line in table.lines
    }
    assert (texts["FedAvg"].text, texts["Local"].text) == ("25.00", "")
    assert any("unseen clients: mean accuracy of the clients that never train" in text for text in table.notes)
    assert "No Unseen clients: Local (has no clients that never train)." in table.notes
    of = {run.spec.method: headline(run.metrics, run.spec.setting, "plain") for run in select(Frame(lab.store))}
    assert (of["fedavg"]["unseen_client_accuracy"], "unseen_client_accuracy" in of["local"]) == (0.25, False)
    evaluated = good("--home", lab.store.home, "evaluate", select(Frame(lab.store), ["method=fedavg"])[0].id)
    (row,) = (line.split() for line in evaluated.out.splitlines() if "plain" in line)
    assert row[-1] == "25.00"


@pytest.mark.parametrize("width", [60, 100])
def test_a_screen_gets_what_it_takes_and_is_told_of_the_rest(lab: Lab, setting: Setting, width: int) -> None:
    for k in range(3):
        for method in ("fedavg", "ditto"):
            at = replace(setting, lr=0.1 * (k + 1), momentum=0.1 * k, weight_decay=0.01 * k, batch_size=8 + k)
            run(lab, at, method, 0.5 + 0.1 * k, whole={"total_runtime_seconds": 60.0})
    table = grid(compare(select(Frame(lab.store))))
    many = replace(table, lines=tuple(line for line in table.lines for _ in range(50)))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show([table, many], console, fit=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= max(width, 80)
    assert max(len(line) for line in text.splitlines() if "━" in line) <= width
    said = " ".join(text.split())
    assert "Left out here: the columns lr, momentum, weight_decay" in said
    assert "Left out here: 200 more rows; the columns" in said
    one = next(line for line in text.splitlines() if line.startswith("method"))
    assert one.split()[:2] == ["method", "batch_size"], "what tells the rows apart stays"
    assert "momentum" in render([table], "console")


def test_every_format_has_the_keys_in_columns(seeds: Store) -> None:
    side = compare(select(Frame(seeds)))
    text = {form: render([grid(side), pairs_grid(side, in_pairs(side))], form) for form in FORMATS}
    first, second = json.loads(text["json"])
    assert first["cells"][0]["keys"] == {"method": "FedAvg", "lr": "0.01"}
    assert second["cells"][0]["keys"]["first"] == "FedAvg, lr 0.01"
    lines = of_csv(text["csv"])
    assert (lines[0]["run.method"], lines[0]["lr"], lines[0]["per_seed"][:7]) == ("FedAvg", "0.01", "0:40.0")
    assert {line["table"] for line in lines} == {"compare", "test"}
    heads = {
        "latex": "Method & Learning rate & \\begin{tabular}[b]{@{}c@{}}Average",
        "markdown": "| method   | lr   |",
        "console": "method   lr  ",
    }
    heads["html"] = '<th scope="col" class="key">method</th><th scope="col" class="key">lr</th>'
    assert [form for form, head in heads.items() if head not in text[form]] == []
    body = text["latex"].split("\\midrule")[1].split("\\bottomrule")[0].replace("\\addlinespace\n", "")
    assert {line.count(" & ") for line in body.strip().splitlines()} == {9}
    assert "\\begin{tabular}{@{}llcccccccc@{}}" in text["latex"]


def test_pairs_over_seeds_with_holms_correction_and_over_clients_where_seeds_are_few(seeds: Store) -> None:
    side = compare(select(Frame(seeds), ["lr=0.1"]))
    (pair,) = in_pairs(side)
    assert pair.over == "seeds"
    assert pair.differences == pytest.approx([-0.2, -0.1, -0.03])
    assert pair.test.p == pytest.approx(0.25)
    about = " ".join(pairs_grid(side, [pair]).about)
    assert "paired over common seeds on the same partitions" in about
    assert "3 seeds: no test can reach 0.05 (p is 0.25 at the least)" in about
    (chosen,) = in_pairs(side, "clients")
    assert (chosen.over, len(chosen.differences)) == ("clients", 20)
    side = compare(select(Frame(seeds)))
    pairs = {tuple(side.label(g) for g in (pair.first, pair.second)): pair for pair in in_pairs(side)}
    assert {names: (pair.over, len(pair.differences)) for names, pair in pairs.items()} == {
        ("FedAvg, lr 0.01", "FedAvg, lr 0.1"): ("clients", 20),
        ("FedAvg, lr 0.01", "ditto, lr 0.1"): ("clients", 20),
        ("FedAvg, lr 0.1", "ditto, lr 0.1"): ("seeds", 3),
    }
    # Each client's mean over the three seeds against the one of the other.
    lower = pairs["FedAvg, lr 0.01", "FedAvg, lr 0.1"]
    assert lower.differences == pytest.approx([0.4 - 0.6 - 0.1 * (2 * c / 19 - 1) for c in range(20)])
    assert lower.adjusted == pytest.approx(2 * lower.test.p), "of the pairs over clients"


def test_what_cannot_be_paired_is_said(lab: Lab, setting: Setting) -> None:
    run(lab, setting, "fedavg", 0.5)
    with pytest.raises(FedbenchError, match="no two rows are on the same data"):
        in_pairs(compare(select(Frame(lab.store))))
    other_partition = replace(setting, partition=replace(setting.partition, seed=setting.partition.seed + 1))
    run(lab, other_partition, "ditto", 0.6)
    side = compare(select(Frame(lab.store)))
    table = pairs_grid(side, in_pairs(side))
    assert [entry.symbol for entry in table.lines[0].entries] == ["N/A"] * 4
    assert "1 pair with nothing in common to pair: no seed and no partition." in table.about
    with pytest.raises(FedbenchError, match="single clients have no total_runtime_seconds"):
        in_pairs(compare(select(Frame(lab.store)), ["total_runtime_seconds"]), "clients")


class Six(NamedTuple):
    store: Store
    ids: dict[str, str]


@pytest.fixture(scope="module")
def of_six(tmp_path_factory: pytest.TempPathFactory) -> Six:
    """Six runs on one partition: their names -> ids."""
    lab = Lab(Store(tmp_path_factory.mktemp("runs") / "store"))
    lab.dataset("cifar10")
    setting = replace(lab.setting("feddrm/1", DIR), lr=0.1)
    runs = {
        "fedavg": lab.run(setting, "fedavg"),
        "fedavg seed 1": lab.run(replace(setting, seed=1), "fedavg"),
        "ditto": lab.run(setting, "ditto", {"mu": 0.1}),
        "ditto mu": lab.run(setting, "ditto", {"mu": 0.5}),
        "ditto lr": lab.run(replace(setting, lr=0.01), "ditto", {"mu": 0.5}),
        "feddrm": lab.run(setting, "feddrm"),
    }
    return Six(lab.store, {name: run.id for name, run in runs.items()})


@pytest.fixture
def six(of_six: Six, five: None) -> Six:
    return of_six


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ("", ["fedavg", "fedavg seed 1", "ditto", "ditto mu", "ditto lr", "feddrm"]),
        ("method=fedavg", ["fedavg", "fedavg seed 1"]),
        ("method=fed*", ["fedavg", "fedavg seed 1", "feddrm"]),
        ("method!=fed*", ["ditto", "ditto mu", "ditto lr"]),
        ("lr=0.10,5 method=ditto,feddrm", ["ditto", "ditto mu", "feddrm"]),
        ("mu=.5", ["ditto mu", "ditto lr"]),
        ("mu=none", ["fedavg", "fedavg seed 1", "feddrm"]),
        ("--mu=0.1", ["ditto"]),
        ("split=Dir-0.3 votes=TRUE seed!=1 title=FedAvg", ["fedavg"]),
    ],
)
def test_filters(six: Six, filters: str, names: list[str]) -> None:
    assert {run.id for run in select(Frame(six.store), filters.split())} == {six.ids[name] for name in names}


def test_ids_name_runs_filters_choose_and_differing_keys_are_those_that_a_reader_needs(six: Six, store: Store) -> None:
    two = [six.ids["ditto"][:8], six.ids["fedavg"]]
    assert [run.id for run in select(Frame(six.store), two)] == [six.ids["ditto"], six.ids["fedavg"]]
    assert [run.id for run in select(Frame(six.store), [*two, "method=fedavg"])] == [six.ids["fedavg"]]
    groups = [[run.id for run in group] for group in by_seed(select(Frame(six.store)))]
    assert (len(groups), [six.ids["fedavg seed 1"], six.ids["fedavg"]] in groups) == (5, True)  # by seed
    with pytest.raises(FedbenchError, match="there is no run in"):
        select(Frame(store))
    runs = select(Frame(six.store))
    keys = differing(runs)
    assert keys == ["method", "lr", "seed", "mu"]  # FedDRM's λ differs from nothing
    assert differing(select(Frame(six.store), ["method=fedavg"])) == ["seed"]
    assert differing(select(Frame(six.store), ["method=ditto,feddrm", "lr=0.1"])) == ["method", "mu"]
    assert differing(runs[:1]) == []
    of = {run.id: run for run in runs}
    assert label(of[six.ids["ditto lr"]], keys) == "ditto, lr 0.01, seed 2025, mu 0.5"  # not built in this lab
    assert label(of[six.ids["feddrm"]], keys) == "FedDRM, lr 0.1, seed 2025"
    assert label(of[six.ids["fedavg"]], []) == "FedAvg"
    assert of[six.ids["feddrm"]].metrics.names


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("metod=fedavg", "unknown key of runs 'metod'; did you mean 'method'"),
        ("zzz=1", "unknown key of runs 'zzz'; such as method, dataset, split, model, lr, seed, table, paper, shipped"),
        ("table=feddrm/17", "unknown table 'feddrm/17'; did you mean 'feddrm/1'"),
        ("paper=fedrm", "unknown table or paper 'fedrm'; did you mean 'feddrm'"),
        ("protocol=fedrm", "unknown protocol 'fedrm'; did you mean 'feddrm'"),
        ("table=pfedfda/1", "no table has such a run: table=pfedfda/1"),
        ("shipped=yes", "no run is shipped=yes; there are shipped: false"),
        ("pack=mine", "unknown result pack 'mine'; known: none"),
        ("method=fedavgg", "no run is method=fedavgg; there are method: ditto, fedavg, feddrm"),
        ("zzz", "no run 'zzz' in"),
    ],
)
def test_what_names_no_run_is_one_line(six: Six, word: str, text: str) -> None:
    assert text in refused("", lambda: select(Frame(six.store), [word]))


@pytest.mark.parametrize(
    ("of", "change", "key"),
    [
        ("dataset", {"content": "other files"}, "dataset_id"),
        ("dataset", {"source": "elsewhere", "content": "other files"}, "source"),
        ("dataset", {"version": 9}, "dataset_id"),
        ("setting", {"rounds": 7}, "rounds"),
        ("partition", {"version": 9}, "partition_version"),
    ],
)
def test_no_two_rows_look_the_same(lab: Lab, of: str, change: dict[str, Any], key: str) -> None:
    """Two data sets of one name, say: whatever their ids differ in is shown, in every list of runs."""
    usual = lab.setting("feddrm/1", DIR)
    part = usual.partition
    other = {
        "setting": lambda: replace(usual, **change),
        "partition": lambda: replace(usual, partition=replace(part, **change)),
        "dataset": lambda: replace(usual, partition=replace(part, dataset=replace(part.dataset, **change))),
    }[of]()
    for setting in (usual, other):
        lab.run(setting, "fedavg")
    runs = select(Frame(lab.store))
    assert differing(runs) == [key]
    (table,) = side_by_side(runs, ["average_accuracy"])
    assert [table.keys, len({line.keys for line in table.lines})] == [(key,), 2]
    assert len({line.label for line in table.lines}) == 2
    assert len({(panel.title, name) for panel in grouped(runs) for name in panel.lines}) == 2
    listed = good("--home", lab.store.home, "list", "run").out
    assert len({line.split(None, 1)[1] for line in listed.splitlines()[1:]}) == 2, listed


@pytest.mark.shipped
def test_the_rows_of_a_table_are_called_as_it_calls_them(store: Store) -> None:
    """FedDRM's FedPAC is FedRep with a proximal term, and its FedProxFT our FedProx."""
    shelf, words = Packs.of(store), ["table=feddrm/1", "budget=small", "dataset=cifar10", "split=Dir-0.3"]
    (table,) = side_by_side(select(Frame(store, shelf), words))
    assert table.keys == ("row",)
    assert [line.label for line in table.lines] == [row.label for row in tables.load("feddrm/1").rows]
    assert [line.label for line in table.lines][-3:] == ["FedDRM", "FedAvg", "Local"]
    values = {line.label: line.entries[0].text for line in table.lines}
    assert values["FedPAC"] != values["FedRep"]


@pytest.mark.parametrize(("column", "alpha"), [(DIR, 0.3), (SPC, None)])
def test_a_methods_alpha_is_never_the_partitions(lab: Lab, column: str, alpha: float | None) -> None:
    lab.run(lab.setting("feddrm/1", column), "apfl", {"alpha": 0.5})
    (run,) = select(Frame(lab.store))
    assert (run.values["apfl.alpha"], run.values.get("alpha")) == (0.5, alpha)  # shards have none


#: Demšar (JMLR 2006), Table 6: the area under the curve of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets.
#: (The last two of the data set voting are printed as 0.975 both and ranked 2 and 3, as they were before rounding.)
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)


def test_friedman_as_demsar_works_it_out_as_scipy_does_and_of_one_order_everywhere() -> None:
    """Section 3.2.2: average ranks, chi squared 9.28, F 3.69 and the critical difference of four methods."""
    all_four = friedman(DEMSAR)
    assert np.round(all_four.average, 3).tolist() == [3.143, 2.0, 2.893, 1.964]
    assert all_four.chi2 == pytest.approx(9.28, abs=0.01)
    assert all_four.f == pytest.approx(3.69, abs=0.01)
    assert all_four.p == pytest.approx(stats.f.sf(3.69, 3, 39), abs=1e-3)
    assert all_four.difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=0.001)
    table_5 = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 10: 3.164}
    assert {k: critical_value(k, 0.05) for k in table_5} == pytest.approx(table_5, abs=0.001)
    assert critical_value(4, 0.10) == pytest.approx(2.291, abs=0.001)
    # Nobody is further from another than 1.25, so one bar joins all, as in Figure 1 a at this level.
    assert all_four.indistinguishable == [(3, 1, 2, 0)]
    values = np.random.default_rng(0).normal(size=(9, 4))
    theirs = stats.friedmanchisquare(*values.T)
    assert friedman(values).chi2 == pytest.approx(theirs.statistic)
    assert friedman(-values, "min").ranks.tolist() == friedman(values).ranks.tolist()
    values = np.tile([0.9, 0.8, 0.7], (12, 1))
    same = friedman(values)
    assert same.average.tolist() == [1, 2, 3]
    assert math.isinf(same.f)
    assert same.p == pytest.approx(math.exp(-24 / 2))  # chi squared 24 of two degrees of freedom
    assert same.indistinguishable == []  # 0.96 apart is enough: 2.343 * sqrt(12 / 72) = 0.957
    assert friedman(values[:3]).indistinguishable == [(0, 1), (1, 2)]  # 1.913


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=10))
def test_wilcoxons_p_is_that_of_all_signs_also_with_ties_and_zeros(hundredths: list[int]) -> None:
    """Every assignment of signs to the differences that are not zero is tried; zeros' ranks are split."""
    differences = np.array(hundredths) / 100
    ranks = stats.rankdata(np.abs(differences))
    zeros, others = ranks[differences == 0].sum(), ranks[differences != 0]
    positive = ranks[differences > 0].sum() + zeros / 2
    extreme = min(positive, ranks.sum() - positive)
    sums = [zeros / 2 + others[list(signs)].sum() for signs in product((True, False), repeat=len(others))]
    expected = np.mean([min(one, ranks.sum() - one) <= extreme + 1e-9 for one in sums])
    assert wilcoxon(differences).p == pytest.approx(expected)


def test_wilcoxons_p_of_many_pairs_is_near_that_of_the_normal_distribution() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1, 300)
    library = stats.wilcoxon(differences, method="approx").pvalue
    assert wilcoxon(differences).p == pytest.approx(library, rel=0.02)


def test_wilcoxon_as_demsar_works_it_out_and_it_and_holm_by_hand() -> None:
    """Section 3.1.3: C4.5+m against C4.5, whose two ties are shared between the rank sums 93 and 12."""
    signed = wilcoxon(DEMSAR[:, 1] - DEMSAR[:, 0])
    assert signed.n == 14
    assert signed.effect == pytest.approx((93 - 12) / 105)
    assert signed.p < 0.05  # 12 is below 21, the critical value for 14 data sets
    # All of one sign: two of the 2^n signs are as far out. Equals: nothing to tell.
    for n in (3, 5, 6):
        assert wilcoxon(np.arange(1, n + 1) / 100).p == pytest.approx(least_p(n)) == 2 / 2**n
    assert least_p(1) == 1
    # Ranks 1 to 4, the least against the others: R- = 1, as far out as {}, {1} and their mirrors of 16.
    signed = wilcoxon(np.array([-0.01, 0.02, 0.03, 0.04]))
    assert signed.p == pytest.approx(4 / 16)
    assert signed.effect == pytest.approx((9 - 1) / 10)
    assert wilcoxon(np.array([0.0, 1e-15, 0.0])).p == 1
    # Sorted 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1, never below one before.
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_neighbours_are_told_apart_only_where_there_are_places_enough() -> None:
    """Ten places: the first method always beats the second (p 2/1024, twice by Holm), which equals the third."""
    first = np.arange(10.0)
    values = np.stack([first + 1, first, first], axis=1)
    assert neighbours(values, [0, 1, 2]) == (
        "of 2 pairs of neighbours 1 differs by Wilcoxon's test with Holm's correction at 0.05"
    )
    few = neighbours(values[:5], [0, 1, 2])  # the least p of five is 2/32
    assert few.startswith("of 2 pairs of neighbours none differ by")
    assert few.endswith(": 5 data sets and partitions cannot tell so many pairs apart")


@pytest.fixture
def four(lab: Lab, setting: Setting) -> Store:
    """Four methods, trained in no order of note, of which one has two values."""
    for method, over in (("feddrm", {}), ("fedavg", {}), ("local", {}), ("fedavgft", {}), ("ditto", {})):
        run(lab, setting, method, 0.5, overrides=over)
    run(lab, replace(setting, lr=0.01), "fedavg", 0.4)
    return lab.store


def test_rows_stand_as_the_filters_name_them_else_by_family_and_value(four: Store) -> None:
    def rows(*filters: str) -> list[str]:
        answer = good("--home", four.home, "compare", *filters, "-f", "json")
        return [line["row"] for line in json.loads(answer.out)[0]["cells"] if line["metric"] == "average_accuracy"]

    by_family = ["FedAvg, lr 0.01", "FedAvg, lr 0.1", "FedAvgFT, lr 0.1", "FedDRM, lr 0.1", "Local, lr 0.1"]
    assert rows("method!=ditto") == by_family
    assert rows("method=local,fed*") == [by_family[-1], *by_family[:-1]]
    assert rows("method=feddrm,fedavg", "lr=0.1,0.01") == ["FedDRM, lr 0.1", "FedAvg, lr 0.1", "FedAvg, lr 0.01"]
    ids = [one.id for one in select(Frame(four), ["method=fedavg,local", "lr=0.1"])]
    assert rows(*ids) == ["FedAvg", "Local"]
    assert rows(*reversed(ids)) == ["Local", "FedAvg"]


def test_the_method_comes_first_in_the_label_of_a_row(lab: Lab, setting: Setting) -> None:
    whole = replace(setting, partition=replace(setting.partition, clients=7))
    for at in (setting, whole, replace(setting, lr=0.2)):
        run(lab, at, "fedavg", 0.5)
        run(lab, at, "local", 0.5)
    side = compare(select(Frame(lab.store)))
    labels = [side.label(group) for group in side.groups]
    assert labels[:2] == ["FedAvg, lr 0.1, clients 7", "Local, lr 0.1, clients 7"]
    assert labels[2] == "FedAvg, lr 0.1, clients 20"
    assert side.keys[0] == "clients", "the table's columns begin with the data, among which the best is marked"


def test_below_a_table_of_runs_in_a_paper_stands_nothing_of_the_tool(four: Store) -> None:
    for rule, said in (
        ("last", "second. One run per row, so no $\\pm$.}"),
        ("mean:3", "Mean over the last 3 rounds, on"),
    ):
        text = good("--home", four.home, "compare", "-f", "latex", "--round", rule).out
        printed = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
        assert said in printed
        assert "fedbench" not in printed
        assert "% One run per row, so no ±. 'fedbench sweep --seeds 0-2' trains several seeds." in text


def test_two_tables_of_runs_in_one_paper_share_no_label_and_no_macro(four: Store, tmp_path: Path) -> None:
    def made(*arguments: str) -> str:
        return good("--home", four.home, "compare", *arguments).out

    for name in ("main", "ablation"):
        made("-o", f"{tmp_path}/{name}.tex")
        made("-f", "macros", "-o", f"{tmp_path}/{name}-numbers.tex")
    labels = [re.findall(r"\\label\{(.*?)\}", (tmp_path / f"{name}.tex").read_text()) for name in ("main", "ablation")]
    assert labels == [["tab:main"], ["tab:ablation"]]
    macros = [
        {*re.findall(r"newcommand\{\\(\w+)\}", (tmp_path / f"{name}-numbers.tex").read_text())}
        for name in ("main", "ablation")
    ]
    assert all(macros)
    assert not macros[0] & macros[1]
    printed = made("lr=0.1", "--test", "-f", "latex")
    assert re.findall(r"\\label\{(.*?)\}", printed) == ["tab:lr-0-1", "tab:lr-0-1-test"]
    assert "\nMethod & " in printed


@pytest.mark.shipped
def test_rows_of_tables_stand_as_their_methods_are_named_and_the_method_is_what_is_cited(store: Store) -> None:
    filters = ["feddrm/1", "budget=small", "dataset=cifar10", "method=local,feddrm,fedavg"]
    answer = good("--home", store.home, "compare", *filters, "-f", "latex", "--cite", "--metric", "system_accuracy")
    body = answer.out.partition("\\midrule")[2].partition("\\bottomrule")[0]
    rows = [[cell.strip() for cell in line.split(" & ")] for line in body.splitlines() if " & " in line]
    names = ["Local", "FedDRM~\\cite{feddrm2026}", "FedAvg~\\cite{mcmahan2017communication}"]
    assert [row[1] for row in rows] == names * 2
    assert [row[0] for row in rows] == ["5-SPC", "", "", "Dir-0.3", "", ""]
    assert "\\caption{Results on cifar10, in \\%.}" in answer.out
