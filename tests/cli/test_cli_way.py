"""The way from a partition to a table, as the first page of the README has it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from fedbench.cli import own_runs
from fedbench.cli.train import _partition, train
from fedbench.reports import table as tables
from fedbench.reports.status.cells import DEFAULT_BUDGET, find
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, cells, complete, edit_manifest, good
from tests.support.real_images import RealImages


def test_three_commands_on_digits(home: Path) -> None:
    made = good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    partition = artifact(home, "partition")
    assert partition.name in made.out
    trained = good("train", "--method", "pfedfda", *SMOKE)
    assert "budget smoke: 4 rounds" in trained.err
    assert trained.line == "next: fedbench report --table 1 --dataset digits --budget smoke --extra (or --table 2)"
    printed = good("report", "--table", "1", "--extra", "--format", "latex", *DIGITS).out
    assert printed.startswith("% Needs \\usepackage{booktabs")
    assert "\\end{table}\n" in printed
    evaluated = json.loads(good("evaluate", "--json").out)[0]["headline"]["crop"]
    assert f"{100 * evaluated['system_accuracy']:.2f}" in printed.split("pFedFDA")[1].splitlines()[0]
    rows = cells(good("report", "--table", "1", "--extra", "--format", "json", *DIGITS))
    assert rows["pFedFDA"]["Dir-0.3"]["value"] == pytest.approx(100 * evaluated["system_accuracy"])
    assert rows["FedDRM"]["Dir-0.3"]["state"] == "missing"


@pytest.mark.parametrize(("options", "column"), [(("--dir", "0.3"), "Dir-0.3"), (("--spc", "5"), "5-SPC")])
def test_a_plain_run_is_the_tables_cell(home: Path, options: tuple[str, ...], column: str) -> None:
    good("partition", "digits", *options, "--protocol", "feddrm")
    good("train", "--method", "feddrm", *SMOKE)
    rows = cells(good("report", "--table", "1", "--extra", "--format", "json", *DIGITS))
    done = [(row, key) for row, line in rows.items() for key, cell in line.items() if cell["state"] == "done"]
    assert done == [("FedDRM", column)]


@pytest.mark.data
def test_cifar10(home: Path, data_root: Path, real_images: RealImages) -> None:
    """`partition cifar10` and a plain `train` make the setting of feddrm/1's cell, at the default budget."""
    real_images.lend(home, "cifar10")
    dirichlet = json.loads(good("partition", "cifar10", "--dir", "0.3", "--json", "--data", data_root).out)
    assert [c["n_train"] for c in dirichlet["clients"]] == [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]
    assert dirichlet["clients"][0]["class_counts"] == [505, 215, 4351, 749, 1573, 0, 568, 0, 0, 0]
    assert dirichlet["clients"][7]["class_counts"] == [139, 833, 19, 17, 57, 4778, 180, 173, 71, 34]
    assert plain_setting(home) == table_setting(home, data_root, "CIFAR-10/Dir-0.3")
    shards = json.loads(good("partition", "cifar10", "--spc", "5", "--json", "--data", data_root).out)
    assert [c["n_train"] for c in shards["clients"]] == [5250] * 8
    assert plain_setting(home) == table_setting(home, data_root, "CIFAR-10/5-SPC")


def plain_setting(home: Path) -> str:
    """Id of the setting of `fedbench train --method feddrm` now."""
    part, rules = _partition(Store(home), None, None)
    budget = inspect.signature(train).parameters["budget"].default
    (job,) = own_runs.jobs(["feddrm"], part, rules, budget, {}, {})
    return job.spec.setting.id


def table_setting(home: Path, root: Path, column: str) -> str:
    """Id of the setting of a column of feddrm/1 at the budget that `report` shows without being told."""
    (setting,) = find(tables.load("feddrm/1"), DEFAULT_BUDGET, Store(home), [root]).settings[column]
    return setting.id


def test_every_hyper_parameter_is_an_option(ready: Path) -> None:
    before = {path for path in complete(ready) if path.startswith("run/")}
    good("train", "--method", "feddrm", *SMOKE)
    good("train", "--method", "feddrm", *SMOKE, "--lambda", "0.7")
    both = {path for path in complete(ready) if path.startswith("run/")} - before
    assert len(both) == 2
    assert "already there" in good("train", "--method", "feddrm", *SMOKE, "--lambda=0.7").err
    assert "already there" in good("train", "--method", "feddrm", *SMOKE, "--lambda", "0.8").err, "0.8 is the default"
    assert {path for path in complete(ready) if path.startswith("run/")} - before == both
    rows = cells(good("report", "--table", "1", "--extra", "--format", "json", *DIGITS))
    assert rows["FedDRM"]["Dir-0.3"]["kind"] == "paper"
    assert rows["FedDRM (lambda = 0.7)"]["Dir-0.3"]["kind"] == "extra"
    assert rows["FedDRM (lambda = 0.7)"]["Dir-0.3"]["runs"] != rows["FedDRM"]["Dir-0.3"]["runs"]


@pytest.mark.full_smoke
def test_train_says_what_it_does(home: Path) -> None:
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    said = good("train", "--method", "fedavg", *SMOKE)
    name = f"partition {Store(home).current['partition']}: digits, Dir-0.3, 8 clients, shift high"
    for words in (f"{name} (protocol feddrm)\nFedAvg\n", "4 rounds x 10 steps of 16 images, digits_cnn, about ",
                  " here when idle\n", "the paper's budget: not for this data (images of 8x8x1",
                  "round 4 of 4, loss "):  # fmt: skip
        assert words in said.err
    assert "\x1b" not in said.err + said.out, "no colours and no live display in a file"
    assert "…" not in said.out, "no number may be cut off"
    run = Store(home).current["run"]
    (crop,) = (line for line in said.out.splitlines() if line.startswith(f"{run}  fedavg  crop"))
    headline = json.loads(good("evaluate", "--json").out)[0]["headline"]["crop"]
    assert crop.split()[3:6] == ["3-4"] + [f"{100 * headline[k]:.2f}" for k in ("system_accuracy", "average_accuracy")]
    custom = good("train", "--method", "fedavg", *SMOKE, "--rounds", "2")
    assert "budget custom: 2 rounds" in custom.err
    assert custom.line == (
        "next: fedbench compare partition={0} (side by side), fedbench figure curves partition={0} (by round)".format(
            Store(home).current["partition"]
        )
    )


@pytest.mark.full_smoke
def test_paper_budget_is_told_with_its_time(home: Path) -> None:
    """Where the paper's model fits the images, the remark says what its budget would take here."""
    good("partition", "digits", "--dir", "0.3", "--protocol", "pfedfda")
    said = good("train", "--method", "local", *SMOKE)
    assert "budget smoke: 2 rounds x 5 epochs of 50 images, digits_cnn, about " in said.err
    assert "the paper's budget: 200 rounds x 5 epochs of 50 images, digits_cnn, about " in said.err
    assert said.err.count(" here") == 2


def test_other_seeds_and_settings_are_pointed_to(ready: Path) -> None:
    said = good("train", "--method", "fedavg", *SMOKE, "--seed", "7")
    assert said.line == "next: fedbench report --table 1 --dataset digits --budget smoke --seed 7 (or --table 2)"
    rows = cells(good("report", "--table", "1", "--format", "json", *DIGITS, "--seed", "7"))
    assert rows["FedAvg"]["Dir-0.3"]["state"] == "done"


def test_json_of_train(ready: Path) -> None:
    said = json.loads(good("train", "--method", "local", *SMOKE, "--json").out)
    assert [one["run"] for one in said] == [Store(ready).current["run"]]
    assert 0 < said[0]["headline"]["crop"]["average_accuracy"] < 1


def test_made_anew(ready: Path) -> None:
    """A run by other code is said to be one where it is asked for, is not stale, and is made anew only when asked."""
    manifest = artifact(ready, "run") / "artifact.json"
    edit_manifest(manifest.parent, lambda m: m["provenance"].update(fingerprint="0" * 12))

    def row() -> dict[str, Any]:
        return cells(good("report", "--table", "1", "--format", "json", *DIGITS))["FedAvg"]["Dir-0.3"]

    assert row()["state"] == "done", "its versions are today's"
    again = ("train", "--method", "fedavg", *SMOKE)
    assert "is already there, made by code that has changed since: --again makes it anew" in good(*again).err
    assert json.loads(manifest.read_text())["provenance"]["fingerprint"] == "0" * 12
    good(*again, "--again")
    assert json.loads(manifest.read_text())["provenance"]["fingerprint"] != "0" * 12
    assert "has changed since" not in good(*again).err
    assert row()["state"] == "done"
