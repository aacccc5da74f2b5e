"""A run that keeps its model and logits: asked for, told, evaluated elsewhere, exported, removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedbench.store import Store
from tests.support.cli_user import SMOKE, artifact, cells, fedbench, good, own_method

#: What the card says, done in a process that knows nothing of the run.
LOADED = """
import sys, json
import numpy as np, torch
sys.path.insert(0, {folder!r})
x = torch.from_numpy(np.load({images!r}))
exec(open({code!r}).read())
print(json.dumps(logits.argmax(1).tolist()))
"""


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
    return (pixels / np.float32(127.5) - 1).transpose(0, 3, 1, 2).astype(np.float32), there["own"].to_numpy()


def test_from_asking_to_removing(ready: Path, tmp_path: Path) -> None:
    train = ("train", "--method", "fedavg", *SMOKE)
    before = artifact(ready, "run")
    predictions = (before / "predictions.parquet").read_bytes()

    said = fedbench(*train, "--keep", "model,logits")
    assert said.code == 2
    assert "was made without its logits and its model" in said.line
    assert "--keep logits,model --again" in said.line
    said = fedbench(*train, "--keep", "gradients")
    assert (said.code, "--keep takes model, logits or model,logits, not 'gradients'" in said.line) == (2, True)
    assert "made without its model" in fedbench("evaluate", before.name, "--on", artifact(ready, "partition").name).line
    assert "made without its model" in fedbench("export", before.name, "-o", tmp_path / "none").line

    said = good(*train, "--keep", "model,logits", "--again")
    assert "keeps its models" in said.err
    after = artifact(ready, "run")
    assert (after.name, (after / "predictions.parquet").read_bytes()) == (before.name, predictions)
    assert {"models.safetensors", "logits.parquet"} <= {p.name for p in after.iterdir()}
    good(*train, "--keep", "model")  # it is there
    assert "keeps" in good("show", after.name).out
    good(*train, "--again")
    assert (artifact(ready, "run") / "models.safetensors").exists(), "made once more, it keeps what it kept"

    own = json.loads(good("evaluate", after.name, "--on", artifact(ready, "partition").name, "--json").out)
    from fedbench.metrics.read import load

    metrics = load(next(iter(Store(ready).list("metrics"))))
    assert own["answered_by"] == "client"
    for name in ("average_accuracy", "client_accuracy_std", "test_loss", "calibration_error", "brier_score"):
        assert own["metrics"][name] == pytest.approx([*metrics.series(name, "plain").values()][-1], abs=2e-3), name
    good("partition", "digits", "--iid", "--clients", "3")
    other = Store(ready).current["partition"]
    assert "one model answers all clients" in good("evaluate", after.name, "--on", other).out

    folder = tmp_path / "models"
    good("export", after.name, "--output", folder)
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "README.md"}
    assert "is there already" in fedbench("export", after.name, "-o", folder).line
    images, answers = images_of(artifact(ready, "run"))
    card = (folder / "README.md").read_text()
    for said_there in ("FedAvg", "digits", "average_accuracy", "Licence", "fedbench train --method fedavg", after.name):
        assert said_there in card
    assert "fedbench.core" not in card, "models.build is enough"
    np.testing.assert_array_equal(by_the_card(card, folder, images, tmp_path), answers)
    good("export", after.name, "--output", tmp_path / "pt", "--format", "pt")
    state = torch.load(tmp_path / "pt" / "model.pt", weights_only=True)
    assert all(torch.equal(t, state[name]) for name, t in load_file(folder / "model.safetensors").items())

    good("remove", after.name, "--yes")
    assert not (ready / "run" / after.name).exists()


def by_the_card(card: str, folder: Path, images: np.ndarray, scratch: Path) -> list[int]:
    """What the card's own lines give for these images, in another process."""
    np.save(scratch / "x.npy", images)
    (scratch / "code.py").write_text(card.split("```python\n")[1].split("```")[0].replace('"model', f'"{folder}/model'))
    code = LOADED.format(folder=str(scratch), images=str(scratch / "x.npy"), code=str(scratch / "code.py"))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    answers: list[int] = json.loads(out.stdout)
    return answers


def test_the_cards_command_makes_the_same_run(ready: Path, tmp_path: Path) -> None:
    run = artifact(ready, "run")
    from fedbench.engine.repeat import commands
    from fedbench.specs import RunSpec

    spec = Store(ready).open("run", run.name).spec
    assert isinstance(spec, RunSpec)
    lines = commands(spec)
    assert lines is not None
    other = tmp_path / "other"
    for line in lines:
        good(*line.split()[1:], "--home", other)
    assert artifact(other, "run").name == run.name
    assert artifact(other, "partition").name == artifact(ready, "partition").name


@pytest.mark.usefixtures("brief")
def test_a_method_of_ones_own_and_other_classes(home: Path, tmp_path: Path) -> None:
    good("partition", "digits", "--iid", "--clients", "3")
    mine = own_method(tmp_path)
    good("train", "--method", mine, *SMOKE, "--keep", "model")
    run = artifact(home, "run").name
    assert "client i's model" in good("evaluate", run, "--on", Store(home).current["partition"]).out
    good("export", run, "-o", tmp_path / "out")
    assert "FILE.py:MyMethod" in (tmp_path / "out" / "README.md").read_text()
    from tests.support.cli_user import own_recipe

    good("partition", own_recipe(tmp_path), "--iid", "--clients", "3")
    said = fedbench("evaluate", run, "--on", Store(home).current["partition"])
    assert (said.code, len(said.err.strip().splitlines())) == (2, 1)
    assert "has other classes than the run: 'dark' where that has '0'" in said.line


TABLE = """
title = "Loss on digits"
protocol = "feddrm"
metric = "METRIC"
statistic = "last_rounds"
view = "plain"
unit = "fraction"
decimals = 3
best = "min"
rows = [{ label = "FedAvg", method = "fedavg" }]

[[column]]
group = "Digits"
label = "IID"
dataset = "digits"
partition = { scheme = "iid", clients = 3 }
"""


@pytest.mark.usefixtures("brief")
def test_a_table_of_losses_keeps_what_it_needs(home: Path, tmp_path: Path) -> None:
    accuracy, loss = tmp_path / "accuracy.toml", tmp_path / "loss.toml"
    accuracy.write_text(TABLE.replace("METRIC", "average_accuracy"))
    loss.write_text(TABLE.replace("METRIC", "test_loss"))
    good("train", "--table", accuracy, *SMOKE)
    run = artifact(home, "run")
    said = good("report", "--table", loss, *SMOKE)
    assert "needs the run's logits" in said.err + said.out
    assert "--keep logits --again" in said.err + said.out
    good("train", "--table", loss, *SMOKE, "--again")
    assert (run / "logits.parquet").exists()
    ((cell,),) = [row.values() for row in cells(good("report", "--table", loss, *SMOKE, "--format", "json")).values()]
    assert 0 < cell["value"] < 10
    assert (json.loads(good("train", "--table", loss, *SMOKE, "--again", "--json").out))["made"] == []
