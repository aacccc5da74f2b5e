"""The numbers in a printed table: over rounds, clients and seeds, methods' own, ranks, and what is said below."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedbench.errors import FedbenchError
from fedbench.measure import Measure, stored
from fedbench.metrics.statistics import warm_rounds
from fedbench.planner import table as tables
from fedbench.planner.runs import select
from fedbench.planner.table.claims import SO_FAR
from fedbench.planner.table.spec import Table
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.layout.grid import Entry, Grid, legend
from fedbench.reports.numbers.agreement import Offset, Tally, offset
from fedbench.reports.numbers.measured import Value
from fedbench.reports.numbers.pairs import deviations
from fedbench.reports.render import render
from fedbench.results.frame import Frame
from fedbench.results.run import State
from fedbench.specs import MetricsSpec, RunSpec
from tests.reports.conftest import DIR, SPC, Lab, of_csv, words_of, written
from tests.support import frames
from tests.support.frames import few, refused
from tests.support.make_runs import clients_table, predictions, rounds_table, write


def entry(grid: Grid, row: str, column: str, kind: str = "paper") -> Entry:
    line = next(line for line in grid.lines if (line.label, line.kind) == (row, kind))
    keys = [f"{h.group}/{h.label}" if h.group else h.label for h in grid.heads]
    return line.entries[keys.index(column)]


def test_mean_and_std_of_the_last_rounds_of_which_none_may_be_missing(lab: Lab) -> None:
    by_round = {t: 0.4 + 0.01 * (t % 7) for t in range(1, 401)}
    lab.run(
        lab.setting("feddrm/1", DIR),
        "feddrm",
        metrics={"system_accuracy": by_round.get, "average_accuracy": by_round.get},
    )
    last = [100 * by_round[t] for t in range(396, 401)]  # window 5; round 300 is evaluated too but does not count
    found = entry(lab.grid("feddrm/1"), "FedDRM", DIR)
    assert found.value.mean == pytest.approx(statistics.mean(last))
    assert found.value.std == pytest.approx(statistics.pstdev(last))
    assert (found.text, found.spread) == (f"{statistics.mean(last):.2f}", f"{statistics.pstdev(last):.2f}")
    assert found.value.count == 5
    setting = lab.setting("feddrm/1", SPC)
    lab.rows(
        lab.run(setting, "feddrm", measure=False),
        series("system_accuracy", "crop", set(setting.evaluated_rounds()) - {398}),
    )
    printed = lab.grid("feddrm/1")
    assert entry(printed, "FedDRM", SPC).state is State.DAMAGED
    assert "last 5 rounds" in printed.problems[0]


def series(metric: str, view: str, rounds: Iterable[int], value: float = 0.5) -> list[tuple[str, str, int, int, float]]:
    return [(metric, view, t, -1, value) for t in rounds]


def over_clients(statistic: str) -> Table:
    """pFedFDA's Table 2 with this mean over clients."""
    table = tables.load("pfedfda/2")
    return replace(table, column=[replace(c, statistic=statistic) for c in table.column])


def test_the_mean_over_clients_weighs_their_test_images_or_does_not_and_either_holds_both(lab: Lab) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    run = lab.run(setting, "pfedfda", clients={0: 0.2, 1: 0.8}, images={1: 3}, views=("plain",), rules="pfedfda")
    assert {c.statistic for c in tables.load("pfedfda/2").columns} == {"weighted_clients"}
    for statistic, text in (("clients", "0.500"), ("weighted_clients", "0.650")):
        printed = lab.grid(over_clients(statistic), compare=True)
        found = entry(printed, "pFedFDA", "CIFAR10/Dir(0.5)")
        assert found.runs == (run.id,)
        assert (found.text, found.spread) == (text, f"{statistics.stdev([0.2, 0.8]):.2f}")
        assert [found.value.weighted, found.value.unweighted, found.value.count] == pytest.approx([0.65, 0.5, 2])
        assert ("weighted by their test images" in " ".join(words_of(printed))) is (statistic == "weighted_clients")


def test_clients_without_known_test_images_have_no_weighted_mean(lab: Lab) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    each = [("client_accuracy", "plain", setting.rounds, c, 0.5) for c in (0, 1)]
    lab.rows(lab.run(setting, "pfedfda", rules="pfedfda", measure=False), [*each, ("test_images", "", 0, 0, 0.5)])
    printed = lab.grid("pfedfda/2")
    assert entry(printed, "pFedFDA", "CIFAR10/Dir(0.5)").state is State.DAMAGED
    assert "lack the test images of the clients that have client_accuracy" in printed.problems[0]
    plain = lab.grid(over_clients("clients"))
    found = entry(plain, "pFedFDA", "CIFAR10/Dir(0.5)").value
    assert (found.mean, found.weighted, found.unweighted) == (0.5, None, 0.5)


@pytest.mark.parametrize("once", [False, True])
def test_views_are_kept_apart(lab: Lab, once: bool) -> None:
    setting = lab.setting("feddrm/1", DIR)
    rounds = setting.evaluated_rounds()
    plain = series("system_accuracy", "plain", rounds[-1:] if once else rounds, 0.6)
    lab.rows(lab.run(setting, "feddrm", measure=False), [*series("system_accuracy", "crop", rounds), *plain])
    cropped, untouched = lab.grid("feddrm/1"), lab.grid("feddrm/1", view="plain")
    found = entry(untouched, "FedDRM", DIR)
    assert (found.text, found.spread, found.state) == ("60.00", "" if once else "0.00", State.DONE)
    assert (entry(cropped, "FedDRM", DIR).text, entry(cropped, "FedDRM", DIR).spread) == ("50.00", "0.00")
    said = [any("after the last round only" in line for line in words_of(printed)) for printed in (cropped, untouched)]
    assert said == [False, once]
    assert any("untouched" in line and "cropped" not in line for line in words_of(untouched))


def test_several_seeds(lab: Lab) -> None:
    for seed, value in ((1, 0.4), (2, 0.5)):
        lab.run(lab.cells("feddrm/1", seeds=[seed]).settings[DIR][0], "feddrm", value=value)
    found = entry(lab.grid("feddrm/1", seeds=[1, 2]), "FedDRM", DIR)
    assert (found.text, found.value.seeds, len(found.runs)) == ("45.00", 2, 2)
    assert found.value.seed_std == pytest.approx(statistics.stdev([40, 50]))
    half = lab.grid("feddrm/1", seeds=[1, 3])
    assert entry(half, "FedDRM", DIR).text == "40.00"  # what is there, and it is said
    assert entry(half, "FedDRM", DIR).state is State.PARTIAL
    assert any("1 of 2 seeds (1 of 1, 3)" in line for line in words_of(half))


def test_best_and_second_as_printed(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    for method, value in (("feddrm", 0.50001), ("fedavgft", 0.5), ("pfedfda", 0.4), ("local", 0.3)):
        lab.run(setting, method, value=value, views=("plain",))
    printed = lab.grid("feddrm/1", yours=True)
    assert any("test images are untouched" in line for line in words_of(printed)), "a run without crops has only these"
    assert [entry(printed, row, DIR).text for row in ("FedDRM", "FedAvgFT")] == ["50.00", "50.00"]
    assert [entry(printed, row, DIR).rank for row in ("FedDRM", "FedAvgFT")] == [1, 1]
    assert (entry(printed, "pFedFDA", DIR, "yours").rank, entry(printed, "Local", DIR, "added").rank) == (2, 0)


def test_the_fastest_is_best_and_ratios_are_to_fedavg(lab: Lab) -> None:
    setting = lab.setting("pfedfda/6", "One after another/Local training")
    for method, seconds in (("fedavg", 2.0), ("pfedfda", 3.0)):
        whole = {"local_training_seconds": seconds, "total_runtime_seconds": 60 * seconds}
        lab.run(setting, method, whole=whole, rules="pfedfda")
    printed = lab.grid("pfedfda/6", compare=True)
    fast, slow = (entry(printed, row, "One after another/Local training") for row in ("FedAvg", "pFedFDA"))
    assert (fast.text, fast.times, fast.rank) == ("2.00", "1.00×", 1)
    assert (slow.text, slow.times, slow.rank) == ("3.00", "1.50×", 2)
    assert entry(printed, "pFedFDA", "One after another/Total runtime").text == "3.00"  # minutes
    assert slow.offset.difference == pytest.approx(1.5 - 22.58 / 18.42)
    assert slow.near is False
    assert slow.delta == "+0.27×*"
    assert [ours.state for ours, _ in printed.verdicts] == ["holds so far", "fails so far", "not measured"]
    ours, theirs = next(verdict for verdict in printed.verdicts if verdict[0].claim.kind == "ratio")
    assert (theirs.state, ours.detail[:36]) == ("holds", "fails by 0.27 at pFedFDA and FedAvg,")
    assert any("measured on cpu" in line for line in words_of(printed))


def test_compare_says_how_far_off_and_what_is_claimed(lab: Lab) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.63)
    lab.run(lab.setting("feddrm/1", DIR), "fedala", value=0.5)
    lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.4)
    printed = lab.grid("feddrm/1", compare=True)
    near, far = entry(printed, "FedDRM", DIR), entry(printed, "FedDRM", SPC)
    assert near.offset.difference == pytest.approx(63 - 63.85)
    assert (near.near, near.delta, far.near, far.delta) == (True, "−0.85", False, "−18.50*")
    position = [line.label for line in printed.lines].index("FedDRM") + 1
    below = printed.lines[position]
    assert (below.kind, below.entries[0].text, below.entries[0].delta) == ("reported", "63.85", "−0.85")
    assert any(line.startswith("Cost: 3 min of training in 3 runs") for line in printed.notes)
    ours, theirs = printed.verdicts[0]
    assert (ours.state, ours.made, ours.total, theirs.state) == (SO_FAR, 1, 6, "holds")
    assert lab.grid("feddrm/1").verdicts == ()


def test_what_is_missing_and_how_to_fill_it(lab: Lab) -> None:
    printed = lab.grid("feddrm/1")
    entries = [entry for line in printed.lines for entry in line.entries]
    assert all(e.text == "" and (e.value is None or not math.isnan(e.value.mean)) for e in entries)
    assert any(
        line.startswith("0 of 78 cells") and "missing" in line and "not built" in line for line in words_of(printed)
    )
    assert any("The images of cifar20, cifar100 are not available" in line for line in words_of(printed))
    command = "fedbench train --table feddrm/1 --budget small"
    assert (printed.command, lab.grid("feddrm/1", seeds=[3]).command) == (command, f"{command} --seed 3")
    assert lab.grid(tables.load("feddrm/1").for_dataset("digits")).command == f"{command} --dataset digits"


def test_a_methods_deviations_have_one_letter(lab: Lab) -> None:
    for column in (DIR, SPC):
        lab.run(lab.setting("feddrm/1", column), "feddrm", deviations=["first", "second"])
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", deviations=["second", "third"])
    printed = lab.grid("feddrm/1", yours=True)
    assert printed.footnotes == (("a", "first"), ("a,b", "second"), ("b", "third"))
    marks = {line.label: line.mark for line in printed.lines}
    assert (marks["FedDRM"], marks["pFedFDA"], marks["Ditto"]) == ("a", "b", "")


def test_an_unevaluated_run_is_evaluated(lab: Lab) -> None:
    """Six of eight clients answer rightly, while the majority of the votes is always wrong."""
    setting = lab.setting("feddrm/1", DIR)
    spec = RunSpec(setting, "feddrm", {"lambda": 0.8})
    rows = [
        {"round": t, "view": "crop", "client": c, "label": 1, "own": int(c < 6), "votes": [1, 1, 1, 0, 0, 0, 0, 0]}
        for t in setting.evaluated_rounds()
        for c in range(8)
    ]
    clients = clients_table([1] * 8, [1] * 8)
    write(lab.store, spec, predictions=predictions(rows), rounds=rounds_table(setting.rounds), clients=clients)
    assert entry(lab.grid("feddrm/1"), "FedDRM", DIR).text == "0.00"
    assert lab.store.has(MetricsSpec(spec))
    again = lab.grid("feddrm/2")
    assert (entry(again, "FedDRM", DIR).text, again.counts["done"]) == ("75.00", 1)


def test_a_damaged_run_is_named_and_spoils_nothing_else(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", measure=False)  # has no predictions to evaluate
    run = lab.run(setting, "fedavgft")
    path = lab.store.get(MetricsSpec(run.spec)).path / "metrics.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    lab.run(setting, "pfedfda", value=0.3)
    printed = lab.grid("feddrm/1", yours=True)
    assert entry(printed, "FedDRM", DIR).state is State.UNEVALUATED
    assert entry(printed, "FedAvgFT", DIR).state is State.DAMAGED
    assert entry(printed, "pFedFDA", DIR, "yours").text == "30.00"
    assert any("has no file clients.parquet" in text for text in printed.problems)
    assert any("truncated" in text for text in printed.problems)


SEEDS = """
title = "Mine"
protocol = "pfedfda"
metric = "client_accuracy"
statistic = "last"
decimals = 4
seeds = [3, 5, 8]
budget.small = { rounds = 20, every = 5 }
rows = [{ label = "FedAvg", method = "fedavg" }]
column = [
{ label = "Average", metric = "client_accuracy_mean", dataset = "cifar10", partition = { scheme = "iid" } },
{ label = "Client 2", client = 2, dataset = "cifar10", partition = { scheme = "iid" } },
{ label = "Worst", metric = "client_accuracy_min", dataset = "cifar10", partition = { scheme = "iid" } },
]
"""


def train(lab: Lab, table: Table, rounds: dict[int, dict[int, tuple[float, float]]], method: str = "fedavg") -> None:
    for seed, by_round in rounds.items():
        setting = lab.cells(table, seeds=[seed]).settings["Average"][0]
        assert set(by_round) <= set(setting.evaluated_rounds())
        each = {c: (lambda t, c=c, r=by_round: r.get(t, (0.0, 0.0))[c]) for c in (0, 1)}
        lab.run(setting, method, each=each, views=("plain",), rules="pfedfda")


def by_column(grid: Grid) -> dict[str, tuple[str, str]]:
    return {h.label: (e.text, e.spread) for h, e in zip(grid.heads, grid.lines[0].entries, strict=True)}


FINAL = {3: {20: (0.5, 0.75)}, 5: {20: (0.625, 0.75)}, 8: {20: (0.25, 1.0)}}


def test_final_is_the_last_round_with_the_spread_of_the_seeds_and_programs_get_each(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, SEEDS)
    train(lab, table, {**FINAL, 3: {15: (1.0, 1.0), **FINAL[3]}})  # a better round before the last does not count
    grid = lab.grid(table)
    means, second = [0.625, 0.6875, 0.625], [0.75, 0.75, 1.0]
    assert by_column(grid) == {
        "Average": (f"{statistics.mean(means):.4f}", f"{statistics.stdev(means):.4f}"),
        "Client 2": (f"{statistics.mean(second):.4f}", f"{statistics.stdev(second):.4f}"),
        "Worst": (f"{statistics.mean([0.5, 0.625, 0.25]):.4f}", f"{statistics.stdev([0.5, 0.625, 0.25]):.4f}"),
    }
    assert "Value after the last round; ± is the standard deviation (ddof 1) over seeds." in words_of(grid)
    assert "; mean of 3 seeds: 3, 5, 8, on one draw of the partition." in grid.basis
    found = json.loads(render([grid], "json"))[0]["cells"][1]
    assert found["per_seed"] == {"3": 0.75, "5": 0.75, "8": 1.0}
    assert (found["n"], found["seeds"]) == (3, 3)
    assert found["std"] == found["seed_std"] == pytest.approx(statistics.stdev([0.75, 0.75, 1.0]))
    line = of_csv(render([grid], "csv"))[1]
    assert line["per_seed"] == "3:0.75 5:0.75 8:1.0"
    assert float(line["value"]) == pytest.approx(2.5 / 3)


def test_best_round_is_one_round_of_a_run_for_all_columns(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, SEEDS.replace('"last"', '"best_tested"').replace("[3, 5, 8]", "[3]"))
    # Round 10 has the best mean, round 15 the best second client and round 5 the best worst one.
    train(lab, table, {3: {5: (0.5, 0.5), 10: (0.9, 0.4), 15: (0.1, 0.8), 20: (0.2, 0.2)}})
    grid = lab.grid(table)
    assert by_column(grid) == {"Average": ("0.6500", ""), "Client 2": ("0.4000", ""), "Worst": ("0.4000", "")}
    said = next(line for line in words_of(grid) if "selected on test data" in line)
    assert said.startswith("Value at the evaluated round of the best mean client accuracy")
    assert "±" not in said  # of one seed
    assert "; seed 3." in grid.basis
    train(lab, table, {5: {15: (0.25, 0.5)}})  # whose best round is another
    assert by_column(lab.grid(table, seeds=(3, 5)))["Client 2"][0] == "0.4500"


def test_a_value_of_some_of_its_seeds_is_marked(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, SEEDS)
    train(lab, table, {3: FINAL[3]})
    grid = lab.grid(table)
    entry = grid.lines[0].entries[1]
    assert (entry.text, entry.spread, entry.mark, entry.state) == ("0.7500", "", "‡", State.PARTIAL)
    assert "; 1 of 3 seeds (3 of 3, 5, 8)." in grid.basis, "said once of all numbers, and at none"
    assert ("‡", "not of all its seeds yet") not in legend(grid)
    assert r"\ddagger" not in render([grid], "latex")
    first, *others = grid.lines[0].entries
    line = replace(grid.lines[0], entries=(replace(first, state=State.DONE), *others))
    some = replace(grid, lines=(line,))
    assert ("‡", "not of all its seeds yet") in legend(some)
    assert r"0.7500$^{\ddagger}$" in render([some], "latex")
    lacking = written(tmp_path, SEEDS.replace("client = 2", "client = 7"))
    of_3 = lab.grid(lacking, seeds=[3])
    assert any("lack client_accuracy of client 7 after round 20" in text for text in of_3.problems)
    assert [e.state for e in of_3.lines[0].entries[:2]] == [State.DONE, State.DAMAGED]
    train(lab, table, {seed: FINAL[seed] for seed in (5, 8)})
    whole = lab.grid(table)
    assert (whole.lines[0].entries[1].mark, len(legend(whole))) == ("", 0)


def test_tolerances_of_columns(lab: Lab, tmp_path: Path) -> None:
    text = SEEDS.replace("decimals = 4", "decimals = 4\ntolerance = 0.1").replace("[3, 5, 8]", "[3]")
    text = text.replace('"client_accuracy_mean"', '"client_accuracy_mean", tolerance = 0.01')
    rows = "table,row,group,column,value,std\nmine,FedAvg,,Average,0.6,\nmine,FedAvg,,Client 2,0.7,\n"
    (tmp_path / "reported.csv").write_text(rows + "mine,FedAvg,,Worst,0.9,\n")
    table = written(tmp_path, text)
    train(lab, table, {3: FINAL[3]})  # 0.625, 0.75 and 0.5
    grid = lab.grid(table, compare=True)
    assert [e.near for e in grid.lines[0].entries] == [False, True, False]
    assert "Tolerance: ±0.01 (Average); ±0.1 (Client 2, Worst)." in grid.notes


def test_rows_that_the_seeds_cannot_tell_apart_share_a_mark(lab: Lab, tmp_path: Path) -> None:
    rows = '{ label = "FedAvg", method = "fedavg" }, { label = "Local", method = "local" }, '
    mean = '{ label = "Mean", of = ["Average", "Client 2"] },\n]\n'
    text = SEEDS.replace('{ label = "FedAvg", method = "fedavg" }', rows + '{ label = "FT", method = "fedavgft" }')
    table = written(tmp_path, text.rstrip().removesuffix("]") + mean)
    all_values = {"fedavg": (0.5, 0.625, 0.75), "local": (0.5, 0.5, 0.75), "fedavgft": (0.1, 0.2, 0.1)}
    for method, values in all_values.items():
        train(lab, table, {seed: {20: (v, v)} for seed, v in zip((3, 5, 8), values, strict=True)}, method)
    grid = lab.grid(table)
    columns = list(zip(*(line.entries for line in grid.lines), strict=True))
    assert [[e.rank for e in column] for column in columns] == [[1, 1, 2]] * 4
    assert columns[3][0].value.per_seed == {3: 0.5, 5: 0.625, 8: 0.75}
    assert "bold: best and all within two standard errors of it, underlined: second" in render([grid], "markdown")
    runs = select(Frame(lab.store), ["method=fedavg,local,fedavgft"])
    assert [line.entries[0].rank for line in side_by_side(runs, ["client_accuracy_mean"])[0].lines] == [1, 2, 1]


OWN = """
title = "What methods measure"
protocol = "feddrm"
statistic = "{statistic}"
metric = "{metric}"
unit = "fraction"
best = "none"
rows = [{{ label = "pFedFDA", method = "pfedfda" }}, {{ label = "FedAvg", method = "fedavg" }}{more}]
column = [{{ label = "IID", dataset = "cifar10", partition = {{ scheme = "iid" }}{client} }}]
"""
BETA = Measure("beta", "weight of the own Gaussian", "fraction", of="client")
METHOD = """
from fedbench.measure import Measure
from fedbench.methods.base import Method


class Mine(Method):
    name = "mine"
    measures = (Measure("drift", "how far it went", "distance"),)
"""


def own_table(folder: Path, metric: str, statistic: str = "clients", more: str = "", client: str = "") -> Table:
    return written(folder, OWN.format(metric=metric, statistic=statistic, more=more, client=client))


def pfedfda(lab: Lab, wanted: Table) -> list[float]:
    """A run of pfedfda in the table's setting that has betas; those."""
    setting = lab.cells(str(wanted.path)).settings["IID"][0]
    run = lab.run(setting, "pfedfda", measure=False, measures=stored((BETA,)))
    betas = [k / 100 for k in range(setting.partition.clients)]
    lab.rows(run, [("beta", "", 0, -1, statistics.mean(betas)), *(("beta", "", 0, i, b) for i, b in enumerate(betas))])
    return betas


def test_figures_of_clients_and_of_rounds(lab: Lab, tmp_path: Path) -> None:
    betas = pfedfda(lab, table := own_table(tmp_path, "beta"))
    setting, mean = lab.setting(table, "IID"), statistics.mean(betas)
    run = lab.run(setting, "fedavg", measure=False, measures=stored((Measure("clusters", "c", "count"),)))
    lab.rows(run, [("clusters", "", t, -1, float(t or setting.rounds)) for t in range(setting.rounds + 1)])
    assert (setting.rounds, setting.window) == (400, 5)
    for metric, statistic, client, expected in (
        ("beta", "clients", "", mean),
        ("beta", "whole_run", "", mean),
        ("beta", "last", "", mean),
        ("beta", "last", ", client = 3", 0.02),
        ("clusters", "last_rounds", "", 398),
        ("clusters", "last", "", 400),
        ("clusters", "whole_run", "", 400),
    ):
        line = lab.grid(own_table(tmp_path, metric, statistic, client=client)).lines[metric == "clusters"]
        found = line.entries[0].value
        assert found.mean == pytest.approx(expected), (metric, statistic)
        if statistic == "clients":
            assert found.std == pytest.approx(statistics.stdev(betas))


def test_the_first_round_does_not_count(lab: Lab, tmp_path: Path) -> None:
    table = own_table(tmp_path, "network_share", "rounds")
    made = lab.run(lab.setting(table, "IID"), "fedavg", measure=False, executor="sequential")
    shares = {0: 0.9, 1: 0.1, 2: 0.5, 3: 0.7, 4: 0.9}
    lab.rows(made, [("network_share", "", t, -1, share) for t, share in shares.items()])
    grid = lab.grid(table)
    found = entry(grid, "FedAvg", "IID").value
    assert (found.mean, found.std) == pytest.approx((0.7, statistics.stdev([0.5, 0.7, 0.9])))
    said = "over a run's rounds, of three or more without the first"
    assert any(said in text and "test images" not in text for text in words_of(grid))
    assert warm_rounds({0: 99.0, 1: 0.25}).mean == 0.25, "round 0 is the whole run's"
    few = warm_rounds({1: 0.25, 2: 0.75})  # too few to spare one
    assert (few.count, few.mean, few.std) == (2, 0.5, pytest.approx(statistics.stdev([0.25, 0.75])))
    assert "Times are those of executor sequential on cpu." in grid.notes


def test_a_method_that_does_not_measure_it_has_an_empty_cell_and_the_table_says_why(lab: Lab, tmp_path: Path) -> None:
    wanted = own_table(tmp_path, "beta")
    setting = lab.cells(str(wanted.path)).settings["IID"][0]
    old = lab.run(setting, "pfedfda", title="pFedFDA")  # made before methods declared
    grid = lab.grid(wanted)
    assert grid.lines[0].entries[0].state is State.MISSING
    assert any(note.startswith("No beta: pFedFDA was made before") and "--again" in note for note in grid.notes)
    lab.store.remove("run", old.id)
    pfedfda(lab, wanted)
    lab.run(setting, "local", title="Local", measures=[])  # an extra row, of which nothing is said
    assert not any(note.startswith("No beta") for note in lab.grid(wanted).notes)
    lab.run(setting, "fedavg", title="FedAvg", measures=[])
    grid = lab.grid(wanted)
    assert [line.label for line in grid.lines] == ["pFedFDA", "FedAvg"]
    entry = grid.lines[1].entries[0]
    assert (entry.state, entry.text, grid.problems) == (State.UNDEFINED, "", ())
    assert "No beta: FedAvg does not measure it." in grid.notes
    assert grid.lines[0].entries[0].state is State.DONE


def test_metrics_are_those_of_some_method_or_of_a_file_that_a_row_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    row = ', { label = "Mine", method = "./mine.py:Mine" }'
    assert own_table(tmp_path, "drift", "whole_run", row).rows[2].method == f"{tmp_path / 'mine.py'}:Mine"
    for metric, statistic, more, client, message in (
        ("betta", "clients", "", "", r"unknown metric in .*mine.toml, column IID 'betta'; did you mean 'beta'"),
        ("elbow", "last", "", ", client = 1", "elbow is no client's but the federation's"),
        ("drift", "whole_run", "", "", "unknown metric"),
        ("drifd", "whole_run", row, "", "did you mean 'drift'"),
    ):
        with pytest.raises(FedbenchError, match=message):
            own_table(tmp_path, metric, statistic, more, client)


@pytest.mark.parametrize(
    ("table", "column", "ours", "paper", "expected"),
    [  # expected: within 2 points, within two standard errors (None: unknown), near, one seed
        ("flux/17", "Known association/Level 8", (53.4,), (70.0, 7.7), (False, True, False, True)),
        ("flux/17", "Known association/Level 8", (66.0,), (70.0, 7.7), (False, True, True, True)),
        ("flux/17", "Known association/Level 8", (66.0,), (70.0, 1.0), (False, False, False, True)),
        ("flux/17", "Known association/Level 8", (68.0,), (70.0, 0.1), (True, False, True, True)),
        ("flux/17", "Known association/Level 8", (67.99,), (70.0, 0.1), (False, False, False, True)),
        # Five seeds each, the paper's with ddof 0: 2 sqrt(4 / 4 + 4 / 5) = 2.68; with one of ours 2 sqrt(1 + 5) = 4.9.
        ("flux/17", "Known association/Level 8", (67.4, 2.0, 5), (70.0, 2.0), (False, True, True, False)),
        ("flux/17", "Known association/Level 8", (67.2, 2.0, 5), (70.0, 2.0), (False, False, False, False)),
        ("flux/17", "Known association/Level 8", (65.2,), (70.0, 2.0), (False, True, True, True)),
        ("flux/17", "Known association/Level 8", (67.2,), (70.0, None), (False, None, False, False)),
        # A mean over 32 cells, whose ± is the usual one of these: 2 sqrt((1 + 5) 4 / 32) = 1.73.
        ("flux/1", "MNIST/Known association", (92.3,), (94.0, 4.0), (True, True, True, True)),
        ("flux/1", "MNIST/Known association", (92.2,), (94.0, 4.0), (True, False, True, True)),
        ("flux/1", "CheXpert/Known association", (71.0,), (75.0, 2.0), (False, True, True, True)),  # its ± is that
        ("flux/65", "MNIST/P(X)", (71.0,), (75.0, 2.0), (False, None, False, False)),  # its ± is over levels
        ("feddrm/1", "CIFAR-10/Dir-0.3", (61.0,), (63.85, 2.0), (False, None, False, False)),  # ... over rounds
        ("pfedfda/2", "CIFAR10/Dir(0.5)", (0.743,), (0.763, 0.07), (True, None, True, False)),  # ... over clients
        ("ftw_erm/1", "Average", (0.80, 0.01, 5), (0.8245, 0.02), (False, False, False, False)),  # 0.02
    ],
)
def test_what_two_means_of_so_many_seeds_may_differ_by_and_what_is_near(
    table: str, column: str, ours: tuple[Any, ...], paper: tuple[float, float | None], expected: tuple[bool | None, ...]
) -> None:
    of = tables.load(table)
    mean, std, seeds = (*ours, None, 1)[:3]
    at, value = next(c for c in of.columns if c.key == column), Value(mean, seeds=seeds, seed_std=std)
    found = offset(of, at, value, None, paper)
    assert found is not None
    assert (found.within_points, found.within_errors, found.near, found.one_seed) == expected


def test_three_things_are_said_of_numbers_beside_the_papers() -> None:
    accuracies = [Offset(-3.0, True, -3.0, False, True, True), Offset(1.0, True, 1.0, True, None)]
    far = Offset(-16.6, False, -16.6, False, True, False)
    assert str(Tally.of(9, accuracies)) == (
        "2 of 9 reported numbers measured: mean difference −1.0 points; 1 of 2 (50%) within 2 points; 1 of 1 (100%) "
        "within two standard errors (one seed here: the paper's ± for both sides); 1 without a ± over seeds"
    )
    assert "2 of 2 (100%) within two standard errors (1 of them more than 5 points off; 1 of one seed here" in str(
        Tally.of(9, [*accuracies, far])
    )
    rest = [Offset(0.0, True, counted=True), Offset(0.3, False), Offset(2.0, None)]
    said = "3 of 3 reported numbers measured: 1 of 1 (100%) equal; 0 of 1 (0%) within their tolerance; 1 not judged"
    assert str(Tally.of(3, rest)) == said
    assert str(Tally(4)) == "0 of 4 reported numbers measured"


def transport(m: np.ndarray, s: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    """The 2-Wasserstein distance of two Gaussians by their covariance matrices (Dowson and Landau, 1982)."""
    a, b = np.diag(s**2), np.diag(s2**2)
    half = sqrtm(a)
    return float(np.sqrt(((m - m2) ** 2).sum() + np.trace(a + b - 2 * np.real(sqrtm(half @ b @ half)))))


@few(frames.SEEDS, examples=100)
def test_pairs_in_order_against_the_formula_of_any_gaussians(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, means, stds = rng.standard_normal((5, 7)), rng.standard_normal((5, 3)), rng.uniform(0.2, 2, (5, 3))
    values = deviations(d, np.concatenate([means, stds], 1))
    expected = [
        abs(np.linalg.norm(d[i] - d[j]) - transport(means[i], stds[i], means[j], stds[j]))
        for i, j in itertools.combinations(range(5), 2)
    ]
    assert values == pytest.approx(expected, abs=1e-6)
    x = np.random.default_rng(1).uniform(0, 1, (6, 8))
    assert deviations(x, x).tolist() == [0.0] * 15, "a descriptor that is the Gaussian deviates nowhere"


def test_pairs_of_what_is_not_snapshots() -> None:
    refused("a pair needs two snapshots, and there are 1", deviations, np.zeros((1, 3)), np.zeros((1, 4)))
    refused("snapshots need descriptors", deviations, np.zeros((2, 3)), np.zeros((3, 4)))
    refused("its model has diverged", deviations, np.full((2, 3), np.nan), np.zeros((2, 4)))
    refused("its model has diverged", deviations, np.zeros((2, 3)), np.full((2, 4), np.inf))
