"""Runs found by filters, what they differ in, and which are seeds of one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.groups import grouped
from fedbench.reports.runs import by_seed, differing, label, select
from fedbench.results.shelf import Shelf
from fedbench.store import Store
from tests.reports.conftest import Lab
from tests.support.cli_user import good


@pytest.fixture
def ids(lab: Lab) -> dict[str, str]:
    """Six runs on one partition: their names -> ids."""
    lab.dataset("digits")
    setting = replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), lr=0.1)
    other = replace(setting, lr=0.01)
    runs = {
        "fedavg": lab.run(setting, "fedavg"),
        "fedavg seed 1": lab.run(replace(setting, seed=1), "fedavg"),
        "ditto": lab.run(setting, "ditto", {"mu": 0.1}),
        "ditto mu": lab.run(setting, "ditto", {"mu": 0.5}),
        "ditto lr": lab.run(other, "ditto", {"mu": 0.5}),
        "feddrm": lab.run(setting, "feddrm"),
    }
    return {name: run.id for name, run in runs.items()}


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ([], ["fedavg", "fedavg seed 1", "ditto", "ditto mu", "ditto lr", "feddrm"]),
        (["method=fedavg"], ["fedavg", "fedavg seed 1"]),
        (["method=fed*"], ["fedavg", "fedavg seed 1", "feddrm"]),
        (["method!=fed*"], ["ditto", "ditto mu", "ditto lr"]),
        (["lr=0.10,5", "method=ditto,feddrm"], ["ditto", "ditto mu", "feddrm"]),
        (["mu=.5"], ["ditto mu", "ditto lr"]),
        (["mu=none"], ["fedavg", "fedavg seed 1", "feddrm"]),
        (["--mu=0.1"], ["ditto"]),
        (["split=Dir-0.3", "votes=TRUE", "seed!=1", "title=FedAvg"], ["fedavg"]),
    ],
)
def test_filters(lab: Lab, ids: dict[str, str], filters: Sequence[str], names: list[str]) -> None:
    assert {run.id for run in select(lab.store, filters)} == {ids[name] for name in names}


def test_ids_name_runs_and_filters_choose_among_them(lab: Lab, ids: dict[str, str]) -> None:
    two = [ids["ditto"][:8], ids["fedavg"]]
    assert [run.id for run in select(lab.store, two)] == [ids["ditto"], ids["fedavg"]]
    assert [run.id for run in select(lab.store, [*two, "method=fedavg"])] == [ids["fedavg"]]


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
        ("method=fedavgg", "no run is method=fedavgg; there are method: ditto, fedavg, feddrm"),
        ("zzz", "no run 'zzz' in"),
    ],
)
def test_what_names_no_run_is_one_line(lab: Lab, ids: dict[str, str], word: str, text: str) -> None:
    with pytest.raises(FedbenchError) as error:
        select(lab.store, [word])
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_store(lab: Lab) -> None:
    with pytest.raises(FedbenchError, match="there is no run in"):
        select(lab.store)


def test_differing_keys_are_those_that_a_reader_needs(lab: Lab, ids: dict[str, str]) -> None:
    runs = select(lab.store)
    assert differing(runs) == ["method", "lr", "seed", "mu"]  # FedDRM's λ differs from nothing
    assert differing(select(lab.store, ["method=fedavg"])) == ["seed"]
    assert differing(select(lab.store, ["method=ditto,feddrm", "lr=0.1"])) == ["method", "mu"]
    assert differing(runs[:1]) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"content": "other files"}, "dataset_id"),
        ({"source": "elsewhere", "content": "other files"}, "source"),
        ({"version": 9}, "dataset_id"),
        ({"rounds": 7}, "rounds"),
        ({"partition_version": 9}, "partition_version"),
    ],
)
def test_no_two_rows_look_the_same(lab: Lab, change: dict[str, Any], key: str) -> None:
    """Two data sets of one name, say: whatever their ids differ in is shown, in every list of runs."""
    lab.dataset("digits")
    usual = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    part = usual.partition
    if key == "rounds":
        other = replace(usual, **change)
    elif key == "partition_version":
        other = replace(usual, partition=replace(part, version=9))
    else:
        other = replace(usual, partition=replace(part, dataset=replace(part.dataset, **change)))
    for setting in (usual, other):
        lab.run(setting, "fedavg")
    runs = select(lab.store)
    assert differing(runs) == [key]
    (table,) = side_by_side(runs, ["average_accuracy"])
    assert [table.keys, len({line.keys for line in table.lines})] == [(key,), 2]
    assert len({line.label for line in table.lines}) == 2
    panels = grouped(runs)
    assert len({(panel.title, name) for panel in panels for name in panel.lines}) == 2
    listed = good("--home", lab.store.home, "list", "run").out
    rows = [line.split(None, 1)[1] for line in listed.splitlines()[1:]]
    assert len(set(rows)) == 2, listed


@pytest.mark.shipped
def test_the_rows_of_a_table_are_called_as_it_calls_them(store: Store) -> None:
    """FedDRM's FedPAC is FedRep with a proximal term, and its FedProxFT our FedProx."""
    shelf, words = Shelf.of(store), ["table=feddrm/1", "dataset=cifar10", "split=Dir-0.3", "budget=small"]
    (table,) = side_by_side(select(store, words, shelf))
    assert table.keys == ("row",)
    assert [line.label for line in table.lines] == [
        "ConFREE", "Ditto", "FedALA", "FedAS", "FedAvg", "FedAvgFT", "FedBABU", "FedDRM", "FedPAC", "FedProxFT",
        "FedRep", "FedSAMFT", "Local",
    ]  # fmt: skip
    values = {line.label: line.entries[0].text for line in table.lines}
    assert values["FedPAC"] != values["FedRep"]


def test_labels(lab: Lab, ids: dict[str, str]) -> None:
    runs = {run.id: run for run in select(lab.store)}
    keys = differing(list(runs.values()))
    assert label(runs[ids["ditto lr"]], keys) == "ditto, lr 0.01, seed 2025, mu 0.5"  # not built in this lab
    assert label(runs[ids["feddrm"]], keys) == "FedDRM, lr 0.1, seed 2025"
    assert label(runs[ids["fedavg"]], []) == "FedAvg"


@pytest.mark.parametrize("column", ["CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"])
def test_a_methods_alpha_is_never_the_partitions(lab: Lab, column: str) -> None:
    lab.dataset("digits")
    lab.run(lab.setting("feddrm/1", column), "apfl", {"alpha": 0.5})
    (run,) = select(lab.store)
    assert run.values["apfl.alpha"] == 0.5
    assert run.values.get("alpha") == (0.3 if "Dir" in column else None)  # shards have none


def test_seeds_of_one_run_are_one_group(lab: Lab, ids: dict[str, str]) -> None:
    groups = [[run.id for run in group] for group in by_seed(select(lab.store))]
    assert [ids["fedavg seed 1"], ids["fedavg"]] in groups  # by seed
    assert len(groups) == 5


def test_metrics_are_computed_where_they_are_not_there(lab: Lab, ids: dict[str, str]) -> None:
    (run,) = select(lab.store, [ids["feddrm"]])
    assert run.metrics.names
