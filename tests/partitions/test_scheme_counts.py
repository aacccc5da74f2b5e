"""The very counts of the papers' partitions. They depend on the class sizes only, so no image is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedbench.partitions.schemes import dirichlet
from tests.support.partitions_lab import draw, spec

CIFAR10, CIFAR100, TINY = (10, 6000), (100, 600), (200, 550)


def drawn(classes: int, each: int, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Training and test counts [M, K] of a partition of `classes` classes with `each` samples."""
    labels = np.tile(np.arange(classes), each)
    sides = draw(labels, spec(**fields))
    counts = np.array([[np.bincount(labels[i], minlength=classes) for i in side] for side in sides])
    return counts[:, 0], counts[:, 1]


def feddrm(classes: int, each: int, clients: int = 8, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    if "alpha" in fields:
        fields |= {"scheme": "dirichlet", "min_size": classes}
    else:
        fields |= {"scheme": "shards"}
    return drawn(classes, each, clients=clients, seed=2025, train_fraction=0.7, **fields)


def totals(train: np.ndarray, test: np.ndarray) -> list[int]:
    return (train + test).sum(axis=1).tolist()


def present(counts: np.ndarray) -> list[int]:
    return (counts > 0).sum(axis=1).tolist()


def majority(counts: np.ndarray) -> float:
    """Share of the samples that a client's commonest class covers, over all clients."""
    return float(counts.max(axis=1).sum() / counts.sum())


def test_feddrm_cifar10_dir_03_class_counts() -> None:
    train, test = feddrm(*CIFAR10, alpha=0.3)
    counts = train + test
    assert present(counts) == [6, 9, 6, 8, 5, 8, 10, 10]
    assert counts.tolist() == [
        [505, 215, 4351, 749, 1573, 0, 568, 0, 0, 0],
        [5, 8, 1491, 1, 289, 0, 28, 4950, 38, 1142],
        [3, 4583, 0, 2018, 847, 1, 4134, 0, 0, 0],
        [0, 17, 8, 212, 626, 451, 61, 6, 0, 1557],
        [5267, 320, 43, 433, 1800, 0, 0, 0, 0, 0],
        [0, 23, 76, 2565, 803, 74, 296, 838, 5607, 0],
        [81, 1, 12, 5, 5, 696, 733, 33, 284, 3267],
        [139, 833, 19, 17, 57, 4778, 180, 173, 71, 34],
    ]


def test_feddrm_cifar10_dir_03() -> None:
    train, test = feddrm(*CIFAR10, alpha=0.3)
    assert totals(train, test) == [7961, 7952, 11586, 2938, 7863, 10282, 5117, 6301]
    assert train.sum(axis=1).tolist() == [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]
    assert (train.sum(), test.sum()) == (41_996, 18_004)
    # The local classifier that always answers its commonest training class (average accuracy, training weights).
    hits = test[np.arange(8), train.argmax(axis=1)] / test.sum(axis=1)
    assert round(100 * np.average(hits, weights=train.sum(axis=1)), 1) == 57.3


@pytest.mark.parametrize(
    ("of", "own", "sizes", "classes", "largest"),
    [
        (CIFAR10, {"alpha": 1.3}, [9378, 8932, 6787, 7338, 6888, 6264, 5887, 8526], None, 0.26),
        (CIFAR10, {"alpha": 2.3}, [7291, 7626, 8994, 5516, 8171, 7725, 8091, 6586], None, 0.26),
        (CIFAR10, {"shards": 5}, [7500] * 8, [4, 5, 5, 5, 4, 4, 5, 5], 0.275),
        (
            CIFAR100, {"alpha": 0.3}, [7566, 7502, 7722, 7560, 7705, 7540, 6847, 7558],
            [75, 86, 82, 56, 86, 90, 92, 98], None,
        ),
        (CIFAR100, {"shards": 25}, [7500] * 8, [22, 23, 23, 23, 22, 24, 24, 24], None),
    ],
)  # fmt: skip
def test_feddrm(
    of: tuple[int, int], own: dict[str, Any], sizes: list[int], classes: list[int] | None, largest: float | None
) -> None:
    train, test = feddrm(*of, **own)
    assert totals(train, test) == sizes
    assert train.sum(axis=1).tolist() == [int(0.7 * n) for n in sizes]
    assert classes in (None, present(train + test))
    assert largest in (None, round(majority(train + test), 3), round(majority(train + test), 2))


@pytest.mark.parametrize(
    ("clients", "least", "most", "short", "single", "smallest"),
    [(16, 1398, 5395, 1, None, None), (24, 289, 4129, 5, None, 202), (32, 633, 3458, 14, 1, None)],
)
def test_feddrm_more_clients(
    clients: int, least: int, most: int, short: int, single: int | None, smallest: int | None
) -> None:
    train, test = feddrm(*CIFAR10, clients=clients, alpha=0.3)
    sizes = totals(train, test)
    assert (min(sizes), max(sizes)) == (least, most)
    assert (train.sum(axis=1) < 1280).sum() == short  # cannot fill ten batches of 128
    assert single in (None, present(train + test).count(1))
    assert smallest in (None, train.sum(axis=1).min())


@pytest.mark.parametrize(
    ("data", "alpha", "attempts", "spread", "first", "total", "classes"),
    [
        # Of the sizes: least, median and largest; those of clients 0 to 4. Images to train on; median of the classes.
        pytest.param(
            CIFAR10, 0.1, 5266, (74, 604, 1746), [297, 263, 1380, 269, 584], 47_955, 4, marks=pytest.mark.slow
        ),
        (CIFAR10, 0.5, 1, (213, 609, 1036), [638, 706, 248, 602, 814], 47_958, 9),
        (CIFAR100, 0.1, 1, (295, 613, 768), [443, 611, 520, 653, 628], 47_960, 35),
        (CIFAR100, 0.5, 1, (480, 605, 759), [600, 614, 603, 617, 545], 47_962, 75.5),
        (TINY, 0.1, 1, (605, 1116, 1307), [1115, 1100, 920, 1223, 1105], 87_962, 67),
        (TINY, 0.5, 1, (911, 1105, 1200), [1114, 1120, 1033, 1105, 1100], 87_964, 150.5),
    ],
)
def test_pfedfda(
    data: Any, alpha: float, attempts: int, spread: Any, first: Any, total: int, classes: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    calls = []
    share_out = dirichlet.share_out
    monkeypatch.setattr(dirichlet, "share_out", lambda *given: calls.append(1) or share_out(*given))
    train, test = drawn(*data, scheme="dirichlet", alpha=alpha, clients=100, seed=42, train_fraction=0.8, min_size=63)
    sizes = totals(train, test)
    assert len(calls) == attempts
    assert (min(sizes), int(np.median(sizes)), max(sizes)) == spread
    assert sizes[:5] == first
    assert train.sum() == total
    assert np.median(present(train + test)) == classes
    if attempts > 1:
        assert (min(present(train + test)), max(present(train + test))) == (1, 7)


@pytest.mark.parametrize(
    ("name", "classes", "train", "first", "kept"),
    [
        (
            "cifar10", 10, [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410], [638, 706, 248, 602, 814],
            {1: 47_958, 0.75: 35_935, 0.5: 23_962, 0.25: 11_962},
        ),
        (
            "cifar100", 100, [5296, 5251, 5405, 5292, 5393, 5278, 4792, 5290], [600, 614, 603, 617, 545],
            {1: 47_962},
        ),
    ],
)  # fmt: skip
def test_real_labels_give_the_papers_clients(
    data_root: Path, name: str, classes: int, train: list[int], first: list[int], kept: dict[float, int]
) -> None:
    """FedDRM's; and pFedFDA's of pfedfda/protocol.md#dirichlet-partition, with Table 1's shares of training sets."""
    parts = [pq.read_table(data_root / name / f"{side}.parquet", columns=["label"]) for side in ("train", "test")]
    labels = np.concatenate([part["label"].to_numpy() for part in parts])
    main = {"scheme": "dirichlet", "clients": 8, "alpha": 0.3, "min_size": classes, "seed": 2025}
    assert [len(mine) for mine, _ in draw(labels, spec(**main, train_fraction=0.7))] == train
    own = {"scheme": "dirichlet", "clients": 100, "alpha": 0.5, "min_size": 63, "seed": 42, "train_fraction": 0.8}
    for share, total in kept.items():
        sides = draw(labels, spec(**own, subsample=share))
        assert sum(len(mine) for mine, _ in sides) == total
        assert sum(len(test) for _, test in sides) == 60_000 - kept[1]
        assert [len(mine) + len(test) for mine, test in sides[:5]] == first or share < 1
