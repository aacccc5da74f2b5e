"""Networks: shapes, parts, initial weights, what they compute, that they are fit for vmap, their names' options;
torchvision's classifiers; and a network of a user's own file."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedbench import models, protocol
from fedbench.errors import FedbenchError
from fedbench.models import build, check, code_of, initial, named, names, registry
from fedbench.models.base import seeded
from fedbench.models.cnn import SHARED
from fedbench.models.counts import FILE, _count, _kept, case, counts
from fedbench.models.form import check as has_form
from fedbench.models.resnet import Block, GroupScaleNorm
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.planner import table as tables
from fedbench.reports.numbers.counted import counted
from fedbench.specs import DatasetSpec
from fedbench.vision import torchvision
from tests.support.frames import refused
from tests.support.lab import LabRun, federation, setting, train

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
    ("resnet18_fedml", (16, 16, 3), 512, 512),
    ("resnet18_gn", (32, 32, 3), 512, 256),
]


SHAPE = (32, 32, 3)
RESNET, SMALL = "torchvision:resnet18", "torchvision:shufflenet_v2_x0_5"
WEIGHTS = "IMAGENET1K_V1"


def pattern(line: str) -> str:
    """The regular expression of a line in which .* stands for anything."""
    return ".*".join(map(re.escape, line.split(".*")))


def pixels(shape: tuple[int, int, int], count: int) -> Tensor:
    """Images as the trainer feeds them, in [-1, 1], but float64."""
    height, width, channels = shape
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(5)).double() * 2 - 1


@pytest.mark.parametrize(("name", "shape", "backbone_size", "d"), CASES)
def test_parts_fit_together(name: str, shape: tuple[int, int, int], backbone_size: int, d: int) -> None:
    model = build(name, shape=shape, classes=7, seed=1)
    has_form(model, name, shape, 7)
    assert (model.backbone_size, model.feature_size, model.classes) == (backbone_size, d, 7)
    assert not list(model.buffers()), "running statistics would not survive averaging and vmap"
    assert model.branch(5)(model.backbone(pixels(shape, 3).float())).shape == (3, 5)


@pytest.mark.parametrize("name", [*names(), "torchvision:shufflenet_v2_x0_5"])
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
    x = pixels(shape, 3)
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
        if isinstance(part, nn.Conv2d | nn.Linear):
            convolves = isinstance(part, nn.Conv2d)
            fan = part.out_channels * part.kernel_size[0] ** 2 if convolves else part.in_features
            spread = part.weight.std().item() * math.sqrt(fan / 2)
            assert abs(spread - 1) < 5 / math.sqrt(part.weight.numel()), part
            assert part.bias is None if convolves else not part.bias.any()
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
    x = pixels((5, 6, 128), 2).float()
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
        ("resnet18_fedml", (8, 8, 3)),
        ("resnet18_gn", (32, 32, 3)),
    ],
)
def test_vmapped_gradients_equal_one_after_another(name: str, shape: tuple[int, int, int]) -> None:
    models = [build(name, shape=shape, classes=3, seed=s).double() for s in (1, 2)]
    with torch.no_grad():  # away from the scales of 0 that cut gradients off
        for p in (p for model in models for p in model.parameters()):
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    x, y = pixels(shape, 2).unflatten(0, (2, 1)), torch.tensor([[0], [2]])
    parameters, _ = stack_module_state(models)

    def loss(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], p, (x,)), y)

    stacked = vmap(grad(loss))(parameters, x, y)
    for i, model in enumerate(models):
        nn.functional.cross_entropy(model(x[i]), y[i]).backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(stacked[key][i], p.grad)
            assert p.grad.any(), key


@pytest.mark.parametrize(
    ("name", "shape", "classes", "line"),
    [
        ("timm:x", (28, 28, 1), 10, "unknown model 'timm:x'; known: FILE.py:Class, "),
        ("lenet", (28, 28, 1), 10, "unknown model 'lenet'; did you mean 'lenet5'"),
        ("lenet5", (28, 28, 1), 1, "at least 2 classes, not 1"),
        ("lenet5", (28, 28, 0), 10, "cannot take images of shape"),
        *(
            (name, (side, side, 3), 10, f"images of {side}x{side}x3 are too small for model {name}")
            for name, side in (
                ("cifar_cnn", 12),
                ("emnist_cnn", 9),
                ("lenet5", 11),
                ("digits_cnn", 1),
                ("resnet18_gn", 24),
                ("resnet9", 15),
                ("lenet5_flux", 5),
            )
        ),
        ("resnet18_gn:projection_siz=3", (32, 32, 3), 10, "'projection_siz'; did you mean 'projection_size'"),
        ("resnet18_gn:neck=512", (32, 32, 3), 10, "unknown option of model resnet18_gn 'neck'"),
        ("cifar_cnn:neck=512", (32, 32, 3), 10, "unknown option of model cifar_cnn 'neck'"),
        ("resnet18_gn:projection_size=0", (32, 32, 3), 10, "resnet18_gn is a number from 1 to 10,000, not '0'"),
        ("resnet18_gn:projection_size", (32, 32, 3), 10, "resnet18_gn is a number from 1 to 10,000, not ''"),
        ("mlp:width=99999999999", (8, 8, 1), 10, "width of model mlp is a number from 1 to 10,000, not '99999999999'"),
        ("mlp:width=1,width=2", (8, 8, 1), 10, "width of model mlp is given twice"),
        ("lenet_gn:branch=top", (32, 32, 3), 10, "unknown branch of model lenet_gn 'top'"),
        ("lenet:branch=mid", (32, 32, 3), 10, "unknown model 'lenet:branch=mid'"),
        ("torchvision:", SHAPE, 10, "does not name a network of torchvision"),
        (f"{RESNET}:frozen:x", SHAPE, 10, "does not name a network of torchvision; such as torchvision:resnet18"),
        ("torchvision:resnet19", SHAPE, 10, "unknown network of torchvision 'resnet19'.*resnet18"),
        ("torchvision:googlenet", SHAPE, 10, "unknown network of torchvision 'googlenet'"),
        (f"{RESNET}:IMAGENET", SHAPE, 10, "unknown weights of torchvision's resnet18 'IMAGENET'.*IMAGENET1K_V1"),
        (RESNET, (32, 32, 2), 10, "takes images of 1 or 3 channels, not 2"),
        ("torchvision:vit_b_16", SHAPE, 10, "vit_b_16 cannot take images of 32x32x3: .*224"),
    ],
)
def test_what_cannot_be_built_is_one_line(name: str, shape: tuple[int, int, int], classes: int, line: str) -> None:
    refused(pattern(line), build, name, shape=shape, classes=classes, seed=0)
    if (":" in name or name == "lenet") and not name.startswith("torchvision"):
        with pytest.raises(FedbenchError):
            check(name)


def test_lenet5_flux_computes_what_the_released_code_does() -> None:
    """ReLU before average pooling: the other order gives other values."""
    model = build("lenet5_flux", shape=(28, 28, 3), classes=10, seed=1).double()
    w = list(model.parameters())
    x = pixels((28, 28, 3), 3)
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
    model = build("resnet9", shape=(16, 16, 3), classes=7, seed=1).double().train(training)
    with torch.no_grad():
        for t in model.state_dict().values():  # away from scales of 1 and statistics of 0
            if t.is_floating_point():
                t.add_(0.1 * torch.rand(t.shape, generator=torch.Generator().manual_seed(t.numel())))
    w = iter([t.clone() for n, t in model.state_dict().items() if "num_batches" not in n])

    def block(x: Tensor, pool: bool = False) -> Tensor:
        x = F.conv2d(x, next(w), next(w), padding=1)
        scale, shift, mean, var = (next(w) for _ in range(4))
        x = F.batch_norm(x, mean, var, scale, shift, training).relu()
        return F.max_pool2d(x, 2) if pool else x

    x = pixels((16, 16, 3), 3)
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
    has_form(model, name, (32, 32, 3), 5)
    first = next(m for m in model.modules() if isinstance(m, nn.Linear))
    seen: list[Tensor] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = pixels((32, 32, 3), 2).float()
    logits = model(x)
    assert torch.equal(model.latent(x), seen[0])
    assert torch.equal(model.from_latent(seen[0]), logits)


CIFAR10 = DatasetSpec("cifar10", "png", "0123456789ab")


def numel(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_a_name_has_one_form() -> None:
    """Options in their declared order, without those that say the default: two names of one network are one run."""
    assert named("resnet18_gn:projection_size=512") == "resnet18_gn:projection_size=512"
    assert named("resnet18_gn:projection_size=0512") == "resnet18_gn:projection_size=512"
    assert named("resnet18_gn:projection_size=256") == named("resnet18_gn:") == named("resnet18_gn") == "resnet18_gn"
    assert named("lenet_gn:branch=deep") == "lenet_gn"
    assert code_of("lenet_gn:branch=mid") == (("models/cnn.py",), ())


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


def test_a_run_names_its_network_with_its_options() -> None:
    feddrm, part = protocol.load("feddrm"), partition_spec(CIFAR10, "dirichlet", 8, 2025, 0.7, alpha=0.3)
    settings = [feddrm.setting(part, "paper", model=f"resnet18_gn:projection_size={size}") for size in (256, 512)]
    assert [(s.model, protocol.budgets_of(s)) for s in settings] == [
        ("resnet18_gn", "paper"),
        ("resnet18_gn:projection_size=512", "own"),
    ]
    assert settings[0].id == feddrm.setting(part, "paper").id
    model = build(settings[1].model, shape=(96, 96, 3), classes=2, seed=0)
    sizes = (model.backbone_size, numel(model), numel(model) + numel(model.branch(3)))
    assert sizes == (4608, 13530690, 15893061)
    assert counts(settings[1].model, (96, 96, 3), 2).total == 13530690


def test_cifar_cnn_projection() -> None:
    found = counts("cifar_cnn_projection", (32, 32, 3), 10)
    assert (found.backbone, found.projection, found.head) == (1216 + 12832 + 18496, 577 * 128 + 256, 1290)
    assert (found.latents, found.features) == (576, 128)


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
    """With FedDRM's branch of eight clients it has the paper's sizes."""
    x, sizes = pixels(shape, 5).float(), {"none": 2081554, "shallow": 2079058, "mid": 2027666, "deep": 1075090}
    for branch in SHARED:
        whole = build(f"lenet_gn:branch={branch}", shape=(32, 32, 3), classes=10, seed=0)
        assert numel(whole) + numel(whole.branch(8)) == sizes[branch]
        model = build(f"lenet_gn:branch={branch}", shape=shape, classes=7, seed=3)
        logits = by_hand(x, list(model.parameters()))
        torch.testing.assert_close(model(x), logits)
        torch.testing.assert_close(model.from_latent(model.latent(x)), logits)
        assert model.backbone(x).shape == (5, model.backbone_size)
        # Tensors: four a stage, eight of the linear one.
        shared = {"none": 0, "shallow": 4, "mid": 8, "deep": 16}
        assert len(list(model.backbone.parameters())) == shared[branch]
        second = model.branch(8, seed=4)  # goes by the shared layers and by no other of the first
        answers = by_hand(x, [*model.backbone.parameters(), *second.parameters()])
        torch.testing.assert_close(second(model.backbone(x)), answers)


@pytest.mark.parametrize("name", _kept())
def test_the_file_has_what_the_networks_have_today(name: str) -> None:
    assert _kept()[name] == _count(*case(name)), f"'python -m fedbench.models.counts' writes {FILE.name} anew"


def test_what_tables_ask_for_is_kept_so_that_no_report_needs_torch() -> None:
    code = (
        "import sys\nfrom fedbench.planner import table as tables\n"
        "from fedbench.reports.numbers.counted import counted\n"
        "for table in map(tables.load, tables.names()):\n"
        "    if table.statistic == 'count':\n"
        "        numbers = [counted(table, row, column).mean for row in table.rows for column in table.columns]\n"
        "        print(table.id, len(numbers), 'torch' in sys.modules)\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert lines == ["flux/7 132 False", "pfedfda/8 16 False"]


# pFedFDA (NeurIPS 2024), Table 8 as printed: backbone, linear classifier, Gaussian, overhead in percent.
TABLE_8 = [
    ("EMNIST-CNN (EMNIST, C = 62)", 115776, 7998, 16192, "6.620"),
    ("CIFAR-CNN (CIFAR100, C = 100)", 106400, 12900, 21056, "6.837"),
    ("ResNet18 (TinyImageNet, C = 200)", 11167212, 102600, 233728, "1.164"),
    ("MobileNetV3-Small (ImageNet, C = 1000)", 927008, 1615848, 1548800, "-2.637"),
]


def test_pfedfda_table_8() -> None:
    table = tables.load("pfedfda/8")
    lines = [(row.label, *(counted(table, row, column).mean for column in table.columns)) for row in table.rows]
    assert [(*line[:-1], f"{line[-1]:.3f}") for line in lines] == TABLE_8


@pytest.mark.parametrize(
    ("model", "shape", "classes", "total", "latents"),
    [
        ("lenet5", (32, 32, 3), 10, None, None),
        ("digits_cnn", (8, 8, 1), 10, None, None),
        ("resnet18_gn", (32, 32, 3), 100, None, None),
        ("cifar_cnn_bn", (32, 32, 3), 10, None, None),
        ("lenet5_binary", (28, 28, 3), 2, None, None),
        # FLUX's, as printed.
        ("lenet5_flux", (28, 28, 3), 10, 62_006, 400),
        ("lenet5_flux", (28, 28, 1), 10, 61_706, 400),
        ("lenet5_flux", (32, 32, 3), 10, 83_126, 576),
        ("resnet9", (32, 32, 3), 100, 6_775_140, 2048),
        ("resnet9", (64, 64, 1), 14, 6_683_790, 8192),
        ("resnet9", (64, 64, 3), 20, 6_734_100, 8192),
    ],
)
def test_counts_are_those_of_a_network_with_weights(
    model: str, shape: tuple[int, int, int], classes: int, total: int | None, latents: int | None
) -> None:
    found, network = counts(model, shape, classes), build(model, shape=shape, classes=classes, seed=0).eval()
    assert [numel(part) for part in (network.backbone, network.projection, network.head)] == [
        found.backbone,
        found.projection,
        found.head,
    ]
    assert (found.total, found.features) == (numel(network), network.feature_size)
    if latents or model == "digits_cnn":
        h = network.latent(torch.zeros(2, shape[2], *shape[:2]))
        assert h.shape == (2, found.latents)
        assert h.min() >= 0
        assert found.latents == next(m for m in network.modules() if isinstance(m, nn.Linear)).in_features
    if latents:
        assert (found.total, found.latents) == (total, latents)
    state, trained = network.state_dict(), {name for name, _ in network.named_parameters()}
    assert found.buffers == sum(t.numel() * t.element_size() for name, t in state.items() if name not in trained)
    assert found.tensors == sum(t.is_floating_point() for t in state.values())


def test_multiply_accumulates_by_hand() -> None:
    """FLUX's LeNet-5: 28x28 outputs of 6 filters 5x5x3, 10x10 of 16 filters 5x5x6, and three linear layers."""
    layers = 28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    assert counts("lenet5_flux", (28, 28, 3), 10).forward == layers == 651_720


def test_feddrm_cifar() -> None:
    """Totals of FedDRM's ResNet-18 and, with the client branch, of FedDRM; the local part is the last layer."""
    model = build("resnet18_gn", shape=(32, 32, 3), classes=10, seed=0)
    branches = {clients: numel(model.branch(clients)) for clients in (8, 32)}
    for classes, clients, baseline, feddrm in (
        (10, 8, 11303242, 11437138),
        (20, 8, 11305812, 11439708),
        (100, 8, 11326372, 11460268),
        (10, 32, 11303242, 11443306),
    ):
        found = counts("resnet18_gn", (32, 32, 3), classes)
        assert (found.backbone, found.projection, found.head) == (11168832, 131840, 257 * classes)
        assert (found.total, found.total + branches[clients]) == (baseline, feddrm)
    assert numel(model) == 11303242


def test_what_cannot_be_counted() -> None:
    for name, shape, line in (
        ("resnet18", (32, 32, 3), "unknown model 'resnet18'; did you mean 'resnet18_gn'"),
        ("mobilenet_v3_small", (224, 224, 1), "images of three channels, not of 1"),
        ("mobilenet_v3_small", (0, 224, 3), "images of pixels, not of 0x224"),
    ):
        refused(line, counts, name, shape, 10)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("resnet18", (40, 48, 1)),
        ("mobilenet_v3_small", (40, 48, 1)),
        ("efficientnet_b0", SHAPE),
        ("densenet121", (40, 48, 1)),
        ("swin_t", SHAPE),
    ],
)
def test_it_has_the_form_of_a_network(network: str, shape: tuple[int, int, int]) -> None:
    name = f"torchvision:{network}"
    made = models.build(name, shape=shape, classes=7, seed=1)
    has_form(made, name, shape, 7)
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


def run(tmp_path: Path, name: str, executor: str = "sequential") -> LabRun:
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
    has_form(start, name, (32, 32, 1), 10)
    start.train()
    assert not any(part.training for part in start.backbone.network.modules())


def test_weights_that_cannot_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(FedbenchError, match=r"weights IMAGENET1K_V1 .* cannot be downloaded: .*TORCH_HOME"):
        models.build(f"{SMALL}:{WEIGHTS}", shape=SHAPE, classes=7, seed=1)


NET = """
from torch import nn
from fedbench.models.base import FLModel


class Net(FLModel):
    def __init__(self, shape, classes):
        height, width, channels = shape
        size = height * width * channels
        super().__init__(nn.Flatten(), nn.Identity(), nn.Linear(size, classes), backbone_size=size)
        {after}
"""


def write(folder: Path, text: str = "", after: str = "") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(text or NET.format(after=after))
    return f"{folder / 'net.py'}:Net"


def test_its_name_is_its_class_and_its_source(tmp_path: Path) -> None:
    one, two = models.named(write(tmp_path / "one")), models.named(write(tmp_path / "two"))
    other = models.named(write(tmp_path / "three", after="self.own = 1"))
    assert one == two != other
    assert one.partition("@")[0] == "Net"
    assert len(one.partition("@")[2]) == 12
    assert models.named("lenet5") == "lenet5"
    models.named(write(tmp_path, "raise SystemExit\nclass Net: ..."))  # naming it runs nothing
    given, names = write(tmp_path, NET.format(after="") + "\nimport helper\n"), []
    for text in ("x = 1", "x = 2"):
        (tmp_path / "helper.py").write_text(text)
        names.append(models.named(given))
    assert names[0] != names[1], "what it imports beside it"


#: The end of __init__ -> the line.
OTHER_FORMS = [
    ("self.backbone_size = 5", "backbone of .* gives [2, 64] for 2 images, and backbone_size says [2, 5]; end it"),
    ("self.feature_size = 5", "projection of .* gives [2, 64] for 2 images, and in_features of head says [2, 5]"),
    ("self.backbone = nn.Identity()", "the backbone of .* gives [2, 1, 8, 8] for 2 images"),
    ("del self.feature_size", "has no feature_size; end __init__ with super().__init__(backbone, projection, head"),
    ("self.projection = None", "has no projection; end __init__ with"),
    ("self.head = nn.Sequential(self.head)", "the head of .* is Sequential; it is one nn.Linear and nothing else"),
    ("self.head = nn.Linear(64, 3)", "gives 3 classes where there are 10; make it nn.Linear(features, classes)"),
    ("self.scale = nn.Parameter(self.head.bias.clone())", "'scale' of .* is in none of its parts"),
    ("self.double()", "is torch.float64; a network is float32"),
    ("self.projection = nn.BatchNorm1d(64)", "'projection' of .* is BatchNorm1d; call it norm, norm1"),
    ("self.projection.norm = nn.BatchNorm1d(64, track_running_stats=False)", "keeps no running statistics"),
    ("self.projection.norm = nn.BatchNorm1d(64, momentum=None)", "averages its statistics over all batches"),
    ("self.projection.drop = nn.Dropout()", "drop' of .* is Dropout, which draws from torch's own generator"),
    ("self.features = lambda x: self.backbone(x) + 1", "forward(x) of .* is not head(projection(backbone(x)))"),
    ("1 / 0", r"net.py, line 11, in __init__: ZeroDivisionError"),
]
#: A whole file -> the line.
OTHER_FILES = [
    ("class Net: ...", "is no model; derive it from fedbench.models.base.FLModel"),
    ("import torch\nclass Net(torch.nn.Module): ...", "is no model; derive it from"),
    ("class Other: ...", "unknown model class in"),
    (NET.format(after="").replace("self, shape, classes", "self, classes"), "takes (classes), not (shape, classes)"),
    ("def f(:", "cannot load"),
]


@pytest.mark.parametrize(
    ("text", "told"), [*((NET.format(after=after), told) for after, told in OTHER_FORMS), *OTHER_FILES]
)
def test_another_network_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    given = write(tmp_path, text)
    refused(pattern(told), lambda: models.build(models.named(given), shape=(8, 8, 1), classes=10, seed=1))


def test_places_that_name_none(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("class MyModel: ...\n")
    for given, line in (
        ("nowhere.py:Net", r"no file nowhere\.py to take the model from"),
        (write(tmp_path).removesuffix(":Net"), r"does not say which of its classes is the model; such as net\.py:Net"),
        (str(tmp_path / "my_model.py"), r"such as my_model\.py:MyModel$"),
    ):
        refused(line, models.named, given)
    with pytest.raises(FedbenchError, match=r"is a user's file that is not available; give --model FILE\.py:Net"):
        models.build("Net@000000000000", shape=(8, 8, 1), classes=10, seed=1)


def test_a_file_that_changes_while_it_is_at_work(tmp_path: Path) -> None:
    name = models.named(write(tmp_path))
    write(tmp_path, after="self.own = 1")
    with pytest.raises(FedbenchError, match="was changed while fedbench was at work; give the command again"):
        models.build(name, shape=(8, 8, 1), classes=10, seed=1)
    assert registry.known(name).place.name == "Net"
