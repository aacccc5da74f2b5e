"""What a method of one's own measures, from its file to a table, and what there is to name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_user import SMOKE, fedbench, good

MINE = """
from dataclasses import dataclass

from fedbench.measure import Measure
from fedbench.methods.base import Method


@dataclass(frozen=True)
class Mine(Method):
    \"\"\"FedAvg (McMahan et al., AISTATS 2017), watched.\"\"\"

    name = "mine"
    title = "Mine"
    measures = (
        Measure("drift", "how far the model went", "distance"),
        Measure("trust", "a client's trust in itself", "fraction", of="client", federation="max"),
    )

    def round_metrics(self, server):
        return {"drift": float(server.round)}

    def personalise(self, client):
        client.metrics["trust"] = client.index / 10
"""
TABLE = """
title = "What Mine measures"
protocol = "feddrm"
statistic = "whole_run"
unit = "fraction"
rows = [{ label = "Watched", method = "./mine.py:Mine" }, { label = "FedAvg", method = "fedavg" }]
[[column]]
label = "Drift"
metric = "drift"
dataset = "digits"
partition = { scheme = "iid" }
[[column]]
label = "Trust"
metric = "trust"
dataset = "digits"
partition = { scheme = "iid" }
"""


@pytest.mark.usefixtures("brief", "home")
def test_from_its_file_to_a_table_and_on_without_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(TABLE)
    table = ("--table", tmp_path / "mine.toml", *SMOKE)
    assert good("train", *table).line == "2 of 2 runs made"
    assert good("train", *table).line == "nothing to run: no cell of the table is missing"
    report = json.loads(good("report", *table, "--format", "json").out)[0]
    values = {(c["row"], c["column"]): (c["value"], c["state"]) for c in report["cells"]}
    assert values == {
        ("Watched", "Drift"): (2.0, "done"),
        ("Watched", "Trust"): (0.7, "done"),
        ("FedAvg", "Drift"): (None, "not defined"),
        ("FedAvg", "Trust"): (None, "not defined"),
    }
    assert report["notes"][-2:] == ["No drift: FedAvg does not measure it.", "No trust: FedAvg does not measure it."]
    assert {c["method"] for c in report["cells"]} == {"mine", "fedavg"}, "no path of this machine"
    (tmp_path / "mine.py").unlink()
    id = next(c["runs"] for c in report["cells"] if c["method"] == "mine")
    (run,) = json.loads(good("evaluate", id, "--again", "--json").out)
    assert run["method_metrics"] == {"drift": 2.0, "trust": 0.7}
    assert f"{id} mine measured drift 2, trust 0.7" in good("evaluate", id).out
    shown = " ".join(good("show", id).out.split())
    assert "measures trust: a client's trust in itself (fraction, max of the clients)" in shown
    assert "no file" in fedbench("report", *table).line


def test_methods_and_metrics_list_what_can_be_named() -> None:
    lines = {line["metric"]: line for line in json.loads(good("metrics", "--json").out)}
    assert lines["beta"]["methods"] == ["pfedfda"]
    assert lines["bytes_up"]["methods"] is None
    assert {"ifca", "fedem", "flux"} <= set(lines["clusters"]["methods"])
    assert "is a metric of their runs alone" in good("metrics").out
    (told,) = json.loads(good("methods", "pfedfda", "--json").out)
    assert [one["name"] for one in told["measures"]] == ["beta", "beta_0", "beta_1"]
    assert "beta: weight of a client's own Gaussian" in good("methods", "pfedfda").out


@pytest.mark.parametrize("value", ["Measure('a', 'b', 'c')", "('drift',)", "{}"])
def test_measures_that_are_none_are_told_in_one_line(value: str, tmp_path: Path) -> None:
    before, _, rest = MINE.partition("    measures = (")
    (tmp_path / "mine.py").write_text(
        before + f"    measures = {value}\n" + rest[rest.index("    def round_metrics") :]
    )
    said = fedbench("methods", tmp_path / "mine.py")
    assert said.code == 2
    assert "measures of Mine in" in said.line
    assert "write measures = (Measure(...),)" in said.line
