"""Names of networks that carry options, and LeNet with a client branch at four depths."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.models import build, check, code_of, named, registry
from fedbench.models.counts import counts
from fedbench.models.lenet_gn import SHARED, LeNetGN
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec

CIFAR10 = DatasetSpec("cifar10", "png", "0123456789ab")


def numel(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_a_name_has_one_form() -> None:
    """Options in their declared order, without those that say the default: two names of one network are one run."""
    assert named("resnet18_gn:projection_size=512") == "resnet18_gn:projection_size=512"
    assert named("resnet18_gn:projection_size=0512") == "resnet18_gn:projection_size=512"
    assert named("resnet18_gn:projection_size=256") == named("resnet18_gn:") == named("resnet18_gn") == "resnet18_gn"
    assert named("lenet_gn:branch=deep") == "lenet_gn"
    assert code_of("lenet_gn:branch=mid") == (("models/lenet_gn.py",), ())


def test_defaults_are_those_of_the_classes() -> None:
    for name, options in registry._OPTIONS.items():
        signature = inspect.signature(registry.class_of(name)).parameters
        defaults = {p.name: p.default for p in signature.values() if p.name not in ("shape", "classes")}
        assert {option: registry._default(name, option) for option in options} == defaults


def test_the_page_lists_them() -> None:
    page = Path(registry.__file__).with_name("README.md").read_text()
    for name, options in registry._OPTIONS.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        for option in options:
            assert f"`{option}` ({registry._default(name, option)}" in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18_gn:neck=512", "unknown option of model resnet18_gn 'neck'"),
        ("cifar_cnn:neck=512", "unknown option of model cifar_cnn 'neck'"),
        ("resnet18_gn:projection_size=0", "projection_size of model resnet18_gn is a number from 1 on, not '0'"),
        ("resnet18_gn:projection_size", "projection_size of model resnet18_gn is a number from 1 on, not ''"),
        ("lenet_gn:branch=top", "unknown branch of model lenet_gn 'top'"),
        ("lenet:branch=mid", "unknown model 'lenet:branch=mid'"),
    ],
)
def test_wrong_options_end_in_one_line(name: str, message: str) -> None:
    with pytest.raises(FedbenchError, match=message.replace("(", "\\(")):
        check(name)


def test_a_run_names_its_network_with_its_options() -> None:
    feddrm, part = protocol.load("feddrm"), partition_spec(CIFAR10, "dirichlet", 8, 2025, 0.7, alpha=0.3)
    settings = [feddrm.setting(part, "paper", model=f"resnet18_gn:projection_size={size}") for size in (256, 512)]
    assert [(s.model, s.budget) for s in settings] == [
        ("resnet18_gn", "paper"),
        ("resnet18_gn:projection_size=512", "custom"),
    ]
    assert settings[0].id == feddrm.setting(part, "paper").id
    model = build(settings[1].model, shape=(96, 96, 3), classes=2, seed=0)
    assert (numel(model), numel(model) + numel(model.branch(3))) == (13530690, 15893061)
    assert counts(settings[1].model, (96, 96, 3), 2).total == 13530690


def test_cifar_cnn_projection() -> None:
    found = counts("cifar_cnn_projection", (32, 32, 3), 10)
    assert (found.backbone, found.projection, found.head) == (1216 + 12832 + 18496, 577 * 128 + 256, 1290)
    assert (found.latents, found.features) == (576, 128)


# -- LeNet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("branch", "total"), [("none", 2081554), ("shallow", 2079058), ("mid", 2027666), ("deep", 1075090)]
)
def test_lenet_has_the_papers_sizes(branch: str, total: int) -> None:
    model = build(f"lenet_gn:branch={branch}", shape=(32, 32, 3), classes=10, seed=0)
    assert numel(model) + numel(model.branch(8)) == total


def by_hand(x: Tensor, parameters: list[Tensor]) -> Tensor:
    """LeNet's logits of its parameters in the network's order, whichever part they are of."""
    p = iter(parameters)
    for groups in (8, 16):
        x = F.max_pool2d(F.relu(F.group_norm(F.conv2d(x, next(p), next(p)), groups, next(p), next(p))), 2)
    x = x.flatten(1)
    for size in (512, 256, 128):
        x = F.relu(F.layer_norm(F.linear(x, next(p), next(p)), (size,), next(p), next(p)))
    return F.linear(x, next(p), next(p))


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (29, 31, 3)])
def test_lenet_computes_the_same_wherever_the_branch_leaves(shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    x = torch.randn(5, channels, height, width, generator=torch.Generator().manual_seed(1))
    for branch in SHARED:
        model = build(f"lenet_gn:branch={branch}", shape=shape, classes=7, seed=3)
        assert isinstance(model, LeNetGN)
        logits = by_hand(x, list(model.parameters()))
        torch.testing.assert_close(model(x), logits)
        torch.testing.assert_close(model.from_latent(model.latent(x)), logits)
        assert model.backbone(x).shape == (5, model.backbone_size)
        shared = {"none": 0, "shallow": 4, "mid": 8, "deep": 16}[
            branch
        ]  # tensors: four a stage, eight of the linear one
        assert len(list(model.backbone.parameters())) == shared


def test_branches_share_what_the_name_says() -> None:
    """What the second branch answers depends on the shared layers, and on no other layer of the first."""
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    for branch in SHARED:
        model = build(f"lenet_gn:branch={branch}", shape=(32, 32, 3), classes=10, seed=3)
        second = model.branch(8, seed=4)
        answers = second(model.backbone(x))
        with torch.no_grad():
            for p in (*model.projection.parameters(), *model.head.parameters()):
                p.add_(1.0)
        assert torch.equal(second(model.backbone(x)), answers)
        parameters = [*model.backbone.parameters(), *second.parameters()]
        torch.testing.assert_close(answers, by_hand(x, parameters))
