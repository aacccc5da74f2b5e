"""The papers' settings and hyper-parameters, by columns of their tables."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench import protocol
from fedbench.methods import declarations
from fedbench.partitions import schemes
from fedbench.partitions.transforms.corruption import CORRUPTIONS
from tests.reports.conftest import settings

PAPERS = {
    "rounds": 10,
    "epochs": 2,
    "batch_size": 64,
    "lr": 0.005,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "init_seed": 42,
    "momentum_restarts": True,
    "init": "torch",
    "model": "lenet5_flux",
    "votes": False,
    "seed": 42,
}


ENDLESS = {
    "steps": 1,
    "batch_size": 64,
    "passes": "endless",
    "cohort": None,
    "votes": False,
    "train_fraction": None,
    "shift": "none",
}


PFEDFDA = {
    "clients": 100,
    "train_fraction": 0.8,
    "min_size": 63,
    "rounds": 200,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.01,
    "model": "cifar_cnn",
    "momentum": 0.5,
    "weight_decay": 5e-4,
    "participation": 0.3,
    "full_last_round": True,
    "votes": False,
    "scheme": "dirichlet",
    "alpha": 0.5,
}


@pytest.mark.parametrize(
    ("name", "column", "facts"),
    [
        (
            "flux/13",
            "Known association/Level 5",
            {
                **PAPERS,
                "test_phase": True,
                "scheme": "equal",
                "shift": "px",
                "level": 5,
                "clients": 10,
                "validation": 0.2,
            },
        ),
        ("flux/50", "Known association/P(X)", {"clients": 1200, "copies": 120, "duplicates": None, "cohort": 240}),
        ("flux/54", "Known association/P(Y|X)", {"clients": 50, "copies": 2, "duplicates": None, "level": 5}),
        ("flux/57", "Known association/Level 6", {"shift": "pxy+py", "level": 6}),
        ("flux/6", "Known association/py, 2", {"phases": 3, "shift": "py", "level": 2, "rounds": 12, "drifts": (5, 8)}),
        ("flux/62", "Known association/P(X)", {"clients": 20, "data_share": 0.01, "rounds": 200}),
        ("flux/61", "Known association, level 1/4 %, px", {"subsample": 0.04, "shift": "px", "level": 1}),
        ("pfedfda/1", "CIFAR10-S/100 %", {**PFEDFDA, "shift": "corrupted", "subsample": None}),
        ("pfedfda/1", "CIFAR100-S/25 %", {**PFEDFDA, "shift": "corrupted", "subsample": 0.25}),
        ("pfedfda/1_code", "CIFAR10-S/100 %", {**PFEDFDA, "shift": "corrupted_code", "subsample": None}),
        ("pfedfda/2", "CIFAR10/Dir(0.5)", {**PFEDFDA, "shift": "none"}),
        (
            "pfedfda/2",
            "EMNIST/Writers",
            {
                "scheme": "natural",
                "by": "writer",
                "clients": 1000,
                "model": "emnist_cnn",
                "participation": 0.03,
                "batch_size": 16,
            },
        ),
        ("pfedfda/3", "Dir(0.1)/CIFAR10", {"scheme": "limited", "alpha": 0.1, "size": 63, "batch_size": 50}),
        ("pfedfda/3", "Dir(0.5)/CIFAR100", {"scheme": "limited", "alpha": 0.5, "size": 63, "batch_size": 50}),
        ("pfedfda/4", "Original", {"clients": 100, "unseen": 50, "unseen_as": tuple(f"{n}-3" for n in CORRUPTIONS)}),
        ("pfedfda/5", "Accuracy/CIFAR100", {"executor": "sequential", "alpha": 0.1}),
        ("pfedfda/6", "One after another/Local training", {"executor": "sequential"}),
        ("pfedfda/6", "fedbench/Total runtime", {"executor": None}),
        (
            "pfedfda/7",
            "Accuracy/25 %",
            {"within": "domain", "clients": 20, "cap": 9298, "alpha": 0.5, "participation": 1.0},
        ),
        ("pfedfda/9", "CIFAR10/Network", {"executor": "sequential"}),
        *(
            ("pfedfda/figure4", f"{group}/E = {e}", {"epochs": e, "subsample": share, "shift": shift})
            for group, share, shift in (("CIFAR100", None, "none"), ("CIFAR100-S 25 %", 0.25, "corrupted"))
            for e in (1, 2, 5, 10, 20)
        ),
        (
            "ftw_erm/1",
            "Client 1",
            {
                **ENDLESS,
                "scheme": "mixture",
                "clients": 5,
                "model": "lenet_tanh",
                "lr": 1e-3,
                "rounds": 5000,
                "weight_decay": 0.0,
                "augment": "none",
            },
        ),
        (
            "ftw_erm/2",
            "Worst client",
            {
                **ENDLESS,
                "scheme": "mixture",
                "clients": 100,
                "cohort": 5,
                "model": "resnet18_bn",
                "lr": 1e-4,
                "rounds": 200_000,
            },
        ),
        (
            "ftw_erm/3",
            "Average",
            {**ENDLESS, "scheme": "colored", "clients": 2, "model": "lenet5_binary", "lr": 1e-3, "rounds": 5000},
        ),
        (
            "ftw_erm/7",
            "Client 1",
            {
                **ENDLESS,
                "scheme": "mixture",
                "clients": 5,
                "model": "resnet18_bn",
                "lr": 1e-4,
                "rounds": 20000,
                "weight_decay": 1e-4,
                "augment": "pad_flip",
            },
        ),
        ("ftw_erm/10", "Client 1", {**ENDLESS, "scheme": "mixture", "clients": 2, "model": "lenet_tanh", "lr": 1e-3}),
        ("ftw_erm/13", "Bound", {**ENDLESS, "scheme": "mixture", "clients": 1, "model": "lenet_tanh", "rounds": 1}),
        (
            "feddrm/1",
            "CIFAR-10/Dir-0.3",
            {
                "alpha": 0.3,
                "clients": 8,
                "shift": "high",
                "rounds": 800,
                "window": 50,
                "model": "resnet18_gn",
                "seed": 2025,
                "steps": 10,
                "epochs": None,
                "batch_size": 128,
                "lr": 0.01,
                "momentum": 0.9,
                "weight_decay": 5e-4,
                "schedule": "cosine",
                "participation": 1.0,
                "votes": True,
                "train_fraction": 0.7,
            },
        ),
        ("feddrm/1", "CIFAR-10/5-SPC", {"scheme": "shards"}),
        (
            "feddrm/figure7",
            "RETINA/System accuracy",
            {
                "rounds": 100,
                "steps": 10,
                "augment": "none",
                "clients": 3,
                "scheme": "natural",
                "lr": 0.01,
                "batch_size": 32,
                "window": 50,
                "model": "resnet18_gn:projection_size=512",
            },
        ),
    ],
)
def test_settings_are_the_papers(name: str, column: str, facts: dict[str, Any]) -> None:
    found = settings(name)[column]
    every = {**schemes.facts(found.partition), **{key: getattr(found, key) for key in facts if hasattr(found, key)}}
    assert {key: every[key] for key in facts} == facts


def test_hyper_parameters_are_the_papers() -> None:
    def params(paper: str, method: str, budget: str, dataset: str = "") -> dict[str, Any]:
        return dict(protocol.load(paper).method_params(method, budget, dataset))

    scales = [params("flux", "flux", "small", d) for d in ("mnist", "fashion_mnist", "cifar100")]
    assert scales == [{}, {"scale": 0.95}, {"scale": 0.98}]
    assert params("flux", "fedavg", "paper", "fashion_mnist") == {}
    for budget in protocol.load("pfedfda").budgets:
        assert params("pfedfda", "apfl", budget)["score"] == "after_local", "as the other personal models are scored"
    scores = {m: declarations.of(m).defaults["score"] for m in ("fedrep", "fedpac", "lg_fedavg", "fedrod", "apfl")}
    assert scores.pop("apfl") == "after_aggregate"
    assert set(scores.values()) == {"after_local"}
    for method in ("fedavgft", "fedprox", "fedsam", "fedbabu"):
        for budget, dataset, rounds in (("small", "retina", 10), ("paper", "retina", 10), ("paper", "", 100)):
            assert params("feddrm", method, budget, dataset)["finetune_rounds"] == rounds
