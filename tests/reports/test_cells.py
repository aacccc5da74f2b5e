"""Cells of a table: which runs they need, how it stands with them; columns with budgets, clients and parts."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import methods, protocol
from fedbench.api.results import runs as api_runs
from fedbench.errors import FedbenchError
from fedbench.files import write_json
from fedbench.methods import declarations
from fedbench.planner import table as tables
from fedbench.planner.cells import Cells, find
from fedbench.planner.others import others
from fedbench.planner.runs import select
from fedbench.planner.table.claims import HOLDS, OPEN, SO_FAR
from fedbench.planner.table.spec import Column, Table
from fedbench.reports import figures
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.figures import source
from fedbench.reports.layout import times
from fedbench.reports.layout.grid import Entry, Grid, legend
from fedbench.reports.render import FORMATS, render
from fedbench.reports.site.pages import pages
from fedbench.results.frame import Frame
from fedbench.results.run import State, other_versions
from fedbench.specs import RunSpec
from fedbench.store import Store
from tests.reports.conftest import DIR, SPC, Lab, of_csv, words_of, written
from tests.support.cli_user import good
from tests.support.figures_lab import build


def state(cells: Cells, row: str, column: str) -> State:
    return next(c.state for c in cells.all if (c.row.label, c.column.key) == (row, column))


def jobs(cells: Cells) -> list[RunSpec]:
    """What `train --table` makes."""
    return list(cells.runs(State.MISSING, State.FAILED))


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
        (
            [("fedavgft", {}), ("fedavgft", {"overrides": {"finetune_rounds": 3}})],
            "missing done",
            ["FedAvgFT (finetune_rounds = 3)"],
        ),
        ([("feddrm", {"version": 99}), ("feddrm", {})], "done missing", []),
        ([("pfedfda", {}), ("mine", {"title": "My method"})], "missing missing", ["My method", "pFedFDA"]),
    ],
)
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
    cells = find(table, "small", Frame(store), [])
    assert state(cells, "FedDRM", DIR) is State.NO_DATA
    assert state(cells, "Ditto", DIR) is State.NOT_BUILT
    assert set(cells.absent) == {"cifar10", "cifar20", "cifar100"}
    assert not jobs(cells)
    nothing = replace(table, column=[replace(c, dataset="nothing") for c in table.column])
    assert find(nothing, "small", Frame(store), []).absent == {
        "nothing": "there is no recipe for the data set nothing yet"
    }


def _remarks(store: Store, look: Callable[[figures.Request], object]) -> list[str]:
    remarks: list[str] = []
    look(figures.Request(Frame.of(store), notify=remarks.append))
    return remarks


def test_other_code_is_told_wherever_its_numbers_are(lab: Lab) -> None:
    store, setting = lab.store, lab.setting("feddrm/1", DIR)
    lab.run(setting, "fedavgft", each={0: lambda t: 0.25})  # of code that has not changed since
    older = lab.run(setting, "feddrm", each={0: lambda t: 0.5}, **OTHER)
    line = f"1 run was made by other code than today's ({older.id}): 'fedbench train --again' makes it again."
    made = {name: html.unescape(page) for name, page in pages(select(Frame(store)), lambda run: [])}
    shown = {
        "report": words_of(build(tables.load("feddrm/1"), "small", store)),
        "compare": side_by_side(select(Frame(store)))[0].notes,
        "list": good("list", "--home", store.home).out.splitlines(),
        "figure": _remarks(store, lambda request: source.filled("feddrm/1", "small", request)),
        "figure of runs": _remarks(store, lambda request: request.runs()),
        "site": re.findall(r"<li>(.*?)</li>", made["index.html"]),
    }
    assert [place for place, lines in shown.items() if line not in lines] == []
    other = {run.id: run.id == older.id for run in select(Frame(store))}
    assert sorted(other.values()) == [False, True]
    words = "made by other code than today's"
    listed = json.loads(good("list", "run", "--json", "--home", store.home).out)
    assert {id: words in good("show", id, "--home", store.home).out for id in other} == other
    assert {id: words in made[f"run-{id}.html"] for id in other} == other
    assert {run["id"]: run["other_code"] for run in listed} == other
    assert api_runs(store=store.home)["other_code"].to_dict() == other


@pytest.mark.parametrize("part", ["method", "trainer", "network", "partitioner", "images"])
def test_a_run_of_another_version_stands_as_stale_until_todays_is_there(lab: Lab, part: str) -> None:
    setting = lab.setting("feddrm/1", DIR)
    partition = setting.partition
    older = {
        "method": setting,
        "trainer": replace(setting, version=99),
        "network": replace(setting, model_version=99),
        "partitioner": replace(setting, partition=replace(partition, version=99)),
        "images": replace(setting, partition=replace(partition, dataset=replace(partition.dataset, version=99))),
    }[part]
    run = lab.run(older, "feddrm", version=99 if part == "method" else None)
    assert [word.split()[0] for word in other_versions(run.spec)] == [part]
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.STALE
    assert "FedDRM" not in others(cells)
    lab.run(setting, "feddrm")
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


def test_a_claimed_run_is_running_and_a_failure_counts_until_the_run_succeeds(lab: Lab) -> None:
    spec = declarations.of("feddrm").run(lab.setting("feddrm/1", DIR), {"lambda": 0.8})
    with lab.store.claim(spec.id):
        write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
        cells = lab.cells("feddrm/1")
        assert state(cells, "FedDRM", DIR) is State.RUNNING
        assert spec not in jobs(cells)
        assert len(jobs(cells)) > 0
    lab.store.work(spec.id).mkdir(parents=True, exist_ok=True)
    write_json(lab.store.work(spec.id) / "spec.json", {"run": spec.to_dict(), "overrides": {}})
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.MISSING, "nobody holds it"
    setting = lab.setting("feddrm/1", DIR)
    for method, reason in (("feddrm", "the loss is not a number"), ("pfedfda", "of a method that no row asks for")):
        spec = declarations.of(method).run(setting, {})
        lab.store.record_failure(spec.id, reason, "", spec=spec.to_dict(), overrides={})
    cells = lab.cells("feddrm/1")
    assert state(cells, "FedDRM", DIR) is State.FAILED
    assert [c.reason for c in cells.all if c.state is State.FAILED] == ["the loss is not a number"]
    assert [r.state for r in cells.frame.records[setting.id]] == [State.FAILED] * 2
    assert others(cells) == {}
    assert setting.id in [job.setting.id for job in jobs(cells)]
    lab.run(setting, "feddrm")
    assert state(lab.cells("feddrm/1"), "FedDRM", DIR) is State.DONE


def test_one_look_at_the_store_for_all_tables(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, calls = Frame(lab.store), []
    whole = lab.store.scan
    monkeypatch.setattr(lab.store, "scan", lambda kind: calls.append(kind) or whole(kind))
    for name in ("feddrm/1", "feddrm/2", "feddrm/4"):
        lab.cells(name, frame=frame)
    assert calls.count("run") == 1


def test_a_tables_own_budget_and_hyper_parameters_are_asked_for(lab: Lab, tmp_path: Path) -> None:
    table = written(
        tmp_path,
        'title = "T"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\n'
        'rows = [{ label = "A", method = "feddrm", params = { lambda = 0.9 } }]\n[budget.small]\nrounds = 7\n'
        '[[column]]\nlabel = "X"\ndataset = "cifar10"\npartition = { scheme = "iid" }\ntrain = { lr = 0.5 }\n',
    )
    (job,) = jobs(lab.cells(table))
    assert (job.setting.rounds, job.setting.window, job.setting.lr) == (7, 5, 0.5)
    assert job.params == {"lambda": 0.9}
    asked = [job.params for job in jobs(lab.cells("feddrm/1")) if job.method == "fedavgft"]
    assert {params["finetune_rounds"] for params in asked} == {50}
    lab.dataset("cifar20")
    sizes = [lab.setting("feddrm/1", key).partition.options.get("min_size") for key in (DIR, "CIFAR-20/Dir-0.3")]
    assert sizes == [10, 100], "as many samples as there are (fine) classes"


MINE = """
title = "Mine"
protocol = "pfedfda"
metric = "client_accuracy"
statistic = "clients"
unit = "percent"
decimals = 1
seeds = [0]
rows = [{ label = "Local", method = "local" }, { label = "FedAvg", method = "fedavg" }]
column = [
{ group = "Accuracy", label = "Much", dataset = "cifar10", partition = { scheme = "iid" } },
{ group = "Accuracy", label = "Little", dataset = "cifar10", partition = { scheme = "iid", subsample = 0.25 }, \
budget = { small = { rounds = 44 } } },
{ label = "Gain", of = ["Accuracy/Much", "Accuracy/Little"], relative_to = "Local", relation = "difference" },
{ label = "More", of = ["Accuracy/Much", "Accuracy/Little"], relative_to = "Local", relation = "percent" },
{ label = "Mean", of = ["Accuracy/Much", "Accuracy/Little"] },
{ label = "Last two", dataset = "cifar10", partition = { scheme = "iid" }, clients = [2, 3] },
]
claim = [{ text = "FedAvg gains 10 to 20 points", kind = "between", rows = ["FedAvg"], columns = ["Gain"], low = 10, \
high = 20 }]
"""
#: What three clients have: method -> column -> accuracies.
VALUES = {
    "local": {"Accuracy/Much": (0.4, 0.5, 0.6), "Accuracy/Little": (0.1, 0.2, 0.3)},
    "fedavg": {"Accuracy/Much": (0.5, 0.6, 0.7), "Accuracy/Little": (0.3, 0.4, 0.5)},
}


def run(lab: Lab, table: Table, method: str, column: str, title: str | None = None) -> None:
    setting = lab.cells(table).settings[column][0]
    values = VALUES[method][column] if method in VALUES else (0.5, 0.5, 0.5)
    more = {"title": title} if title else {}
    lab.run(setting, method, clients=dict(enumerate(values)), views=("plain",), rules="pfedfda", **more)


def line(grid: Grid, label: str) -> dict[str, Entry]:
    found = next(one for one in grid.lines if one.label == label)
    return {h.label: e for h, e in zip(grid.heads, found.entries, strict=True)}


def test_a_columns_budget_is_said_and_another_data_set_takes_means_along(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, MINE)
    cells = lab.cells(table)
    own = {"Accuracy/Much": 100, "Accuracy/Little": 44, "Last two": 100}
    assert {key: s[0].rounds for key, s in cells.settings.items()} == own
    assert {s[0].rounds for s in lab.cells(table, "paper").settings.values()} == {200}
    about = words_of(lab.grid(table))
    assert "Accuracy/Little: 44 rounds." in about
    assert any(text.startswith("Budget small: 100 or 44 rounds of 5 epochs") for text in about)
    assert not any("44" in text for text in words_of(lab.grid(table, "paper")))
    about = words_of(lab.grid("pfedfda/figure4"))
    assert any(text.startswith("CIFAR100-S 25 %: ") for text in about), "a group of one budget is named as a whole"
    assert any(" of 1 or 2 or 5 or 10 or 20 epochs" in text for text in about)
    rows = MINE.replace('method = "local"', 'method = "local", budget = { small = { rounds = 3 } }')
    grid = lab.cells(written(tmp_path, rows)).grid
    assert [[j.setting.rounds for c in row for j in c.specs] for row in grid] == [[3, 3, 3], [100, 44, 100]]
    # But one over other data sets stays behind.
    part = written(tmp_path, MINE).for_dataset("digits")
    assert [c.label for c in part.columns] == ["Much", "Little", "Gain", "More", "Mean", "Last two"]
    gain = next(c for c in part.columns if c.label == "Gain")
    assert set(gain.of) <= {c.key for c in part.measured}
    mixed = written(tmp_path, MINE.replace('dataset = "cifar10"', 'dataset = "mnist"', 1))
    assert [c.label for c in mixed.for_dataset("cifar10").columns] == ["Little", "Last two"]


def test_a_mean_over_columns_waits_for_its_cells_and_one_is_of_some_clients(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, MINE)
    for method, column in (("local", "Accuracy/Much"), ("fedavg", "Accuracy/Much"), ("fedavg", "Accuracy/Little")):
        run(lab, table, method, column)
    grid = lab.grid(table)
    ours = line(grid, "FedAvg")
    assert (ours["Gain"].text, ours["Gain"].state, ours["Gain"].symbol) == ("", State.MISSING, "·")
    assert ours["Mean"].text == "50.0", "FedAvg's own numbers are there"
    assert line(grid, "Local")["Mean"].text == ""
    assert grid.counts == {"done": 5, "missing": 1}
    cells = lab.cells(table)
    assert (len(cells.runs(State.MISSING)), sum(cells.counts.values())) == (1, 6)
    run(lab, table, "local", "Accuracy/Little")
    grid = lab.grid(table, compare=True)
    ours = line(grid, "FedAvg")
    assert [ours[k].text for k in ("Gain", "More", "Mean")] == ["15.0", "60.0", "50.0"]  # 60 % is (20 + 100) / 2
    assert {ours[k].spread for k in ("Gain", "More", "Mean")} == {""}
    assert ours["Much"].spread == "10.0"
    assert len(ours["Gain"].runs) == 4
    assert ours["Gain"].state is State.DONE
    base = line(grid, "Local")
    assert [base[k].text for k in ("Gain", "More", "Mean")] == ["", "", "35.0"]
    assert (base["Gain"].symbol, ours["Gain"].rank) == ("", 0), "one number alone is no best"
    assert ours["Mean"].rank == 1
    assert [v.state for v, _ in grid.verdicts] == [SO_FAR]
    assert grid.counts == {"done": 6}, "means are no cells to be made"
    for name in sorted({*FORMATS} - {"csv", "json", "bibtex"}):
        assert "15.0" in render([grid], name)
    rows = {(r["row"], r["column"]): r for r in of_csv(render([grid], "csv"))}
    gain = rows["FedAvg", "Gain"]
    assert (float(gain["value"]), gain["std"], gain["n"], gain["unit"]) == (pytest.approx(15), "", "2", "%")
    assert rows["Local", "Gain"]["value"] == ""
    told = json.loads(render([grid], "json"))[0]["cells"]
    assert next(c for c in told if (c["row"], c["column"]) == ("FedAvg", "Mean"))["std"] is None
    found = line(grid, "FedAvg")["Last two"]
    assert (found.text, found.spread) == ("65.0", f"{statistics.stdev([60, 70]):.1f}")
    assert (found.value.count, found.value.weighted) == (2, pytest.approx(65))
    grid = lab.grid(written(tmp_path, MINE.replace("clients = [2, 3]", "clients = [2, 4]")))
    assert line(grid, "FedAvg")["Last two"].state is State.DAMAGED
    assert "client_accuracy of client 4" in grid.problems[0]


def test_a_method_that_no_row_asks_for_has_means_too(lab: Lab, tmp_path: Path) -> None:
    """And no row where it fills no printed column: one hidden part of a mean is no mean."""
    table = written(tmp_path, MINE)
    run(lab, table, "local", "Accuracy/Much")
    run(lab, table, "local", "Accuracy/Little")
    hidden = dataclasses.replace(
        table, column=[c if c.of else dataclasses.replace(c, hidden=True) for c in table.column]
    )
    for column, there in (("Accuracy/Much", False), ("Accuracy/Little", True)):
        run(lab, table, "pfedfda", column, "P")
        assert ("P" in [one.label for one in lab.grid(hidden, yours=True).lines]) == there
    extra = line(lab.grid(table, yours=True), "P")
    assert (extra["Gain"].text, extra["Mean"].text) == ("15.0", "50.0")


def test_executors_are_named_where_times_are_read(lab: Lab) -> None:
    how: dict[str, Any] = {"whole": {"local_training_seconds": 2.0, "total_runtime_seconds": 60.0}, "rules": "pfedfda"}
    for column, method, executor, told in (
        ("fedbench", "fedavg", "cores", ""),
        ("fedbench", "apfl", "stacked", "fedbench: cores on cpu and stacked on cpu."),
        (
            "One after another",
            "fedavg",
            "sequential",
            "One after another: sequential on cpu; fedbench: cores on cpu and stacked on cpu.",
        ),
    ):
        lab.run(lab.setting("pfedfda/6", f"{column}/Local training"), method, executor=executor, **how)
        about = words_of(lab.grid("pfedfda/6", yours=True))
        said = [line.removeprefix("Times are those of different executors. ") for line in about if "executors" in line]
        assert said == ([told] if told else [])
    columns = {label: Column(label, group="Time") for label in ("5 clients", "25 clients", "50 clients")}
    ran = {"5 clients": "cores", "25 clients": "stacked", "50 clients": "cores"}
    hits = [(columns[label], {"executor": name, "device": "cpu"}) for label, name in ran.items()]
    told = "Times are those of different executors. Time: cores on cpu; Time/25 clients: stacked on cpu."
    assert times.by_column(hits) == told


def test_a_run_whose_test_images_train_other_clients_is_told_wherever_its_numbers_are(lab: Lab) -> None:
    leaky = "3 of 9 test images are training images of other clients"
    run = lab.run(lab.setting("feddrm/1", DIR), "feddrm", each={0: lambda t: 0.5}, leakage=leaky)
    shown = {
        "report": words_of(build(tables.load("feddrm/1"), "small", lab.store)),
        "compare": side_by_side(select(Frame(lab.store)))[0].notes,
        "figure": _remarks(lab.store, lambda request: source.filled("feddrm/1", "small", request)),
        "figure of runs": _remarks(lab.store, lambda request: request.runs()),
    }
    assert [place for place, lines in shown.items() if f"{leaky} (1 run: {run.id})." not in lines] == []


def test_processors_are_named_where_times_are_of_several(lab: Lab) -> None:
    setting = lab.setting("pfedfda/6", "One after another/Local training")

    def about() -> list[str]:
        return [line for line in words_of(lab.grid("pfedfda/6", yours=True)) if "processors" in line]

    how = {"whole": {"local_training_seconds": 2.0}, "rules": "pfedfda", "executor": "sequential"}
    for method, processor in (("fedavg", "Xeon 6-207-2"), ("apfl", "Xeon 6-207-2")):
        lab.run(setting, method, processor=processor, cpu="AVX512", **how)
        assert about() == []
    unrecorded = lab.run(setting, "ditto", cpu="AVX2", **how)
    assert about() == [
        "Times may be of several processors, so not to be compared: Xeon 6-207-2, an unrecorded one (AVX2)."
    ]
    lab.store.remove("run", unrecorded.id)
    lab.run(setting, "ditto", cpu="AVX2", processor="EPYC 25-17-1", **how)
    lab.run(setting, "pfedfda", device="H100", processor="Xeon 6-207-2", **how)
    assert about() == [
        "Times are of 3 processors, so not to be compared: EPYC 25-17-1, H100, Xeon 6-207-2.",
        "Of several processors, so none is marked best, and claims compare those of one alone: "
        "One after another/Local training,"
        " One after another/Total runtime.",
    ]
    assert any("measured on cpu or H100" in line for line in words_of(lab.grid("pfedfda/6", yours=True)))
    a, b = Column("a"), Column("b")
    mean, other = Column("mean", of=["a", "b"]), Column("other", of=["b"])
    hits = [(a, {"device": "cpu", "processor": "Xeon"}), (b, {"device": "H100"}), (b, {"device": "H100"})]
    assert times.incomparable([a, b, mean, other], hits) == [mean]
    assert times.incomparable([a, b, mean, other], [*hits, (b, {"device": "cpu", "cpu": "AVX2"})]) == [b, mean, other]
    assert times.unranked([mean, dataclasses.replace(b, hidden=True)]) == [
        "Of several processors, so none is marked best, and claims compare those of one alone: mean."
    ]


@pytest.mark.parametrize(("processor", "alike"), [("Xeon 6-207-2", True), (None, True), ("EPYC 25-17-1", False)])
def test_times_are_ranked_where_no_two_are_known_to_be_of_other_processors_and_judged_where_they_are_of_one(
    lab: Lab, processor: str | None, alike: bool
) -> None:
    setting = lab.setting("pfedfda/6", "One after another/Local training")
    how: dict[str, Any] = {"rules": "pfedfda", "executor": "sequential"}
    lab.run(setting, "fedavg", whole={"local_training_seconds": 2.0}, processor="Xeon 6-207-2", **how)
    known = {} if processor is None else {"processor": processor}
    lab.run(setting, "pfedfda", whole={"local_training_seconds": 2.2}, **known, **how)
    grid = lab.grid("pfedfda/6", compare=True)
    entries = {line.label: line.entries[0] for line in grid.lines if line.kind == "paper"}
    its, ours = entries["FedAvg"], entries["pFedFDA"]
    assert (its.text, ours.text) == ("2.00", "2.20")
    assert (its.rank, ours.rank) == ((1, 2) if alike else (0, 0))
    assert (its.times, ours.times) == (("1.00×", "1.10×") if alike else ("", ""))
    assert (ours.near is not None) == alike
    first, second = [verdict.state for verdict, _ in grid.verdicts][:2]
    assert (first, second) == ((SO_FAR, SO_FAR) if alike and processor else (OPEN, OPEN))


def test_a_doubtful_number_is_shown_but_no_target(lab: Lab) -> None:
    lab.dataset("cifar100")
    for column in ("Dir(0.1)/CIFAR10", "Dir(0.1)/CIFAR100"):
        setting = lab.setting("pfedfda/3", column)
        lab.run(setting, "pfedfda", clients={0: 0.3, 1: 0.4}, views=("plain",), rules="pfedfda")
    grid = lab.grid("pfedfda/3", compare=True)
    at = [x.label for x in grid.lines].index("pFedFDA")
    ours = grid.lines[at].entries
    assert [e.near for e in ours] == [False, None, None, None], "in order: Dir(0.1), then Dir(0.5), which is no target"
    assert ours[1].offset is None
    below = grid.lines[at + 1].entries
    assert [e.text for e in below] == ["0.725", "0.309?", "0.725?", "0.309?"]
    sign = ("5.0?", "doubtful in the paper, no target")
    assert sign in legend(grid)
    assert sign not in legend(lab.grid("pfedfda/3"))
    assert [theirs.state for _, theirs in grid.verdicts] == [HOLDS, "not measured"]
    said = "1 of 8 reported numbers measured: mean difference −37.5 points; 0 of 1 (0%) within 2 points"
    assert f"{said}; 1 without a ± over seeds." in words_of(grid)


def test_what_is_reported_claimed_and_said_of_some_columns_goes_with_them() -> None:
    table = tables.load("pfedfda/7")
    part = table.only(key for key in ["Gain over Local/Mean"])
    assert [c.key for c in part.columns if not c.of] == [f"Accuracy/{p} %" for p in (25, 50, 75, 100)]
    assert "Gain over Local/Mean" in {c.key for c in part.columns}
    one = table.only(["Accuracy/25 %"])
    assert {c.key for c in one.columns} == {"Accuracy/25 %", "Gain over Local/25 %"}
    assert {column for _, column in one.reported} == {c.key for c in one.columns}
    assert all({"Accuracy/25 %", "Gain over Local/25 %"}.issuperset(claim.columns) for claim in one.claim)
    assert one.chosen == ["Accuracy/25 %"]
    assert table.only(["25 %"]).chosen == ["Accuracy/25 %", "Gain over Local/25 %"], "a label in all its groups"
    assert [c.key for c in table.only(["Accuracy/*"]).columns if not c.of] == [c.key for c in part.columns if not c.of]
    with pytest.raises(FedbenchError, match=r"unknown column of table pfedfda/7 'Accuracy/20 %'"):
        table.only(["Accuracy/20 %"])
    whole, other = tables.load("pfedfda/7"), tables.load("pfedfda/7").for_dataset("digit3")
    assert any("+0.32" in note for note in whole.reported_notes)
    assert other.reported_notes == []
    assert other.notes == whole.notes
    assert not any("+0.32" in note for note in whole.notes)


def test_tables_of_corrupted_images_tell_of_frost() -> None:
    told, seen = set(), set()
    for name in tables.names():
        table = tables.load(name)
        for column in table.measured:
            presets = protocol.load(table.protocol).presets if table.protocol else {}
            partition = {**presets.get(column.partition.get("preset", ""), {}), **column.partition}
            if str(partition.get("shift", "")).startswith("corrupted") or "frost-3" in partition.get("unseen_as", ()):
                seen.add(name)
        if any(note.startswith("Frost is a generated texture") for note in table.notes):
            told.add(name)
    assert told == seen
    assert {"pfedfda/1", "pfedfda/4", "pfedfda/figure4"} <= seen
