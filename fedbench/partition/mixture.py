"""Target shift from class probabilities: groups of clients that train on one mixture of the classes, test on another.

FTW-ERM (TMLR 2023), Tables 6, 8, 9 and 11; ftw_erm/protocol.md#target-shift: on each side every class is trimmed to
the rarest one, the groups' rows of class probabilities are divided by the largest column sum, so that no class is
asked for more often than it is there, and every group takes whole numbers of samples. Training samples come from the
data set's official training split, test samples from its test split; where it has none (scikit-learn's digits), a
fifth of each class stands in. All draws come one after another from one NumPy legacy generator, as in `scheme`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partition import official
from fedbench.partition.density import normalised
from fedbench.specs import PartitionSpec, Rows, require

if TYPE_CHECKING:
    from fedbench.data import Dataset

Indices = NDArray[np.int64]

#: Of a sample. Probabilities written with 16 digits, such as 0.005555555555555556, give a product that misses a whole
#: number by about 1e-12, and a plain floor would lose that sample (the paper's float32 gives 4749 for 4750).
_SLACK = 1e-6


def counts(mix: Rows, available: Sequence[int]) -> NDArray[np.int64]:
    """Samples of each class [G, K] that each group takes, given class weights [G, K] and the class sizes [K].

    Classes that no group asks for do not count as the rarest.
    """
    shares = normalised(mix)
    columns = shares.sum(axis=0)
    n_min = min(n for n, asked in zip(available, columns, strict=True) if asked > 0)
    return _floor(shares / columns.max() * n_min)


def kept(taken: NDArray[np.int64], keep: Sequence[float] | None) -> NDArray[np.int64]:
    """What is left of the groups' training samples [G, K] where each keeps only a share of every class."""
    return taken if keep is None else _floor(taken * np.array(keep)[:, None])


def _floor(samples: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.floor(samples + _SLACK), np.int64)


def draw(dataset: Dataset, spec: PartitionSpec) -> list[tuple[Indices, Indices]]:
    """The training and the test samples of each client, as rows of the data set.

    The groups' samples of a class are consecutive, disjoint slices of its shuffled samples. All clients of a group
    hold the same samples, or with `disjoint` share those of each class out evenly. Raises FedbenchError if the
    weights are not one a class, if the data lack a class that a client must have, or if a client is left without a
    training or without a test sample.
    """
    assert spec.train_mix is not None
    assert spec.test_mix is not None
    rng = np.random.RandomState(spec.seed)
    is_test = official.test_images(dataset, rng)
    train = _side(dataset, spec, spec.train_mix, ~is_test, "training", spec.keep, rng)
    test = _side(dataset, spec, spec.test_mix, is_test, "test", None, rng)
    return list(zip(train, test, strict=True))


def _side(
    dataset: Dataset,
    spec: PartitionSpec,
    mix: Rows,
    chosen: NDArray[np.bool_],
    side: str,
    keep: Sequence[float] | None,
    rng: np.random.RandomState,
) -> list[Indices]:
    """The samples of each client on one side of the split: those `chosen` [N] of the data set."""
    classes = len(dataset.classes)
    require(
        len(mix[0]) == classes,
        f"the mixture has weights for {len(mix[0])} classes, but {dataset.spec.name} has {classes}",
    )
    pools = [np.flatnonzero((dataset.labels == k) & chosen) for k in range(classes)]
    for name, pool, column in zip(dataset.classes, pools, zip(*mix, strict=True), strict=True):
        if not len(pool) and any(column):
            raise FedbenchError(
                f"{dataset.spec.name} has no {side} image of class '{name}', which a client of the mixture must have",
                "a mixture takes training and test images from the data set's own split",
            )
    taken = counts(mix, [len(pool) for pool in pools])
    left = kept(taken, keep)
    shuffled = [rng.permutation(pool) for pool in pools]
    starts = np.cumsum(taken, axis=0) - taken
    members = spec.clients // len(mix)
    held: list[Indices] = []
    for start, count in zip(starts, left, strict=True):
        slices = [pool[a : a + n] for pool, a, n in zip(shuffled, start, count, strict=True)]
        if spec.disjoint:
            shared = [np.array_split(piece, members) for piece in slices]
            held += [rng.permutation(np.concatenate(mine)) for mine in zip(*shared, strict=True)]
        else:
            held += [rng.permutation(np.concatenate(slices))] * members
    for client, samples in enumerate(held):
        require(
            len(samples) > 0,
            f"client {client} of the mixture is left without a {side} sample "
            f"(the rarest class has {min(map(len, pools))} images)",
            "fewer clients, or more even class weights",
        )
    return held
