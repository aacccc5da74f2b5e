"""Cells that take shipped numbers where the store has none, or choose values on validation images; and the arena."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedbench import data, methods
from fedbench.core.client import UNSEEN
from fedbench.errors import FedbenchError
from fedbench.metrics.read import load, metrics_of
from fedbench.reports import table as tables
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.figures import kinds
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Entry, Grid
from fedbench.reports.render import render
from fedbench.reports.runs import select
from fedbench.reports.status.asked import of_tables
from fedbench.reports.status.cells import Cells
from fedbench.reports.status.index import Index, Record, State
from fedbench.results.making import diverged
from fedbench.results.pack import Row, write
from fedbench.results.shelf import Shelf
from fedbench.specs import DatasetSpec, RunSpec
from fedbench.store import Artifact, Store
from tests.reports.conftest import DIR, Draws, Lab, written
from tests.support.cli_user import good


def packed(lab: Lab, run: Artifact) -> Row:
    metrics = metrics_of(run, lab.store)
    assert metrics is not None
    about = {"title": "FedAvg", "device": "cpu", "libraries": {"torch": "9.9"}, "measures": []}
    return Row(run.spec, "0" * 64, "Ada", "2026-01-02T03:04:05Z", 7200.0, "Linux x86_64", about, load(metrics))  # type: ignore[arg-type]


@pytest.fixture
def shelf(lab: Lab, tmp_path: Path) -> Shelf:
    """FedAvg and Local in the first column of Table 1, made elsewhere and gone from the store."""
    setting = lab.setting("feddrm/1", DIR)
    runs = [lab.run(setting, "fedavg", value=0.25), lab.run(setting, "local", value=0.75)]
    write(tmp_path / "pack.parquet", [packed(lab, run) for run in runs])
    for run in runs:
        lab.store.remove("run", run.id)
    return Shelf([tmp_path / "pack.parquet"])


def grid(store: Store, shelf: Shelf | None, name: str = "feddrm/1") -> Grid:
    return build(tables.load(name), "small", store, [], index=Index(store, shelf))


def entry(grid: Grid, label: str) -> Entry:
    return next(line for line in grid.lines if line.label == label).entries[0]


def shown(grid: Grid, *labels: str) -> list[tuple[str, str]]:
    return [(entry(grid, label).text, entry(grid, label).mark) for label in labels]


def test_a_shipped_number_says_so(lab: Lab, shelf: Shelf, tmp_path: Path) -> None:
    """Needs no images, and can be left out."""
    printed = grid(lab.store, shelf)
    assert shown(printed, "FedAvg") == [("25.00", "°")]
    (line,) = [line for line in printed.about if line.startswith("°")]
    assert line.startswith("° 2 runs by Ada, 2026-01-02, on Linux x86_64, torch 9.9 (4.0 h of training)")
    for form, mark in (("console", "25.00 ± 0.00°"), ("latex", r"\circ"), ("html", "°"), ("markdown", "°")):
        assert mark in render([printed], form)
    cells = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in cells if c["shipped"]} == {"FedAvg", "Local"}
    mine = grid(lab.store, None)
    assert entry(mine, "FedAvg").state is State.MISSING
    assert not any(line.startswith("°") for line in mine.about)
    without = grid(Store(tmp_path / "empty"), shelf)
    assert shown(without, "FedAvg") == [("25.00", "°")]
    assert entry(without, "FedDRM").state is State.NO_DATA
    assert any("No images of cifar10" in line for line in without.about)


@pytest.mark.parametrize(("value", "text", "mark"), [(0.5, "50.00", "≠"), (0.25, "25.00", "")])
def test_the_store_comes_first(lab: Lab, shelf: Shelf, value: float, text: str, mark: str) -> None:
    """And where the pack has other numbers of the same run, the cell says so."""
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=value)
    printed = grid(lab.store, shelf)
    assert shown(printed, "FedAvg", "Local") == [(text, mark), ("75.00", "°")]
    said = [line for line in printed.about if line.startswith("≠")]
    assert len(said) == bool(mark)
    assert not said or f"≠ 1 run with other numbers in another result pack: {run.id} (shown: this store;" in said[0]


def test_a_run_that_two_packs_have_with_other_numbers(lab: Lab, shelf: Shelf, tmp_path: Path) -> None:
    """The first pack's stand, and say so; of the same numbers twice nothing is said; of a pack with a number out of
    range, nothing stands."""
    runs = [lab.run(lab.setting("feddrm/1", DIR), m, value=v) for m, v in (("fedavg", 0.5), ("local", 0.75))]
    rows, ours = [packed(lab, run) for run in runs], runs[0]
    write(tmp_path / "second.parquet", rows)
    write(
        tmp_path / "bad.parquet", [replace(rows[0], metrics=replace(rows[0].metrics, value=rows[0].metrics.value + 7))]
    )
    for run in runs:
        lab.store.remove("run", run.id)
    printed = grid(lab.store, Shelf([*shelf.paths, tmp_path / "second.parquet"]))
    assert shown(printed, "FedAvg", "Local") == [("25.00", "°≠"), ("75.00", "°")]
    (line,) = [line for line in printed.about if line.startswith("≠")]
    assert f"{ours.id} (shown: {tmp_path.parent.name}/pack; other: {tmp_path.parent.name}/second)" in line
    for form, mark in (("console", "°≠"), ("latex", r"\circ\neq"), ("html", "°≠"), ("markdown", "°≠")):
        assert mark in render([printed], form)
    cells = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in cells if c["contradicted"]} == {"FedAvg"}
    printed = grid(lab.store, Shelf([tmp_path / "bad.parquet", *shelf.paths]))
    assert shown(printed, "FedAvg") == [("25.00", "°")]
    (problem,) = printed.problems
    assert "accuracy is 7.5, not 0 to 1" in problem


def test_shipped_numbers_of_another_copy_of_the_images(lab: Lab, tmp_path: Path) -> None:
    """Who has the data in another form has other ids; what is shipped stands all the same, and says of which form."""
    copy = data.recipe("cifar10").sources[1]
    lab.store.remove("dataset", next(lab.store.list("dataset")).id)
    with lab.store.writing(DatasetSpec("cifar10", copy.name, "0")):
        pass
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=0.25)
    write(tmp_path / "pack.parquet", [packed(lab, run)])
    shelf, other = Shelf([tmp_path / "pack.parquet"]), Store(tmp_path / "other")
    with other.writing(DatasetSpec("cifar10", "another copy", "1")):
        pass
    printed = grid(other, shelf)
    assert entry(printed, "FedAvg").text == "25.00"
    assert entry(printed, "FedDRM").state is State.MISSING
    assert f"cifar10 images: {copy.title}." in printed.about


def test_a_number_that_the_pack_lacks_is_an_empty_cell(lab: Lab, tmp_path: Path) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    run = lab.run(setting, "pfedfda", rules="pfedfda")  # without the accuracies of single clients
    write(tmp_path / "pack.parquet", [packed(lab, run)])
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
    lab: Lab, shelf: Shelf, filters: list[str], methods: list[str]
) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(lab.store, filters, shelf)
    assert [run.spec.method for run in runs] == methods
    assert [run.shipped is not None for run in runs] == [method != "feddrm" for method in methods]


def test_shipped_runs_side_by_side(lab: Lab, shelf: Shelf) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(lab.store, ["table=feddrm/1"], shelf)
    (by_id,) = select(lab.store, [runs[1].id[:6]], shelf)
    assert (by_id.id, by_id.shipped is None) == (runs[1].id, False)
    (printed,) = side_by_side(runs)
    assert [line.entries[0].mark for line in printed.lines] == ["", "°", "°"]
    assert any(line.startswith("° 2 runs by Ada") for line in printed.about)


def test_the_runs_of_a_paper_are_those_that_its_tables_read(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    own = lab.run(setting, "fedavg")
    other_seed = lab.run(replace(setting, seed=7), "fedavg")
    lab.run(replace(setting, lr=0.5), "fedavg")
    assert of_tables(["feddrm"], lab.store, []) == {own.id: "FedAvg", other_seed.id: "FedAvg"}
    assert of_tables(["feddrm/2", "pfedfda"], lab.store, []).keys() == {own.id, other_seed.id}
    assert of_tables(["pfedfda"], lab.store, []).keys() == set()
    with pytest.raises(FedbenchError, match="did you mean 'feddrm'"):
        of_tables(["fedrm"], lab.store, [])


TUNED = """
title = "Tuned"
protocol = "plain"
metric = "average_accuracy"
statistic = "final"
seeds = [0, 1]
tune = { lr = [0.03, 0.1, 0.3] }
rows = [{ method = "fedavg" }, { method = "local" }]
column = [
{ label = "A", dataset = "cifar10", partition = { scheme = "iid", validation = 0.2 } },
{ label = "B", dataset = "cifar10", partition = { scheme = "dirichlet", alpha = 0.3, validation = 0.2 } },
{ label = "Worst", metric = "client_accuracy", statistic = "worst_tenth", dataset = "cifar10", \
partition = { scheme = "dirichlet", alpha = 0.3, validation = 0.2 } },
]
"""


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return written(tmp_path, TUNED).path


def cells(lab: Lab, path: Path) -> Cells:
    return lab.cells(str(path))


def train(lab: Lab, spec: RunSpec, validation: float | None, test: float) -> None:
    """A run with these accuracies, under the protocol of the table."""
    made: dict[str, Callable[[int], float]] = {"average_accuracy": lambda _: test}
    if validation is not None:
        made["validation_accuracy"] = lambda _: validation
    each = {k: test + k / 100 for k in range(spec.setting.partition.clients)}
    lab.run(spec.setting, spec.method, metrics=made, clients=each, rules="plain")


def chosen(lab: Lab, path: Path, row: int = 0, column: int = 0) -> tuple[list[float], list[int], State]:
    """Learning rates and seeds of the runs that a cell asks for, and its state."""
    one = cells(lab, path).grid[row][column]
    return [s.setting.lr for s in one.specs], [s.setting.seed for s in one.specs], one.state


def test_a_cell_takes_the_value_of_the_best_validation_accuracy_whatever_test_images_say(lab: Lab, tuned: Path) -> None:
    assert chosen(lab, tuned) == ([0.03, 0.1, 0.3], [0, 0, 0], State.MISSING)
    for spec, validation, test in zip(
        cells(lab, tuned).grid[0][0].specs, (0.5, 0.7, 0.6), (0.9, 0.2, 0.8), strict=True
    ):
        assert chosen(lab, tuned)[0] == [0.03, 0.1, 0.3], "nothing is chosen before all have been tried"
        train(lab, spec, validation, test)
    assert chosen(lab, tuned) == ([0.1, 0.1], [0, 1], State.MISSING)
    tried = {run.id for run in lab.store.list("run")}
    assert of_tables([str(tuned)], lab.store, []).keys() == tried, "a pack of the table holds the runs that chose"
    assert chosen(lab, tuned, column=1)[0] == [0.03, 0.1, 0.3], "each cell has its own"
    train(lab, cells(lab, tuned).grid[0][0].specs[1], 0.1, 0.4)
    assert chosen(lab, tuned)[2] is State.DONE
    grid = lab.grid(str(tuned))
    assert [entry.text for entry in grid.lines[0].entries] == ["0.30", "", ""]
    assert "seed 0 (to be chosen: 3, lr 0.1: 1)" in " ".join(grid.about)
    assert "FedAvg: lr 0.1 in A." in grid.notes


def test_shipped_choices_are_counted_without_the_images(lab: Lab, tuned: Path, tmp_path: Path) -> None:
    """A line for each partition, as with the images; one that nobody has begun with is not to be chosen here."""
    for column, row in ((0, 0), (1, 0), (0, 1)):
        for spec, validation in zip(cells(lab, tuned).grid[row][column].specs, (0.5, 0.7, 0.6), strict=True):
            train(lab, spec, validation, 0.5)
    write(tmp_path / "pack.parquet", [packed(lab, run) for run in lab.store.list("run")])
    empty, table = Store(tmp_path / "empty"), tables.load(str(tuned))
    about = " ".join(build(table, "small", empty, [], index=Index(empty, Shelf([tmp_path / "pack.parquet"]))).about)
    assert "seed 0 (lr 0.1: 3)" in about


def test_runs_that_only_choose_are_no_number_and_no_row(lab: Lab, tuned: Path) -> None:
    first, second, _ = cells(lab, tuned).grid[0][1].specs
    train(lab, first, 0.5, 0.9)
    train(lab, second, 0.6, 0.8)
    grid = lab.grid(str(tuned))
    assert [line.label for line in grid.lines] == ["FedAvg", "Local"]
    assert not any(line.filled for line in grid.lines)


def test_a_run_that_fails_is_left_out_of_the_choice(lab: Lab, tuned: Path) -> None:
    low, mid, high = cells(lab, tuned).grid[0][0].specs
    train(lab, low, 0.5, 0.5)
    train(lab, mid, 0.4, 0.9)
    failed = lab.store.home / "failed" / f"{high.id}.json"
    failed.parent.mkdir(parents=True, exist_ok=True)
    failed.write_text(json.dumps({"spec": high.to_dict(), "reason": "training diverged"}))
    assert chosen(lab, tuned)[0] == [0.03, 0.03]
    assert "1 of the runs that they were chosen by failed" in " ".join(lab.grid(str(tuned)).about)


def test_so_is_one_that_diverged_where_a_pack_was_made(lab: Lab, tuned: Path, tmp_path: Path) -> None:
    low, mid, high = cells(lab, tuned).grid[0][0].specs
    train(lab, low, 0.5, 0.5)
    train(lab, mid, 0.4, 0.9)
    lab.store.record_failure(high.id, "training diverged", "", spec=high.to_dict(), diverged=True)
    assert of_tables([str(tuned)], lab.store, []).keys() == {low.id, mid.id, high.id}
    packs = Shelf([tmp_path / "pack.parquet"])
    write(tmp_path / "pack.parquet", [packed(lab, run) for run in lab.store.list("run")], diverged(lab.store))
    lab.store.forget_failure(high.id)
    assert cells(lab, tuned).grid[0][0].tuned is None
    (first, *_), *_ = lab.cells(str(tuned), index=Index(lab.store, packs)).grid
    assert first.tuned == {"lr": 0.03}
    assert first.trials[2] == Record(high.id, high, State.FAILED, {}, reason="training diverged")


def test_a_method_that_answers_without_scores_takes_the_first_value(lab: Lab, tuned: Path) -> None:
    for spec, test in zip(cells(lab, tuned).grid[0][0].specs, (0.1, 0.9, 0.5), strict=True):
        train(lab, spec, None, test)
    assert chosen(lab, tuned)[0] == [0.03, 0.03]


def test_a_seed_that_shipped_trials_chose_the_value_of_goes_into_a_pack(lab: Lab, tuned: Path, tmp_path: Path) -> None:
    for spec, validation in zip(cells(lab, tuned).grid[0][0].specs, (0.5, 0.7, 0.6), strict=True):
        train(lab, spec, validation, 0.5)
    packs = Shelf([tmp_path / "pack.parquet"])
    write(tmp_path / "pack.parquet", [packed(lab, run) for run in lab.store.list("run")])
    best, other_seed = cells(lab, tuned).grid[0][0].specs
    for run in lab.store.list("run"):
        lab.store.remove("run", run.id)
    train(lab, other_seed, 0.5, 0.5)
    assert of_tables([str(tuned)], lab.store, []).keys() == set()
    assert {best.id, other_seed.id} <= of_tables([str(tuned)], lab.store, [], packs).keys()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (', validation = 0.2 } },\n{ label = "B"', ' } },\n{ label = "B"', "hold none back"),
        ("lr = [0.03, 0.1, 0.3]", "mu = [0.1]", "unknown field of a setting"),
        ("lr = [0.03, 0.1, 0.3]", "lr = []", "tune needs values of lr"),
        ("lr = [0.03, 0.1, 0.3]", "lr = [-1.0]", "the learning rate must be above 0"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(lab: Lab, tmp_path: Path, before: str, after: str, text: str) -> None:
    assert before in TUNED
    with pytest.raises(FedbenchError, match=text) as error:
        _ = [one.specs for one in cells(lab, written(tmp_path, TUNED.replace(before, after)).path).all]
    assert "mine.toml" in str(error.value)


def test_the_worst_tenth_is_of_the_clients(lab: Lab, tuned: Path) -> None:
    for spec in cells(lab, tuned).grid[0][2].specs:
        train(lab, spec, 0.5, 0.5)
    for spec in cells(lab, tuned).grid[0][2].specs[1:]:
        train(lab, spec, 0.5, 0.7)
    grid = lab.grid(str(tuned))
    assert grid.lines[0].entries[2].text == "0.60"


@pytest.mark.slow
def test_the_command_trains_the_grid_and_then_the_seeds_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FEDBENCH_HOME", str(home))
    text = TUNED.split('},\n{ label = "B"')[0].replace('"cifar10"', '"digits"')
    path = written(
        tmp_path, text.replace("0.03, 0.1, 0.3", "1e-6, 0.05") + ', train = { rounds = 2, model = "digits_cnn" } }]\n'
    ).path
    said = good("train", "--table", path)
    assert said.line == "6 of 6 runs made"
    assert "each cell chooses on validation images: lr 1e-06, 0.05" in said.err
    assert good("train", "--table", path).line == "nothing to run: no cell of the table is missing"
    shown = good("report", "--table", path, "--notes", "full")
    assert "(lr 0.05: 2)" in " ".join(shown.out.split())
    assert len(list((home / "run").iterdir())) == 6


ARENA = ("arena/mnist", "arena/cifar10")


@pytest.mark.parametrize("name", ARENA)
def test_the_arena_has_every_method_that_trains(name: str) -> None:
    table = tables.load(name)
    of = {row.label: row.method for row in table.rows}
    assert set(of.values()) == set(methods.names()) - {"descriptor_bounds", "kmeans_bound", "grayscale"}
    (unseen,) = (c.key for c in table.columns if c.statistic == "unseen")
    for column, serves in (
        (unseen, lambda method: UNSEEN in method.serves),
        ("Mean/System", lambda method: method.takes_votes),
    ):
        without = {method for label, method in of.items() if table.undefines(label, column)}
        assert without == {method for method in of.values() if not serves(methods.load(method)[0])}
    file = kinds.load(f"arena/{name.partition('/')[2]}")
    assert (file.ranked, kinds.load("arena/both").ranked) == ((name,), ARENA)


def test_ranks_of_a_table(lab: Lab, tuned: Path, draws: Draws) -> None:
    figures = tuned.with_name("figures.toml")
    figures.write_text('[[figure]]\ntitle = "Ranks"\nkind = "ranks"\nranked = ["./mine.toml"]\n')
    with pytest.raises(FedbenchError, match="0 of 2 rows have one in all 2"):
        draws(str(figures), "--json")
    for column in (0, 1):
        for row, test in ((0, 0.5), (1, 0.7)):
            for _ in range(2):
                for spec in cells(lab, tuned).grid[row][column].specs:
                    if not lab.store.has(spec):
                        train(lab, spec, 0.5, test)
    (panel,) = json.loads(draws(str(figures), "--json").stdout)["panels"]
    assert {one["line"]: one["ranks"] for one in panel["lines"]} == {"FedAvg": [2.0, 2.0], "Local": [1.0, 1.0]}
    assert panel["places"] == ["cifar10, A", "cifar10, B"]
    with pytest.raises(FedbenchError, match="--metric does not go with"):
        draws(str(figures), "--metric", "bytes_up")
