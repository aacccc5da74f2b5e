"""Target shift: groups of clients train on one mixture of the classes and are tested on another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.options import option
from fedbench.partitions import distribution
from fedbench.partitions.distribution import Densities, normalised
from fedbench.partitions.scheme import Assignment, Indices, Scheme
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbench.data import Dataset
    from fedbench.partitions.artifact import Partition

#: One row of class weights per group of clients.
Rows = tuple[tuple[float, ...], ...]

#: Added before rounding down, in samples. Probabilities written with 16 digits, such as 0.005555555555555556, give a
#: product about 1e-12 below a whole number, and a plain floor would lose a sample (the paper's float32: 4749 of 4750).
_SLACK = 1e-6


def counts(mix: Rows, available: Sequence[int]) -> NDArray[np.int64]:
    """Return how many samples of each class each group gets, [G, K], from class weights [G, K] and class sizes [K].

    Classes with weight 0 in all groups do not count as the rarest.
    """
    shares = normalised(mix)
    columns = shares.sum(axis=0)
    n_min = min(n for n, asked in zip(available, columns, strict=True) if asked > 0)
    return _floor(shares / columns.max() * n_min)


def kept(taken: NDArray[np.int64], keep: Sequence[float] | None) -> NDArray[np.int64]:
    """Return the training samples [G, K] after each group keeps its share of every class; None: it keeps all."""
    return taken if keep is None else _floor(taken * np.array(keep)[:, None])


def _floor(samples: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.floor(samples + _SLACK), np.int64)


@dataclass(frozen=True)
class Mixture(Scheme):
    """FTW-ERM (TMLR 2023), Tables 6, 8, 9 and 11, ftw_erm/protocol.md#target-shift: on each side every class is trimmed
    to the rarest one, the groups' rows of class probabilities are divided by the largest column sum, so that no class
    is asked for more often than it is there, and every group takes whole numbers of samples.

    Training samples come from the data set's official training split, test samples from its test split; a data set
    without a split (scikit-learn's digits) uses a fifth of each class for tests. All draws come in sequence from one
    NumPy legacy generator.
    """

    short: ClassVar[Mapping[str, str]] = {"counts": ""}
    shifts: ClassVar[tuple[str, ...]] = ("none",)
    modifiers: ClassVar[tuple[str, ...]] = ()

    train_mix: tuple[tuple[float, ...], ...] = option(help="class probabilities up to a factor, one row a group")
    test_mix: tuple[tuple[float, ...], ...] = option(help="class probabilities up to a factor, one row a group")
    keep: tuple[float, ...] | None = option(None, "share of its training samples that each group keeps (default: all)")
    disjoint: bool | None = option(None, "a group's clients share its samples out; else all of them hold the same")

    def label(self, spec: PartitionSpec) -> str:
        return "target shift"

    def check(self, spec: PartitionSpec) -> None:
        """Check that all rows have the same width and none is empty, and that the groups have equal size."""
        for name, rows in (("train_mix", self.train_mix), ("test_mix", self.test_mix)):
            require(bool(rows), f"a mixture partition needs {name}: class probabilities, one row a group")
            for group, row in enumerate(rows):
                require(
                    all(p >= 0 for p in row) and 0 < sum(row) < math.inf,
                    f"{name}, row {group}: class probabilities cannot be negative, nor all zero, nor huge",
                )
        widths = {len(row) for row in (*self.train_mix, *self.test_mix)}
        groups = len(self.train_mix)
        require(len(widths) == 1, f"train_mix and test_mix have rows of different lengths: {sorted(widths)} classes")
        require(
            groups == len(self.test_mix),
            f"train_mix has {groups} rows and test_mix {len(self.test_mix)}: one a group",
        )
        require(spec.clients % groups == 0, f"{spec.clients} clients cannot be {groups} groups of the same size")
        require(
            self.keep is None or (len(self.keep) == groups and all(0 < k <= 1 for k in self.keep)),
            f"keep needs a share in (0, 1] for each of the {groups} groups, not {self.keep}",
        )

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Each group gets a consecutive slice of a class's shuffled samples; the groups' slices are disjoint. All
        clients of a group hold the same samples, or with `disjoint` divide those of each class evenly.

        Raises FedbenchError if the number of weights is not that of the classes, if the data lack a class with weight
        above 0, or if a client is left without a training or without a test sample.
        """
        rng = np.random.RandomState(spec.seed)
        is_test = distribution.test_images(dataset, rng)
        train = self._side(dataset, spec, self.train_mix, ~is_test, "training", self.keep, rng)
        test = self._side(dataset, spec, self.test_mix, is_test, "test", None, rng)
        return Assignment.of(zip(train, test, strict=True))

    def _side(
        self,
        dataset: Dataset,
        spec: PartitionSpec,
        mix: Rows,
        chosen: NDArray[np.bool_],
        side: str,
        keep: Sequence[float] | None,
        rng: np.random.RandomState,
    ) -> list[Indices]:
        """Return the samples of each client in one split, from the rows `chosen` [N] of the data set."""
        classes, name = len(dataset.classes), dataset.spec.name
        require(len(mix[0]) == classes, f"the mixture has weights for {len(mix[0])} classes, but {name} has {classes}")
        pools = [np.flatnonzero((dataset.labels == k) & chosen) for k in range(classes)]
        for of_class, pool, column in zip(dataset.classes, pools, zip(*mix, strict=True), strict=True):
            if not len(pool) and any(column):
                raise FedbenchError(
                    f"{name} has no {side} image of class '{of_class}', which a client of the mixture must have",
                    "a mixture takes training and test images from the data set's own split",
                )
        whole = counts(mix, [len(pool) for pool in pools])
        some = kept(whole, keep)
        shuffled = [rng.permutation(pool) for pool in pools]
        starts = np.cumsum(whole, axis=0) - whole
        members = spec.clients // len(mix)
        clients: list[Indices] = []
        for start, count in zip(starts, some, strict=True):
            slices = [pool[a : a + n] for pool, a, n in zip(shuffled, start, count, strict=True)]
            if self.disjoint:
                shared = [np.array_split(piece, members) for piece in slices]
                clients += [rng.permutation(np.concatenate(mine)) for mine in zip(*shared, strict=True)]
            else:
                clients += [rng.permutation(np.concatenate(slices))] * members
        for client, samples in enumerate(clients):
            require(
                len(samples) > 0,
                f"client {client} of the mixture is left without a {side} sample "
                f"(the rarest class has {min(map(len, pools))} images)",
                "fewer clients, or more even class weights",
            )
        return clients

    def densities(self, partition: Partition) -> Densities:
        """Return nominal class probabilities, which do not change by `keep` or by rounding to whole samples; a stratum
        is a class."""
        members = partition.clients // len(self.train_mix)
        train, test = (np.repeat(normalised(rows), members, axis=0) for rows in (self.train_mix, self.test_mix))
        return Densities(partition.label.astype(np.int64), train, test)

    def groups(self, partition: Partition) -> list[int]:
        """Clients of one row of weights form a group."""
        return [c * len(self.train_mix) // partition.clients for c in range(partition.clients)]

    def view(self, partition: Partition, width: int) -> Iterable[RenderableType]:
        from fedbench.partitions.sides import of_groups

        return of_groups(partition, self.label(partition.spec), len(self.train_mix), bool(self.disjoint), width)
