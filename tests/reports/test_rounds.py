"""Which rounds count: the last, the best by validation accuracy, the mean over the last ones; in `compare`, in a table
of one's own, and refused where only test images could choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from fedbench.engine import grid as grids
from fedbench.errors import FedbenchError
from fedbench.planner.rounds import Rounds
from fedbench.planner.runs import select
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.layout.grid import Entry
from fedbench.results.frame import Frame
from fedbench.specs import Setting
from tests.reports.conftest import DIR, Lab, written
from tests.support.frames import refused

#: Rounds of a run, the accuracies of its two clients after each, and its validation accuracy.
ACCURACIES = {1: (0.1, 0.3), 2: (0.6, 0.8), 3: (0.7, 0.9), 4: (0.5, 0.5)}
VALIDATION = {1: 0.2, 2: 0.9, 3: 0.9, 4: 0.4}


def setting(lab: Lab, **of_partition: object) -> Setting:
    there = lab.setting("feddrm/1", DIR)
    part = replace(there.partition, clients=2, **of_partition)
    return replace(there, partition=part, rounds=4, every=1, window=1, augment="none")


def trained(lab: Lab, at: Setting, seeds: int = 1, method: str = "fedavg") -> None:
    for seed in range(seeds):
        run = lab.run(replace(at, seed=seed), method, measure=False, title="FedAvg")
        more = seed / 100
        rows = [("client_accuracy", "plain", t, c, v + more) for t, of in ACCURACIES.items() for c, v in enumerate(of)]
        rows += [("average_accuracy", "plain", t, -1, mean(of) + more) for t, of in ACCURACIES.items()]
        rows += [("validation_accuracy", "", t, -1, v) for t, v in VALIDATION.items() if at.partition.validation]
        lab.rows(run, [*rows, ("total_runtime_seconds", "", 0, -1, 9.0)])


def numbers(lab: Lab, rule: str) -> tuple[dict[str, Entry], str]:
    """Column -> entry of the only row, and what is said below."""
    (side,) = side_by_side(select(Frame(lab.store)), round=rule)
    return {h.metric: e for h, e in zip(side.heads, side.lines[0].entries, strict=True)}, " ".join(side.about)


@pytest.mark.parametrize(
    ("rule", "rounds", "says"),
    [
        ("last", [4], "After the last round, on test images"),
        ("best", [2], "After the evaluated round of the best validation accuracy, on"),  # the earliest of two
        ("mean:3", [2, 3, 4], "Mean over the last 3 rounds, on"),
        ("mean:99", [1, 2, 3, 4], "Mean over the last 4 rounds, on"),
    ],
)
def test_the_rounds_that_count_for_the_federation_and_its_clients(
    lab: Lab, rule: str, rounds: list[int], says: str
) -> None:
    trained(lab, setting(lab, validation=0.2), seeds=2)
    found, about = numbers(lab, rule)
    of_seeds = [100 * (mean(mean(ACCURACIES[t]) for t in rounds) + seed / 100) for seed in range(2)]
    average = found["average_accuracy"].value
    assert (average.mean, average.std) == pytest.approx((mean(of_seeds), stdev(of_seeds)))
    assert found["client_accuracy_std"].value.mean == pytest.approx(100 * mean(stdev(ACCURACIES[t]) for t in rounds))
    worst = mean(min(ACCURACIES[t]) for t in rounds) + 0.005
    assert found["client_accuracy_min"].value.mean == pytest.approx(100 * worst)
    assert found["total_runtime_seconds"].value.mean == 9.0, "of the whole run"
    assert says in about


def test_pairs_are_of_the_same_rounds(lab: Lab) -> None:
    at = setting(lab, validation=0.2)
    trained(lab, at)
    trained(lab, replace(at, lr=0.5), method="local")
    differences = [
        side_by_side(select(Frame(lab.store)), test=True, over="clients", round=rule)[1].lines[0].entries[0].value.mean
        for rule in ("last", "best")
    ]
    assert differences == [0.0, 0.0]
    other = lab.run(replace(at, lr=0.7), "local", measure=False)
    rows = [("client_accuracy", "plain", t, c, 0.1 * t) for t in ACCURACIES for c in (0, 1)]
    lab.rows(other, [*rows, ("validation_accuracy", "", 3, -1, 0.9), ("average_accuracy", "plain", 3, -1, 0.3)])
    filters = ["lr=0.5,0.7"]
    by_rule = {
        rule: side_by_side(select(Frame(lab.store), filters), test=True, over="clients", round=rule)[1].lines[0]
        for rule in ("last", "best")
    }
    assert {rule: line.entries[0].value.mean for rule, line in by_rule.items()} == pytest.approx(
        {"last": 100 * (0.5 - 0.4), "best": 100 * (0.7 - 0.3)}
    )


@pytest.mark.parametrize(
    ("of_partition", "changes", "rule", "says"),
    [
        ({}, {}, "best", r"run \w+ \(FedAvg\) has no validation images to choose a round by; test images must not ch"),
        ({}, {"every": 0}, "mean:3", "is evaluated after 1 of its last 3 rounds; train with --every 1"),
        ({}, {}, "mean:0", "a rule for rounds is last, best or mean:10, not 'mean:0'"),
        ({}, {}, "worst", "not 'worst'"),
    ],
)
def test_what_test_images_would_have_to_choose_is_refused(
    lab: Lab, of_partition: dict[str, object], changes: dict[str, object], rule: str, says: str
) -> None:
    trained(lab, replace(setting(lab, **of_partition), **changes))
    refused(says, numbers, lab, rule)


def test_a_run_without_the_rounds_that_count_is_left_out_and_named(lab: Lab) -> None:
    trained(lab, setting(lab, validation=0.2))
    trained(lab, setting(lab), method="local")
    trained(lab, setting(lab), method="ditto")
    (side,) = side_by_side(select(Frame(lab.store)), round="best")
    assert [line.method for line in side.lines] == ["fedavg"]
    (problem,) = side.problems
    others = [run.id for run in select(Frame(lab.store), ["method!=fedavg"])]
    assert problem.startswith("Left out: run ")
    assert all(f"run {id} (" in problem for id in others)
    assert problem.endswith("each has no validation images to choose a round by; test images must not choose.")
    refused("test images must not choose; train with", side_by_side, select(Frame(lab.store), others), round="best")


def test_a_mean_says_over_how_many_rounds_it_is(lab: Lab) -> None:
    trained(lab, setting(lab))
    longer = replace(setting(lab), rounds=9, every=1)
    run = lab.run(longer, "local", measure=False)
    lab.rows(run, [("average_accuracy", "plain", t, -1, t / 10) for t in range(1, 10)])
    _, about = side_by_side(select(Frame(lab.store)), round="mean:6")[0].about
    assert about.startswith("Mean over the last 6 rounds, of a run with fewer over all (from 4), on")


TABLE = """
title = "Mine"
protocol = "pfedfda"
metric = "average_accuracy"
statistic = "{statistic}"
seeds = [0, 1]
budget.small = {{ rounds = 4, every = 1 }}
rows = [{{ label = "FedAvg", method = "fedavg" }}]
column = [{{ label = "IID", dataset = "cifar10", partition = {{ scheme = "iid", validation = 0.2 }} }}]
"""


@pytest.mark.parametrize(("rule", "rounds"), [("last", [4]), ("best", [2]), ("mean:2", [3, 4])])
def test_a_table_of_ones_own_has_the_same_rules_and_a_sweep_saves_them(
    lab: Lab, tmp_path: Path, rule: str, rounds: list[int]
) -> None:
    table = written(tmp_path, TABLE.format(statistic=rule))
    for seed in (0, 1):
        run = lab.run(lab.cells(table, seeds=[seed]).settings["IID"][0], "fedavg", measure=False, rules="pfedfda")
        rows = [("average_accuracy", "plain", t, -1, mean(of) + seed / 100) for t, of in ACCURACIES.items()]
        lab.rows(run, [*rows, *(("validation_accuracy", "", t, -1, v) for t, v in VALIDATION.items())])
    grid = lab.grid(table)
    value = grid.lines[0].entries[0].value
    expected = [mean(mean(ACCURACIES[t]) for t in rounds) + seed / 100 for seed in (0, 1)]
    assert (value.mean, value.std) == pytest.approx((mean(expected), stdev(expected)))
    said = {"last": "Value after the last round"}.get(rule) or Rounds.of(rule).words([setting(lab)])
    assert any(line.startswith(f"{said}; ± is the standard deviation (ddof 1) over seeds") for line in grid.about)
    specs = [run.spec for run in select(Frame(lab.store))]
    runs = [grids.Wanted(spec, "fedavg") for spec in specs]
    scored = grids.score(grids.GridPoint("fedavg", {}, {}, {}, runs), lab.store, Rounds.of(rule))
    assert scored is not None
    assert scored.mean == pytest.approx(mean(VALIDATION[t] for t in rounds))


def test_a_table_says_what_is_wrong_with_a_rule(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"mine.toml, statistic: a rule for rounds is .* not 'mean:x'"):
        written(tmp_path, TABLE.format(statistic="mean:x"))
