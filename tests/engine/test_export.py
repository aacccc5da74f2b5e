"""What is exported of kept models: one plain state dict a model, which loads without the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedbench import models as networks
from fedbench.core.federation import to_input
from fedbench.engine.export import REST, _loading, states
from fedbench.methods.base import Method
from fedbench.models.standard import MEAN, STD, Standard
from fedbench.specs import RunSpec
from tests.support.keep_lab import kept, models, network
from tests.support.lab import method, setting

CLIENTS = [f"client-{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("how", "files", "rest"),
    [
        (method("fedavg"), ["model"], set()),
        (method("ditto", personal_epochs=1), ["model", *(f"{c}-own" for c in CLIENTS)], set()),
        (method("ifca", clusters=2), ["model", "cluster-0", "cluster-1"], set()),
        (method("feddrm"), CLIENTS, {"server/client_branch.head.weight", "server/client_branch.head.bias"}),
        (method("pfedfda"), CLIENTS, {"server/gaussian.mean", "server/gaussian.covariance"}),
        (method("fedem", clusters=2), ["model-0", "model-1"], {f"client/{i}/mixture.pi" for i in range(3)}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_every_model_is_a_state_dict_of_the_network(
    tmp_path: Path, how: Method, files: list[str], rest: set[str]
) -> None:
    run = kept(how, tmp_path, votes=False, epochs=1)
    it, plain = models(run), network(run)
    made = states(it, list(plain.state_dict()))
    assert [name for name in made if name != REST] == files
    for name in files:
        plain.load_state_dict(made[name])  # strict
    left = {key for key in made.get(REST, {}) if not key.endswith("num_batches_tracked")}
    assert rest <= left
    exported = {id(t) for name in files for t in made[name].values()}
    assert all(id(t) in exported or key in left for key, t in it.tensors.items()), "nothing is left out"
    if how.name == "feddrm":  # client i's file answers as client i does
        state = it.state(1)
        assert all(torch.equal(made["client-1"][name], state[name]) for name in plain.state_dict())


WITHOUT = """
import sys
sys.modules["fedbench"] = None
import torch
try:
    import torchvision
except RuntimeError:  # torch's build and torchvision's do not fit; its networks need none of these operators
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
exec(open("code.py").read().split("logits =")[0])
pixels = torch.load("pixels.pt")
from ast import literal_eval
mean, std = (torch.tensor(t)[:, None, None] for t in literal_eval(open("numbers").read()))
torch.save(network((pixels / 255 - mean) / std).detach(), "logits.pt")
"""


@pytest.mark.slow
def test_a_network_of_torchvision_loads_without_fedbench(tmp_path: Path) -> None:
    shape, spec = (32, 32, 3), RunSpec(setting(model="torchvision:shufflenet_v2_x0_5"), "fedavg")
    ours = networks.build(spec.setting.model, shape=shape, classes=7, seed=1).eval()
    assert isinstance(ours, Standard)
    images = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    with torch.no_grad():
        expected = ours(to_input(images))
    save_file(ours.as_torchvision(ours.state_dict()), tmp_path / "model.safetensors")
    lines = _loading(spec, "model.safetensors", shape, 7)
    (tmp_path / "code.py").write_text("\n".join(lines[1:-1]))
    assert "fedbench" not in "".join(lines)
    assert f"(pixels / 255 - {MEAN}) / {STD}" in lines[-2]
    (tmp_path / "numbers").write_text(repr((MEAN, STD)))
    torch.save(images.permute(0, 3, 1, 2).float(), tmp_path / "pixels.pt")
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    out = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, rtol=1e-4, atol=1e-5)
