"""Methods, networks, partitioners, data sets, tables and papers of one's own: written by `new`, checked, trained,
mistaken, measured, kept and exported."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedbench import resources
from fedbench.resources import TABLES
from fedbench.store import Store
from tests.support.cli_user import SMOKE, Said, artifact, bad, cells, fedbench, good, own_method, runs
from tests.support.own_table import FIGURES, own_images, own_table

METHOD = """
from dataclasses import dataclass
import sys
from fedbench.core.client import Train
from fedbench.methods.base import Method, cross_entropy


@dataclass(frozen=True)
class Mine(Method):
    {hook}
"""
#: The line of the hook's body, counted by hand.
LINE = 11
LOCAL = "def local(self, client):"
pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resources, "_given", {})


def own(home: Path) -> dict[str, str]:
    """Run -> its method and network, of the runs of a user's own."""
    specs = {run.id: run.manifest["spec"] for run in runs(home)}
    names = {id: f"{spec['method']} {spec['setting']['model']}" for id, spec in specs.items()}
    return {id: name for id, name in names.items() if "Mine" in name or "@" in name}


def mine(hook: str, body: str, folder: str = ".") -> str:
    (Path(folder) / "mine.py").write_text(METHOD.format(hook=f"{hook}\n        {body}"))
    return "./mine.py:Mine"


def train(*more: str, what: tuple[str, ...] = ("--method", "./mine.py:Mine")) -> Said:
    return fedbench("train", *what, *SMOKE, "--executor", "sequential", *more)


train_net = partial(train, what=("-m", "fedavg", "--model", "./net.py:Net"))
train_table = partial(train, what=("--table", "./mine.toml"))


@pytest.mark.parametrize(
    ("hook", "body", "told"),
    [
        (LOCAL, "yield 1 / 0", "in local: ZeroDivisionError: division by zero"),
        ("def aggregate(self, server, cohort, t):", "sys.exit()", "in aggregate: SystemExit"),
        ("def deviations(self=None):", "return 1 / 0", "in deviations: ZeroDivisionError: division by zero"),
        ("def check_setting(self, setting):", "return 1 / 0", "in check_setting: ZeroDivisionError"),
        ("def __post_init__(self):", "sys.exit(0)", "in __post_init__: SystemExit: 0"),
    ],
)
def test_a_mistake_in_a_hook_is_one_line_and_a_failure(ready: Path, hook: str, body: str, told: str) -> None:
    """The last two end before there is a run."""
    mine(hook, body)
    said = train()
    assert said.code == 2
    assert said.line.startswith("fedbench: ")
    assert f"mine.py, line {LINE}, {told}" in said.line
    assert "Traceback" not in said.err
    assert own(ready) == {}
    for path in (failed := list((ready / "failed").glob("*.json"))):
        failure = json.loads(path.read_text())
        assert said.line == f"fedbench: {failure['reason']}"
        assert "fedbench/engine/" in failure["log"], "the whole stack is in the log"
    assert len(failed) == (told.split(":")[0] not in ("in check_setting", "in __post_init__"))


@pytest.mark.parametrize("where", [(), pytest.param(("--jobs", "1"), marks=pytest.mark.slow)])
def test_debug_shows_the_traceback_and_leaves_what_the_client_had(ready: Path, where: tuple[str, ...]) -> None:
    mine(LOCAL, "yield Train(cross_entropy, steps=2); 1 / int(client.index != 1)")
    train(*where)
    (failed,) = (ready / "failed").iterdir()
    said = train(*where, "--debug")
    assert said.code == 2
    assert "Traceback" in said.err
    path = failed.with_suffix(".pt")
    note = f"What client 1 had in round 1 is in {path}"
    assert note in said.err.splitlines()
    assert note in json.loads(failed.read_text())["log"].splitlines()
    left = torch.load(path, weights_only=True)
    assert (left["error"], left["hook"]) == ("ZeroDivisionError: division by zero", "local")
    assert left["setting"]["partition"]["dataset"]["name"] == "digits"
    good("remove", failed.stem, "--yes")
    assert list((ready / "failed").iterdir()) == []


def test_what_a_method_declares_is_looked_at_before_it_trains(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine("def deviations(self=None):", "return 'not a list'")
    with monkeypatch.context() as patch:
        patch.setattr("fedbench.core.trainer.train_together", lambda *given: pytest.fail("it trained"))
        said = train()
    assert (said.code, said.line) == (2, "fedbench: deviations() of Mine gives 'not a list', not a list of texts")
    mine("start: int = 2", "")
    said = train()
    line = (
        "fedbench: the hyper-parameter start of Mine takes the place of the hook start; "
        "call it start_; its option is --start all the same"
    )
    assert (said.code, said.line) == (2, line)
    assert own(ready) == {}
    mine("start_: int = 2", "")
    assert train("--start", "3").code == 0
    for body in ("return 5", "sys.exit(0)"):  # what only describes a trained run does not lose it
        mine("def described(self, server):", body)
        said = train()
        assert said.code == 0
        assert "the run has no descriptors: " in said.err
    assert len(own(ready)) == 3
    assert [path for path in ready.glob("failed/*.json") if path.stem in own(ready)] == []


def test_a_module_beside_it_is_part_of_the_run(ready: Path) -> None:
    """And a run that was stopped does not go on with another helper: its last rounds would be by another code."""
    mine(LOCAL, "import helper; helper.at(client.round); yield Train(cross_entropy)")
    (helper := Path("helper.py")).write_text("def at(round):\n    if round == 2:\n        raise KeyboardInterrupt\n")
    assert train().code == 130
    assert "continues after round 1" in train().err
    helper.write_text("def at(round): ...\n")
    first, again = train("--json"), train("--json")
    assert "continues" not in first.err
    helper.write_text("def at(round): return 2\n")
    second = train("--json")
    assert (first.code, again.code, second.code) == (0, 0, 0), first.err + second.err
    assert first.out == again.out
    assert len(own(ready)) == 2


@pytest.mark.usefixtures("ready")
def test_odd_folders_and_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("a:b", "a.py:b", "with space", "~strange"):
        Path(folder).mkdir()
        mine(LOCAL, "yield Train(cross_entropy)", folder)
        assert "Mine\n" in good("train", "--method", f"./{folder}/mine.py:Mine", *SMOKE, "--dry-run").err
        assert '"name": "Mine"' in good("methods", f"./{folder}/mine.py", "--json").out
    good("methods", "~/with space/mine.py:Mine")


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


def net(width: int = 24, forward: str = "pass") -> None:
    Path("net.py").write_text(NET.format(forward=forward))
    Path("helper.py").write_text(f"WIDTH = {width}\n")


def test_a_networks_mistake_is_told_by_its_line_and_its_source_and_helpers_name_the_run(ready: Path) -> None:
    for forward in ("1 / 0 if self.training else 0", "1 / 0"):
        net(forward=forward)
        said = train_net()
        line = "fedbench: net.py, line 14, in forward: ZeroDivisionError: division by zero"
        assert (said.code, said.line) == (2, line)
    assert own(ready) == {}
    net()
    first, again = train_net("--json"), train_net("--json")
    net(32)
    other = train_net("--json")
    assert (first.code, again.code, other.code) == (0, 0, 0), first.err + other.err
    assert first.out == again.out != other.out
    assert len(own(ready)) == len(set(own(ready).values())) == 2
    assert all(name.startswith("fedavg Net@") for name in own(ready).values())
    Path("net.py").unlink()  # what is made is told and evaluated without the file
    for id, name in own(ready).items():
        assert name.split()[1] in good("list", "run").out
        good("show", id)
        good("evaluate", id)


MINE = ("--table", "./mine.toml", *SMOKE)


def report() -> dict[str, list[str]]:
    rows = cells(good("report", *MINE, "--format", "json"))
    return {row: [cell["state"] for cell in line.values()] for row, line in rows.items()}


def test_all_of_ones_own_is_trained_and_printed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_images(tmp_path)
    bright = '"\npartition = { scheme = "./bright'
    own_table(tmp_path, (f'dataset = "digits{bright}', f'dataset = "./pets.toml{bright}'))
    Path("reported.csv").write_text("table,row,group,column,value,std\nmine,Mine,,Net,50.0,\n")
    said = train_table()
    assert said.code == 0, said.err
    assert "6 of 6 runs made" in said.err
    assert "Mine, 0.1 pets Bright bands 2" in said.err
    assert report() == {row: ["done", "done"] for row in ("FedAvg", "Mine", "Mine, 0.1")}
    for form in ("console", "latex", "markdown", "csv", "html", "json"):
        assert "Mine, 0.1" in good("report", *MINE, "--format", form, "--compare", "--notes", "full").out
    assert "6 done" in good("tables", "./mine.toml", *SMOKE).out
    assert "FedProx" not in good("report", *MINE, "--compare").out
    Path("figures.toml").write_text(FIGURES)
    monkeypatch.chdir("/")
    figures = tmp_path / "figures.toml"
    sweep = list(csv.DictReader(io.StringIO(good("figure", f"{figures}:1", *SMOKE, "--csv").out)))
    assert [point["x"] for point in sweep if point["panel"] == "Bands"] == ["0.1", "", ""]
    good("figure", f"{figures}:2", *SMOKE, "-o", tmp_path / "rounds.png")
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "nothing to run" in good("train", "--table", tmp_path / "mine.toml", *SMOKE).err
    assert len(runs(home)) == 6


@pytest.mark.usefixtures("home")
def test_a_method_is_its_content_wherever_its_file_lies(tmp_path: Path) -> None:
    own_table(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    Path("elsewhere/same.py").write_bytes(Path("idea.py").read_bytes())
    said = train_table("-m", "./elsewhere/same.py:Idea", "--column", "Net")
    assert said.code == 0, said.err
    assert "2 of 2 runs made" in said.err, "the runs of its two rows"
    assert report() == {"FedAvg": ["missing"] * 2, "Mine": ["done", "missing"], "Mine, 0.1": ["done", "missing"]}
    Path("idea.py").write_text(Path("idea.py").read_text() + "\nOVER = 1\n")
    assert "another text of idea.py than it has now" in good("tables", "./mine.toml", *SMOKE).out


@pytest.mark.usefixtures("home")
def test_hyper_parameters_of_the_command_line_make_a_row_of_yours(tmp_path: Path) -> None:
    own_table(tmp_path)
    for words, row in (
        (("-m", "./idea.py:Idea", "--mu", "0.3"), "Idea (mu = 0.3)"),
        (("-m", "./idea.py:Idea", "--mu=0.1"), "Mine, 0.1"),  # a row that has these fills up
        (("-m", "fedprox", "--mu", "0.3"), "FedProx (mu = 0.3)"),
    ):
        assert "1 of 1 runs made" in train_table(*words, "--column", "Net").err
        assert report()[row][0] == "done"
    # A row of yours is told, and the row of the same name.
    own_table(tmp_path, ('label = "Mine"', 'label = "FedProx"'))
    said = train_table("-m", "fedprox", "-m", "fedavg", "--column", "Net", "--dry-run").err
    assert "no row of mine is of fedprox, so it makes one of yours, below the table; its row FedProx is -m " in said
    assert "idea.py:Idea" in said
    assert "is of fedavg" not in said
    assert "yours" not in train_table("-m", "fedprox", "--mu", "0.3", "--dry-run").err, "it is asked for"


def told(said: Said) -> list[list[str]]:
    """The commands that `new` names as the next ones."""
    return [line.split()[1:] for line in said.out.splitlines() if line.startswith("  fedbench ")]


@pytest.mark.usefixtures("ready")
def test_a_new_partitioner_passes_the_checks_and_deals() -> None:
    check, partition = told(good("new", "partitioner", "bright"))
    assert "✗" not in good(*check).out
    assert "Bright bands 2" in good(*partition).out


@pytest.mark.parametrize(("what", "options"), [("method", ("--mu", "0.2")), ("model", ())])
def test_a_new_method_and_model_pass_the_checks_and_train_at_once(
    what: str, options: tuple[str, ...], ready: Path, tmp_path: Path
) -> None:
    check, train = told(good("new", what, "my_idea"))
    assert check == ["check", "./my_idea.py:MyIdea"]
    lines = good(*check, *options, "--home", tmp_path / "none").out.splitlines()
    assert not any(line.startswith(("✗", "-")) for line in lines)
    if what != "model":
        assert sum(line.startswith("✓ ") for line in lines) == 21
        assert lines[-1].endswith("21 hold")
    assert not (tmp_path / "none").exists(), "nothing is stored"
    good(*train, *SMOKE)
    assert len(runs(ready)) == 2


def test_a_fault_is_a_cross_and_exit_code_1(tmp_path: Path) -> None:
    own_method(tmp_path)
    text = Path("mine.py").read_text()
    Path("mine.py").write_text(text.replace('hyperparameter(0.5, "factor of the learning rate")', "0.5"))
    said = fedbench("check", "mine.py", "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert found["holds"] is False
    failed = {line["check"]: line for line in found["checks"] if line["holds"] is False}
    assert failed["hyper parameters"]["why"].startswith(
        "--half does not say in one line what it is; write half = hyperparameter("
    )
    assert "has a description" in failed["hyper parameters"]["proves"]


def test_a_new_data_set_is_read_when_its_images_are_there_and_where_new_writes_to(home: Path, tmp_path: Path) -> None:
    (partition,) = told(good("new", "dataset", "pets"))
    assert "pets" in bad(*partition)
    own_images(tmp_path)
    good(*partition, "--clients", "2")
    assert [a.spec.to_dict()["name"] for a in Store(home).list("dataset")] == ["pets"]
    # A name that only a file or a folder here has is free.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    good("new", "method", "mine")
    good("new", "table", "json")
    (tmp_path / "sub").mkdir()
    assert told(good("new", "method", "mine", "-o", "sub"))[0] == ["check", "./sub/mine.py:Mine"]
    assert (tmp_path / "sub" / "mine.py").is_file()
    assert str(tmp_path / "sub" / "m.toml") in good("new", "table", "m", "-o", tmp_path / "sub").out


@pytest.mark.usefixtures("home")
def test_a_new_table_prints_and_can_be_trained() -> None:
    train, report = told(good("new", "table", "ours"))
    assert "Local" in good(*report, *SMOKE).out
    assert " runs to make, budget smoke" in good(*train, *SMOKE, "--dry-run").out
    good("new", "method", "mine")
    table = Path("ours.toml")
    table.write_text(table.read_text().replace('# { method = "./mine.py', '{ method = "./mine.py'))
    assert "Mine (mu = 0.1)  missing  missing" in good("tables", "./ours.toml", *SMOKE).out


MEASURES = """
    measures = (
        Measure("drift", "how far the model went", "distance"),
        Measure("trust", "a client's trust in itself", "fraction", of="client", federation="max"),
    )

    def round_metrics(self, server):
        return {"drift": float(server.round)}

    def personalise(self, client):
        client.metrics["trust"] = client.index / 10
"""
MEASURED = """
title = "What Mine measures"
protocol = "feddrm"
statistic = "whole_run"
unit = "fraction"
rows = [{ label = "Watched", method = "./mine.py:Mine" }]
column = [
{ label = "Drift", metric = "drift", dataset = "digits", partition = { scheme = "iid" } },
{ label = "Trust", metric = "trust", dataset = "digits", partition = { scheme = "iid" } },
]
"""


@pytest.mark.usefixtures("home")
def test_from_its_file_to_a_table_and_on_without_the_file() -> None:
    Path("mine.py").write_text("from fedbench.measure import Measure\n" + METHOD.format(hook=MEASURES))
    Path("mine.toml").write_text(MEASURED)
    assert good("train", *MINE).line == "1 of 1 runs made"
    assert good("train", *MINE).line == "nothing to run: no cell of the table is missing"
    drift, trust = json.loads(good("report", *MINE, "--format", "json").out)[0]["cells"]
    assert [(cell["column"], cell["value"]) for cell in (drift, trust)] == [("Drift", 2.0), ("Trust", 0.7)]
    assert drift["method"] == "Mine", "no path of this machine"
    Path("mine.py").unlink()
    (run,) = json.loads(good("evaluate", id := drift["runs"], "--again", "--json").out)
    assert run["method_metrics"] == {"drift": 2.0, "trust": 0.7}
    assert f"{id} Mine measured drift 2, trust 0.7" in good("evaluate", id).out
    shown = " ".join(good("show", id).out.split())
    assert "measures trust: a client's trust in itself (fraction, max of the clients)" in shown
    assert "no file" in fedbench("report", *MINE).line


def test_methods_and_metrics_list_what_can_be_named() -> None:
    lines = {line["metric"]: line for line in json.loads(good("metrics", "--json").out)}
    assert lines["beta"]["methods"] == ["pfedfda"]
    assert lines["bytes_up"]["methods"] is None
    assert {"ifca", "fedem", "flux"} <= set(lines["clusters"]["methods"])
    assert "exists only for runs of these methods" in good("metrics").out
    (told,) = json.loads(good("methods", "pfedfda", "--json").out)
    assert [one["name"] for one in told["measures"]] == ["beta", "beta_0", "beta_1"]
    assert "beta: weight of a client's own Gaussian" in good("methods", "pfedfda").out


def images_of(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """(network input of client 0's test images [n, 1, 8, 8], what they were answered last on whole images [n])."""
    import pyarrow.compute as pc

    from fedbench.data.dataset import from_artifact

    store = Store(run.parent.parent)
    table = store.open("run", run.name).table("predictions")
    there = table.filter(
        (pc.field("round") == pc.max(table["round"])) & (pc.field("view") == "plain") & (pc.field("client") == 0)
    )
    (images,) = store.list("dataset")
    pixels = from_artifact(images).images[there["sample"].to_numpy()]
    return pixels.transpose(0, 3, 1, 2).astype(np.float32), there["own"].to_numpy()


def test_what_is_kept_is_told_exported_and_removed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    # Trained so that it gives more than one answer, on images as they are.
    train = ("train", "--method", "fedavg", *SMOKE, "--rounds", "3", "--steps", "20")
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--shift", "none", "--clients", "3")
    good(*train)
    before = artifact(home, "run")
    predictions = (before / "predictions.parquet").read_bytes()
    said = good(*train, "--keep", "model", "--again")
    assert "keeps its models" in said.err
    after = artifact(home, "run")
    assert (after.name, (after / "predictions.parquet").read_bytes()) == (before.name, predictions)
    assert (after / "models.safetensors").exists()
    good(*train, "--keep", "model")  # it is there
    assert "keeps" in good("show", after.name).out
    good(*train, "--again")
    assert (artifact(home, "run") / "models.safetensors").exists(), "made once more, it keeps what it kept"

    folder = tmp_path / "models"
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", failing)
        assert "no space left while exporting models" in bad("export", after.name, "-o", folder)
    assert not [path.name for path in tmp_path.iterdir() if "models" in path.name], "whole or not at all"
    good("export", after.name, "--output", folder)
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "models.json"}
    assert "exists already" in bad("export", after.name, "-o", folder)
    images, answers = images_of(artifact(home, "run"))
    assert len(set(answers.tolist())) > 2
    about = json.loads((folder / "models.json").read_text())
    assert (about["run"], about["method"], about["multi_label"]) == (after.name, "fedavg", False)
    assert about["classes"] == [str(k) for k in range(10)]
    assert about["clients"] == 3 * [{"files": ["model.safetensors"], "answers": "logits"}]
    assert about["spec"]["setting"]["partition"]["dataset"]["name"] == "digits"
    network = eval(about["build"], {"fedbench": __import__("fedbench.models")})
    network.load_state_dict(load_file(folder / "model.safetensors"))
    mean, std = (torch.tensor(about[name])[:, None, None] for name in ("mean", "std"))
    logits = network.eval()((torch.from_numpy(images) / 255 - mean) / std)
    np.testing.assert_array_equal(logits.argmax(1), answers)
    good("remove", after.name, "--yes")
    assert not (home / "run" / after.name).exists()


def test_kept_models_of_ones_own_method(home: Path, tmp_path: Path) -> None:
    good("partition", "digits", "--iid", "--clients", "3")
    good("train", "--method", own_method(tmp_path), *SMOKE, "--keep", "model", "--half", "0.25", "--loud")
    run = artifact(home, "run").name
    assert runs(home)[0].manifest["spec"]["params"] == {"half": 0.25, "loud": True}
    good("export", run, "-o", tmp_path / "out")
    assert json.loads((tmp_path / "out/models.json").read_text())["method"].startswith("MyMethod")


def test_from_new_to_its_page(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = good("new", "paper", "mine").out.splitlines()
    assert said[0] == "wrote mine"
    rules = Path("mine/protocol.toml")
    rules.write_text(rules.read_text().replace("rounds = 10\n", "rounds = 2\n"))
    for line in said[1:]:  # what it says comes next
        good(*line.split()[1:])
    printed = good("report", "--table", "./mine/1", "--compare").out
    assert printed.startswith("mine/1  Average accuracy under label shift, in %")
    assert "2 of 2 reported numbers measured" in " ".join(printed.split())
    assert "Ditto is best: " in good("claims", "./mine").out
    assert good("tables", "./mine").out.startswith("mine/1  ██████████  2/2  small")
    good("train", "digits", "--protocol", "./mine", "-m", "fedavg", "--dir", "0.3", "--dry-run")
    good("results", "export", "paper=./mine", "--by", "me", "-o", "mine/results/mine.parquet")
    assert "2 runs by me" in good("results", "page", "./mine").out
    monkeypatch.setattr(resources, "_given", {})  # another process, elsewhere, with a store of its own
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "other"))
    assert "--table ../mine/1" in good("report", "--table", "../mine/1", "--budget", "paper").out
    monkeypatch.setattr(resources, "_given", {})
    monkeypatch.setenv(resources.PAPERS, str(tmp_path / "mine"))
    (table,) = json.loads(good("tables", "mine", "--json").out)
    assert (table["states"]["small"], table["shipped"]["small"]) == ({"done": 2}, 2)
    good("site", "pages", "mine")
    assert "Ditto is best" in Path("pages/mine.html").read_text()
    assert not Path("pages/flux.html").exists()


def own_paper(folder: str) -> str:
    """A paper's folder with a table of no run, titled as the folder is called."""
    Path(folder).mkdir(parents=True)
    rows = 'rows = [{ label = "FedAvg", method = "fedavg" }]'
    column = f'[[column]]\nlabel = "L"\ndataset = "digits"\n{SCHEME}'
    Path(folder, "1.toml").write_text(f'title = "T"\nprotocol = "feddrm"\n{METRIC}\n{rows}\n{column}\n')
    Path(folder, "reported.csv").write_text("table,row,group,column,value,std\n1,FedAvg,,L,50,\n")
    Path(folder, "README.md").write_text(f"# Paper {folder}\n\nAbout.\n")
    return folder


def test_a_paper_on_a_full_disk_leaves_no_half_of_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, begun = Path.write_bytes, list[Path]()

    def full(path: Path, content: bytes) -> int:
        begun.append(path)
        if len(begun) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "no space left while writing a paper" in bad("new", "paper", "mine")
    assert len(begun) == 2
    assert not [path for path in Path().iterdir() if "mine" in path.name]


def test_a_log_makes_no_folder(home: Path) -> None:
    line = bad("train", "digits", "--dir", "0.3", "-m", "fedavg", *SMOKE, "--log", "nowhere/log.jsonl")
    assert "cannot write nowhere/log.jsonl (No such file or directory); choose another file" in line
    assert not Path("nowhere").exists()


SCHEME = 'partition = { scheme = "dirichlet", alpha = 0.3, clients = 4 }'
METRIC = 'metric = "system_accuracy"\nstatistic = "last_rounds"\nunit = "percent"'


def test_two_papers_of_one_name_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a/mine", "b/mine", "there"):
        own_paper(folder)
    Path("again").symlink_to("there")
    says = "two papers are called mine: "
    good("tables", "./a/mine")
    good("tables", "./a/../a/mine/1")
    assert f"{says}a/../a/mine and b/mine; give one of the folders another name" in bad("tables", "./b/mine")
    monkeypatch.setattr(resources, "_given", {})
    monkeypatch.setenv(resources.PAPERS, os.pathsep.join(["a/mine", "a/../a/mine", "again"]))
    good("tables", "mine")
    assert f"{says}a/../a/mine and b/mine" in bad("tables", "./b/mine")
    monkeypatch.setenv(resources.PAPERS, os.pathsep.join(["a/mine", "b/mine"]))
    assert f"{says}a/mine and b/mine" in bad("tables", "mine")


def test_a_paper_called_as_a_page_of_the_site_replaces_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("index", "runs", "method-fedavg", "run-1", "paper-x", "site", "Über #1?", "a-b")
    monkeypatch.setenv(resources.PAPERS, os.pathsep.join(own_paper(f"papers/{name}") for name in names))
    good("site", "pages", *names)
    pages = {path.name: path.read_text() for path in Path("pages").iterdir()}
    for name in names:
        (page,) = [page for page, text in pages.items() if f"<h1>Paper papers/{name}</h1>" in text]
        assert re.fullmatch(r"[a-z0-9.-]+", page)
        assert f'href="{page}">Paper papers/{name}' in pages["index.html"]
    assert {"site.html", "a-b.html", "site.css", "site.js"} <= pages.keys()
    assert "<h1>FedAvg</h1>" in pages["method-fedavg.html"]


@pytest.mark.parametrize("word", ["~nosuch", "~nosuch/1", "~nosuch/1.toml"])
def test_a_home_folder_of_nobody_is_one_line(home: Path, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("tables", word), ("report", "--table", word), ("claims", word), ("results", "page", word)):
        assert "Traceback" not in bad(*command)
    monkeypatch.setenv(resources.PAPERS, f"here{os.pathsep}{word}")
    assert "FEDBENCH_PAPERS" in bad("tables", "flux")


@pytest.mark.shipped
def test_fedbenchs_own_papers_are_such_folders(home: Path, tmp_path: Path) -> None:
    """Under another name with the same settings the runs have the same ids."""
    shutil.copytree(TABLES / "ftw_erm", tmp_path / "copy")
    theirs, ours = (
        json.loads(good("report", "--table", t, "--budget", "paper", "--format", "json").out)[0]
        for t in ("ftw_erm/3", "./copy/3")
    )
    assert ours["table"] == "copy/3"
    assert [cell["runs"] for cell in ours["cells"]] == [cell["runs"] for cell in theirs["cells"]]
    assert all(cell["value"] is not None for cell in ours["cells"])
