"""A method, a network, a partitioner, a data set and a table of one's own in one folder, as `fedbench new` writes them:
trained, printed in all formats, changed, and shared out between processes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import SMOKE, Said, cells, fedbench, good
from tests.support.own_table import own_images, own_table

pytestmark = pytest.mark.usefixtures("brief")

TABLE = ("--table", "./mine.toml", *SMOKE)

FIGURES = """
[[figure]]
title = "By μ"
kind = "sweep"
series = { tables = { "" = "./mine.toml" }, x = "mu", label = "μ" }

[[figure]]
title = "Round by round"
kind = "rounds"
series = { tables = { "" = "./mine.toml" }, x = "round", label = "round" }
"""


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the table, which the user is in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    own_table(tmp_path / "work")
    return tmp_path / "work"


def train(*more: str) -> Said:
    return fedbench("train", *TABLE, "--executor", "sequential", *more)


def states(said: Said) -> dict[str, list[str]]:
    return {row: [cell["state"] for cell in line.values()] for row, line in cells(said).items()}


def report(*more: str) -> dict[str, list[str]]:
    return states(good("report", *TABLE, "--extra", "--format", "json", *more))


def runs(home: Path) -> set[str]:
    return {run.id for run in Store(home).list("run")}


def test_all_of_ones_own_is_trained_and_printed(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_images(folder)
    bright = '"\npartition = { scheme = "./bright'
    own_table(folder, (f'dataset = "digits{bright}', f'dataset = "./pets.toml{bright}'))
    (folder / "reported.csv").write_text("table,row,group,column,value,std\nmine,Mine,,Net,50.0,\n")
    said = train()
    assert said.code == 0, said.err
    assert "6 of 6 runs made" in said.err
    assert "Mine, 0.1 pets Bright bands 2" in said.err
    assert report() == {row: ["done", "done"] for row in ("FedAvg", "Mine", "Mine, 0.1")}
    for form in ("console", "latex", "markdown", "csv", "html", "json"):
        assert "Mine, 0.1" in good("report", *TABLE, "--format", form, "--compare", "--notes", "full").out
    assert "6 done" in good("tables", "./mine.toml", *SMOKE).out
    assert "FedProx" not in good("report", *TABLE, "--compare").out
    (folder / "figures.toml").write_text(FIGURES)
    monkeypatch.chdir("/")
    sweep = list(csv.DictReader(io.StringIO(good("figure", folder / "figures.toml:1", *SMOKE, "--csv").out)))
    assert [point["x"] for point in sweep if point["panel"] == "Bands"] == ["0.1", "", ""]
    good("figure", folder / "figures.toml:2", *SMOKE, "-o", folder / "rounds.png")
    assert (folder / "rounds.png").read_bytes().startswith(b"\x89PNG")
    made = runs(home)
    assert "nothing to run" in good("train", "--table", folder / "mine.toml", *SMOKE).err
    assert runs(home) == made


def test_a_method_is_chosen_by_its_content_wherever_its_file_lies(folder: Path, home: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "idea.py").rename(folder / "elsewhere" / "same.py")
    (folder / "idea.py").write_bytes((folder / "elsewhere" / "same.py").read_bytes())
    said = train("-m", "./elsewhere/same.py:Idea", "--column", "Net")
    assert said.code == 0, said.err
    assert "2 of 2 runs made" in said.err, "the runs of its two rows"
    assert report() == {"FedAvg": ["missing"] * 2, "Mine": ["done", "missing"], "Mine, 0.1": ["done", "missing"]}


def test_hyper_parameters_of_the_command_line_make_an_extra_row(folder: Path) -> None:
    assert "2 of 2 runs made" in train("-m", "./idea.py:Idea", "--mu", "0.3").err
    assert report()["Idea (mu = 0.3)"] == ["done", "done"]
    assert "2 of 2 runs made" in train("-m", "./idea.py:Idea", "--mu=0.1").err
    assert report()["Mine, 0.1"] == ["done", "done"], "a row that has these fills up"
    assert "2 of 2 runs made" in train("-m", "fedprox", "--mu", "0.3").err
    assert report()["FedProx (mu = 0.3)"] == ["done", "done"]


def test_an_extra_row_is_told_and_the_row_of_the_same_name(folder: Path) -> None:
    own_table(folder, ('label = "Mine"', 'label = "FedProx"'))
    said = train("-m", "fedprox", "-m", "fedavg", "--column", "Net", "--dry-run").err
    assert "no row of mine is of fedprox, so it makes an extra one; its row FedProx is -m " in said
    assert "idea.py:Idea" in said
    assert "is of fedavg" not in said
    assert "extra" not in train("-m", "fedprox", "--mu", "0.3", "--dry-run").err, "it is asked for"


def test_after_a_change_the_rows_are_missing_and_the_old_runs_stay(folder: Path, home: Path) -> None:
    assert train("-m", "./idea.py:Idea", "--column", "Net").code == 0
    before = runs(home)
    with (folder / "idea.py").open("a") as file:
        file.write("\nOVER = 1\n")
    told = report()
    assert told["Mine"] == ["missing", "missing"]
    (earlier,) = (row for row in told if row.startswith("Idea (file "))
    assert told[earlier] == ["done"]
    assert "another text of idea.py than it has now" in good("tables", "./mine.toml", *SMOKE).out
    assert "2 of 2 runs made" in train("-m", "./idea.py:Idea", "--column", "Net").err
    assert before < runs(home)
    assert report()["Mine"] == ["done", "missing"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mu", "0.1"), "--mu does not go with --table but for one method; name it: -m METHOD; a row has params"),
        (("-m", "fedavg", "-m", "fedprox", "--mu", "0.1"), "--mu does not go with --table but for one method"),
        (("-m", "./idea.py:Idea", "--nu", "1"), "unknown option of train --method idea '--nu'; did you mean '--mu'?"),
        (("-m", "./idea.py:Idea", "--mu", "x"), "--mu of idea takes a number, not 'x'"),
        (("-m", "fedprox", "--mu", "-1"), "--mu of fedprox must be at least 0, not -1.0"),
        (("-m", "fedproxx"), "unknown method 'fedproxx'; did you mean 'fedprox'?"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(options: tuple[str, ...], told: str, folder: Path) -> None:
    said = train(*options)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.line.startswith(f"fedbench: {told}")


def test_a_value_out_of_its_bounds_is_told_with_the_row_before_anything_is_trained(folder: Path, home: Path) -> None:
    own_table(folder, ("./idea.py:Idea", "fedprox"), ("mu = 0.1", "mu = -1"))
    said = train()
    line = "fedbench: mine.toml, row Mine, 0.1: --mu of fedprox must be at least 0, not -1.0"
    assert (said.code, said.line) == (2, line)
    assert runs(home) == set()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("./figures.toml", "./figures.toml has several figures; ./figures.toml:1 for example"),
        ("./figures.toml:3", "unknown figure in ./figures.toml '3'; known: 1, 2"),
        ("./figure.toml:1", "there is no file of figures figure.toml"),
    ],
)
def test_a_figure_that_is_not_there_is_one_line(name: str, told: str, folder: Path) -> None:
    (folder / "figures.toml").write_text(FIGURES)
    said = fedbench("figure", name)
    assert (said.code, said.line) == (2, f"fedbench: {told}")


@pytest.mark.slow
def test_two_processes_share_the_runs_of_ones_own_rows_out(folder: Path, home: Path) -> None:
    command = [sys.executable, "-m", "fedbench", "train", *TABLE, "--column", "Bands", "--json"]
    environment = {**os.environ, "FEDBENCH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    answers = [json.loads(one.communicate()[0]) for one in both]
    made = [id for answer in answers for id in answer["made"]]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(made) == sorted(runs(home))
    assert len(made) == 3
    assert all(answer["failed"] == [] for answer in answers)
