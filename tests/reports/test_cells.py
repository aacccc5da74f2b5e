"""Which runs a table's cells need, and how it stands with them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
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
from fedbench.reports.runs import Run, select
from fedbench.reports.site.pages import pages
from fedbench.reports.site.run import Told
from fedbench.reports.status.cells import Cells, find
from fedbench.reports.status.index import Index, State
from fedbench.reports.status.others import others
from fedbench.reports.status.versions import other_versions
from fedbench.reports.table.spec import Table
from fedbench.specs import RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import good

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


def state(cells: Cells, row: str, column: str) -> State:
    return next(c.state for c in cells.all if (c.row.label, c.column.key) == (row, column))


def missing_cells(table: Table, budget: str, store: Store, roots: list[Path]) -> list[RunSpec]:
    """What `train --table` makes."""
    return list(find(table, budget, store, roots).runs(State.MISSING, State.FAILED))


def spec_of(setting: Setting, method: str, **params: Any) -> RunSpec:
    return declared.of(method).run(setting, params)


def test_an_empty_store_without_images(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["feddrm"])
    cells = find(tables.load("feddrm/1"), "small", store, [])
    assert state(cells, "FedDRM", DIR) is State.NO_DATA
    assert state(cells, "Ditto", DIR) is State.NOT_BUILT
    assert set(cells.absent) == {"cifar10", "cifar20", "cifar100"}
    assert missing_cells(tables.load("feddrm/1"), "small", store, []) == []


def test_a_data_set_without_a_recipe_says_so(lab: Any) -> None:
    table = tables.load("pfedfda/2")
    table = replace(table, column=[replace(c, dataset="nothing") for c in table.column])
    assert find(table, "small", lab.store, []).absent == {"nothing": "there is no recipe for the data set nothing yet"}


def test_cells_ask_for_the_protocols_settings(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    partition = setting.partition
    assert (schemes.label(partition), partition.clients, partition.shift, partition.seed) == (
        "Dir-0.3",
        8,
        "high",
        2025,
    )
    assert partition.options.get("min_size") == 10  # as many samples as CIFAR-10 has classes to partition by
    assert (setting.budget, setting.rounds, setting.window, setting.model) == ("small", 400, 5, "cifar_cnn_projection")
    paper = lab.setting("feddrm/1", DIR, "paper")
    assert (paper.rounds, paper.window, paper.model, paper.seed) == (800, 50, "resnet18_gn", 2025)
    assert schemes.label(lab.setting("feddrm/1", SPC).partition) == "5-SPC"


def test_cifar20_is_partitioned_by_its_hundred_fine_classes(lab: Any) -> None:
    lab.dataset("cifar20")
    assert lab.setting("feddrm/1", "CIFAR-20/Dir-0.3").partition.options.get("min_size") == 100


def test_done_older_and_missing(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm")
    lab.run(setting, "fedavgft", version=99)
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.DONE
    assert state(cells, "FedAvgFT", DIR) is State.STALE
    assert state(cells, "FedDRM", SPC) is State.MISSING
    assert state(cells, "FedProxFT", DIR) is State.NOT_BUILT
    assert cells.counts[State.DONE] == 1


def test_other_code_of_the_same_versions_makes_nothing_stale(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", fingerprint="0", fingerprint_parts=["methods/gone.py"])
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


@pytest.fixture
def older(lab: Any) -> Artifact:
    """A run of code that has changed since, beside another that has not."""
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "fedavgft", each={0: lambda t: 0.25})
    told = {"fingerprint": "0", "fingerprint_parts": ["methods/gone.py"]}
    return lab.run(setting, "feddrm", each={0: lambda t: 0.5}, **told)  # type: ignore[no-any-return]


def _remarks(store: Store, look: Callable[[figures.Ask], object]) -> list[str]:
    remarks: list[str] = []
    look(figures.Ask(store, notify=remarks.append))
    return remarks


@pytest.mark.parametrize(
    "shown",
    [
        lambda store: build(tables.load("feddrm/1"), "small", store, []).about,
        lambda store: side_by_side(select(store))[0].about,
        lambda store: good("list", "--home", store.home).out.splitlines(),
        lambda store: _remarks(store, lambda ask: source.filled("feddrm/1", ask, Index(store))),
        lambda store: _remarks(store, lambda ask: ask.runs()),
        lambda store: re.findall(r"<li>(.*?)</li>", html.unescape(dict(pages(select(store), told))["index.html"])),
    ],
    ids=["report", "compare", "list", "figure", "figure of runs", "site"],
)
def test_but_it_is_told_wherever_its_numbers_are(lab: Any, older: Artifact, shown: Callable[[Store], Any]) -> None:
    line = f"1 run was made by other code than today's ({older.id}): 'fedbench train --again' makes it anew."
    assert line in shown(lab.store)


def told(run: Run) -> Told:
    return Told([], None)


def test_and_of_the_run_itself(lab: Any, older: Artifact) -> None:
    store = lab.store
    other = {run.id: run.id == older.id for run in select(store)}
    assert sorted(other.values()) == [False, True]
    made = dict(pages(select(store), told))
    listed = json.loads(good("list", "run", "--json", "--home", store.home).out)
    words = "made by other code than today's"
    assert {id: words in good("show", id, "--home", store.home).out for id in other} == other
    assert {id: words in html.unescape(made[f"run-{id}.html"]) for id in other} == other
    assert {run["id"]: run["other_code"] for run in listed} == other
    assert api_runs(store=store.home)["other_code"].to_dict() == other


@pytest.mark.parametrize("part", ["method", "trainer", "network", "partitioner", "images"])
def test_a_run_of_another_version_stands_as_stale_until_todays_is_there(lab: Any, part: str) -> None:
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


def test_beside_todays_run_one_of_another_version_is_a_row_of_its_own(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", version=99)
    assert not others(lab.cells("feddrm/1"))
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    assert list(others(lab.cells("feddrm/1"))) == ["FedDRM (version 99)"]


def test_a_run_without_metrics_is_not_evaluated(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", measure=False)
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.UNEVALUATED


@pytest.fixture
def claimed(lab: Any) -> Iterator[RunSpec]:
    spec = spec_of(lab.setting("feddrm/1", DIR), "feddrm", **{"lambda": 0.8})
    with lab.store.claim(spec.id):
        write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
        yield spec
        (lab.store.work(spec.id) / "spec.json").unlink()


def test_a_claimed_run_is_running_and_nobody_else_makes_it(lab: Any, claimed: RunSpec) -> None:
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.RUNNING
    jobs = missing_cells(tables.load("feddrm/1"), "small", lab.store, [])
    assert (claimed.setting.id, "feddrm") not in [(j.setting.id, j.method) for j in jobs]


def test_a_run_that_nobody_holds_is_missing(lab: Any) -> None:
    spec = spec_of(lab.setting("feddrm/1", DIR), "feddrm")
    lab.store.work(spec.id).mkdir(parents=True)
    write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.MISSING


def test_a_failure_counts_until_the_run_succeeds(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    spec = spec_of(setting, "feddrm")
    folder: Path = lab.store.home / "failed"
    folder.mkdir()
    told = {"spec": spec.to_dict(), "overrides": {}, "reason": "the loss is not a number", "log": "", "time": 0}
    (folder / f"{spec.id}.json").write_text(json.dumps(told))
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.FAILED
    assert [c.reason for c in cells.all if c.state is State.FAILED] == ["the loss is not a number"]
    assert setting.id in [j.setting.id for j in missing_cells(tables.load("feddrm/1"), "small", lab.store, [])]
    lab.run(setting, "feddrm")
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


def test_other_hyper_parameters_are_another_cell(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", {"lambda": 0.5})
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.MISSING
    assert list(others(cells)) == ["FedDRM (lambda = 0.5)"]


def test_the_protocols_hyper_parameters_are_asked_for(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "fedavgft")
    lab.run(setting, "fedavgft", {"finetune_rounds": 3})
    cells = lab.cells("feddrm/1")
    (job,) = {j.params["finetune_rounds"] for c in cells.all if c.row.label == "FedAvgFT" for j in c.specs}
    assert job == 50
    assert state(cells, "FedAvgFT", DIR) is State.DONE
    assert list(others(cells)) == ["FedAvgFT (finetune_rounds = 3)"]


def test_spelling_a_default_out_changes_nothing(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", {"lambda": 0.8}, defaults={"lambda": 0.8})
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.DONE
    assert others(cells) == {}


def test_budgets_are_never_mixed(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR, "paper"), "feddrm")
    assert state(lab.cells("feddrm/1", "small"), "FedDRM", DIR) is State.MISSING
    assert others(lab.cells("feddrm/1", "small")) == {}
    assert state(lab.cells("feddrm/1", "paper"), "FedDRM", DIR) is State.DONE


def test_other_methods_in_the_setting_become_rows(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda")
    lab.run(lab.setting("feddrm/1", SPC), "mine", title="My method")
    rows = others(lab.cells("feddrm/1"))
    assert {label: [c.key for c, _ in hits] for label, hits in rows.items()} == {"pFedFDA": [DIR], "My method": [SPC]}


def test_a_failed_run_of_another_method_is_no_row(lab: Any) -> None:
    spec = spec_of(lab.setting("feddrm/1", DIR), "pfedfda")
    (lab.store.home / "failed").mkdir()
    write_json(lab.store.home / "failed" / f"{spec.id}.json", {"spec": spec.to_dict(), "overrides": {}, "reason": "x"})
    cells = lab.cells("feddrm/1")
    assert [r.state for r in cells.index.records[spec.setting.id]] == [State.FAILED]
    assert others(cells) == {}


def test_two_metrics_of_one_run_are_one_job(lab: Any) -> None:
    jobs = missing_cells(tables.load("feddrm/4"), "small", lab.store, [])
    # three values of alpha, four built methods, two metrics each
    settings = {j.setting.id for j in jobs}
    made = {j.method for j in jobs}
    assert len(settings) == 3
    assert made == {"feddrm", "fedavgft", "fedavg", "local"}
    assert len(jobs) == 12


def test_tables_1_and_2_share_their_runs(lab: Any) -> None:
    one, two = (missing_cells(tables.load(n), "small", lab.store, []) for n in ("feddrm/1", "feddrm/2"))
    assert [(j.setting.id, j.method) for j in one] == [(j.setting.id, j.method) for j in two]


def test_seeds_are_separate_runs_of_one_cell(lab: Any) -> None:
    table = tables.load("feddrm/1")
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm")
    both = find(table, "small", lab.store, [], seeds=[2025, 7])
    assert state(both, "FedDRM", DIR) is State.MISSING
    left = [j for j in both.runs(State.MISSING) if j.method == "feddrm" and j.setting.partition == setting.partition]
    assert [j.setting.seed for j in left] == [7]
    assert {j.setting.budget for j in left} == {"small"}


def test_another_data_set(lab: Any) -> None:
    table = tables.load("feddrm/1").for_dataset("digits")
    cells = find(table, "small", lab.store, [])  # the digits are embedded: always at hand
    setting = cells.settings["digits/Dir-0.3"][0]
    assert (setting.partition.dataset.name, setting.model) == ("digits", "digits_cnn")
    lab.run(setting, "feddrm")
    assert state(find(table, "small", lab.store, []), "FedDRM", "digits/Dir-0.3") is State.DONE
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.MISSING


def test_a_tables_own_budget_overrides_the_protocols(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "T"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\n'
        'rows = [{ label = "A", method = "feddrm", params = { lambda = 0.9 } }]\n[budget.small]\nrounds = 7\n'
        '[[column]]\nlabel = "X"\ndataset = "cifar10"\npartition = { scheme = "iid" }\ntrain = { lr = 0.5 }\n'
    )
    (job,) = missing_cells(tables.load(str(path)), "small", lab.store, [])
    assert (job.setting.rounds, job.setting.window, job.setting.lr) == (7, 5, 0.5)
    assert job.params == {"lambda": 0.9}


def test_a_hyper_parameter_that_the_method_has_not_is_told_by_its_row(lab: Any) -> None:
    table = tables.load("feddrm/1")
    row = next(replace(row, params={"lamda": 1}) for row in table.rows if row.method == "feddrm")
    cells = find(replace(table, rows=[row]), "small", lab.store, [])
    with pytest.raises(FedbenchError, match=r"1\.toml, row FedDRM: unknown option of feddrm 'lamda'"):
        cells.runs(State.MISSING)


def test_the_index_reads_the_store_once(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    index, calls = Index(lab.store), []
    whole = lab.store.scan
    monkeypatch.setattr(lab.store, "scan", lambda kind: calls.append(kind) or whole(kind))
    for name in ("feddrm/1", "feddrm/2", "feddrm/4"):
        find(tables.load(name), "small", lab.store, [], index=index)
    assert calls.count("run") == 1
