"""torchvision's classifiers as networks here: their form, names, weights, and that they train like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench import models
from fedbench.errors import FedbenchError
from fedbench.models.form import check
from fedbench.vision import torchvision
from tests.support.lab import Run, federation, setting, train

SHAPE = (32, 32, 3)
RESNET, SMALL = "torchvision:resnet18", "torchvision:shufflenet_v2_x0_5"
WEIGHTS = "IMAGENET1K_V1"


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("resnet18", (40, 48, 1)), ("mobilenet_v3_small", (40, 48, 1)), ("efficientnet_b0", SHAPE),
        ("densenet121", (40, 48, 1)), ("swin_t", SHAPE),
    ],
)  # fmt: skip
def test_it_has_the_form_of_a_network(network: str, shape: tuple[int, int, int]) -> None:
    name = f"torchvision:{network}"
    made = models.build(name, shape=shape, classes=7, seed=1)
    check(made, name, shape, 7)
    assert made(torch.zeros(2, shape[2], *shape[:2])).shape == (2, 7)


def test_body_and_head_are_torchvisions() -> None:
    """The same numbers as torchvision's own network with the same weights, on images as torchvision wants them."""
    ours = models.build(RESNET, shape=SHAPE, classes=7, seed=1).eval()
    theirs = torchvision().models.resnet18(num_classes=7).eval()
    renamed = {n.removeprefix("backbone.network.").replace(".norm.", "."): t for n, t in ours.state_dict().items()}
    theirs.load_state_dict({n.replace("head.", "fc."): t for n, t in renamed.items()})
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (x - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(ours(2 * x - 1), theirs(normal), rtol=1e-4, atol=1e-5)
    assert {n.split(".")[0] for n, _ in ours.named_parameters()} == {"backbone", "head"}


def test_as_torch_it_begins_as_a_script_of_torchvisions() -> None:
    torch.manual_seed(3)
    theirs = torchvision().models.resnet18()
    ours = models.build(RESNET, shape=SHAPE, classes=7, seed=3, as_torch=True)
    assert torch.equal(ours.get_parameter("backbone.network.layer4.1.conv2.weight"), theirs.layer4[1].conv2.weight)


@pytest.fixture
def pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Weights where torchvision keeps those that it has downloaded: a draw in place of ImageNet's."""
    tv = torchvision().models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = Path(tv.get_model_weights("shufflenet_v2_x0_5")[WEIGHTS].url).name
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        state: dict[str, torch.Tensor] = tv.shufflenet_v2_x0_5().state_dict()
    torch.save(state, tmp_path / "hub" / "checkpoints" / file)
    return state


def test_pretrained_weights_are_those_of_the_file_and_the_head_is_new(pretrained: dict[str, torch.Tensor]) -> None:
    one, other = (models.build(f"{SMALL}:{WEIGHTS}", shape=SHAPE, classes=7, seed=s) for s in (1, 2))
    for made in (one, other):
        assert torch.equal(made.get_parameter("backbone.network.conv5.0.weight"), pretrained["conv5.0.weight"])
    assert one.head.weight.shape == (7, 1024)
    assert not torch.equal(one.head.weight, other.head.weight)


def run(tmp_path: Path, name: str, executor: str = "sequential") -> Run:
    """A round of two steps of two clients, on digits shown four times as large."""
    few, data = setting(model=name, rounds=1, window=1, steps=2, batch_size=8), federation((24, 24))
    larger = replace(data, images=data.images.repeat_interleave(4, 1).repeat_interleave(4, 2))
    return train("fedavg", larger, tmp_path / executor, few, executor=executor)


def test_all_of_it_trains_in_a_stack_too(tmp_path: Path) -> None:
    start = models.build(SMALL, shape=(32, 32, 1), classes=10, seed=setting().seed).state_dict()
    one = run(tmp_path, SMALL)
    moved = [name for name, value in one.shared.items() if not np.array_equal(value, start[name].numpy())]
    assert {"backbone.network.conv1.0.weight", "backbone.network.conv5.0.weight", "head.weight"} <= set(moved)
    for name, value in run(tmp_path, SMALL, "stacked").shared.items():
        np.testing.assert_allclose(value, one.shared[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_frozen_trunk_is_neither_trained_nor_sent(tmp_path: Path, pretrained: dict[str, torch.Tensor]) -> None:
    name = f"{SMALL}:{WEIGHTS}:frozen"
    one, stacked = run(tmp_path, name), run(tmp_path, name, "stacked")
    assert set(one.shared) == {"head.weight", "head.bias"}
    np.testing.assert_allclose(stacked.shared["head.weight"], one.shared["head.weight"], atol=1e-4)
    start = models.build(name, shape=(32, 32, 1), classes=10, seed=setting().seed)
    assert not np.array_equal(one.shared["head.weight"], start.head.weight.detach().numpy())
    assert [line["bytes_up"] for line in one.trainer.checkpoint.rounds] == [2 * 4 * (1024 * 10 + 10)]
    check(start, name, (32, 32, 1), 10)
    start.train()
    assert not any(part.training for part in start.backbone.network.modules())  # type: ignore[union-attr]


def test_the_name_is_part_of_a_runs_identity() -> None:
    names = (SMALL, RESNET, f"{SMALL}:{WEIGHTS}", f"{SMALL}:{WEIGHTS}:frozen")
    assert len({replace(setting(), model=name).id for name in names}) == len(names)
    assert models.code_of(RESNET) == (("models/standard.py",), ())


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("torchvision:", SHAPE, "does not name a network of torchvision"),
        (f"{RESNET}:frozen:x", SHAPE, "does not name a network of torchvision; such as torchvision:resnet18"),
        ("torchvision:resnet19", SHAPE, "unknown network of torchvision 'resnet19'.*resnet18"),
        ("torchvision:googlenet", SHAPE, "unknown network of torchvision 'googlenet'"),
        (f"{RESNET}:IMAGENET", SHAPE, "unknown weights of torchvision's resnet18 'IMAGENET'.*IMAGENET1K_V1"),
        (RESNET, (32, 32, 2), "takes images of 1 or 3 channels, not 2"),
        ("torchvision:vit_b_16", SHAPE, "vit_b_16 cannot take images of 32x32x3: .*224"),
    ],
)
def test_what_there_is_not_is_told(name: str, shape: tuple[int, int, int], told: str) -> None:
    with pytest.raises(FedbenchError, match=told):
        models.build(name, shape=shape, classes=7, seed=1)


def test_weights_that_cannot_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(FedbenchError, match=r"weights IMAGENET1K_V1 .* cannot be downloaded: .*TORCH_HOME"):
        models.build(f"{SMALL}:{WEIGHTS}", shape=SHAPE, classes=7, seed=1)
