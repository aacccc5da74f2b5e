"""Tables, comparisons and figures take shipped numbers where the store has none, and say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import data
from fedbench.errors import FedbenchError
from fedbench.metrics.read import load, metrics_of
from fedbench.reports import table as tables
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Entry, Grid
from fedbench.reports.render import render
from fedbench.reports.runs import select
from fedbench.reports.status.asked import of_tables
from fedbench.reports.status.index import Index, State
from fedbench.results.pack import Row, write
from fedbench.results.shelf import Shelf
from fedbench.specs import DatasetSpec
from fedbench.store import Artifact, Store

DIR = "CIFAR-10/Dir-0.3"


def row(lab: Any, run: Artifact) -> Row:
    metrics = metrics_of(run, lab.store)
    assert metrics is not None
    about = {"title": "FedAvg", "device": "cpu", "libraries": {"torch": "9.9"}, "measures": []}
    return Row(run.spec, "0" * 64, "Ada", "2026-01-02T03:04:05Z", 7200.0, "Linux x86_64", about, load(metrics))  # type: ignore[arg-type]


@pytest.fixture
def shelf(lab: Any, tmp_path: Path) -> Shelf:
    """FedAvg and Local in the first column of Table 1, made elsewhere and gone from the store."""
    setting = lab.setting("feddrm/1", DIR)
    runs = [lab.run(setting, "fedavg", value=0.25), lab.run(setting, "local", value=0.75)]
    write(tmp_path / "pack.parquet", [row(lab, run) for run in runs])
    for run in runs:
        lab.store.remove("run", run.id)
    return Shelf([tmp_path / "pack.parquet"])


def grid(store: Store, shelf: Shelf | None, name: str = "feddrm/1") -> Grid:
    return build(tables.load(name), "small", store, [], index=Index(store, shelf))


def entry(grid: Grid, label: str) -> Entry:
    return next(line for line in grid.lines if line.label == label).entries[0]


def test_a_shipped_number_says_so(lab: Any, shelf: Shelf) -> None:
    printed = grid(lab.store, shelf)
    assert (entry(printed, "FedAvg").text, entry(printed, "FedAvg").mark) == ("25.00", "°")
    (line,) = [line for line in printed.about if line.startswith("°")]
    assert line.startswith("° 2 runs by Ada, 2026-01-02, on Linux x86_64, torch 9.9 (4.0 h of training)")
    for form, mark in (("console", "25.00 ± 0.00°"), ("latex", r"\circ"), ("html", "°"), ("markdown", "°")):
        assert mark in render([printed], form)
    cells = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in cells if c["shipped"]} == {"FedAvg", "Local"}


def test_mine_leaves_them_out(lab: Any, shelf: Shelf) -> None:
    printed = grid(lab.store, None)
    assert entry(printed, "FedAvg").state is State.MISSING
    assert not any(line.startswith("°") for line in printed.about)


@pytest.mark.parametrize(("value", "text", "mark"), [(0.5, "50.00", "≠"), (0.25, "25.00", "")])
def test_the_store_comes_first(lab: Any, shelf: Shelf, value: float, text: str, mark: str) -> None:
    """And where the pack has other numbers of the same run, the cell says so."""
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=value)
    printed = grid(lab.store, shelf)
    assert (entry(printed, "FedAvg").text, entry(printed, "FedAvg").mark) == (text, mark)
    assert (entry(printed, "Local").text, entry(printed, "Local").mark) == ("75.00", "°")
    said = [line for line in printed.about if line.startswith("≠")]
    assert len(said) == bool(mark)
    assert not said or f"≠ 1 run with other numbers in another result pack: {run.id} (shown: this store;" in said[0]


def test_a_run_that_two_packs_have_with_other_numbers(lab: Any, shelf: Shelf, tmp_path: Path) -> None:
    """The first pack's stand, and say so; of the same numbers twice nothing is said."""
    ours = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=0.5)
    theirs = lab.run(lab.setting("feddrm/1", DIR), "local", value=0.75)
    write(tmp_path / "second.parquet", [row(lab, run) for run in (ours, theirs)])
    for run in (ours, theirs):
        lab.store.remove("run", run.id)
    printed = grid(lab.store, Shelf([*shelf.paths, tmp_path / "second.parquet"]))
    assert [(e.text, e.mark) for e in (entry(printed, "FedAvg"), entry(printed, "Local"))] == [
        ("25.00", "°≠"), ("75.00", "°"),
    ]  # fmt: skip
    (line,) = [line for line in printed.about if line.startswith("≠")]
    assert f"{ours.id} (shown: {tmp_path.parent.name}/pack; other: {tmp_path.parent.name}/second)" in line
    for form, mark in (("console", "°≠"), ("latex", r"\circ\neq"), ("html", "°≠"), ("markdown", "°≠")):
        assert mark in render([printed], form)
    cells = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in cells if c["contradicted"]} == {"FedAvg"}


def test_a_pack_with_a_number_out_of_range_fills_no_cell(lab: Any, shelf: Shelf, tmp_path: Path) -> None:
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=0.5)
    bad = row(lab, run)
    write(tmp_path / "bad.parquet", [replace(bad, metrics=replace(bad.metrics, value=bad.metrics.value + 7))])
    lab.store.remove("run", run.id)
    printed = grid(lab.store, Shelf([tmp_path / "bad.parquet", *shelf.paths]))
    assert (entry(printed, "FedAvg").text, entry(printed, "FedAvg").mark) == ("25.00", "°")
    (problem,) = printed.problems
    assert "accuracy is 7.5, not 0 to 1" in problem


def test_shipped_numbers_need_no_images(shelf: Shelf, tmp_path: Path) -> None:
    empty = Store(tmp_path / "empty")
    printed = grid(empty, shelf)
    assert (entry(printed, "FedAvg").text, entry(printed, "FedAvg").mark) == ("25.00", "°")
    assert entry(printed, "FedDRM").state is State.NO_DATA
    assert any("No images of cifar10" in line for line in printed.about)


def test_shipped_numbers_of_another_copy_of_the_images(lab: Any, tmp_path: Path) -> None:
    """Who has the data in another form has other ids; what is shipped stands all the same, and says of which form."""
    copy = data.recipe("cifar10").sources[1]
    lab.store.remove("dataset", next(lab.store.list("dataset")).id)
    with lab.store.writing(DatasetSpec("cifar10", copy.name, "0")):
        pass
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=0.25)
    write(tmp_path / "pack.parquet", [row(lab, run)])
    shelf, other = Shelf([tmp_path / "pack.parquet"]), Store(tmp_path / "other")
    with other.writing(DatasetSpec("cifar10", "another copy", "1")):
        pass
    printed = grid(other, shelf)
    assert entry(printed, "FedAvg").text == "25.00"
    assert entry(printed, "FedDRM").state is State.MISSING
    assert f"cifar10 images: {copy.title}." in printed.about


def test_a_number_that_the_pack_lacks_is_an_empty_cell(lab: Any, tmp_path: Path) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    run = lab.run(setting, "pfedfda", rules="pfedfda")  # without the accuracies of single clients
    write(tmp_path / "pack.parquet", [row(lab, run)])
    lab.store.remove("run", run.id)
    printed = grid(lab.store, Shelf([tmp_path / "pack.parquet"]), "pfedfda/2")
    columns = [head.group + "/" + head.label for head in printed.heads]
    cell = next(line for line in printed.lines if line.label == "pFedFDA").entries[columns.index("CIFAR10/Dir(0.5)")]
    assert (cell.state, cell.text) == (State.NOT_PACKED, "")
    assert printed.problems == ()


@pytest.mark.parametrize(
    ("filters", "methods"),
    [
        ((), ["feddrm"]),
        (["dataset=cifar10"], ["feddrm"]),
        (["shipped=yes"], ["fedavg", "local"]),
        (["shipped=no"], ["feddrm"]),
        (["shipped=*", "dataset=cifar10"], ["feddrm", "fedavg", "local"]),
        (["table=feddrm/1"], ["feddrm", "fedavg", "local"]),
        (["table=feddrm/1", "shipped=yes", "method!=local"], ["fedavg"]),
        (["paper=feddrm"], ["feddrm", "fedavg", "local"]),
        (["protocol=feddrm"], ["feddrm", "fedavg", "local"]),
        (["table!=pfedfda/1"], ["feddrm"]),
    ],
)
def test_ones_own_come_first_and_shipped_runs_where_they_are_named(
    lab: Any, shelf: Shelf, filters: list[str], methods: list[str]
) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(lab.store, filters, shelf)
    assert [run.spec.method for run in runs] == methods
    assert [run.shipped is not None for run in runs] == [method != "feddrm" for method in methods]


def test_shipped_runs_side_by_side(lab: Any, shelf: Shelf) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(lab.store, ["table=feddrm/1"], shelf)
    (by_id,) = select(lab.store, [runs[1].id[:6]], shelf)
    assert (by_id.id, by_id.shipped is None) == (runs[1].id, False)
    (printed,) = side_by_side(runs)
    assert [line.entries[0].mark for line in printed.lines] == ["", "°", "°"]
    assert any(line.startswith("° 2 runs by Ada") for line in printed.about)


def test_the_runs_of_a_paper_are_those_that_its_tables_read(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    own = lab.run(setting, "fedavg")
    other_seed = lab.run(replace(setting, seed=7), "fedavg")
    lab.run(replace(setting, lr=0.5), "fedavg")
    assert of_tables(["feddrm"], lab.store, []) == {own.id: "FedAvg", other_seed.id: "FedAvg"}
    assert of_tables(["feddrm/2", "pfedfda"], lab.store, []).keys() == {own.id, other_seed.id}
    assert of_tables(["pfedfda"], lab.store, []).keys() == set()
    with pytest.raises(FedbenchError, match="did you mean 'feddrm'"):
        of_tables(["fedrm"], lab.store, [])
