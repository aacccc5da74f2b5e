"""Networks go through the suite, too: built-in ones of small and of larger images, and plug-ins with one fault each."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.conformance.suite import Outcome
from tests.support.checked import checked

NET = """
import torch
from torch import nn
from fedbench.models.base import FLModel, flat_size


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.01 * torch.randn(x.shape) if self.training else x


class Count(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


class Net(FLModel):
    def __init__(self, shape, classes):
        body = nn.Sequential(nn.Conv2d(shape[2], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), {layer}, nn.Flatten())
        size = flat_size(body, "net", shape)
        super().__init__(body, nn.Identity(), nn.Linear(size, classes), backbone_size=size)
"""


def net(folder: Path, layer: str = "nn.Identity()") -> str:
    (folder / "net.py").write_text(NET.format(layer=layer))
    return f"{folder / 'net.py'}:Net"


def failed(found: list[Outcome]) -> list[str]:
    return [o.check.name for o in found if o.holds is False]


@pytest.mark.parametrize("name", ["digits_cnn", pytest.param("cifar_cnn_bn", marks=pytest.mark.slow)])
def test_a_built_in_network_passes(name: str, tmp_path: Path) -> None:
    found = checked(name, tmp_path)
    assert [(o.check.name, o.why) for o in found if not o.holds] == []


def test_a_good_plugin_passes(tmp_path: Path) -> None:
    assert [(o.check.name, o.why) for o in checked(net(tmp_path), tmp_path) if not o.holds] == []


@pytest.mark.parametrize(
    ("layer", "check", "told"),
    [
        ("nn.BatchNorm2d(8)", "form", "call it norm, norm1, ..."),
        ("nn.Dropout(0.1)", "form", "draws from torch's own generator; leave it out"),
        ("Noise()", "same seed same bits", "the same run made twice is not the same"),
        ("Count()", "executors agree on a step", "item"),
    ],
)
def test_one_fault_fails_one_check(layer: str, check: str, told: str, tmp_path: Path) -> None:
    found = checked(net(tmp_path, layer), tmp_path)
    assert failed(found) == [check]
    assert any(told in o.why for o in found if o.holds is False)
