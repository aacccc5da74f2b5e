"""`--precision` at the command line: other runs, in tables of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.reports.status.index import State
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, cells, complete, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)
REPORT = ("report", "--table", "1", "--format", "json", *DIGITS)
BF16 = ("--precision", "bf16")


def runs(home: Path) -> set[str]:
    return {path for path in complete(home) if path.startswith("run/")}


def test_a_run_in_bf16(ready: Path) -> None:
    """It is another run than that in fp32, stands in another table, and everything that names it says so."""
    before = runs(ready)
    said = good(*TRAIN, *BF16)
    (path,) = runs(ready) - before
    assert "budget smoke: 4 rounds x 6 steps of 16 images, digits_cnn in bf16, about " in said.err
    hint = "next: fedbench report --table 1 --dataset digits --budget smoke --precision bf16 (or --table 2)"
    assert said.line == hint
    run = Store(ready).find(path.removeprefix("run/"))
    assert run.manifest["spec"]["setting"]["precision"] == "bf16"
    assert run.manifest["spec"]["setting"]["budget"] == "smoke"
    assert "precision" not in run.provenance
    (listed,) = (line for line in good("list", "run").out.splitlines() if run.id in line)
    assert "8  digits_cnn, bf16  smoke        4  " in listed
    assert good("list", "run").out.count("bf16") == 1
    assert "precision bf16" in " ".join(good("show", run.id).out.split())

    # The one run in fp32 and the one in bf16, each in the table that asks for it.
    found = {p: cells(good(*REPORT, "--precision", p))["FedAvg"]["Dir-0.3"]["runs"] for p in ("fp32", "bf16")}
    assert f"run/{found['bf16']}" == path
    assert {f"run/{found['fp32']}"} == before
    assert cells(good(*REPORT))["FedAvg"]["Dir-0.3"]["runs"] == found["fp32"], "fp32 unless told otherwise"
    assert "Budget smoke in bf16, not the paper's: " in good("report", "--table", "1", *DIGITS, *BF16).out
    assert "already there" in good(*TRAIN, *BF16).err


def test_the_usual_precision_changes_no_run(ready: Path) -> None:
    before = runs(ready)
    assert "already there" in good(*TRAIN, "--precision", "fp32").err
    assert runs(ready) == before


@pytest.mark.usefixtures("brief")
def test_a_table_in_bf16(home: Path) -> None:
    def states(*more: str) -> dict[str, str]:
        rows = cells(good(*REPORT, *more))
        return {label: rows[label]["Dir-0.3"]["state"] for label in ("FedAvgFT", "FedDRM")}

    said = good("train", "--table", "1", *DIGITS, *BF16, "--method", "fedavgft")
    assert "2 runs to make, budget smoke in bf16, about " in said.err
    assert said.line == "2 of 2 runs made"
    assert states(*BF16) == {"FedAvgFT": "done", "FedDRM": "missing"}
    assert states() == {"FedAvgFT": "missing", "FedDRM": "missing"}
    assert good("train", "--table", "1", *DIGITS, *BF16, "--method", "fedavgft").line.startswith("nothing to run")
    assert good("train", "--table", "1", *DIGITS, "--method", "fedavgft").line == "2 of 2 runs made"


def test_tables_count_cells_of_one_precision(ready: Path) -> None:
    def counts(*more: str) -> dict[str, dict[str, int]]:
        listed = json.loads(good("tables", "--json", *more).out)
        return {t["table"]: {"precision": t["precision"], **t["states"]} for t in listed}

    usual, bf16 = counts(), counts(*BF16)
    assert usual["feddrm/1"]["precision"] == {"paper": "tf32", "small": "fp32", "smoke": "fp32"}
    assert set(bf16["feddrm/1"]["precision"].values()) == {"bf16"}
    assert bf16["pfedfda/8"]["precision"] == {"": None}
    assert State.DONE.value not in bf16["feddrm/1"]["smoke"]
    assert "budget small in bf16." in good("tables", *BF16).out
    one = json.loads(good("tables", "1", *BF16, "--json").out)
    assert (one["budget"], one["precision"]) == ("small", "bf16")
    assert "budget small in bf16" in good("tables", "1", *BF16).out.splitlines()[0]
