"""The values of runs in long form: a value a row, with its run, hyper-parameters, seed, client and round; of a filter
and of a table, as Parquet and CSV."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedbench.cli import context
from fedbench.cli.report import app
from fedbench.reports.long import OF_VALUES, Taken, encoded, table
from fedbench.results.frame import Frame
from tests.reports.conftest import DIR, Lab, written
from tests.support.frames import refused

ACCURACIES = {0: (0.5, 0.7), 1: (0.6, 0.8)}  #: seed -> of the clients
TABLE = """
title = "Mine"
protocol = "feddrm"
metric = "average_accuracy"
statistic = "last"
seeds = [0, 1]
budget.small = { rounds = 2, every = 1 }
rows = [{ label = "=Averaging", method = "fedavg" }, { label = "Local", method = "local" }]
column = [
{ label = "IID", dataset = "cifar10", partition = { scheme = "iid" } },
{ label = "Worst", metric = "client_accuracy", statistic = "worst_tenth", dataset = "cifar10", \
partition = { scheme = "iid" } },
]
"""


def fill(lab: Lab, table: Any) -> None:
    for seed, (first, second) in ACCURACIES.items():
        run = lab.run(lab.cells(table, seeds=[seed]).settings["IID"][0], "fedavg", measure=False)
        rows = [("client_accuracy", "plain", 2, c, v) for c, v in enumerate((first, second))]
        rows += [("average_accuracy", "plain", t, -1, first / (3 - t)) for t in (1, 2)]
        lab.rows(run, [*rows, ("train_loss", "", 2, -1, 0.25), ("total_runtime_seconds", "", 0, -1, 9.0)])


@pytest.fixture
def call(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(context, "store", lambda: lab.store)
    monkeypatch.setattr(context, "frame", lambda shipped=True: Frame(lab.store))
    monkeypatch.setattr(context, "roots", list)  # the lab's images are made up

    def invoke(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_a_table_gives_what_its_numbers_are_made_of(lab: Lab, tmp_path: Path, call: Any) -> None:
    fill(lab, written(tmp_path, TABLE))
    call("report", str(tmp_path / "mine.toml"), "-o", str(out := tmp_path / "out.parquet"))
    found = pd.read_parquet(out)
    assert list(found.columns[-len(OF_VALUES) :]) == list(OF_VALUES)
    assert set(found["metric"]) == {"average_accuracy", "client_accuracy"}, "what its columns read, and of its clients"
    assert found["seed"].dtype == "int64"
    assert set(found["row"]) == {"=Averaging"}
    clients = found[found["metric"] == "client_accuracy"].set_index(["seed", "client"])["value"].to_dict()
    assert clients == {(seed, c): v for seed, of in ACCURACIES.items() for c, v in enumerate(of)}
    average = found[found["metric"] == "average_accuracy"]
    assert average["client"].isna().all()
    assert average.set_index(["seed", "round"])["value"].to_dict() == {
        (seed, t): of[0] / (3 - t) for seed, of in ACCURACIES.items() for t in (1, 2)
    }
    text = call("report", str(tmp_path / "mine.toml"), "-f", "long")
    read = pd.read_csv(io.StringIO(text[text.index('"table"') :]))
    assert set(read["row"]) == {"'=Averaging"}, "a spreadsheet evaluates none"
    pd.testing.assert_frame_equal(read.drop(columns="row"), found.drop(columns="row"), check_dtype=False)


def test_a_filter_gives_every_value_of_its_runs_and_their_hyper_parameters(lab: Lab, tmp_path: Path, call: Any) -> None:
    there = lab.setting("feddrm/1", DIR)
    for method, own in (("fedavg", {}), ("pfedfda", {"betas": 2}), ("pfedfda", {"betas": 1})):
        for lr in (0.1, 0.5):
            run = lab.run(replace(there, lr=lr), method, own, measure=False)
            lab.rows(run, [("average_accuracy", "plain", there.rounds, -1, lr), ("train_loss", "", 1, -1, 2.0)])
    call("compare", "-f", "long", "-o", str(out := tmp_path / "out.csv"))
    found = pd.read_csv(out)
    assert len(found) == 12
    assert set(found["metric"]) == {"average_accuracy", "train_loss"}
    assert sorted(found[found["method"] == "pfedfda"]["betas"].unique()) == [1, 2]
    assert found[found["method"] == "fedavg"]["betas"].isna().all()
    assert sorted(found["lr"].unique()) == [0.1, 0.5]
    assert found[found["metric"] == "train_loss"]["view"].isna().all()
    call("compare", "--metric", "train_loss", "-o", str(out := tmp_path / "loss.parquet"))
    assert set(pd.read_parquet(out)["metric"]) == {"train_loss"}


def test_what_has_no_long_form_is_one_line(lab: Lab, tmp_path: Path) -> None:
    run = lab.run(lab.setting("feddrm/1", DIR), "fedavg")
    taken = [Taken(Frame(lab.store).named(run.id))]
    refused("a file that ends in .parquet or .csv, not .*out.md", encoded, table(taken), tmp_path / "out.md")
    refused("no run has a value of these metrics", table, [replace(taken[0], metrics=["client_auc"])])
