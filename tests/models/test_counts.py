"""What is counted of networks: what the file keeps, what the papers print, and what the networks themselves hold."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedbench.errors import FedbenchError
from fedbench.models import build
from fedbench.models.counts import FILE, _count, _kept, case, counts
from fedbench.reports import table as tables
from fedbench.reports.numbers.counted import counted


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", _kept())
def test_the_file_has_what_the_networks_have_today(name: str) -> None:
    assert _kept()[name] == _count(*case(name)), f"'python -m fedbench.models.counts' writes {FILE.name} anew"


def test_what_tables_ask_for_is_kept_so_that_no_report_needs_torch() -> None:
    code = (
        "import sys\nfrom fedbench.reports import table as tables\n"
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
        ("lenet5", (32, 32, 3), 10, None, None), ("digits_cnn", (8, 8, 1), 10, None, None),
        ("resnet18_gn", (32, 32, 3), 100, None, None), ("cifar_cnn_bn", (32, 32, 3), 10, None, None),
        ("lenet5_binary", (28, 28, 3), 2, None, None),
        # FLUX's, as printed.
        ("lenet5_flux", (28, 28, 3), 10, 62_006, 400), ("lenet5_flux", (28, 28, 1), 10, 61_706, 400),
        ("lenet5_flux", (32, 32, 3), 10, 83_126, 576), ("resnet9", (32, 32, 3), 100, 6_775_140, 2048),
        ("resnet9", (64, 64, 1), 14, 6_683_790, 8192), ("resnet9", (64, 64, 3), 20, 6_734_100, 8192),
    ],
)  # fmt: skip
def test_counts_are_those_of_a_network_with_weights(
    model: str, shape: tuple[int, int, int], classes: int, total: int | None, latents: int | None
) -> None:
    found, network = counts(model, shape, classes), build(model, shape=shape, classes=classes, seed=0).eval()
    assert [numel(part) for part in (network.backbone, network.projection, network.head)] == [
        found.backbone, found.projection, found.head,
    ]  # fmt: skip
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
        (10, 8, 11303242, 11437138), (20, 8, 11305812, 11439708), (100, 8, 11326372, 11460268),
        (10, 32, 11303242, 11443306),
    ):  # fmt: skip
        found = counts("resnet18_gn", (32, 32, 3), classes)
        assert (found.backbone, found.projection, found.head) == (11168832, 131840, 257 * classes)
        assert (found.total, found.total + branches[clients]) == (baseline, feddrm)
    assert numel(model) == 11303242


def test_what_cannot_be_counted() -> None:
    with pytest.raises(FedbenchError, match="unknown model 'resnet18'; did you mean 'resnet18_gn'"):
        counts("resnet18", (32, 32, 3), 10)
    for name, side in (("lenet5_flux", 5), ("resnet9", 15)):
        with pytest.raises(FedbenchError, match=f"images of {side}x{side}x1 are too small"):
            counts(name, (side, side, 1), 3)
    with pytest.raises(FedbenchError, match="images of three channels, not of 1"):
        counts("mobilenet_v3_small", (224, 224, 1), 10)
    with pytest.raises(FedbenchError, match="images of pixels, not of 0x224"):
        counts("mobilenet_v3_small", (0, 224, 3), 10)
