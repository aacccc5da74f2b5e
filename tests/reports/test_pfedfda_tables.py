"""pFedFDA's tables: what they ask for, and what of the paper's numbers stands beside them."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedbench import declared, protocol
from fedbench.partitions.transforms import CORRUPTIONS
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.facts import departures
from fedbench.reports.render import FORMATS, render
from fedbench.reports.status.settings import sketch
from fedbench.reports.table.client_mean import with_client_mean
from fedbench.resources import TABLES
from tests.support.latex import compiled, fits

ALL = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "1_code", "figure4"]
LOST = ("4", "5", "9", "figure4")
TWELVE = [
    "local", "fedavg", "fedavgft", "apfl", "ditto", "fedbabu", "fedpac", "fedrep", "fedrod", "lg_fedavg", "pfedme",
    "pfedfda",
]  # fmt: skip


def settings(name: str, budget: str = "paper") -> dict[str, Any]:
    """Column -> its setting."""
    table = tables.load(f"pfedfda/{name}")
    return {c.key: sketch(table, c, budget) for c in table.measured}


def test_all_numbers_that_survive_are_there() -> None:
    assert [n.partition("/")[2] for n in tables.names() if n.startswith("pfedfda/")] == ALL
    with (TABLES / "pfedfda" / "reported.csv").open(newline="", encoding="utf-8") as f:
        counts = Counter(line["table"] for line in csv.DictReader(f))
    assert counts == {"1": 96, "1_code": 10, "2": 84, "3": 32, "6": 14, "7": 49, "8": 16}
    for name in ALL:
        table = tables.load(f"pfedfda/{name}")
        assert len(table.reported) == counts[name]
        assert len(table.trusted) == (8 if name == "3" else counts[name])
        assert bool(table.reported) == (name not in LOST)


@pytest.mark.parametrize("name", LOST)
def test_a_lost_table_says_so_and_claims_nothing_of_it(name: str) -> None:
    table = tables.load(f"pfedfda/{name}")
    assert any("not survive" in note for note in table.notes)
    assert {claim.reported for claim in table.claim} == {None}


def test_table_1_shifts_and_subsamples() -> None:
    table, found = tables.load("pfedfda/1"), settings("1")
    assert [row.method for row in table.rows] == TWELVE
    assert [row.method for row in tables.load("pfedfda/2").rows] == TWELVE
    kept = {key: s.partition.subsample for key, s in found.items()}
    assert kept == {
        f"{data}/{share} %": None if share == 100 else share / 100
        for data in ("CIFAR10-S", "CIFAR100-S")
        for share in (100, 75, 50, 25)
    }
    for setting in found.values():
        part = setting.partition
        assert (part.scheme, part.options.get("alpha"), part.shift, part.clients) == (
            "dirichlet",
            0.5,
            "corrupted",
            100,
        )
        assert (setting.rounds, setting.participation, setting.full_last_round) == (200, 0.3, True)
    small = {key: s.rounds for key, s in settings("1", "small").items()}
    longer = {key for key, rounds in small.items() if rounds > min(small.values())}
    assert longer == {"CIFAR10-S/25 %", "CIFAR100-S/25 %"}
    assert table.reported["pFedFDA", "CIFAR10-S/25 %"] == (0.595, 0.12)


def test_the_sensitivity_check_differs_in_the_rule_alone() -> None:
    table, found, usual = tables.load("pfedfda/1_code"), settings("1_code"), settings("1")
    for key, setting in found.items():
        part, other = setting.partition.to_dict(), usual[key].partition.to_dict()
        assert (part.pop("shift"), other.pop("shift")) == ("corrupted_code", "corrupted")
        assert part == other
    whole = tables.load("pfedfda/1").reported
    assert table.reported == {place: whole[place] for place in table.reported}


def test_table_2_writers_and_who_stands_in_for_them() -> None:
    writers = settings("2")["EMNIST/Writers"]
    assert (writers.partition.scheme, writers.partition.options.get("by"), writers.partition.clients) == (
        "natural",
        "writer",
        1000,
    )
    assert (writers.model, writers.participation, writers.batch_size) == ("emnist_cnn", 0.03, 16)
    other = tables.load("pfedfda/2").for_dataset("mnist_writers")
    assert [c.label for c in other.columns] == ["Writers"]
    stands_in = sketch(other, other.columns[0], "paper")
    assert (stands_in.partition.scheme, stands_in.partition.clients) == ("natural", 836)
    assert (stands_in.model, stands_in.participation) == ("emnist_cnn", 0.03)
    assert "in place of femnist" in other.title
    assert [c.label for c in tables.load("pfedfda/2").for_dataset("mnist").columns] == ["Dir(0.1)", "Dir(0.5)"]


def test_table_3_gives_a_client_one_batch() -> None:
    table = tables.load("pfedfda/3")
    for key, setting in settings("3").items():
        part = setting.partition
        assert (part.scheme, part.options.get("size"), part.options.get("min_size")) == ("limited", 63, None)
        assert key.startswith(f"Dir({part.options.get('alpha')})/")
        assert int(part.options.get("size") * part.train_fraction) == setting.batch_size == 50
    assert [c.key for c in table.columns if not c.doubtful] == ["Dir(0.1)/CIFAR10"], "the code's default alpha"
    for alpha in (0.1, 0.5):
        assert table.reported["pFedFDA", f"Dir({alpha})/CIFAR10"] == (0.725, 0.16)


def test_table_4_reads_every_client_once_from_one_run() -> None:
    table, found = tables.load("pfedfda/4"), settings("4")
    part = found["Original"].partition
    assert len({s.id for s in found.values()}) == 1
    assert (part.clients, part.unseen, part.all_clients) == (100, 50, 600)
    assert part.unseen_as == tuple(f"{name}-3" for name in CORRUPTIONS)
    spans = [c.clients for c in table.columns]
    assert spans == [[1 + 50 * k, 50 + 50 * k] for k in range(12)]
    for column, corruption in zip(table.columns[2:], CORRUPTIONS, strict=True):
        assert corruption.startswith(column.label.lower())
    assert {(r.method, r.params.get("newcomers")) for r in table.rows} == {
        ("fedavgft", None), ("fedbabu", "head"), ("fedbabu", "all"), ("fedpac", "head"), ("fedpac", "all"),
        ("pfedfda", None),
    }  # fmt: skip


def test_table_5_measures_accuracy_and_time_in_the_same_runs() -> None:
    table, found = tables.load("pfedfda/5"), settings("5")
    assert [r.params["betas"] for r in table.rows] == [0, 1, 2]
    for label in ("CIFAR100", "CIFAR100 25 %", "CIFAR100-S"):
        assert found[f"Accuracy/{label}"] == found[f"Local training/{label}"]
    assert {(s.executor, s.partition.options.get("alpha")) for s in found.values()} == {("sequential", 0.1)}
    assert len({s.id for s in found.values()}) == 3
    (overhead,) = [c for c in table.columns if c.of]
    assert (overhead.of, overhead.relative_to) == ([f"Local training/{k}" for k in
        ("CIFAR100", "CIFAR100 25 %", "CIFAR100-S")], "NB")  # fmt: skip


def test_table_6_has_the_papers_way_and_ours() -> None:
    found, other = settings("6"), settings("2")
    assert {key: s.executor for key, s in found.items()} == {
        "One after another/Local training": "sequential", "One after another/Total runtime": "sequential",
        "fedbench/Local training": None, "fedbench/Total runtime": None,
    }  # fmt: skip
    assert found["fedbench/Local training"] == other["CIFAR10/Dir(0.5)"], "our times cost no run of their own"
    assert {key.partition("/")[0] for _, key in tables.load("pfedfda/6").reported} == {"One after another"}


def test_table_7_prints_the_papers_gains_and_flags_the_wrong_ones() -> None:
    table = tables.load("pfedfda/7")
    wrong = set()
    for (row, key), (gain, _) in table.reported.items():
        column = next(c for c in table.columns if c.key == key)
        if column.of:
            gains = [table.reported[row, k][0] - table.reported["Local", k][0] for k in column.of]
            if abs(gain - sum(gains) / len(gains)) > 0.0051:
                wrong.add((row, column.label))
    assert wrong == {("FedAvg", "100 %"), ("FedAvg", "Mean"), ("pFedFDA", "Mean")}
    assert sum(1 for place in table.reported if place[1].startswith("Gain")) == 25


def test_table_7_deals_each_domain_to_four_clients() -> None:
    table = tables.load("pfedfda/7")
    for setting in settings("7").values():
        part = setting.partition
        assert (part.options.get("within"), part.clients, part.options.get("cap"), part.options.get("alpha")) == (
            "domain",
            20,
            9298,
            0.5,
        )
        assert setting.participation == 1.0
    three = table.for_dataset("digit3")
    assert sketch(three, three.measured[0], "small").partition.clients == 12
    assert [len(c.of) for c in three.columns] == [0, 0, 0, 0, 1, 1, 1, 1, 4]
    assert three.columns[-1].of == [f"digit3/{share} %" for share in (25, 50, 75, 100)]


def test_table_9_and_figure_4() -> None:
    nine = tables.load("pfedfda/9")
    assert {c.statistic for c in nine.columns} == {"rounds"}
    assert {s.executor for s in settings("9").values()} == {"sequential"}
    four = {key: (s.epochs, s.partition.subsample, s.partition.shift) for key, s in settings("figure4").items()}
    assert four == {
        f"{group}/E = {e}": (e, share, shift)
        for group, share, shift in (("CIFAR100", None, "none"), ("CIFAR100-S 25 %", 0.25, "corrupted"))
        for e in (1, 2, 5, 10, 20)
    }


def test_what_differs_from_the_paper_for_all_methods_is_said() -> None:
    assert len(protocol.load("pfedfda").deviates) == 5


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("6", "8", "9")])
def test_every_mean_over_clients_is_weighted_as_the_code_prints_it(name: str) -> None:
    """And the unweighted one can be had of every table, which says how."""
    table = tables.load(f"pfedfda/{name}")
    assert with_client_mean(table, "weighted").columns == table.columns
    for mean in ("weighted", "unweighted"):
        said = departures(with_client_mean(table, mean), "small")
        assert len([line for line in said if "--client-mean unweighted" in line]) == 1


def test_apfl_is_scored_as_the_other_personal_models_are() -> None:
    for budget in protocol.load("pfedfda").budgets:
        assert protocol.load("pfedfda").method_params("apfl", budget)["score"] == "after_local"
    for method in ("fedrep", "fedpac", "lg_fedavg", "fedrod"):
        assert declared.of(method).defaults["score"] == "after_local"
    assert declared.of("apfl").defaults["score"] == "after_aggregate"


def test_one_batch_a_client_affords_the_papers_rounds() -> None:
    paper, small = settings("3"), settings("3", "small")
    assert all(small[key].rounds == paper[key].rounds == 200 for key in paper)
    assert {s.partition.options.get("size") for s in small.values()} == {63}, "five steps a round and client"


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("3", "8")])
def test_small_budgets_are_small(name: str) -> None:
    """No small run makes more than a quarter of the paper's rounds."""
    paper, small = settings(name), settings(name, "small")
    assert all(4 * small[key].rounds <= paper[key].rounds for key in paper)


@pytest.mark.parametrize("name", ALL)
def test_a_table_prints_before_anything_is_trained(lab: Any, name: str) -> None:
    table = tables.load(f"pfedfda/{name}")
    grid = build(table, "small", lab.store, [], compare=True)
    assert sum(grid.counts.values()) == len(table.rows) * len(table.measured)
    for form in FORMATS:
        assert " ".join(table.title.split()[:3]) in render([grid], form) or form == "csv"


def test_latex_of_all_of_them_compiles_and_fits_the_page(lab: Any, tmp_path: Path) -> None:
    setting = lab.setting("pfedfda/4", "Original")
    lab.run(setting, "pfedfda", clients=dict.fromkeys(range(600), 0.5), views=("plain",), rules="pfedfda")
    grids = [build(tables.load(f"pfedfda/{name}"), "small", lab.store, [], compare=True) for name in ALL]
    assert [e.text for e in grids[3].lines[-1].entries] == ["0.500"] * 12
    assert fits(compiled(tmp_path, render(grids, "latex", standalone=True)))
