"""A user's network at the command line: `train --model ./net.py:Net`, and in a table of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedbench.core.trainer import Trainer
from fedbench.specs import RunSpec
from fedbench.store import Store
from tests.support.cli_user import SMOKE, fedbench, good

NET = """
from torch import nn
from fedbench.models.base import FLModel
from helper import WIDTH


class Net(FLModel):
    def __init__(self, shape, classes):
        height, width, channels = shape
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, WIDTH), nn.ReLU())
        super().__init__(backbone, nn.Identity(), nn.Linear(WIDTH, classes), backbone_size=WIDTH)

    def forward(self, x):
        {forward}
        return super().forward(x)
"""
TABLE = """
title = "A network of our own"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
view = "crop"
unit = "percent"
decimals = 1

rows = [{ label = "FedAvg", method = "fedavg" }]

[[column]]
label = "Dir-0.3"
dataset = "digits"
partition = { scheme = "dirichlet", alpha = 0.3 }
train = { model = "./net.py:Net" }
"""

pytestmark = pytest.mark.usefixtures("ready", "brief")


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write()


def write(width: int = 24, forward: str = "pass") -> None:
    Path("net.py").write_text(NET.format(forward=forward))
    Path("helper.py").write_text(f"WIDTH = {width}\n")


def train(*more: str) -> Any:
    return fedbench("train", "--method", "fedavg", "--model", "./net.py:Net", *SMOKE, "--executor", "sequential", *more)


def runs(home: Path) -> dict[str, str]:
    """Run -> its network, of the runs of a user's own."""
    specs = {run.id: run.spec for run in Store(home).list("run")}
    of = {id: spec.setting.model for id, spec in specs.items() if isinstance(spec, RunSpec)}
    return {id: model for id, model in of.items() if "@" in model}


def test_a_run_is_named_by_the_networks_source_and_its_helpers(home: Path) -> None:
    first, again = train("--json"), train("--json")
    write(32)
    other = train("--json")
    assert (first.code, again.code, other.code) == (0, 0, 0), first.err + other.err
    assert first.out == again.out != other.out
    assert len(runs(home)) == len(set(runs(home).values())) == 2
    assert all(model.startswith("Net@") for model in runs(home).values())


def test_what_is_made_is_told_and_evaluated_without_the_file(home: Path) -> None:
    assert train().code == 0
    Path("net.py").unlink()
    (id,) = runs(home)
    assert runs(home)[id] in good("list", "run").out
    good("show", id)
    good("evaluate", id)


def test_a_run_that_was_stopped_goes_on_with_the_same_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Trainer.commit

    def stop(self: Trainer, round: Any) -> None:
        commit(self, round)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "commit", stop)
        assert train().code == 130
    write(25)
    assert "goes on" not in train().err
    write()
    assert "goes on after round 1" in train().err


def test_a_mistake_is_told_by_its_line(home: Path) -> None:
    write(forward="1 / 0 if self.training else 0")
    said = train()
    assert (said.code, said.line) == (2, "fedbench: net.py, line 14, in forward: ZeroDivisionError: division by zero")
    write(forward="1 / 0")
    assert train().line == "fedbench: net.py, line 14, in forward: ZeroDivisionError: division by zero"
    assert runs(home) == {}


def test_a_table_names_it_from_its_own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text(TABLE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    good("train", "--table", "../mine.toml", *SMOKE)
    assert len(runs(home)) == 1
    (table,) = json.loads(good("report", "--table", "../mine.toml", *SMOKE, "--format", "json").out)
    assert [cell["state"] for cell in table["cells"]] == ["done"]
    (tmp_path / "helper.py").write_text("WIDTH = 25\n")
    (table,) = json.loads(good("report", "--table", "../mine.toml", *SMOKE, "--format", "json").out)
    assert [cell["state"] for cell in table["cells"]] == ["missing"]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("./nowhere.py:Net", "no file ./nowhere.py to take the model from"),
        ("./net.py", "./net.py does not say which of its classes is the model; such as net.py:Net"),
        ("./net.py:Nett", "unknown model class in ./net.py:Nett 'Nett'; did you mean 'Net'?"),
        (
            "Net@0123456789ab",
            "the model Net@0123456789ab is a user's file that is not at hand; give --model FILE.py:Net",
        ),
    ],
)
def test_bad_input_is_one_line(model: str, line: str) -> None:
    said = fedbench("train", "--method", "fedavg", "--model", model, *SMOKE)
    assert said.code == 2
    assert said.line.startswith(f"fedbench: {line}")
