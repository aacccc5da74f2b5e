"""Extra rows, rows with their own budget, of users' files, of one precision; shipped numbers and chosen values."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench import data, methods
from fedbench.core.client import UNSEEN
from fedbench.errors import FedbenchError
from fedbench.planner import table as tables
from fedbench.planner.cells import Cells, of_tables
from fedbench.planner.others import others
from fedbench.planner.runs import select, shipped
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.figures import load
from fedbench.reports.layout.grid import Entry, Grid
from fedbench.reports.layout.notes import command
from fedbench.reports.render import FORMATS, render
from fedbench.results.frame import Frame
from fedbench.results.making import diverged
from fedbench.results.pack import write
from fedbench.results.packs import Packs
from fedbench.results.run import Run, State
from fedbench.specs import PRECISIONS, DatasetSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.reports.conftest import DIR, SPC, Draws, Lab, of_csv, words_of, written
from tests.support.cli_user import good
from tests.support.figures_lab import build
from tests.support.frames import refused
from tests.support.own_table import own_images, own_table


def grid(lab: Lab, name: str = "feddrm/1") -> Grid:
    return lab.grid(name, yours=True)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_programs_can_tell_them_apart_too(lab: Lab, format: str) -> None:
    for run in (*APFLS, ("mine", 0.5, "Mine", "ab" * 32)):
        extra(lab, *run)
    text = render([grid(lab)], format)
    cells = json.loads(text)[0]["cells"] if format == "json" else of_csv(text)
    found = [(c["row"], c["method"], c["source"] or "", float(c["value"])) for c in cells if c["kind"] == "yours"]
    assert found == [
        ("APFL (apfl)", "apfl", "", 25.0),
        ("APFL (apfl_flux)", "apfl_flux", "", 75.0),
        ("Mine", "mine", "ab" * 32, 50.0),
    ]


def extra(
    lab: Lab, method: str, value: float, title: str | None = None, source: str | None = None, **how: Any
) -> Artifact:
    """A run of a method, or of a user's file whose class is called so, in the first column of Table 1."""
    how = {"column": DIR, **how}
    setting = lab.setting("feddrm/1", how.pop("column"))
    if source is None:
        return lab.run(setting, method, value=value, **({"title": title} if title else {}), **how)
    run = lab.made(RunSpec(setting, method, {}, 1, source), overrides={}, title=title)
    lab.metrics(run, value)
    return run


def of_kind(grid: Grid, kind: str = "yours") -> dict[str, list[str]]:
    return {x.label: [e.text for e in x.entries if e.text] for x in grid.lines if x.kind == kind and x.filled}


APFLS = (("apfl", 0.25, "APFL"), ("apfl_flux", 0.75, "APFL"))


@pytest.mark.parametrize(
    ("runs", "rows"),
    [
        (APFLS, {"APFL (apfl)": ["25.00"], "APFL (apfl_flux)": ["75.00"]}),
        (
            (("mine", 0.5, "Mine", "ab" * 32), ("mine", 0.25, "Mine", "cd" * 32)),
            {"Mine (file abababab)": ["50.00"], "Mine (file cdcdcdcd)": ["25.00"]},
        ),
        (
            (("pfedfda", 0.5, {"version": 1}), ("pfedfda", 0.25, {"version": 2})),
            {"pFedFDA": ["50.00"]},  # the other is stale
        ),
        (
            (
                ("pfedfda", 0.5, {"overrides": {"cov_ridge": 0.1}}),
                ("pfedfda", 0.25, {"overrides": {"cov_ridge": 0.10000001}}),
            ),
            {"pFedFDA (cov_ridge = 0.1)": ["50.00"], "pFedFDA (cov_ridge = 0.10000001)": ["25.00"]},
        ),
        ((("feddrm", 0.75), ("mine", 0.5, "FedDRM")), {"FedDRM (mine)": ["50.00"]}),
        ((("pfedfda", 0.5), ("pfedfda", 0.25, {"column": SPC})), {"pFedFDA": ["50.00", "25.00"]}),
        (
            (*APFLS, ("sly", 0.5, "APFL (apfl)")),
            {"APFL (apfl), run {0}": ["25.00"], "APFL (apfl_flux)": ["75.00"], "APFL (apfl), run {2}": ["50.00"]},
        ),
    ],
)
def test_no_two_rows_have_one_label(lab: Lab, runs: Any, rows: dict[str, list[str]]) -> None:
    ids = [
        extra(lab, *[a for a in run if not isinstance(a, dict)], **(run[-1] if isinstance(run[-1], dict) else {})).id
        for run in runs
    ]
    assert of_kind(grid(lab)) == {label.format(*ids): values for label, values in rows.items()}


def test_they_are_added_where_they_are_asked_for(lab: Lab) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.5)
    plain = lab.grid("feddrm/1")
    assert not [line for line in plain.lines if line.kind == "yours"]
    assert "Left out: 1 row of your other runs in these settings (--no-yours)." in words_of(plain)
    assert not any("Left out" in line for line in words_of(grid(lab)))


def test_one_of_fewer_seeds_is_marked_and_not_ranked(lab: Lab) -> None:
    lab.dataset("mnist")
    settings = next(iter(lab.cells("flux/13", "paper").settings.values()))
    for setting in settings:
        for method, value in (("fedavg", 0.5), ("local", 0.25)):
            more = {"client_accuracy_mean": lambda _, value=value: value}
            lab.run(setting, method, rules="flux", metrics=more, views=("plain",))
    for seeds, setting in enumerate(settings, 1):
        lab.run(setting, "mine", rules="flux", metrics={"client_accuracy_mean": lambda _: 0.75}, views=("plain",))
        if seeds in (1, len(settings)):
            of = {line.label: line.entries[0] for line in lab.grid("flux/13", "paper", yours=True).lines}
            assert (of["mine"].rank, of["mine"].mark) == ((0, "‡") if seeds == 1 else (1, ""))
    assert of["FedAvg"].rank == 2


BUDGETS = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last"
decimals = 3
rows = [
{ label = "Plain", method = "feddrm" },
{ label = "Long", method = "fedavg", train = { lr = 0.5 }, budget = { small = { rounds = 300 } } },
]
column = [{ label = "IID", dataset = "cifar10", partition = { scheme = "iid" }, train = { rounds = 30, window = 1 } }]
"""


def test_a_row_of_its_own_budget_asks_for_other_runs_and_each_stands_in_its_own_row(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, BUDGETS)
    cells = lab.cells(table)
    plain, long = (line[0].specs[0].setting for line in cells.grid)
    assert (plain.rounds, long.rounds, plain.lr, long.lr) == (30, 300, 0.01, 0.5)
    assert cells.settings["IID"] == (plain,)
    assert {job.setting.rounds for job in cells.runs(State.MISSING)} == {30, 300}
    at_paper = lab.cells(table, "paper")
    assert [line[0].specs[0].setting.rounds for line in at_paper.grid] == [30, 30]  # nothing declared: the column's
    assert at_paper.grid[1][0].specs[0].setting.lr == 0.5
    about = words_of(lab.grid(table))
    assert any(line.startswith("Budget small: 30 rounds") for line in about)
    assert "Long: lr = 0.5, 300 rounds." in about
    assert not any(line.startswith("Plain:") for line in about)
    lab.run(plain, "feddrm", value=0.25)
    lab.run(long, "fedavg", value=0.5)
    # The row's method at the table's own budget is another run, and gets a row of its own that tells it apart.
    lab.run(plain, "fedavg", value=0.125, title="Long")
    lab.run(plain, "local", value=0.75, title="Local")
    lab.run(long, "local", value=0.875, title="Elsewhere")
    grid = lab.grid(table, yours=True)
    assert of_kind(grid, "paper") == {"Plain": ["0.250"], "Long": ["0.500"]}
    assert of_kind(grid) == {"Local": ["0.750"], "Long (30 rounds)": ["0.125"]}


def test_hyper_parameters_are_said_at_the_budget_and_of_the_data_set_that_they_are_for(lab: Lab) -> None:
    smoke = lab.grid("ftw_erm/13", "smoke").notes
    assert "M = 10, M = 20, M = 40, M = 50, M = 100, M = 200, M = 500: restarts = 1." in smoke
    assert not any("restarts" in line for line in lab.grid("ftw_erm/13", "paper").notes)
    for name in ("mnist", "fashion_mnist", "cifar100"):
        lab.dataset(name)
    notes = lab.grid("flux/1").notes
    assert "FLUX on fashion_mnist, FLUX-prior on fashion_mnist: scale = 0.95." in notes
    assert "FLUX on cifar100, FLUX-prior on cifar100: scale = 0.98." in notes
    assert not any(line.startswith(("FLUX: ", "FLUX on mnist")) for line in notes)


MINE = 'label = "Mine", method = "./idea.py:Idea"'


def own_ids(path: Path, lab: Lab) -> list[str]:
    return [spec.id for cell in lab.cells(str(path), "smoke").all for spec in cell.specs]


def test_files_are_seen_from_the_tables_folder(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own_table(tmp_path)
    there = own_ids(path, lab)
    monkeypatch.chdir(tmp_path)
    assert own_ids(Path("mine.toml"), lab) == there
    assert len(set(there)) == 6
    path = own_table(tmp_path, ('method = "fedavg"', 'method = "fedsplendid", planned = true'))
    states = {c.row.label: c.state for c in lab.cells(str(path), "smoke").all}
    assert states == {"FedAvg": State.NOT_BUILT, "Mine": State.MISSING, "Mine, 0.1": State.MISSING}
    path = own_table(tmp_path, ('method = "fedavg"', 'method = "fedavg", planned = true'))
    states = {c.row.label: c.state for c in lab.cells(str(path), "smoke").all}
    assert states["FedAvg"] is State.MISSING
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    assert own_ids(own_table(tmp_path / "a"), lab) == own_ids(own_table(tmp_path / "b"), lab)
    (tmp_path / "b" / "idea.py").open("a").write("\nOVER = 1\n")
    changed = own_ids(tmp_path / "b" / "mine.toml", lab)
    same = [a == b for a, b in zip(own_ids(tmp_path / "a" / "mine.toml", lab), changed, strict=True)]
    assert same == [True, True, False, False, False, False], "FedAvg's runs know nothing of that file"


def test_a_folder_of_clients_is_a_data_set_of_ones_own(lab: Lab, tmp_path: Path) -> None:
    for side in ("train", "test"):
        (tmp_path / "fed" / side).mkdir(parents=True)
        for client in range(4):
            x, y = np.zeros((12, 1, 8, 8), np.float32), np.arange(12) % 3
            np.savez_compressed(tmp_path / "fed" / side / f"{client}.npz", x=x, y=y)
    path = own_table(tmp_path, ('"digits"', '"./fed"'))
    assert stored(path, lab, "Mine", "Net", 0.5).setting.partition.dataset.name == "fed"
    assert printed(path, lab)["Mine"] == ["50.0", ""]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"fedavg"', '"fedavgg"'), "unknown method in {0}, row FedAvg 'fedavgg'; did you mean 'fedavg'?"),
        (("mu = 0.1", "nu = 0.1"), "{0}, row Mine, 0.1: unknown option of idea 'nu'; known: mu"),
        (("mu = 0.1", 'mu = "x"'), "{0}, row Mine, 0.1: --mu of idea takes a number, not 'x'"),
        ((MINE, MINE.replace(":Idea", ":Ideal")), "{0}, row Mine: unknown method class in .*'Ideal'; did you mean"),
        ((MINE, MINE.replace("idea.py", "nowhere.py")), "{0}, row Mine: no file .*nowhere.py to take the method from"),
        (("net.py:Net", "net.py:Nett"), "{0}, column Net: unknown model class in .* 'Nett'; did you mean 'Net'"),
        (("net.py", "nowhere.py"), "{0}, column Net: no file .*nowhere.py to take the model from"),
        (("Bright", "Brigt"), "{0}, column Bands: unknown partitioner class in .*'Brigt'; did you mean 'Bright'?"),
        (("bands = 2", "bnds = 2"), "{0}, column Bands: unknown option of partitioner Bright 'bnds'; did you mean"),
        (("bands = 2", "bands = 0"), "{0}, column Bands: --bands of Bright must be at least 1, not 0"),
        (('"digits"', '"digts"'), "{0}, column Net: unknown dataset 'digts'; did you mean 'digits'?"),
        (('"digits"', '"./pts.toml"'), "{0}, column Net: there is no recipe file .*pts.toml; give the path of"),
    ],
)
def test_a_mistake_is_told_with_its_row_or_column(change: tuple[str, str], told: str, lab: Lab, tmp_path: Path) -> None:
    path = own_table(tmp_path, change)
    assert re.match(told.format(re.escape(str(path))), refused("", lambda: own_ids(path, lab)))


def test_a_recipe_that_is_called_as_another_is_refused(lab: Lab, tmp_path: Path) -> None:
    recipe = own_images(tmp_path)
    (tmp_path / "digits.toml").write_text(recipe.read_text())
    path = own_table(tmp_path, ('"digits"', '"./digits.toml"'))
    refused(r"column Net: .* has the name of fedbench's own data set digits; rename", own_ids, path, lab)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "pets.toml").write_text(recipe.read_text())
    text = path.read_text().replace("./digits.toml", "./pets.toml", 1).replace("./digits.toml", "./more/pets.toml")
    path.write_text(text)
    refused(r"column Bands: two data sets are called pets: .*; rename one", own_ids, path, lab)


def stored(path: Path, lab: Lab, row: str, column: str, value: float) -> RunSpec:
    """A run of a cell in the store, as if it had been trained by the file as it is."""
    (cell,) = (c for c in lab.cells(str(path), "smoke").all if (c.row.label, c.column.key) == (row, column))
    (spec,) = cell.specs
    run = lab.made(spec, overrides=dict(cell.row.params), defaults={"mu": 0.01}, title="Idea")
    lab.metrics(run, value)
    return spec


def own_grid(path: Path, lab: Lab) -> Grid:
    return lab.grid(str(path), "smoke", yours=True)


def printed(path: Path, lab: Lab) -> dict[str, list[str]]:
    return {line.label: [e.text for e in line.entries] for line in own_grid(path, lab).lines}


def test_after_the_file_changed_earlier_runs_are_rows_that_say_how_they_differ(lab: Lab, tmp_path: Path) -> None:
    path = own_table(tmp_path)
    source = stored(path, lab, "Mine", "Net", 0.5).source
    stored(path, lab, "Mine, 0.1", "Bands", 0.25)
    assert printed(path, lab) == {"FedAvg": ["", ""], "Mine": ["50.0", ""], "Mine, 0.1": ["", "25.0"]}
    (tmp_path / "idea.py").open("a").write("\nOVER = 1\n")
    earlier = f"file {source[:8]}"
    assert printed(path, lab) == {
        "FedAvg": ["", ""],
        "Mine": ["", ""],
        "Mine, 0.1": ["", ""],
        f"Idea ({earlier})": ["50.0", ""],
        f"Idea (mu = 0.1, {earlier})": ["", "25.0"],
    }
    assert f"{earlier}: another text of idea.py than it has now." in words_of(own_grid(path, lab))
    path = own_table(tmp_path, ('label = "Mine", ', 'label = "Idea", '))
    assert printed(path, lab)[f"Idea ({earlier})"] == ["50.0", ""]
    before = own_table(tmp_path)
    stored(before, lab, "Mine", "Net", 0.5)
    only = [(f"  {{ {MINE} }},\n", ""), ('"Mine, 0.1"', '"Idea"')]
    assert printed(own_table(tmp_path, *only), lab)["Idea (mu = default)"] == ["50.0", ""]


def test_a_row_without_a_label_is_called_as_its_method_is_titled(lab: Lab, tmp_path: Path) -> None:
    path = own_table(tmp_path, *((f'label = "{old}", ', "") for old in ("FedAvg", "Mine", "Mine, 0.1")))
    assert [row.label for row in tables.load(str(path)).rows] == ["FedAvg", "Idea", "Idea (mu = 0.1)"]
    text = (tmp_path / "idea.py").read_text()
    (tmp_path / "idea.py").write_text(text.replace('title = "Idea"', 'title = "FedIdea"'))
    assert tables.load(str(path)).rows[1].label == "FedIdea"
    (tmp_path / "idea.py").write_text(text + "\nraise SystemExit\n")
    with pytest.raises(FedbenchError, match=r"row 2: cannot load .*idea\.py, line \d+: SystemExit"):
        tables.load(str(path))
    (tmp_path / "idea.py").write_text(text)
    planned = own_table(tmp_path, ('label = "FedAvg", method = "fedavg"', 'method = "fedsplendid", planned = true'))
    assert tables.load(str(planned)).rows[0].label == "fedsplendid"
    for change, told in (
        (('label = "FedAvg", method = "fedavg"', ""), "row 1 lacks 'label'"),
        (('label = "FedAvg", method = "fedavg"', 'method = "fedavgg"'), "row 1: unknown method 'fedavgg'; did you"),
    ):
        path = own_table(tmp_path, change)
        assert told in refused("", lambda path=path: tables.load(str(path)))


def test_a_folder_of_the_hubs_form_and_its_options_are_a_data_set_too(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    own_images(tmp_path)
    path = own_table(tmp_path, ('"digits"', '"hf:./pets,size=8"'))
    stored(path, lab, "Mine", "Net", 0.5)
    only = ("  { " + MINE + " },\n", "")
    assert printed(path, lab)["Mine"] == ["50.0", ""]
    assert printed(own_table(tmp_path, ('"digits"', '"hf:./pets,size=8"'), only), lab)["Idea"] == ["50.0", ""]
    assert printed(own_table(tmp_path, ('"digits"', '"hf:./pets,size=9"')), lab)["Mine"] == ["", ""]


def at_precision(lab: Lab, precision: str, budget: str = "small") -> Setting:
    found: Setting = dataclasses.replace(lab.setting("feddrm/1", DIR, budget), precision=precision)
    return found


def cells(lab: Lab, precision: str) -> Cells:
    return lab.cells("feddrm/1", precision=precision)


def of_precision(lab: Lab, precision: str, name: str = "feddrm/1") -> Grid:
    return lab.grid(name, precision=precision, yours=True)


def test_precisions_are_never_mixed(lab: Lab) -> None:
    runs = {}
    for value, precision in enumerate(PRECISIONS, 4):
        runs[precision] = lab.run(at_precision(lab, precision), "feddrm", value=value / 10, title="FedDRM").id
        if precision != "tf32":
            lab.run(at_precision(lab, precision), "pfedfda", value=value / 20, title="pFedFDA")
    for value, precision in enumerate(PRECISIONS, 4):
        found = cells(lab, precision)
        (cell,) = (c for c in found.all if (c.row.label, c.column.key) == ("FedDRM", DIR))
        assert (cell.state, [r.id for r in cell.records if r]) == (State.DONE, [runs[precision]])
        assert list(others(found)) == ([] if precision == "tf32" else ["pFedFDA"])
        assert {job.setting.precision for job in found.runs(*State)} == {precision}
        rows = {line.label: line.entries[0].text for line in of_precision(lab, precision).lines}
        assert (rows["FedDRM"], rows.get("pFedFDA")) == (
            f"{10 * value}.00",
            None if precision == "tf32" else f"{5 * value}.00",
        )
        lab.store.remove("run", runs[precision])
        assert all(c.state is not State.DONE for c in cells(lab, precision).all), "none of another precision"


def test_every_format_says_so_where_it_states_its_budget(lab: Lab) -> None:
    lab.run(at_precision(lab, "bf16"), "feddrm", value=0.6385)
    bf16, fp32, counted = (of_precision(lab, "bf16"), of_precision(lab, "fp32"), of_precision(lab, "bf16", "pfedfda/8"))
    for format in (f for f in FORMATS if f not in ("csv", "json", "macros", "bibtex")):
        text, usual = render([bf16], format), render([fp32], format)
        assert ("63.85" in text, "63.85" in usual) == (True, False)
        said = "Budget small{}, not the paper's: 400 rounds"
        assert said.format(" in bf16") in " ".join(html.unescape(text).split())
        assert said.format("") in " ".join(html.unescape(usual).split())
        assert "fp32" not in usual
        if format in ("latex", "html"):
            assert "feddrm/1, budget small in bf16" in text.replace("<small>", "")
    lines = of_csv(render([bf16, fp32, counted], "csv"))
    assert {(x["table"], x["precision"]) for x in lines} == {
        ("feddrm/1", "bf16"),
        ("feddrm/1", "fp32"),
        ("pfedfda/8", ""),
    }
    assert {x["precision"] for x in lines if x["value"] and x["table"] == "feddrm/1"} == {"bf16"}
    read = json.loads(render([bf16, fp32, counted], "json"))
    assert [t["precision"] for t in read] == ["bf16", "fp32", None]
    assert {c["precision"] for c in read[0]["cells"]} == {"bf16"}


def test_what_fills_the_cells_names_the_precision(lab: Lab) -> None:
    fills = "fedbench train --table feddrm/1 --budget small"
    assert command(cells(lab, "bf16")) == of_precision(lab, "bf16").command == f"{fills} --precision bf16"
    assert command(cells(lab, "fp32")) == fills


@pytest.fixture
def shelf(lab: Lab, tmp_path: Path) -> Packs:
    """FedAvg and Local in the first column of Table 1, made elsewhere and gone from the store."""
    for method, value in (("fedavg", 0.25), ("local", 0.75)):
        lab.run(lab.setting("feddrm/1", DIR), method, value=value)
    return Packs([lab.pack(tmp_path, gone=True)])


def with_shelf(store: Store, shelf: Packs | None, name: str = "feddrm/1") -> Grid:
    return build(tables.load(name), "small", store, frame=Frame(store, shelf))


def entry(with_shelf: Grid, label: str) -> Entry:
    return next(line for line in with_shelf.lines if line.label == label).entries[0]


def shown(with_shelf: Grid, *labels: str) -> list[tuple[str, str]]:
    return [(entry(with_shelf, label).text, entry(with_shelf, label).mark) for label in labels]


def test_a_shipped_number_says_so_in_a_table_and_side_by_side(lab: Lab, shelf: Packs, tmp_path: Path) -> None:
    printed = with_shelf(lab.store, shelf)
    assert shown(printed, "FedAvg") == [("25.00", "°")]
    (line,) = [line for line in words_of(printed) if line.startswith("°")]
    assert line.startswith("° 2 runs by Ada, 2026-01-02, on Linux x86_64, torch 9.9 (4.0 h of training)")
    assert "; all shipped." in printed.basis, "so that no number needs a mark"
    assert "25.00 ± 0.00\n" in render([printed], "console").replace(" " * 3, "\n")
    own = replace(entry(printed, "FedAvg"), shipped=False)
    lines = (replace(printed.lines[0], entries=(own, *printed.lines[0].entries[1:])), *printed.lines[1:])
    some = replace(printed, lines=lines, one_machine=False)
    for form, mark in (("console", "25.00 ± 0.00°"), ("latex", r"\circ"), ("html", "°"), ("markdown", "°")):
        assert mark in render([some], form)
        assert mark not in render([replace(some, one_machine=True)], form).partition("° 2 runs by Ada")[0]
    of_file = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in of_file if c["shipped"]} == {"FedAvg", "Local"}
    mine = with_shelf(lab.store, None)
    assert entry(mine, "FedAvg").state is State.MISSING
    assert not any(line.startswith("°") for line in words_of(mine))
    without = with_shelf(Store(tmp_path / "empty"), shelf)
    assert shown(without, "FedAvg") == [("25.00", "°")]
    assert entry(without, "FedDRM").state is State.NO_DATA
    assert any("The images of cifar10" in line for line in words_of(without))
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(Frame(lab.store, shelf), ["table=feddrm/1"])
    (by_id,) = select(Frame(lab.store, shelf), [runs[1].id[:6]])
    assert (by_id.id, by_id.shipped is None) == (runs[1].id, False)
    (printed,) = side_by_side(runs)
    assert [line.entries[0].mark for line in printed.lines] == ["", "°", "°"]
    assert any(line.startswith("° 2 runs by Ada") for line in words_of(printed))


@pytest.mark.parametrize(("value", "text", "mark"), [(0.5, "50.00", "≠"), (0.25, "25.00", "")])
def test_the_store_comes_first(lab: Lab, shelf: Packs, value: float, text: str, mark: str) -> None:
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=value)
    printed = with_shelf(lab.store, shelf)
    assert shown(printed, "FedAvg", "Local") == [(text, mark), ("75.00", "°")]
    said = [line for line in words_of(printed) if line.startswith("≠")]
    assert len(said) == bool(mark)
    assert not said or f"≠ 1 run with other numbers in another result pack: {run.id} (shown: this store;" in said[0]


def test_a_run_that_two_packs_have_with_other_numbers(lab: Lab, shelf: Packs, tmp_path: Path) -> None:
    """The first pack's stand, and say so; of the same numbers twice nothing is said; of a pack with a number out of
    range, nothing stands."""
    runs = [lab.run(lab.setting("feddrm/1", DIR), m, value=v) for m, v in (("fedavg", 0.5), ("local", 0.75))]
    rows, ours = [lab.packed(run) for run in runs], runs[0]
    write(tmp_path / "second.parquet", rows)
    write(
        tmp_path / "bad.parquet", [replace(rows[0], metrics=replace(rows[0].metrics, value=rows[0].metrics.value + 7))]
    )
    for run in runs:
        lab.store.remove("run", run.id)
    printed = with_shelf(lab.store, Packs([*shelf.paths, tmp_path / "second.parquet"]))
    assert shown(printed, "FedAvg", "Local") == [("25.00", "°≠"), ("75.00", "°")]
    (line,) = [line for line in words_of(printed) if line.startswith("≠")]
    assert f"{ours.id} (shown: {tmp_path.parent.name}/pack; other: {tmp_path.parent.name}/second)" in line
    for form, mark in (("console", "≠"), ("latex", r"$^{\neq}$"), ("html", "≠"), ("markdown", "≠")):
        assert f"0.00{mark}" in render([printed], form) or form in ("latex", "html")
        assert mark in render([printed], form)
    of_file = json.loads(render([printed], "json"))[0]["cells"]
    assert {c["row"] for c in of_file if c["contradicted"]} == {"FedAvg"}
    printed = with_shelf(lab.store, Packs([tmp_path / "bad.parquet", *shelf.paths]))
    assert shown(printed, "FedAvg") == [("25.00", "°")]
    (problem,) = printed.problems
    assert "accuracy is 7.5, not 0 to 1" in problem


def test_shipped_numbers_of_another_copy_of_the_images(lab: Lab, tmp_path: Path) -> None:
    """Who has the data in another form has other ids; what is shipped stands all the same, and says of which form."""
    copy = data.recipe("cifar10").sources[1]
    lab.store.remove("dataset", next(lab.store.list("dataset")).id)
    with lab.store.writing(DatasetSpec("cifar10", copy.name, "0")):
        pass
    lab.run(lab.setting("feddrm/1", DIR), "fedavg", value=0.25)
    shelf, other = Packs([lab.pack(tmp_path)]), Store(tmp_path / "other")
    with other.writing(DatasetSpec("cifar10", "another copy", "1")):
        pass
    printed = with_shelf(other, shelf)
    assert entry(printed, "FedAvg").text == "25.00"
    assert entry(printed, "FedDRM").state is State.MISSING
    assert f"cifar10 images: {copy.title}." in words_of(printed)


def test_a_number_that_the_pack_lacks_is_an_empty_cell(lab: Lab, tmp_path: Path) -> None:
    setting = lab.setting("pfedfda/2", "CIFAR10/Dir(0.5)")
    lab.run(setting, "pfedfda", rules="pfedfda")  # without the accuracies of single clients
    printed = with_shelf(lab.store, Packs([lab.pack(tmp_path, gone=True)]), "pfedfda/2")
    columns = [head.group + "/" + head.label for head in printed.heads]
    cell = next(line for line in printed.lines if line.label == "pFedFDA").entries[columns.index("CIFAR10/Dir(0.5)")]
    assert (cell.state, cell.text) == (State.NOT_PACKED, "")
    assert printed.problems == ()


@pytest.mark.parametrize(
    ("filters", "methods"),
    [
        ((), ["feddrm"]),
        (["dataset=cifar10", "validation=none"], ["feddrm"]),
        (["shipped=yes"], ["fedavg", "local"]),
        (["shipped=no"], ["feddrm"]),
        (["shipped=*", "dataset=cifar10"], ["feddrm", "fedavg", "local"]),
        (["table=feddrm/1"], ["feddrm", "fedavg", "local"]),
        (["table=feddrm/1", "shipped=yes", "method!=local"], ["fedavg"]),
        (["paper=feddr*"], ["feddrm", "fedavg", "local"]),
        (["protocol=feddr*"], ["feddrm", "fedavg", "local"]),
        (["table!=pfedfda/1"], ["feddrm"]),
        (["pack=*/pack", "method!=local"], ["fedavg"]),
        (["pack!=*/pack"], ["feddrm"]),
    ],
)
def test_ones_own_come_first_and_shipped_runs_where_they_are_named(
    lab: Lab, shelf: Packs, filters: list[str], methods: list[str]
) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    runs = select(Frame(lab.store, shelf), filters)
    assert [run.spec.method for run in runs] == methods
    assert [run.shipped is not None for run in runs] == [method != "feddrm" for method in methods]


@pytest.mark.parametrize(
    ("filters", "methods"),
    [
        ((), ["fedavg", "local"]),
        (["table=feddrm/1"], ["fedavg", "local"]),
        (["paper=feddr*", "method=local"], ["local"]),
        (["protocol=feddrm", "pack=*/pack"], ["fedavg", "local"]),
        (["table!=pfedfda/1"], ["fedavg", "local"]),
    ],
)
def test_shipped_runs_by_the_tables_papers_and_protocols_that_they_are_in(
    lab: Lab, shelf: Packs, filters: list[str], methods: list[str]
) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    assert [run.spec.method for run in shipped(Frame(lab.store, shelf), filters)] == methods
    refused("no table has such a shipped run: paper=flux", shipped, Frame(lab.store, shelf), ["paper=flux"])
    refused("did you mean 'feddrm'", shipped, Frame(lab.store, shelf), ["paper=fedrm"])


def test_the_runs_of_a_paper_are_those_that_its_tables_read(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    own = lab.run(setting, "fedavg")
    other_seed = lab.run(replace(setting, seed=7), "fedavg")
    lab.run(replace(setting, lr=0.5), "fedavg")
    assert of_tables(["feddrm"], Frame(lab.store), []) == {own.id: "FedAvg", other_seed.id: "FedAvg"}
    assert of_tables(["feddrm/2", "pfedfda"], Frame(lab.store), []).keys() == {own.id, other_seed.id}
    assert of_tables(["pfedfda"], Frame(lab.store), []).keys() == set()
    refused("did you mean 'feddrm'", of_tables, ["fedrm"], Frame(lab.store), [])


TUNED = """
title = "Tuned"
protocol = "plain"
metric = "average_accuracy"
statistic = "last"
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
def tuned(tmp_path: Path) -> str:
    return str(written(tmp_path, TUNED).path)


def tried(lab: Lab, path: str, row: int = 0, column: int = 0) -> None:
    """Runs of a cell's three learning rates, of which the second is best on validation images."""
    for spec, validation in zip(lab.cells(path).grid[row][column].specs, (0.5, 0.7, 0.6), strict=True):
        train(lab, spec, validation, 0.5)


def train(lab: Lab, spec: RunSpec, validation: float | None, test: float) -> None:
    made: dict[str, Callable[[int], float]] = {"average_accuracy": lambda _: test}
    if validation is not None:
        made["validation_accuracy"] = lambda _: validation
    each = {k: test + k / 100 for k in range(spec.setting.partition.clients)}
    lab.run(spec.setting, spec.method, metrics=made, clients=each, rules="plain")


def chosen(lab: Lab, path: str, row: int = 0, column: int = 0) -> tuple[list[float], list[int], State]:
    """Learning rates and seeds of the runs that a cell asks for, and its state."""
    one = lab.cells(path).grid[row][column]
    return [s.setting.lr for s in one.specs], [s.setting.seed for s in one.specs], one.state


def test_a_cell_takes_the_value_of_the_best_validation_accuracy_whatever_test_images_say(lab: Lab, tuned: str) -> None:
    assert chosen(lab, tuned) == ([0.03, 0.1, 0.3], [0, 0, 0], State.MISSING)
    for spec, validation, test in zip(lab.cells(tuned).grid[0][0].specs, (0.5, 0.7, 0.6), (0.9, 0.2, 0.8), strict=True):
        assert chosen(lab, tuned)[0] == [0.03, 0.1, 0.3], "nothing is chosen before all have been tried"
        train(lab, spec, validation, test)
    assert chosen(lab, tuned) == ([0.1, 0.1], [0, 1], State.PARTIAL)
    tried = {run.id for run in lab.store.list("run")}
    assert of_tables([tuned], Frame(lab.store), []).keys() == tried, "a pack of the table holds the runs that chose"
    assert chosen(lab, tuned, column=1)[0] == [0.03, 0.1, 0.3], "each cell has its own"
    train(lab, lab.cells(tuned).grid[0][0].specs[1], 0.1, 0.4)
    assert chosen(lab, tuned)[2] is State.DONE
    with_shelf = lab.grid(tuned)
    assert [entry.text for entry in with_shelf.lines[0].entries] == ["0.30", "", ""]
    assert "seed 0 (to be chosen: 3, lr 0.1: 1)" in " ".join(words_of(with_shelf))
    assert "FedAvg: lr 0.1 in A." in with_shelf.notes


def test_an_appendix_of_a_tuned_table_says_what_chose(lab: Lab, tuned: str) -> None:
    tried(lab, tuned)
    told = dict(lab.grid(tuned, appendix=True).appendix)
    said, *more = told["Hyper-parameters"]
    assert said.startswith("Tuned: lr from 0.03, 0.1, 0.3, for each row and partition by the accuracy on")
    assert more[:2] == ["FedAvg: lr 0.1 in A.", "The test images chose none of these values."]
    assert told["Compute"][1].startswith("2 runs by which values were chosen took 2 min of training in all on")


def test_shipped_choices_are_counted_without_the_images(lab: Lab, tuned: str, tmp_path: Path) -> None:
    """A line for each partition, as with the images; one that nobody has begun with is not to be chosen here."""
    for column, row in ((0, 0), (1, 0), (0, 1)):
        tried(lab, tuned, row, column)
    frame = Frame(empty := Store(tmp_path / "empty"), Packs([lab.pack(tmp_path)]))
    assert "seed 0 (lr 0.1: 3)" in " ".join(words_of(build(tables.load(tuned), "small", empty, frame=frame)))


def test_runs_that_only_choose_are_no_row_and_failures_are_left_out(lab: Lab, tuned: str, tmp_path: Path) -> None:
    first, second, _ = lab.cells(tuned).grid[0][1].specs
    train(lab, first, 0.5, 0.9)
    train(lab, second, 0.6, 0.8)
    with_shelf = lab.grid(tuned)
    assert [line.label for line in with_shelf.lines] == ["FedAvg", "Local"]
    assert not any(line.filled for line in with_shelf.lines)
    low, mid, high = lab.cells(tuned).grid[0][0].specs
    train(lab, low, 0.5, 0.5)
    train(lab, mid, 0.4, 0.9)
    lab.store.record_failure(high.id, "training diverged", "", spec=high.to_dict())
    assert chosen(lab, tuned)[0] == [0.03, 0.03]
    assert "1 of the runs that they were chosen by failed" in " ".join(words_of(lab.grid(tuned)))
    lab.store.record_failure(high.id, "training diverged", "", spec=high.to_dict(), diverged=True)
    assert of_tables([tuned], Frame(lab.store), []).keys() == {low.id, mid.id, high.id, first.id, second.id}
    frame = Frame(lab.store)
    assert [run.id for run in select(frame, [f"table={tuned}"])] == [low.id], "the others are in no cell"
    assert {run.id for run in select(frame, [f"table={tuned}", "trials=yes"])} == {low.id, mid.id, first.id, second.id}
    assert [run.id for run in select(frame, [f"table={tuned}", "trials=no"])] == [low.id]
    with pytest.raises(FedbenchError, match="trials are those of a tuned table, and no filter names one"):
        select(frame, ["trials=yes"])
    packs = Packs([lab.pack(tmp_path, diverged(lab.store))])
    lab.store.forget_failure(high.id)
    assert lab.cells(tuned).grid[0][0].tuned is None
    (first, *_), *_ = lab.cells(tuned, frame=Frame(lab.store, packs)).grid
    assert first.tuned == {"lr": 0.03}
    assert first.trials[2] == Run(high, lab.store, State.FAILED, reason="training diverged")


def test_a_method_that_answers_without_scores_takes_the_first_value(lab: Lab, tuned: str) -> None:
    for spec, test in zip(lab.cells(tuned).grid[0][0].specs, (0.1, 0.9, 0.5), strict=True):
        train(lab, spec, None, test)
    assert chosen(lab, tuned)[0] == [0.03, 0.03]


def test_a_seed_that_shipped_trials_chose_the_value_of_goes_into_a_pack(lab: Lab, tuned: str, tmp_path: Path) -> None:
    tried(lab, tuned)
    best, other_seed = lab.cells(tuned).grid[0][0].specs
    packs = Packs([lab.pack(tmp_path, gone=True)])
    train(lab, other_seed, 0.5, 0.5)
    assert of_tables([tuned], Frame(lab.store), []).keys() == set()
    assert {best.id, other_seed.id} <= of_tables([tuned], Frame(lab.store, packs), []).keys()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (', validation = 0.2 } },\n{ label = "B"', ' } },\n{ label = "B"', "and these clients have none"),
        ("lr = [0.03, 0.1, 0.3]", "mu = [0.1]", "unknown field of a setting"),
        ("lr = [0.03, 0.1, 0.3]", "lr = []", "tune needs values of lr"),
        ("lr = [0.03, 0.1, 0.3]", "lr = [-1.0]", "the learning rate must be above 0"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(lab: Lab, tmp_path: Path, before: str, after: str, text: str) -> None:
    assert before in TUNED
    with pytest.raises(FedbenchError, match=text) as error:
        _ = [one.specs for one in lab.cells(written(tmp_path, TUNED.replace(before, after))).all]
    assert "mine.toml" in str(error.value)


def test_the_worst_tenth_is_of_the_clients(lab: Lab, tuned: str) -> None:
    for spec in lab.cells(tuned).grid[0][2].specs:
        train(lab, spec, 0.5, 0.5)
    for spec in lab.cells(tuned).grid[0][2].specs[1:]:
        train(lab, spec, 0.5, 0.7)
    assert lab.grid(tuned).lines[0].entries[2].text == "0.60"


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
    assert "(lr 0.05: 2)" in " ".join(good("report", "--table", path, "--notes", "full").out.split())
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
    file = load(f"arena/{name.partition('/')[2]}")
    assert (file.ranked, load("arena/both").ranked) == ((name,), ARENA)


def test_ranks_of_a_table(lab: Lab, tuned: str, draws: Draws) -> None:
    figures = Path(tuned).with_name("figures.toml")
    figures.write_text('[[figure]]\ntitle = "Ranks"\nkind = "ranks"\nranked = ["./mine.toml"]\n')
    refused("0 of 2 rows have one in all 2", draws, str(figures), "--json")
    for column in (0, 1):
        for row, test in ((0, 0.5), (1, 0.7)):
            for _ in range(2):
                for spec in lab.cells(tuned).grid[row][column].specs:
                    if not lab.store.has(spec):
                        train(lab, spec, 0.5, test)
    (panel,) = json.loads(draws(str(figures), "--json").stdout)["panels"]
    assert {(row["place"], row["line"]): row["rank"] for row in panel["rows"]} == {
        (f"cifar10, {place}", line): rank for place in "AB" for line, rank in (("FedAvg", 2.0), ("Local", 1.0))
    }
    refused("--metric does not go with", draws, str(figures), "--metric", "bytes_up")
    Path(tuned).write_text(Path(tuned).read_text().replace("metric =", 'best = "none"\nmetric =', 1))
    refused("neither more nor less average_accuracy is better", draws, str(figures))
