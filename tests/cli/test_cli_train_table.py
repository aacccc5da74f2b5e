"""`fedbench train --table`: what is missing, and only that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.methods.feddrm import FedDRM
from fedbench.store import Store
from tests.support.cli_user import DIGITS, Said, cells, complete, fedbench, good, own_method

TABLE = ("train", "--table", "1", *DIGITS)


def report(*more: str) -> dict[str, dict[str, object]]:
    rows = cells(good("report", "--table", "1", "--extra", "--format", "json", *DIGITS, *more))
    return {row: {column: cell["state"] for column, cell in line.items()} for row, line in rows.items()}


def runs(home: Path) -> set[str]:
    return {path for path in complete(home) if path.startswith("run/")}


@pytest.fixture
def few_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of the table's eleven rows have a method."""
    there = ["ditto", "fedavgft", "fedbabu", "feddrm", "fedrep"]
    monkeypatch.setattr(methods, "names", lambda: there)


@pytest.mark.usefixtures("brief", "few_methods")
def test_the_missing_cells_and_no_others(home: Path) -> None:
    listed = good(*TABLE, "--dry-run").out
    assert "12 runs to make, budget smoke, about " in listed
    assert re.search(r"(?m)^Ditto +digits +2 +\d", listed)
    each = json.loads(good(*TABLE, "--dry-run", "--json").out)
    assert runs(home) == set()
    said = good(*TABLE)
    assert "12 runs to make, budget smoke, about " in said.err
    assert "not built yet, so left out: FedALA, FedAS" in said.err
    assert said.line == "12 of 12 runs made"
    made = runs(home)
    assert {f"run/{one['run']}" for one in each} == made
    assert all(one["seconds"] > 0 for one in each)
    assert "nothing to run: no cell" in good(*TABLE, "--dry-run").out
    states = report()
    assert states["FedAvgFT"] == states["FedDRM"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert good(*TABLE).line == "nothing to run: no cell of the table is missing"
    assert runs(home) == made
    # One cell taken away is made again, alone.
    gone = next(a for a in Store(home).list("run") if a.manifest["spec"]["method"] == "feddrm")
    good("remove", gone.id, "--yes")
    assert good(*TABLE).line == "1 of 1 runs made"
    assert runs(home) == made


@pytest.mark.usefixtures("brief")
def test_an_extra_row(home: Path) -> None:
    said = json.loads(good(*TABLE, "--method", "local", "--json").out)
    assert sorted(f"run/{id}" for id in said["made"]) == sorted(runs(home))
    assert said["failed"] == []
    assert report()["Local"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert good(*TABLE, "--method", "local").line.startswith("nothing to run")
    # A row of the table, by --method, is that row alone; several methods may be named.
    assert good(*TABLE, "--method", "feddrm", "--method", "local").line == "2 of 2 runs made"
    assert report()["FedDRM"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert report()["FedAvgFT"] == {"Dir-0.3": "missing", "5-SPC": "missing"}


@pytest.mark.usefixtures("brief")
def test_a_method_of_ones_own(home: Path, tmp_path: Path) -> None:
    mine = own_method(tmp_path)
    assert good(*TABLE, "--method", mine).line == "2 of 2 runs made"
    assert report()["Mine"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert good(*TABLE, "--method", mine).line.startswith("nothing to run")
    own_method(tmp_path, "yield Train(cross_entropy, lr=0.25 * client.lr)")
    assert good(*TABLE, "--method", mine).line == "2 of 2 runs made", "the same name, but another method"


@pytest.mark.usefixtures("brief", "few_methods")
def test_one_failure_does_not_stop_the_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FedDRM, *_: object) -> object:
        raise ZeroDivisionError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(FedDRM, "loss", broken)
        said = fedbench(*TABLE)
    assert said.code == 1
    assert "10 of 12 runs made" in said.err
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    for line in failed:
        assert "FedDRM digits" in line
        assert "ZeroDivisionError: no luck" in line
        log = Path(line.partition("(log: ")[2].removesuffix(")"))
        assert 'raise ZeroDivisionError("no luck")' in json.loads(log.read_text())["log"]
    assert "Traceback" not in said.err
    assert list((home / "work").glob("[!.]*")) == [], "nothing of a run without a checkpoint stays"
    states = report()
    assert states["FedDRM"] == {"Dir-0.3": "failed", "5-SPC": "failed"}
    assert states["FedAvgFT"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert good(*TABLE).line == "2 of 2 runs made"
    assert report()["FedDRM"] == {"Dir-0.3": "done", "5-SPC": "done"}
    assert list((home / "failed").iterdir()) == []


def test_failures_for_a_script(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedDRM, "loss", lambda *_: 1 / 0)
    said = fedbench(*TABLE, "--method", "feddrm", "--json")
    assert said.code == 1
    told = json.loads(said.out)
    assert told["made"] == []
    assert [f["reason"] for f in told["failed"]] == ["ZeroDivisionError: division by zero"] * 2


def test_a_counted_table_needs_no_run(home: Path) -> None:
    assert "is counted by formula" in good("train", "--table", "pfedfda/8").err
    assert not home.exists() or complete(home) == {}


def refused(*arguments: str) -> Said:
    said = fedbench("train", "--table", "1", *arguments)
    assert said.code == 2
    assert said.err.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--rounds", "5"), "--rounds"),
        (("--batch-size", "5"), "--batch-size"),
        (("--lambda", "0.7"), "--lambda"),
        (("--partition", "abc"), "--partition"),
        (("--protocol", "pfedfda"), "--protocol"),
        (("--model", "lenet5"), "--model"),
    ],
)
def test_a_table_fixes_its_cells(ready: Path, options: tuple[str, ...], named: str) -> None:
    before = complete(ready)
    assert refused(*DIGITS, *options).err.startswith(f"fedbench: {named} does not go with --table")
    assert complete(ready) == before


def test_one_column(ready: Path) -> None:
    """--column takes the runs of that column alone, by its heading and label as the table prints them."""
    one = (*TABLE[:3], "--budget", "smoke", "--dataset", "digits", "--method", "fedavgft")
    assert good(*one, "--column", "digits/Dir-0.3").line == "1 of 1 runs made"
    assert report()["FedAvgFT"] == {"Dir-0.3": "done", "5-SPC": "missing"}
    wrong = fedbench(*one, "--column", "digits/Dir-0.5")
    assert wrong.code != 0
    assert "unknown column of table feddrm/1 'digits/Dir-0.5'" in wrong.err
    assert "did you mean 'digits/Dir-0.3'" in wrong.err
    alone = fedbench("train", "--method", "fedavg", "--column", "x")
    assert "--column goes with --table only" in alone.err
