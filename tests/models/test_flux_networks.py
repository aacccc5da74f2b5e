"""FLUX's LeNet-5 and ResNet-9: the papers' counts, what they compute, their latents, under every executor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.errors import FedbenchError
from fedbench.models import build, initial
from fedbench.models.counts import counts
from tests.support.lab import setting

Shape = tuple[int, int, int]


def images(shape: Shape, count: int) -> Tensor:
    """Images as the trainer feeds them, in [-1, 1]."""
    height, width, channels = shape
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(5)).double() * 2 - 1


@pytest.mark.parametrize(
    ("name", "shape", "classes", "total", "z"),
    [
        ("lenet5_flux", (28, 28, 3), 10, 62_006, 400),
        ("lenet5_flux", (28, 28, 1), 10, 61_706, 400),
        ("lenet5_flux", (32, 32, 3), 10, 83_126, 576),
        ("resnet9", (32, 32, 3), 100, 6_775_140, 2048),
        ("resnet9", (64, 64, 1), 14, 6_683_790, 8192),
        ("resnet9", (64, 64, 3), 20, 6_734_100, 8192),
    ],
)
def test_parameters_and_latents_are_the_papers(name: str, shape: Shape, classes: int, total: int, z: int) -> None:
    found, model = counts(name, shape, classes), build(name, shape=shape, classes=classes, seed=0).eval()
    assert found.total == total == sum(p.numel() for p in model.parameters())
    assert [sum(p.numel() for p in part.parameters()) for part in (model.backbone, model.projection, model.head)] == [
        found.backbone,
        found.projection,
        found.head,
    ]
    assert (model.feature_size, found.latents) == (found.features, z)
    with torch.no_grad():
        h = model.latent(images(shape, 2).float())
    assert h.shape == (2, z)
    assert h.min() >= 0
    first = next(m for m in model.modules() if isinstance(m, nn.Linear))
    assert first.in_features == z


def test_lenet5_flux_computes_what_the_released_code_does() -> None:
    """ReLU before average pooling: the other order gives other values."""
    model = build("lenet5_flux", shape=(28, 28, 3), classes=10, seed=1).double()
    w = list(model.parameters())
    x = images((28, 28, 3), 3)
    h = F.avg_pool2d(F.conv2d((x + 1) / 2, w[0], w[1], padding=2).relu(), 2)
    h = F.avg_pool2d(F.conv2d(h, w[2], w[3]).relu(), 2).flatten(1)
    torch.testing.assert_close(model.latent(x), h)
    z = F.linear(F.linear(h, w[4], w[5]).relu(), w[6], w[7]).relu()
    torch.testing.assert_close(model.features(x), z)
    torch.testing.assert_close(model(x), F.linear(z, w[8], w[9]))
    assert len(w) == 10


def test_initial_weights_as_torch_draws_them() -> None:
    """What the released code begins with: its layers made in order after torch.manual_seed."""
    before = torch.get_rng_state()
    ours = initial(setting(model="lenet5_flux", seed=7, init_seed=42, init="torch"), (28, 28, 3), 10, further=1)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(43)
        layers = [nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)]
    theirs = [p for layer in layers for p in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs, strict=True))
    other = build("lenet5_flux", shape=(28, 28, 3), classes=10, seed=43)
    assert not torch.equal(next(other.parameters()), theirs[0])


@pytest.mark.parametrize("training", [True, False])
def test_resnet9_computes_what_the_released_code_does(training: bool) -> None:
    model = build("resnet9", shape=(32, 32, 3), classes=7, seed=1).double().train(training)
    with torch.no_grad():
        for t in model.state_dict().values():  # away from scales of 1 and statistics of 0
            if t.is_floating_point():
                t.add_(0.1 * torch.rand(t.shape, generator=torch.Generator().manual_seed(t.numel())))
    state = {n: t.clone() for n, t in model.state_dict().items()}
    w = iter([t for n, t in state.items() if "num_batches" not in n])

    def block(x: Tensor, pool: bool = False) -> Tensor:
        x = F.conv2d(x, next(w), next(w), padding=1)
        scale, shift, mean, var = (next(w) for _ in range(4))
        x = F.batch_norm(x, mean, var, scale, shift, training).relu()
        return F.max_pool2d(x, 2) if pool else x

    x = images((32, 32, 3), 3)
    h = block(block((x + 1) / 2), pool=True)
    h = h + block(block(h))
    h = block(block(h, pool=True), pool=True)
    h = F.max_pool2d(h + block(block(h)), 2).flatten(1)
    torch.testing.assert_close(model.latent(x), h)
    torch.testing.assert_close(model.backbone(x), model.features(x))
    torch.testing.assert_close(model(x), F.linear(h, next(w), next(w)))
    assert next(w, None) is None


@pytest.mark.parametrize(
    "name",
    ["lenet5_flux", "lenet5", "lenet_tanh", "emnist_cnn", "cifar_cnn_bn", "digits_cnn", "resnet18_gn", "resnet9"],
)
def test_latents_are_what_the_first_linear_layer_reads(name: str) -> None:
    model = build(name, shape=(32, 32, 3), classes=5, seed=0).eval()
    first = next(m for m in model.modules() if isinstance(m, nn.Linear))
    seen: list[Tensor] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = images((32, 32, 3), 2).float()
    logits = model(x)
    assert torch.equal(model.latent(x), seen[0])
    assert torch.equal(model.from_latent(seen[0]), logits)


def test_norms_are_told_by_their_names_and_images_too_small_refused() -> None:
    model = build("resnet9", shape=(16, 16, 1), classes=3, seed=0)
    norms = [path for path, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 8
    assert all(path.endswith("norm") for path in norms)
    for name, side in (("resnet9", 15), ("lenet5_flux", 5)):
        with pytest.raises(FedbenchError, match=f"images of {side}x{side}x1 are too small for model {name}"):
            build(name, shape=(side, side, 1), classes=3, seed=0)
        with pytest.raises(FedbenchError, match=f"images of {side}x{side}x1 are too small"):
            counts(name, (side, side, 1), 3)
