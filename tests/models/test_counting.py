"""The counting formulas against the papers' numbers and against the networks themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbench.errors import FedbenchError
from fedbench.models import build, names
from fedbench.models.counting import NAMES, counts, gaussian, linear


def numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# pFedFDA (NeurIPS 2024), Table 8 as printed: backbone, linear classifier, Gaussian, overhead in percent.
TABLE_8 = [
    ("emnist_cnn", (28, 28, 1), 62, 115776, 7998, 16192, "6.620"),
    ("cifar_cnn", (32, 32, 3), 100, 106400, 12900, 21056, "6.837"),
    ("resnet18_fedml", (64, 64, 3), 200, 11167212, 102600, 233728, "1.164"),
    ("mobilenet_v3_small", (224, 224, 3), 1000, 927008, 1615848, 1548800, "-2.637"),
]


@pytest.mark.parametrize(("model", "shape", "classes", "body", "head", "gauss", "percent"), TABLE_8)
def test_pfedfda_table_8(
    model: str, shape: tuple[int, int, int], classes: int, body: int, head: int, gauss: int, percent: str
) -> None:
    found = counts(model, shape, classes)
    assert (found["body"], found["head"], found["gaussian"]) == (body, head, gauss)
    assert f"{100 * found['overhead']:.3f}" == percent


def test_pfedfda_cifar10() -> None:
    found = counts("cifar_cnn", (32, 32, 3), 10)
    assert (found["body"], found["head"], found["gaussian"]) == (106400, 1290, 9536)
    assert f"{100 * found['overhead']:.2f}" == "7.66"


@pytest.mark.parametrize(
    ("classes", "clients", "baseline", "feddrm"),
    [
        (10, 8, 11303242, 11437138),
        (20, 8, 11305812, 11439708),
        (100, 8, 11326372, 11460268),
        (10, 16, 11303242, 11439194),
        (10, 24, 11303242, 11441250),
        (10, 32, 11303242, 11443306),
    ],
)
def test_feddrm_cifar(classes: int, clients: int, baseline: int, feddrm: int) -> None:
    """Totals of FedDRM's ResNet-18 and, with the client branch, of FedDRM; the local part is the last layer."""
    found = counts("resnet18_gn", (32, 32, 3), classes, clients=clients)
    assert (found["trunk"], found["neck"]) == (11168832, 131840)
    assert (found["total"], found["total_with_branch"]) == (baseline, feddrm)
    assert found["head"] == 257 * classes
    assert found["total_with_branch"] - found["head"] == 11434568 + 257 * (clients - 8)
    model = build("resnet18_gn", shape=(32, 32, 3), classes=classes, seed=0)
    assert (numel(model), numel(model) + numel(model.branch(clients))) == (baseline, feddrm)


def test_feddrm_retina() -> None:
    found = counts("resnet18_gn", (96, 96, 3), 2, neck=512, clients=3)
    assert (found["total"], found["total_with_branch"]) == (13530690, 15893061)
    model = build("resnet18_gn", shape=(96, 96, 3), classes=2, seed=0, neck=512)
    assert (model.trunk_size, numel(model), numel(model) + numel(model.branch(3))) == (4608, 13530690, 15893061)


def test_lenet5() -> None:
    assert counts("lenet5", (32, 32, 3), 10)["total"] == 62006


def test_digits_cnn_is_small() -> None:
    assert counts("digits_cnn", (8, 8, 1), 10)["total"] == counts("digits_cnn", (16, 16, 1), 10)["total"] == 13706


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([n for n in names() if not n.startswith("resnet")]),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4)),
    classes=st.integers(2, 30),
    clients=st.integers(1, 9),
)
def test_formulas_equal_small_networks(name: str, shape: tuple[int, int, int], classes: int, clients: int) -> None:
    try:
        found = counts(name, shape, classes, clients=clients)
    except FedbenchError:
        with pytest.raises(FedbenchError, match="too small"):
            build(name, shape=shape, classes=classes, seed=0)
        return
    model = build(name, shape=shape, classes=classes, seed=0)
    assert [numel(p) for p in (model.trunk, model.neck, model.head)] == [found[k] for k in ("trunk", "neck", "head")]
    assert model.feature_size == found["features"]
    assert numel(model.branch(clients)) == found["branch"]


@pytest.mark.parametrize("name", ["resnet18_gn", "resnet18_fedml"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (64, 96, 3), (28, 28, 1)])
def test_formulas_equal_resnets(name: str, shape: tuple[int, int, int]) -> None:
    found = counts(name, shape, 20, clients=5)
    model = build(name, shape=shape, classes=20, seed=0)
    assert [numel(p) for p in (model.trunk, model.neck, model.head)] == [found[k] for k in ("trunk", "neck", "head")]
    assert numel(model.branch(5)) == found["branch"]


@given(classes=st.integers(1, 50), d=st.integers(1, 50))
def test_gaussian_counts_what_must_be_sent(classes: int, d: int) -> None:
    means = sum(1 for _ in range(classes) for _ in range(d))
    covariance = sum(1 for i in range(d) for j in range(d) if i <= j)
    assert gaussian(classes, d) == means + covariance
    assert linear(classes, d) == numel(nn.Linear(d, classes))


def test_every_model_can_be_counted() -> None:
    assert set(names()) < set(NAMES)
    for name in NAMES:
        assert counts(name, (32, 32, 3), 10)["total"] > 0
    with pytest.raises(FedbenchError, match="unknown model 'resnet18'; did you mean 'resnet18_gn'"):
        counts("resnet18", (32, 32, 3), 10)
