"""`--optimizer`, `--momentum`, `--weight-decay` and `--every` of `train`, and an optimiser in a table's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.specs import RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import SMOKE, cells, complete, fedbench, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)
ADAMW = ("--optimizer", "adamw", "--weight-decay", "0.01", "--lr", "0.001")


def current(home: Path) -> Artifact:
    store = Store(home)
    return store.find(str(store.current["run"]))


def setting(home: Path) -> Setting:
    spec = current(home).spec
    assert isinstance(spec, RunSpec)
    return spec.setting


def rounds(home: Path) -> list[int]:
    return sorted(set(current(home).frame("predictions")["round"]))


def test_a_run_by_adamw(ready: Path) -> None:
    """It is another run, and everything that tells of it says so."""
    before = setting(ready)
    said = good(*TRAIN, *ADAMW)
    made = setting(ready)
    assert (made.optimizer, made.momentum, made.weight_decay, made.lr) == ("adamw", 0.0, 0.01, 0.001)
    assert made.id != before.id
    assert (
        "budget custom: 4 rounds x 6 steps of 16 images, digits_cnn, AdamW with weight decay 0.01, about " in said.err
    )
    run = current(ready).id
    (listed,) = (line for line in good("list", "run").out.splitlines() if run in line)
    assert "digits_cnn, adamw  custom       4  0.001  2025" in listed
    assert "adamw), seed" in " ".join(good("show", run).out.split())
    assert "optimizer adamw" in " ".join(good("show", run).out.split())
    assert good("list", "run").out.count("adamw") == 1
    assert "already there" in good(*TRAIN, *ADAMW).err


def test_what_the_budget_has_said_aloud_changes_no_run(ready: Path) -> None:
    before = complete(ready)
    aloud = ("--optimizer", "sgd", "--momentum", "0.9", "--weight-decay", "5e-4")
    said = good(*TRAIN, *aloud)
    assert "already there" in said.err
    assert complete(ready) == before


def test_another_momentum_is_told(ready: Path) -> None:
    said = good(*TRAIN, "--momentum", "0.5", "--weight-decay", "0")
    assert "budget custom: 4 rounds x 6 steps of 16 images, digits_cnn, SGD with momentum 0.5, about " in said.err
    assert (setting(ready).momentum, setting(ready).weight_decay) == (0.5, 0.0)
    assert "SGD" not in good(*TRAIN).err, "the protocol's own goes without saying"


@pytest.mark.parametrize(("every", "evaluated"), [("1", [1, 2, 3, 4]), ("3", [3, 4]), ("100", [3, 4]), ("0", [3, 4])])
def test_every_so_many_rounds_and_the_last_ones(every: str, evaluated: list[int], ready: Path) -> None:
    """Budget smoke counts the last two rounds: they are evaluated whatever the interval."""
    good(*TRAIN, "--every", every)
    assert rounds(ready) == evaluated
    assert setting(ready).window == 2


@pytest.mark.parametrize("option", ["--optimizer=adamw", "--momentum=0.5", "--weight-decay=0.1", "--every=2"])
def test_a_tables_cells_are_made_as_its_file_says(option: str, home: Path) -> None:
    said = fedbench("train", "--table", "1", "--dataset", "digits", *SMOKE, option)
    assert said.code == 2
    assert f"{option.split('=')[0]} does not go with --table" in said.line


MINE = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "final"
rows = [
  { label = "FedAvg", method = "fedavg" },
  { label = "FedAvg by SGD", method = "fedavg", train = { optimizer = "sgd" } },
]
[[column]]
label = "IID"
dataset = "digits"
partition = { scheme = "iid" }
train = { optimizer = "adamw", lr = 0.002 }
"""


@pytest.mark.usefixtures("brief")
def test_a_table_by_adamw(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE)
    assert good("train", "--table", mine, *SMOKE).line == "2 of 2 runs made"
    settings = [a.spec.setting for a in Store(home).list("run") if isinstance(a.spec, RunSpec)]
    assert sorted((s.optimizer or "", s.momentum, s.weight_decay, s.lr, s.budget) for s in settings) == [
        ("", 0.9, 5e-4, 0.002, "smoke"),
        ("adamw", 0.0, 5e-4, 0.002, "smoke"),
    ]
    rows = cells(good("report", "--table", mine, *SMOKE, "--format", "json"))
    assert {label: line["IID"]["state"] for label, line in rows.items()} == {"FedAvg": "done", "FedAvg by SGD": "done"}
    assert rows["FedAvg"]["IID"]["value"] != rows["FedAvg by SGD"]["IID"]["value"]
    told = " ".join(good("report", "--table", mine, *SMOKE).out.split())
    assert "Budget smoke: 2 rounds of 6 steps, digits_cnn, AdamW with weight decay 0.0005" in told
    assert "FedAvg by SGD: optimizer = sgd." in told


def test_a_table_with_an_unknown_optimizer(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.replace('"adamw"', '"adam"'))
    said = fedbench("train", "--table", mine, *SMOKE)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "unknown optimizer 'adam'; did you mean 'adamw'?" in said.line


def test_help_names_the_options() -> None:
    told = " ".join(good("train", "--help").out.split())
    for option in ("--optimizer", "--momentum", "--weight-decay", "--every"):
        assert option in told
    assert json.loads(good("methods", "fedavg", "--json").out)[0]["options"] == [], "they are the setting's"
