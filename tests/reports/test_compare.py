"""Any runs side by side: a row a group of seeds, what it differs in, and what its numbers are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbench.errors import FedbenchError
from fedbench.reports.compare.comparison import compare
from fedbench.reports.compare.layout import grid, side_by_side
from fedbench.reports.compare.numbers import worst_tenth
from fedbench.reports.compare.pairs import in_pairs, pairs_grid
from fedbench.reports.headline import headline
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render import FORMATS, render
from fedbench.reports.render.console import show
from fedbench.reports.runs import select
from fedbench.specs import Setting
from tests.reports.conftest import Lab
from tests.support.cli_user import good

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


@pytest.fixture
def setting(lab: Lab) -> Setting:
    """Twenty clients, of which each has an accuracy of its own in `run`."""
    there = lab.setting("feddrm/1", DIR)
    return replace(there, partition=replace(there.partition, clients=20), lr=0.1, seed=0)


def run(lab: Lab, setting: Setting, method: str, accuracy: float, spread: float = 0.0, **more: Any) -> str:
    """Clients' accuracies lie evenly around `accuracy`, up to `spread` off."""
    n = setting.partition.trainees
    clients = {c: accuracy + spread * (2 * c / (n - 1) - 1) for c in range(n)}
    whole = {"total_runtime_seconds": 90.0, "bytes_up": 2e6, "bytes_down": 3e6} | more.pop("whole", {})
    metrics = {"average_accuracy": lambda t: accuracy} | more.pop("metrics", {})
    return lab.run(setting, method, clients=clients, metrics=metrics, whole=whole, **more).id


@pytest.fixture
def seeds(lab: Lab, setting: Setting) -> Mapping[str, Sequence[str]]:
    """FedAvg and Ditto of three seeds, FedAvg at another learning rate of one."""
    return {
        "fedavg": [run(lab, replace(setting, seed=s), "fedavg", a, 0.1) for s, a in enumerate((0.5, 0.6, 0.7))],
        "ditto": [run(lab, replace(setting, seed=s), "ditto", a, 0.2) for s, a in enumerate((0.7, 0.7, 0.73))],
        "lr": [run(lab, replace(setting, lr=0.01), "fedavg", 0.4)],
    }


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
    table = grid(compare(select(lab.store)))
    marked = [cell(table, "Time", name).rank for name in ("FedAvg", "ditto")]
    assert marked == ([0, 0] if other == "EPYC" else [1, 2])
    assert [cell(table, "Average accuracy", name).rank for name in ("FedAvg", "ditto")] == [2, 1]


def test_a_row_a_group_of_seeds_and_a_column_what_differs(lab: Lab, seeds: Mapping[str, Sequence[str]]) -> None:
    table = grid(compare(select(lab.store)))
    assert table.keys == ("method", "lr")
    assert [line.keys for line in table.lines] == [("ditto", "0.1"), ("FedAvg", "0.01"), ("FedAvg", "0.1")]
    heads = ["Average accuracy", "std", "worst 10 %", "worst", "Time", "Sent", "Rounds", "Seeds"]
    assert [head.label for head in table.heads] == heads
    assert table.title == "7 runs on cifar10, Dir-0.3"
    entry = cell(table, "Average accuracy", "FedAvg", "0.1")
    assert (entry.text, entry.spread) == ("60.00", "10.00")
    assert entry.runs == tuple(seeds["fedavg"])
    assert entry.value is not None
    assert entry.value.per_seed == pytest.approx({0: 50, 1: 60, 2: 70})
    assert cell(table, "Average accuracy", "FedAvg", "0.01").spread == ""  # one seed has none


def test_the_numbers_of_clients_by_hand(lab: Lab, setting: Setting, seeds: Mapping[str, Sequence[str]]) -> None:
    table = grid(compare(select(lab.store, ["method=ditto"])))
    n = setting.partition.trainees
    clients = [[a + 0.2 * (2 * c / (n - 1) - 1) for c in range(n)] for a in (0.7, 0.7, 0.73)]
    for column, of in (("std", stdev), ("worst", min), ("worst 10 %", lambda each: mean(sorted(each)[: n // 10]))):
        entry, by_hand = cell(table, column, "ditto"), [100 * of(each) for each in clients]
        assert n == 20
        assert entry.value is not None
        assert entry.value.mean == pytest.approx(mean(by_hand)), column
        assert entry.value.std == pytest.approx(stdev(by_hand), abs=1e-9), column
    assert cell(table, "Sent", "ditto").text == "5,000.0"
    assert cell(table, "Rounds", "ditto").spread == ""


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_tenth_is_one_client_at_least(clients: int, worst: int) -> None:
    assert worst_tenth(np.arange(clients, 0, -1.0)) == mean(range(1, worst + 1))


def test_notes_say_what_the_numbers_are(lab: Lab, seeds: Mapping[str, Sequence[str]]) -> None:
    first, second = grid(compare(select(lab.store))).about
    assert first == (
        "Mean ± standard deviation (ddof 1) over 1 to 3 seeds (column Seeds), on one draw of the partition."
    )
    assert second.startswith("After the last round, on test images as they are. Average accuracy: of each client's")
    (first, *_) = grid(compare(select(lab.store, ["lr=0.01"]))).about
    assert first.startswith("One run a row, so no ±")


def test_the_best_is_that_of_each_data_set_and_partition(lab: Lab, setting: Setting) -> None:
    other = replace(lab.setting("feddrm/1", SPC), lr=0.1, seed=0)
    setting = replace(setting, partition=lab.setting("feddrm/1", DIR).partition)
    for at, fedavg, ditto in ((setting, 0.5, 0.6), (other, 0.4, 0.3)):
        run(lab, at, "fedavg", fedavg)
        run(lab, at, "ditto", ditto)
    table = grid(compare(select(lab.store)))
    assert table.keys[:2] == ("split", "method")
    ranks = {line.keys[:2]: line.entries[0].rank for line in table.lines}
    best, second = [("5-SPC", "FedAvg"), ("Dir-0.3", "ditto")], [("5-SPC", "ditto"), ("Dir-0.3", "FedAvg")]
    assert ranks == {**dict.fromkeys(best, 1), **dict.fromkeys(second, 2)}
    assert "of each data set and partition" in table.about[0]


def test_what_goes_with_the_data_is_no_column(lab: Lab, setting: Setting) -> None:
    """Two settings of two papers differ in all they have; only what tells rows apart takes a column."""
    other = replace(setting.partition, clients=7, train_fraction=0.5, shift="none")
    whole = replace(setting, partition=other, batch_size=99, momentum=0.5, schedule="constant", lr=0.2)
    for at in (setting, whole):
        run(lab, at, "fedavg", 0.5, metrics={"system_accuracy": lambda t: 0.3})
        run(lab, at, "ditto", 0.6, 0.1, params={"mu": 0.1})
    run(lab, replace(setting, weight_decay=0.3), "ditto", 0.7, params={"mu": 0.1})
    side = compare(select(lab.store))
    assert grid(side).keys == ("clients", "method", "weight_decay")
    (about,) = (line for line in grid(side).about if line.startswith("From one data set or partition to another"))
    there = set(about.removesuffix(".").partition("also: ")[2].split(", "))
    assert there >= {"train fraction", "shift", "batch size", "lr", "momentum", "schedule"}
    assert not there & {"clients", "method", "weight decay"}
    assert [line.keys[0] for line in grid(compare(select(lab.store), sort="lr")).lines] == ["20"] * 3 + ["7"] * 2
    decay, first, second, paired = pairs_grid(side, in_pairs(side)).lines[-1].keys
    assert (decay, paired) == ("cifar10, Dir-0.3, clients 20", "20 clients")
    assert {text.partition(",")[0] for text in (first, second)} <= {"FedAvg", "ditto"}


def test_a_hyper_parameter_that_goes_with_the_data_is_no_column(lab: Lab, setting: Setting) -> None:
    """Two papers give a method other values; only what rows of the same data differ in takes a column."""
    other = replace(setting, partition=replace(setting.partition, clients=7))
    for at, mu in ((setting, 0.1), (other, 1.0)):
        run(lab, at, "ditto", 0.5, overrides={"mu": mu})
        run(lab, at, "fedprox", 0.5, overrides={"mu": 0.01})
    side = compare(select(lab.store))
    assert (side.keys, "mu" in side.others) == (["clients", "method"], True)
    run(lab, other, "fedprox", 0.6, overrides={"mu": 0.2})
    assert compare(select(lab.store)).keys == ["clients", "method", "mu"]


def test_metrics_that_are_missing_are_said_with_the_reason(lab: Lab, setting: Setting) -> None:
    run(lab, setting, "fedavg", 0.5, metrics={"system_accuracy": lambda t: 0.3})
    run(lab, replace(setting, votes=False), "ditto", 0.5)
    table = grid(compare(select(lab.store), ["system_accuracy", "clusters"]))
    entries = {line.keys[0]: [entry.text or entry.symbol for entry in line.entries] for line in table.lines}
    assert entries == {"ditto": ["N/A", "N/A"], "FedAvg": ["30.00", "N/A"]}
    assert "No System accuracy: ditto (ran without the votes of all clients on all test images)." in table.about
    assert "No clusters: ditto, FedAvg (does not measure it)." in table.about


def test_damaged_metrics_hide_no_other(lab: Lab, setting: Setting) -> None:
    run(lab, setting, "fedavg", 0.5)
    damaged = lab.run(setting, "ditto", measure=False)  # its predictions are not there
    table = grid(compare(select(lab.store)))
    assert cell(table, "Average accuracy", "FedAvg").text == "50.00"
    assert cell(table, "Average accuracy", "ditto").symbol == "!"
    assert len(table.problems) == 1
    assert damaged.id in table.problems[0]


def test_without_any_metrics_it_is_said_why(lab: Lab, setting: Setting) -> None:
    damaged = lab.run(setting, "ditto", measure=False)  # its predictions are not there
    with pytest.raises(FedbenchError, match=f"no run has metrics: .*{damaged.id}"):
        side_by_side(select(lab.store))
    (line,) = grid(compare(select(lab.store))).lines  # of the notebook's first page
    assert line.entries == ()


def test_clients_that_never_train(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=4, unseen=1)
    there = {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.25}
    for method, at in (("fedavg", part), ("local", replace(part, unseen=None))):
        lab.run(replace(setting, partition=at), method, clients=there)
    (table,) = side_by_side(select(lab.store))
    texts = {
        line.keys[-1]: line.entries[[h.label for h in table.heads].index("Unseen clients")] for line in table.lines
    }
    assert (texts["FedAvg"].text, texts["Local"].text) == ("25.00", "")
    assert any("unseen clients: mean accuracy of the clients that never train" in text for text in table.about)
    assert "No Unseen clients: Local (has no clients that never train)." in table.about
    of = {run.spec.method: headline(run.metrics, run.spec.setting, "plain") for run in select(lab.store)}
    assert (of["fedavg"]["unseen_client_accuracy"], "unseen_client_accuracy" in of["local"]) == (0.25, False)
    evaluated = good("--home", lab.store.home, "evaluate", select(lab.store, ["method=fedavg"])[0].id)
    (row,) = (line.split() for line in evaluated.out.splitlines() if "plain" in line)
    assert row[-1] == "25.00"


@pytest.mark.parametrize("width", [60, 100])
def test_a_screen_gets_what_it_takes_and_is_told_of_the_rest(lab: Lab, setting: Setting, width: int) -> None:
    for k in range(3):
        for method in ("fedavg", "ditto"):
            at = replace(setting, lr=0.1 * (k + 1), momentum=0.1 * k, weight_decay=0.01 * k, batch_size=8 + k)
            run(lab, at, method, 0.5 + 0.1 * k, whole={"total_runtime_seconds": 60.0})
    table = grid(compare(select(lab.store)))
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


def test_rows_of_chosen_order(lab: Lab, seeds: Mapping[str, Sequence[str]]) -> None:
    runs = select(lab.store)
    lines = grid(compare(runs, sort="average_accuracy")).lines
    assert [line.entries[0].text for line in lines] == ["71.00", "60.00", "40.00"]
    assert [line.keys[1] for line in grid(compare(runs, sort="lr")).lines] == ["0.01", "0.1", "0.1"]
    with pytest.raises(FedbenchError, match="unknown key to sort by 'lrr'; did you mean 'lr'"):
        compare(runs, sort="lrr")
    with pytest.raises(FedbenchError, match="unknown metric 'accurracy'"):
        compare(runs, ["accurracy"])


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_keys_in_columns(lab: Lab, seeds: Mapping[str, Sequence[str]], format: str) -> None:
    side = compare(select(lab.store))
    text = render([grid(side), pairs_grid(side, in_pairs(side))], format)
    if format == "json":
        first, second = json.loads(text)
        assert first["cells"][0]["keys"] == {"method": "ditto", "lr": "0.1"}
        assert second["cells"][0]["keys"]["first"] == "ditto, lr 0.1"
    elif format == "csv":
        lines = list(csv.DictReader(io.StringIO(text)))
        assert (lines[0]["run.method"], lines[0]["lr"], lines[0]["per_seed"][:7]) == ("ditto", "0.1", "0:70.0 ")
        assert {line["table"] for line in lines} == {"compare", "test"}
    else:
        heads = {"latex": "method & lr & Average", "markdown": "| method   | lr   |", "console": "method   lr  "}
        heads["html"] = '<th scope="col" class="key">method</th><th scope="col" class="key">lr</th>'
        assert heads[format] in text
    if format == "latex":
        table = text.split("\\midrule")[1].split("\\bottomrule")[0]
        assert {line.count(" & ") for line in table.strip().splitlines()} == {9}
        assert "\\begin{tabular}{llcccccccc}" in text


def test_pairs_over_seeds_with_holms_correction(lab: Lab, seeds: Mapping[str, Sequence[str]]) -> None:
    side = compare(select(lab.store, ["lr=0.1"]))
    (pair,) = in_pairs(side)
    assert pair.over == "seeds"
    assert pair.differences == pytest.approx([0.2, 0.1, 0.03])
    assert pair.test is not None
    assert pair.test.p == pytest.approx(0.25)
    about = " ".join(pairs_grid(side, [pair]).about)
    assert "paired over common seeds on the same partitions" in about
    assert "3 seeds: no test can reach 0.05 (p is 0.25 at the least)" in about


def test_pairs_over_clients_where_seeds_are_few(lab: Lab, seeds: Mapping[str, Sequence[str]]) -> None:
    side = compare(select(lab.store))
    pairs = {tuple(side.label(g) for g in (pair.first, pair.second)): pair for pair in in_pairs(side)}
    over = {names: (pair.over, len(pair.differences)) for names, pair in pairs.items()}
    assert over == {
        ("ditto, lr 0.1", "FedAvg, lr 0.01"): ("clients", 20),
        ("ditto, lr 0.1", "FedAvg, lr 0.1"): ("seeds", 3),
        ("FedAvg, lr 0.01", "FedAvg, lr 0.1"): ("clients", 20),
    }
    # Each client's mean over the three seeds against the one of the other.
    lower = pairs["FedAvg, lr 0.01", "FedAvg, lr 0.1"]
    assert lower.differences == pytest.approx([0.4 - 0.6 - 0.1 * (2 * c / 19 - 1) for c in range(20)])
    assert lower.test is not None
    assert lower.adjusted == pytest.approx(3 * lower.test.p)
    (chosen, *_) = in_pairs(compare(select(lab.store, ["lr=0.1"])), "clients")
    assert (chosen.over, len(chosen.differences)) == ("clients", 20)


def test_what_cannot_be_paired_is_said(lab: Lab, setting: Setting) -> None:
    run(lab, setting, "fedavg", 0.5)
    with pytest.raises(FedbenchError, match="no two rows are on the same data"):
        in_pairs(compare(select(lab.store)))
    other = replace(setting, partition=replace(setting.partition, seed=setting.partition.seed + 1))
    run(lab, other, "ditto", 0.6)
    side = compare(select(lab.store))
    table = pairs_grid(side, in_pairs(side))
    assert [entry.symbol for entry in table.lines[0].entries] == ["N/A"] * 4
    assert "1 pair with nothing in common to pair: no seed and no partition." in table.about
    with pytest.raises(FedbenchError, match="single clients have no total_runtime_seconds"):
        in_pairs(compare(select(lab.store), ["total_runtime_seconds"]), "clients")
