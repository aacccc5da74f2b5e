"""Which runs a table's cells need, and how it stands with them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import declared, methods
from fedbench.api.results import runs as api_runs
from fedbench.errors import FedbenchError
from fedbench.files import write_json
from fedbench.partitions import schemes
from fedbench.reports import figures
from fedbench.reports import table as tables
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.figures import source
from fedbench.reports.layout.build import build
from fedbench.reports.runs import select
from fedbench.reports.site.pages import pages
from fedbench.reports.site.run import Told
from fedbench.reports.status.cells import Cells, find
from fedbench.reports.status.index import Index, State
from fedbench.reports.status.others import others
from fedbench.reports.status.versions import other_versions
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from tests.reports.conftest import Lab, written
from tests.support.cli_user import good

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


def state(cells: Cells, row: str, column: str) -> State:
    return next(c.state for c in cells.all if (c.row.label, c.column.key) == (row, column))


def jobs(cells: Cells) -> list[RunSpec]:
    """What `train --table` makes."""
    return list(cells.runs(State.MISSING, State.FAILED))


def failed(store: Store, spec: RunSpec, reason: str) -> None:
    (store.home / "failed").mkdir(exist_ok=True)
    told = {"spec": spec.to_dict(), "overrides": {}, "reason": reason, "log": "", "time": 0}
    write_json(store.home / "failed" / f"{spec.id}.json", told)


OTHER = {"fingerprint": "0", "fingerprint_parts": ["methods/gone.py"]}  #: made by other code of the same versions


@pytest.mark.parametrize(
    ("runs", "shown", "rows"),
    [
        ([("feddrm", {})], "done missing", []),
        ([("feddrm", {"measure": False})], "not evaluated missing", []),
        ([("feddrm", OTHER)], "done missing", []),
        ([("fedavgft", {"version": 99})], "missing stale", []),
        ([("feddrm", {"overrides": {"lambda": 0.5}})], "missing missing", ["FedDRM (lambda = 0.5)"]),
        ([("feddrm", {"overrides": {"lambda": 0.8}, "defaults": {"lambda": 0.8}})], "done missing", []),
        ([("fedavgft", {}), ("fedavgft", {"overrides": {"finetune_rounds": 3}})], "missing done",
         ["FedAvgFT (finetune_rounds = 3)"]),
        ([("feddrm", {"version": 99}), ("feddrm", {})], "done missing", ["FedDRM (version 99)"]),
        ([("pfedfda", {}), ("mine", {"title": "My method"})], "missing missing", ["My method", "pFedFDA"]),
    ],
)  # fmt: skip
def test_states_and_extra_rows(lab: Lab, runs: list[tuple[str, dict[str, Any]]], shown: str, rows: list[str]) -> None:
    for method, how in runs:
        lab.run(lab.setting("feddrm/1", DIR), method, **how)
    cells = lab.cells("feddrm/1")
    assert f"{state(cells, 'FedDRM', DIR).value} {state(cells, 'FedAvgFT', DIR).value}" == shown
    assert state(cells, "FedDRM", SPC) is State.MISSING
    assert state(cells, "FedProxFT", DIR) is State.NOT_BUILT
    assert cells.counts[State.DONE] == shown.count("done")
    assert sorted(others(cells)) == rows
    at_paper = lab.cells("feddrm/1", "paper")  # budgets are never mixed
    assert (at_paper.counts[State.DONE], others(at_paper)) == (0, {})


def test_an_empty_store_without_images(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["feddrm"])
    table = tables.load("feddrm/1")
    cells = find(table, "small", store, [])
    assert state(cells, "FedDRM", DIR) is State.NO_DATA
    assert state(cells, "Ditto", DIR) is State.NOT_BUILT
    assert set(cells.absent) == {"cifar10", "cifar20", "cifar100"}
    assert not jobs(cells)
    nothing = replace(table, column=[replace(c, dataset="nothing") for c in table.column])
    assert find(nothing, "small", store, []).absent == {"nothing": "there is no recipe for the data set nothing yet"}


def test_cells_ask_for_the_protocols_settings(lab: Lab) -> None:
    lab.dataset("cifar20")
    setting = lab.setting("feddrm/1", DIR)
    part = setting.partition
    assert (schemes.label(part), part.clients, part.shift, part.seed) == ("Dir-0.3", 8, "high", 2025)
    assert part.options.get("min_size") == 10  # as many samples as CIFAR-10 has classes to partition by
    assert lab.setting("feddrm/1", "CIFAR-20/Dir-0.3").partition.options.get("min_size") == 100  # its fine ones
    assert (setting.budget, setting.rounds, setting.window, setting.model) == ("small", 400, 5, "cifar_cnn_projection")
    paper = lab.setting("feddrm/1", DIR, "paper")
    assert (paper.rounds, paper.window, paper.model, paper.seed) == (800, 50, "resnet18_gn", 2025)
    assert schemes.label(lab.setting("feddrm/1", SPC).partition) == "5-SPC"


@pytest.fixture
def older(lab: Lab) -> Artifact:
    """A run of code that has changed since, beside another that has not."""
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "fedavgft", each={0: lambda t: 0.25})
    return lab.run(setting, "feddrm", each={0: lambda t: 0.5}, **OTHER)


def _remarks(store: Store, look: Callable[[figures.Ask], object]) -> list[str]:
    remarks: list[str] = []
    look(figures.Ask(store, notify=remarks.append))
    return remarks


def _site(store: Store) -> dict[str, str]:
    return {name: html.unescape(page) for name, page in pages(select(store), lambda run: Told([], None))}


def test_other_code_is_told_wherever_its_numbers_are(lab: Lab, older: Artifact) -> None:
    store = lab.store
    line = f"1 run was made by other code than today's ({older.id}): 'fedbench train --again' makes it anew."
    shown = {
        "report": build(tables.load("feddrm/1"), "small", store, []).about,
        "compare": side_by_side(select(store))[0].about,
        "list": good("list", "--home", store.home).out.splitlines(),
        "figure": _remarks(store, lambda ask: source.filled("feddrm/1", ask, Index(store))),
        "figure of runs": _remarks(store, lambda ask: ask.runs()),
        "site": re.findall(r"<li>(.*?)</li>", _site(store)["index.html"]),
    }
    assert [place for place, lines in shown.items() if line not in lines] == []
    other = {run.id: run.id == older.id for run in select(store)}
    assert sorted(other.values()) == [False, True]
    made, words = _site(store), "made by other code than today's"
    listed = json.loads(good("list", "run", "--json", "--home", store.home).out)
    assert {id: words in good("show", id, "--home", store.home).out for id in other} == other
    assert {id: words in made[f"run-{id}.html"] for id in other} == other
    assert {run["id"]: run["other_code"] for run in listed} == other
    assert api_runs(store=store.home)["other_code"].to_dict() == other


@pytest.mark.parametrize("part", ["method", "trainer", "network", "partitioner", "images"])
def test_a_run_of_another_version_stands_as_stale_until_todays_is_there(lab: Lab, part: str) -> None:
    """Whatever part of it has another version."""
    setting = lab.setting("feddrm/1", DIR)
    partition = setting.partition
    older = {
        "method": setting,
        "trainer": replace(setting, version=99),
        "network": replace(setting, model_version=99),
        "partitioner": replace(setting, partition=replace(partition, version=99)),
        "images": replace(
            setting, partition=replace(partition, dataset=replace(partition.dataset, version=99))
        ),
    }[part]  # fmt: skip
    run = lab.run(older, "feddrm", version=99 if part == "method" else None)
    assert [word.split()[0] for word in other_versions(run.spec)] == [part]
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.STALE
    assert "FedDRM" not in others(cells)
    lab.run(setting, "feddrm")
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


def test_a_claimed_run_is_running_and_nobody_else_makes_it(lab: Lab) -> None:
    spec = declared.of("feddrm").run(lab.setting("feddrm/1", DIR), {"lambda": 0.8})
    with lab.store.claim(spec.id):
        write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
        cells = lab.cells("feddrm/1")
        assert state(cells, "FedDRM", DIR) is State.RUNNING
        assert spec not in jobs(cells)
        assert len(jobs(cells)) > 0
    lab.store.work(spec.id).mkdir(parents=True, exist_ok=True)
    write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.MISSING, "nobody holds it"


def test_a_failure_counts_until_the_run_succeeds(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    failed(lab.store, declared.of("feddrm").run(setting, {}), "the loss is not a number")
    failed(lab.store, declared.of("pfedfda").run(setting, {}), "of a method that no row asks for")
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.FAILED
    assert [c.reason for c in cells.all if c.state is State.FAILED] == ["the loss is not a number"]
    assert [r.state for r in cells.index.records[setting.id]] == [State.FAILED] * 2
    assert others(cells) == {}
    assert setting.id in [job.setting.id for job in jobs(cells)]
    lab.run(setting, "feddrm")
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


def test_the_protocols_hyper_parameters_are_asked_for(lab: Lab) -> None:
    asked = {
        j.params["finetune_rounds"] for c in lab.cells("feddrm/1").all if c.row.label == "FedAvgFT" for j in c.specs
    }
    assert asked == {50}


def test_two_metrics_of_one_run_are_one_job(lab: Lab) -> None:
    """Three values of alpha, four built methods, two metrics each; Tables 1 and 2 share their runs."""
    made = jobs(lab.cells("feddrm/4"))
    assert len({j.setting.id for j in made}) == 3
    assert {j.method for j in made} == {"feddrm", "fedavgft", "fedavg", "local"}
    assert len(made) == 12
    one, two = (jobs(lab.cells(name)) for name in ("feddrm/1", "feddrm/2"))
    assert [(j.setting.id, j.method) for j in one] == [(j.setting.id, j.method) for j in two]


def test_seeds_are_separate_runs_of_one_cell(lab: Lab) -> None:
    table = tables.load("feddrm/1")
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm")
    both = find(table, "small", lab.store, [], seeds=[2025, 7])
    assert state(both, "FedDRM", DIR) is State.MISSING
    left = [j for j in both.runs(State.MISSING) if j.method == "feddrm" and j.setting.partition == setting.partition]
    assert [j.setting.seed for j in left] == [7]
    assert {j.setting.budget for j in left} == {"small"}


def test_another_data_set(lab: Lab) -> None:
    table = tables.load("feddrm/1").for_dataset("digits")
    cells = find(table, "small", lab.store, [])  # the digits are embedded: always at hand
    setting = cells.settings["digits/Dir-0.3"][0]
    assert (setting.partition.dataset.name, setting.model) == ("digits", "digits_cnn")
    lab.run(setting, "feddrm")
    assert state(find(table, "small", lab.store, []), "FedDRM", "digits/Dir-0.3") is State.DONE
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.MISSING


def test_a_tables_own_budget_overrides_the_protocols(lab: Lab, tmp_path: Path) -> None:
    table = written(
        tmp_path,
        'title = "T"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\n'
        'rows = [{ label = "A", method = "feddrm", params = { lambda = 0.9 } }]\n[budget.small]\nrounds = 7\n'
        '[[column]]\nlabel = "X"\ndataset = "cifar10"\npartition = { scheme = "iid" }\ntrain = { lr = 0.5 }\n',
    )
    (job,) = jobs(find(table, "small", lab.store, []))
    assert (job.setting.rounds, job.setting.window, job.setting.lr) == (7, 5, 0.5)
    assert job.params == {"lambda": 0.9}


def test_a_hyper_parameter_that_the_method_has_not_is_told_by_its_row(lab: Lab) -> None:
    table = tables.load("feddrm/1")
    row = next(replace(row, params={"lamda": 1}) for row in table.rows if row.method == "feddrm")
    cells = find(replace(table, rows=[row]), "small", lab.store, [])
    with pytest.raises(FedbenchError, match=r"1\.toml, row FedDRM: unknown option of feddrm 'lamda'"):
        cells.runs(State.MISSING)


def test_the_index_reads_the_store_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    index, calls = Index(lab.store), []
    whole = lab.store.scan
    monkeypatch.setattr(lab.store, "scan", lambda kind: calls.append(kind) or whole(kind))
    for name in ("feddrm/1", "feddrm/2", "feddrm/4"):
        find(tables.load(name), "small", lab.store, [], index=index)
    assert calls.count("run") == 1
