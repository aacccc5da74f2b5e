"""The numbers in a printed table: statistics, ranks, ratios, differences, and what is said below."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench.errors import FedbenchError
from fedbench.metrics.read import writing
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Entry, Grid
from fedbench.reports.status.index import State
from fedbench.reports.table.claims import SO_FAR
from fedbench.reports.table.client_mean import MEANS, with_client_mean
from fedbench.specs import MetricsSpec, RunSpec

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


def grid(lab: Any, name: str = "feddrm/1", budget: str = "small", **options: Any) -> Grid:
    return build(tables.load(name), budget, lab.store, [], **options)


def entry(grid: Grid, row: str, column: str, kind: str = "paper") -> Entry:
    line = next(line for line in grid.lines if (line.label, line.kind) == (row, kind))
    keys = [f"{h.group}/{h.label}" if h.group else h.label for h in grid.heads]
    return line.entries[keys.index(column)]


def test_mean_and_std_of_the_last_rounds(lab: Any) -> None:
    by_round = {t: 0.4 + 0.01 * (t % 7) for t in range(1, 401)}
    lab.run(
        lab.setting("feddrm/1", DIR),
        "feddrm",
        metrics={"system_accuracy": by_round.get, "average_accuracy": by_round.get},
    )
    last = [100 * by_round[t] for t in range(396, 401)]  # window 5; round 300 is evaluated too but does not count
    found = entry(grid(lab), "FedDRM", DIR)
    assert found.value is not None
    assert found.value.mean == pytest.approx(statistics.mean(last))
    assert found.value.std == pytest.approx(statistics.pstdev(last))
    assert (found.text, found.spread) == (f"{statistics.mean(last):.2f}", f"{statistics.pstdev(last):.2f}")
    assert found.value.count == 5


def test_a_missing_round_of_the_window_is_no_number(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    run = lab.run(setting, "feddrm", measure=False)
    rows = [t for t in setting.evaluated_rounds() if t != 398]
    n = len(rows)
    table = pa.table(
        {
            "metric": pa.array(["system_accuracy"] * n).dictionary_encode(),
            "view": pa.array(["crop"] * n).dictionary_encode(),
            "round": pa.array(rows, pa.int32()),
            "client": pa.array([-1] * n, pa.int32()),
            "value": pa.array([0.5] * n),
        }
    )
    with writing(run, lab.store) as writer:
        writer.table("metrics", table)
    printed = grid(lab)
    assert entry(printed, "FedDRM", DIR).state is State.DAMAGED
    assert "last 5 rounds" in printed.problems[0]


def test_mean_and_std_across_clients(lab: Any) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    accuracies = {0: 0.2, 1: 0.4, 2: 0.9}
    lab.run(setting, "pfedfda", clients=accuracies, images={1: 2, 2: 3}, views=("plain",), rules="pfedfda")
    found = entry(grid(lab, "pfedfda/2"), "pFedFDA", "CIFAR10/Dir(0.5)")
    assert found.value is not None
    weighted = (0.2 * 1 + 0.4 * 2 + 0.9 * 3) / 6
    assert (found.text, found.spread) == (f"{weighted:.3f}", f"{statistics.stdev(accuracies.values()):.2f}")
    assert (found.value.mean, found.value.weighted, found.value.count) == (*[pytest.approx(weighted)] * 2, 3)
    assert found.value.unweighted == pytest.approx(0.5)


def test_the_other_mean_over_clients_can_be_asked_for(lab: Any) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    run = lab.run(setting, "pfedfda", clients={0: 0.2, 1: 0.8}, images={1: 3}, views=("plain",), rules="pfedfda")
    texts = {}
    for mean in MEANS:
        table = with_client_mean(tables.load("pfedfda/2"), mean)
        printed = build(table, "small", lab.store, [], compare=True)
        found = entry(printed, "pFedFDA", "CIFAR10/Dir(0.5)")
        assert (found.runs, found.reported) == ((run.id,), (0.763, 0.07)), "the same run, the same claims of the paper"
        assert found.spread == f"{statistics.stdev([0.2, 0.8]):.2f}", "of either"
        assert [verdict.claim.text for verdict, _ in printed.verdicts] == [c.text for c in table.claim]
        assert ("weighted by their test images" in " ".join(printed.about)) is (mean == "weighted")
        assert "--client-mean unweighted" in " ".join(printed.notes)
        texts[mean] = found.text
    assert texts == {"unweighted": "0.500", "weighted": "0.650"}


def test_a_metric_of_the_federation_has_the_other_mean_too() -> None:
    seven = tables.load("pfedfda/7")
    assert {c.metric for c in seven.measured} == {"client_accuracy_weighted"}
    assert {c.metric for c in with_client_mean(seven, "unweighted").measured} == {"client_accuracy_mean"}
    assert with_client_mean(seven, "weighted").columns == seven.columns


@pytest.mark.parametrize(
    ("name", "mean", "message"),
    [
        ("pfedfda/2", "weigted", "unknown mean over clients 'weigted'; did you mean 'weighted'"),
        ("feddrm/1", "weighted", "no other mean over clients for table feddrm/1: it has none; leave --client-mean out"),
        ("flux/6", "weighted", "no other mean over clients for table flux/6: ATP has another metric in its place"),
    ],
)
def test_no_other_mean_over_clients(name: str, mean: str, message: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        with_client_mean(tables.load(name), mean)
    assert message in str(caught.value)


def test_clients_without_known_test_images_have_no_weighted_mean(lab: Any) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    run = lab.run(setting, "pfedfda", rules="pfedfda", measure=False)
    names, n = ["client_accuracy"] * 2 + ["test_images"], 3
    table = pa.table(
        {
            "metric": pa.array(names).dictionary_encode(),
            "view": pa.array(["plain", "plain", ""]).dictionary_encode(),
            "round": pa.array([setting.rounds, setting.rounds, 0], pa.int32()),
            "client": pa.array([0, 1, 0], pa.int32()),
            "value": pa.array([0.5] * n),
        }
    )
    with writing(run, lab.store) as writer:
        writer.table("metrics", table)
    printed = grid(lab, "pfedfda/2")
    assert entry(printed, "pFedFDA", "CIFAR10/Dir(0.5)").state is State.DAMAGED
    assert "lack the test images of the clients that have client_accuracy" in printed.problems[0]
    plain = build(with_client_mean(tables.load("pfedfda/2"), "unweighted"), "small", lab.store, [])
    found = entry(plain, "pFedFDA", "CIFAR10/Dir(0.5)").value
    assert found is not None
    assert (found.mean, found.weighted, found.unweighted) == (0.5, None, 0.5)


def test_views_are_kept_apart(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    run = lab.run(setting, "feddrm", measure=False)
    rounds = setting.evaluated_rounds()
    n = len(rounds)
    table = pa.table(
        {
            "metric": pa.array(["system_accuracy"] * 2 * n).dictionary_encode(),
            "view": pa.array(["crop"] * n + ["plain"] * n).dictionary_encode(),
            "round": pa.array(rounds * 2, pa.int32()),
            "client": pa.array([-1] * 2 * n, pa.int32()),
            "value": pa.array([0.5] * n + [0.6] * n),
        }
    )
    with writing(run, lab.store) as writer:
        writer.table("metrics", table)
    assert entry(grid(lab), "FedDRM", DIR).text == "50.00"
    plain = grid(lab, view="plain")
    assert entry(plain, "FedDRM", DIR).text == "60.00"
    assert any("untouched" in line and "cropped" not in line for line in plain.about)


def test_beside_crops_plain_images_are_asked_once(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    run = lab.run(setting, "feddrm", measure=False)
    rounds = [*setting.evaluated_rounds(), setting.rounds]
    n = len(rounds)
    table = pa.table(
        {
            "metric": pa.array(["system_accuracy"] * n).dictionary_encode(),
            "view": pa.array(["crop"] * (n - 1) + ["plain"]).dictionary_encode(),
            "round": pa.array(rounds, pa.int32()),
            "client": pa.array([-1] * n, pa.int32()),
            "value": pa.array([0.5] * (n - 1) + [0.6]),
        }
    )
    with writing(run, lab.store) as writer:
        writer.table("metrics", table)
    plain = grid(lab, view="plain")
    found = entry(plain, "FedDRM", DIR)
    assert (found.text, found.spread, found.state) == ("60.00", "", State.DONE)
    assert any("after the last round only" in line for line in plain.about)
    cropped = grid(lab)
    assert entry(cropped, "FedDRM", DIR).spread == "0.00"
    assert not any("after the last round only" in line for line in cropped.about)


def test_a_run_without_crops_has_only_plain_images(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.25, views=("plain",))
    printed = grid(lab)
    assert entry(printed, "FedDRM", DIR).text == "25.00"
    assert any("test images are untouched" in line for line in printed.about)


def test_several_seeds(lab: Any) -> None:
    for seed, value in ((1, 0.4), (2, 0.5)):
        setting = build_setting(lab, seed)
        lab.run(setting, "feddrm", value=value)
    found = entry(grid(lab, seeds=[1, 2]), "FedDRM", DIR)
    assert found.value is not None
    assert (found.text, found.value.seeds, len(found.runs)) == ("45.00", 2, 2)
    assert found.value.seed_std == pytest.approx(statistics.stdev([40, 50]))
    half = grid(lab, seeds=[1, 3])
    assert entry(half, "FedDRM", DIR).text == "40.00"  # what is there, and it counts as missing
    assert entry(half, "FedDRM", DIR).state is State.MISSING
    assert any("2 seeds: 1, 3" in line for line in half.about)


def build_setting(lab: Any, seed: int) -> Any:
    from fedbench.reports.status.cells import find

    return find(tables.load("feddrm/1"), "small", lab.store, [], seeds=[seed]).settings[DIR][0]


def test_best_and_second_as_printed(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", value=0.50001)
    lab.run(setting, "fedavgft", value=0.5)  # 50.00 both in print
    lab.run(setting, "pfedfda", value=0.4)
    lab.run(setting, "local", value=0.3)
    printed = grid(lab, extra=True)
    ranks = [entry(printed, "FedDRM", DIR).rank, entry(printed, "FedAvgFT", DIR).rank]
    assert ranks == [1, 1]
    assert (entry(printed, "pFedFDA", DIR, "extra").rank, entry(printed, "Local", DIR, "added").rank) == (2, 0)


def test_the_fastest_is_best_and_ratios_are_to_fedavg(lab: Any) -> None:
    setting = lab.setting("pfedfda/6", "One after another/Local training")
    for method, seconds in (("fedavg", 2.0), ("pfedfda", 3.0)):
        whole = {"local_training_seconds": seconds, "total_runtime_seconds": 60 * seconds}
        lab.run(setting, method, whole=whole, rules="pfedfda")
    printed = grid(lab, "pfedfda/6", compare=True)
    fast, slow = (entry(printed, row, "One after another/Local training") for row in ("FedAvg", "pFedFDA"))
    assert (fast.text, fast.ratio, fast.rank) == ("2.00", "1.00×", 1)
    assert (slow.text, slow.ratio, slow.rank) == ("3.00", "1.50×", 2)
    assert entry(printed, "pFedFDA", "One after another/Total runtime").text == "3.00"  # minutes
    assert slow.difference == pytest.approx(1.5 - 22.58 / 18.42)
    assert slow.within is False
    assert slow.delta == "+0.27×*"
    assert [ours.state for ours, _ in printed.verdicts] == ["holds", "fails", "not measured"]
    assert any("measured on cpu" in line for line in printed.about)


def test_the_counted_table_equals_the_paper_digit_for_digit(lab: Any) -> None:
    printed = grid(lab, "pfedfda/8", compare=True)
    for line in printed.lines:
        for found in line.entries:
            assert found.value is not None
    for ours, theirs in zip(printed.lines[::2], printed.lines[1::2], strict=True):
        assert (ours.kind, theirs.kind) == ("paper", "reported")
        assert [e.text for e in ours.entries] == [e.text for e in theirs.entries]
    texts = [[e.text for e in line.entries] for line in printed.lines[::2]]
    assert texts[0] == ["115,776", "7,998", "16,192", "6.620"]
    assert texts[3] == ["927,008", "1,615,848", "1,548,800", "−2.637"]
    assert (printed.counts, printed.budget) == ({"done": 16}, "")


def test_compare_says_how_far_off(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.63)
    lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.4)
    printed = grid(lab, compare=True)
    near, far = entry(printed, "FedDRM", DIR), entry(printed, "FedDRM", SPC)
    assert near.difference == pytest.approx(63 - 63.85)
    assert (near.within, near.delta) == (True, "−0.85")
    assert (far.within, far.delta) == (False, "−18.50*")
    position = [line.label for line in printed.lines].index("FedDRM") + 1
    below = printed.lines[position]
    assert (below.kind, below.entries[0].text, below.entries[0].delta) == ("reported", "63.85", "−0.85")
    assert any(line.startswith("Cost: 2 min of training in 2 runs") for line in printed.notes)
    assert grid(lab).verdicts == ()


def test_claims_on_our_numbers_and_on_the_papers(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", value=0.6)
    lab.run(setting, "fedavgft", value=0.5)
    ours, theirs = grid(lab, compare=True).verdicts[0]
    assert (ours.state, ours.made, ours.asked) == (SO_FAR, 1, 6)
    assert theirs.state == "holds"


def test_what_is_missing_and_how_to_fill_it(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    lines = grid(lab).about
    assert any(line.startswith("1 of 78 cells") and "missing" in line and "not built" in line for line in lines)
    assert grid(lab).command == "fedbench train --table feddrm/1 --budget small"
    assert any("No images of cifar20, cifar100 are at hand" in line for line in lines)
    assert any("Budget small, not the paper's: 400 rounds of 10 steps, cifar_cnn_projection" in line for line in lines)
    assert any("Budget paper: 800 rounds" in line for line in grid(lab).notes)
    assert grid(lab, seeds=[3]).command == "fedbench train --table feddrm/1 --budget small --seed 3"


def test_another_data_sets_command_names_it(lab: Any) -> None:
    table = tables.load("feddrm/1").for_dataset("digits")
    command = build(table, "small", lab.store, []).command
    assert command == "fedbench train --table feddrm/1 --budget small --dataset digits"


def test_a_methods_deviations_have_one_letter(lab: Any) -> None:
    for column in (DIR, SPC):
        lab.run(lab.setting("feddrm/1", column), "feddrm", deviations=["first", "second"])
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", deviations=["second", "third"])
    printed = grid(lab, extra=True)
    assert printed.footnotes == (("a", "first"), ("a,b", "second"), ("b", "third"))
    marks = {line.label: line.mark for line in printed.lines}
    assert (marks["FedDRM"], marks["pFedFDA"], marks["Ditto"]) == ("a", "b", "")


def test_a_stale_run_is_marked(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", version=99)
    printed = grid(lab)
    assert entry(printed, "FedDRM", DIR).mark == "†"
    assert any("1 stale" in line for line in printed.about)


def test_an_unevaluated_run_is_evaluated(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    spec = RunSpec(setting, "feddrm", {"lambda": 0.8})
    clients, rounds = setting.partition.clients, setting.evaluated_rounds()
    n = len(rounds) * clients
    owner = np.tile(np.arange(clients), len(rounds))
    label = np.ones(n, int)
    own = np.where(owner < 6, 1, 0)  # six of eight clients answer rightly
    votes = np.tile(np.array([1, 1, 1, 0, 0, 0, 0, 0]), (n, 1))  # the majority is wrong, always
    predictions = pa.table(
        {
            "round": pa.array(np.repeat(rounds, clients), pa.int16()),
            "view": pa.array(["crop"] * n).dictionary_encode(),
            "client": pa.array(owner, pa.int32()),
            "sample": pa.array(np.arange(n), pa.int32()),
            "label": pa.array(label, pa.uint16()),
            "own": pa.array(own, pa.uint16()),
            "votes": pa.FixedSizeListArray.from_arrays(pa.array(votes.ravel(), pa.uint16()), clients),
        }
    )
    every = np.arange(1, setting.rounds + 1)
    seconds = np.ones(len(every))
    whole = dict.fromkeys(("participants", "images", "bytes_up", "bytes_down"), every)
    part = ("loss", "lr", "local_seconds", "server_seconds", "evaluation_seconds", "total_seconds")
    with lab.store.writing(spec) as writer:
        writer.table("predictions", predictions)
        writer.table("rounds", pa.table({"round": every, **whole, **dict.fromkeys(part, seconds)}))
        ones = np.ones(clients, int)
        writer.table("clients", pa.table({"client": np.arange(clients), "n_train": ones, "n_test": ones}))
        writer.provenance = {"overrides": {}}
    assert entry(grid(lab, "feddrm/1"), "FedDRM", DIR).text == "0.00"
    assert lab.store.has(MetricsSpec(spec))
    again = grid(lab, "feddrm/2")
    assert (entry(again, "FedDRM", DIR).text, again.counts["done"]) == ("75.00", 1)


def test_a_damaged_run_is_named_and_spoils_nothing_else(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", measure=False)  # has no predictions to evaluate
    run = lab.run(setting, "fedavgft")
    metrics = lab.store.get(MetricsSpec(run.spec))
    path = metrics.path / "metrics.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    lab.run(setting, "pfedfda", value=0.3)
    printed = grid(lab, extra=True)
    assert entry(printed, "FedDRM", DIR).state is State.UNEVALUATED
    assert entry(printed, "FedAvgFT", DIR).state is State.DAMAGED
    assert entry(printed, "pFedFDA", DIR, "extra").text == "30.00"
    assert any("has no file clients.parquet" in text for text in printed.problems)
    assert any("truncated" in text for text in printed.problems)


def test_an_unknown_budget_is_an_error(lab: Any) -> None:
    with pytest.raises(FedbenchError, match="unknown budget 'smal'; did you mean 'small'"):
        grid(lab, budget="smal")


def test_nothing_is_not_a_number(lab: Any) -> None:
    for line in grid(lab).lines:
        for found in line.entries:
            assert found.text == ""
            assert found.value is None or not math.isnan(found.value.mean)
