"""Networks: shapes, parts, initial weights, and that they are fit for vmap."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedbench.errors import FedbenchError
from fedbench.models import build, names
from fedbench.models.base import seeded
from fedbench.models.resnet import Block, GroupScaleNorm

CASES = [
    ("cifar_cnn", (32, 32, 3), 128, 128),
    ("cifar_cnn", (28, 28, 1), 128, 128),
    ("cifar_cnn_projection", (32, 32, 3), 576, 128),
    ("cifar_cnn_projection:projection_size=64", (28, 28, 1), 256, 64),
    ("digits_cnn", (8, 8, 1), 64, 64),
    ("digits_cnn", (16, 16, 1), 64, 64),
    ("digits_cnn", (7, 9, 1), 64, 64),
    ("emnist_cnn", (28, 28, 1), 128, 128),
    ("lenet5", (28, 28, 1), 84, 84),
    ("lenet5", (32, 32, 3), 84, 84),
    ("lenet_gn", (32, 32, 3), 256, 128),
    ("lenet_gn:branch=mid", (28, 28, 1), 1024, 128),
    ("lenet_gn:branch=shallow", (32, 32, 3), 6272, 128),
    ("lenet_gn:branch=none", (32, 32, 3), 3072, 128),
    ("resnet18_fedml", (64, 64, 3), 512, 512),
    ("resnet18_gn", (32, 32, 3), 512, 256),
    ("resnet18_gn", (64, 64, 3), 2048, 256),
]


def images(shape: tuple[int, int, int], count: int) -> torch.Tensor:
    height, width, channels = shape
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("name", "shape", "backbone_size", "d"), CASES)
def test_parts_fit_together(name: str, shape: tuple[int, int, int], backbone_size: int, d: int) -> None:
    model = build(name, shape=shape, classes=7, seed=1).to(memory_format=torch.channels_last)
    x = images(shape, 3).contiguous(memory_format=torch.channels_last)
    assert model.backbone(x).shape == (3, backbone_size) == (3, model.backbone_size)
    z = model.features(x)
    assert z.shape == (3, d) == (3, model.feature_size)
    assert model.classes == 7
    torch.testing.assert_close(model(x), z @ model.head.weight.T + model.head.bias)
    assert {n.split(".")[0] for n, _ in model.named_parameters()} <= {"backbone", "projection", "head"}
    assert not list(model.buffers()), "running statistics would not survive averaging and vmap"
    branch = model.branch(5)
    assert branch(model.backbone(x)).shape == (3, 5)


@pytest.mark.parametrize("name", names())
def test_seed_alone_determines_the_weights(name: str) -> None:
    shape = (8, 8, 1) if name == "digits_cnn" else (32, 32, 3)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    a = build(name, shape=shape, classes=4, seed=3)
    branch = a.branch(6, seed=3)
    assert torch.equal(torch.get_rng_state(), before), "the global generator moved"
    torch.rand(10)
    b = build(name, shape=shape, classes=4, seed=3)
    other = build(name, shape=shape, classes=4, seed=4)
    for (key, p), q, r in zip(a.named_parameters(), b.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), key
        if p.dim() > 1:
            assert not torch.equal(p, r), key
    for p, q in zip(branch.parameters(), b.branch(6, seed=3).parameters(), strict=True):
        assert torch.equal(p, q)


def test_purposes_have_streams_of_their_own() -> None:
    draws = []
    for seed, purpose in ((3, "model"), (3, "branch"), (4, "model")):
        with seeded(seed, purpose):
            draws.append(torch.rand(4))
    assert not any(torch.equal(draws[i], draws[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("name", "shape", "paddings", "slope"),
    [
        ("cifar_cnn", (32, 32, 3), [0, 1, 1], 0.01),
        ("emnist_cnn", (28, 28, 1), [0, 1], 0.01),
        ("lenet5", (28, 28, 1), [0, 0], 0.0),
    ],
)
def test_cnns_compute_what_the_papers_say(
    name: str, shape: tuple[int, int, int], paddings: list[int], slope: float
) -> None:
    """Convolution, activation, pooling, in the papers' order; then the hidden layers, each with its activation."""
    model = build(name, shape=shape, classes=10, seed=1).double()
    weights = iter(model.parameters())
    x = images(shape, 3).double()
    z = x
    for padding in paddings:
        z = F.max_pool2d(F.leaky_relu(F.conv2d(z, next(weights), next(weights), padding=padding), slope), 2)
    z = z.flatten(1)
    for _ in range(2 if name == "lenet5" else 1):
        z = F.leaky_relu(F.linear(z, next(weights), next(weights)), slope)
    torch.testing.assert_close(model.features(x), z)
    torch.testing.assert_close(model(x), F.linear(z, next(weights), next(weights)))
    assert next(weights, None) is None


def test_branch_is_fresh_and_of_the_same_form() -> None:
    model = build("resnet18_gn", shape=(32, 32, 3), classes=10, seed=1)
    with torch.no_grad():
        for p in model.projection.parameters():
            p.add_(7.0)
    branch = model.branch(8)
    kinds = [type(m) for m in branch.modules() if not list(m.children())]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    assert branch.projection[0].weight.abs().max() < 1, "a trained projection was copied into the branch"
    torch.testing.assert_close(branch.projection[1].weight, torch.ones(256))
    plain = build("cifar_cnn", shape=(32, 32, 3), classes=10, seed=1).branch(8)
    assert [type(m) for m in plain.children()] == [nn.Identity, nn.Linear]


def test_resnet18_gn_initial_weights() -> None:
    """FedDRM: He-normal convolutions (fan out) and linear layers (fan in), zero bias, second scales 0."""
    model = build("resnet18_gn", shape=(32, 32, 3), classes=100, seed=2)
    for part in [*model.modules(), *model.branch(50).modules()]:
        if isinstance(part, nn.Conv2d):
            fan_out = part.out_channels * part.kernel_size[0] ** 2
            spread = part.weight.std().item() * math.sqrt(fan_out / 2)
            assert abs(spread - 1) < 5 / math.sqrt(part.weight.numel()), part
            assert part.bias is None
        elif isinstance(part, nn.Linear):
            spread = part.weight.std().item() * math.sqrt(part.in_features / 2)
            assert abs(spread - 1) < 5 / math.sqrt(part.weight.numel()), part
            assert not part.bias.any()
        elif isinstance(part, nn.GroupNorm):
            assert part.num_groups == 16
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    assert len(blocks) == 8
    assert all(not b.norm2.weight.any() and bool((b.norm1.weight == 1).all()) for b in blocks)


def test_cnn_initial_weights_are_torchs_default() -> None:
    """pFedFDA's CNNs: weights and biases uniform in +-1/sqrt(fan in)."""
    for part in build("cifar_cnn", shape=(32, 32, 3), classes=100, seed=2).modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(part.weight[0].numel())
            assert 0.95 * bound < part.weight.abs().max() <= bound
            assert 0 < part.bias.abs().max() <= bound


def test_resnet18_fedml_initial_weights() -> None:
    model = build("resnet18_fedml", shape=(64, 64, 3), classes=200, seed=2)
    norms = [m for m in model.modules() if isinstance(m, GroupScaleNorm)]
    assert sum(p.numel() for m in norms for p in m.parameters()) == 300
    assert all(bool((m.weight == 1).all()) and not m.bias.any() for m in norms)
    assert model.head.weight.abs().max() <= 1 / math.sqrt(512)


def test_group_scale_norm_is_a_plain_group_norm_with_one_scale_a_group() -> None:
    norm = GroupScaleNorm(128)
    weight, bias = torch.tensor([0.5, 1.0, 2.0, -1.0]), torch.tensor([0.0, 1.0, -1.0, 3.0])
    norm.load_state_dict({"weight": weight, "bias": bias})
    x = images((5, 6, 128), 2)
    plain = nn.GroupNorm(4, 128, eps=1e-5, affine=False)(x).view(2, 4, 32, 5, 6)
    expected = plain * weight.view(1, 4, 1, 1, 1) + bias.view(1, 4, 1, 1, 1)
    torch.testing.assert_close(norm(x), expected.view_as(x))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cifar_cnn", (32, 32, 3)),
        ("digits_cnn", (8, 8, 1)),
        ("emnist_cnn", (28, 28, 1)),
        ("lenet5", (28, 28, 1)),
        ("resnet18_fedml", (32, 32, 3)),
        ("resnet18_gn", (32, 32, 3)),
    ],
)
def test_vmapped_gradients_equal_one_after_another(name: str, shape: tuple[int, int, int]) -> None:
    models = [build(name, shape=shape, classes=3, seed=s).double() for s in (1, 2)]
    with torch.no_grad():  # away from the scales of 0 that cut gradients off
        for p in (p for model in models for p in model.parameters()):
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    x, y = images(shape, 4).double().unflatten(0, (2, 2)), torch.tensor([[0, 1], [2, 0]])
    parameters, _ = stack_module_state(models)

    def loss(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], p, (x,)), y)

    stacked = vmap(grad(loss))(parameters, x, y)
    for i, model in enumerate(models):
        nn.functional.cross_entropy(model(x[i]), y[i]).backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(stacked[key][i], p.grad)
            assert p.grad.any(), key


def test_bad_requests() -> None:
    with pytest.raises(FedbenchError, match=r"unknown model 'timm:x'; known: FILE.py:Class, .*, torchvision:NAME$"):
        build("timm:x", shape=(28, 28, 1), classes=10, seed=0)
    with pytest.raises(FedbenchError, match=r"unknown model 'lenet'; did you mean 'lenet5'\?"):
        build("lenet", shape=(28, 28, 1), classes=10, seed=0)
    with pytest.raises(
        FedbenchError, match="unknown option of model resnet18_gn 'projection_siz'; did you mean 'projection_size'"
    ):
        build("resnet18_gn:projection_siz=3", shape=(32, 32, 3), classes=10, seed=0)
    with pytest.raises(FedbenchError, match="at least 2 classes, not 1"):
        build("lenet5", shape=(28, 28, 1), classes=1, seed=0)
    with pytest.raises(FedbenchError, match="cannot take images of shape"):
        build("lenet5", shape=(28, 28, 0), classes=10, seed=0)


@pytest.mark.parametrize(
    ("name", "side"), [("cifar_cnn", 12), ("emnist_cnn", 9), ("lenet5", 11), ("digits_cnn", 1), ("resnet18_gn", 24)]
)
def test_images_too_small(name: str, side: int) -> None:
    with pytest.raises(FedbenchError, match=f"images of {side}x{side}x3 are too small for model {name}"):
        build(name, shape=(side, side, 3), classes=10, seed=0)


def test_digits_cnn_learns_real_digits() -> None:
    """scikit-learn's digits: over 95 % on held-out images after ten passes."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(raw.images, dtype=torch.float32)[order, None] / 16 - 0.5) / 0.5
    y = torch.tensor(raw.target)[order]
    model = build("digits_cnn", shape=(8, 8, 1), classes=10, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        for i in range(0, 1400, 50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[i : i + 50]), y[i : i + 50]).backward()
            optimiser.step()
    with torch.no_grad():
        accuracy = (model(x[1400:]).argmax(1) == y[1400:]).double().mean().item()
    assert accuracy > 0.95, accuracy


def test_listing_imports_no_torch() -> None:
    code = "import sys, fedbench.models as m\nm.names()\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
