"""Samples of natural groups: FLUX's federations of CheXpert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.options import option
from fedbench.partitions import distribution, modifiers
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.scheme import APART, Assignment, Indices, Scheme
from fedbench.rng import stream
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True)
class Sampled(Scheme):
    """Every client draws one group uniformly, and from it training samples of the data set's official training side and
    test samples of its official test side, none of them twice in a client (FLUX on CheXpert, Appendices B.1 and F.4).

    Training samples are divided among the clients of a group; each client draws its test samples independently, so two
    clients of a group may share test samples. Groups too small to serve one client (an unknown sex) are left out. All
    draws come from counter-based streams keyed by (seed, purpose, client or group).
    """

    short: ClassVar[Mapping[str, str]] = {"by": "by"}
    shifts: ClassVar[tuple[str, ...]] = ("none",)
    modifiers: ClassVar[tuple[str, ...]] = APART
    by_class: ClassVar[bool] = False

    by: str = option(help="column, or several as view+age, whose groups clients draw from")
    size: int = option(help="training samples of each client, validation included", least=1)
    test_size: int = option(help="test samples of each client", least=1)
    threshold: float | None = option(
        None, "columns of numbers make two groups: below the threshold, and from it on", stored="cut"
    )
    disjoint_by: str | None = option(
        None, "column (patient): what training images have there, test images do not", stored="apart"
    )
    leak_test: bool = option(
        False, "the released code's: the group's first samples, the same ones in both splits", stored="leaky"
    )

    def check(self, spec: PartitionSpec) -> None:
        require(bool(self.by), "a sampled partition needs the column to part by", "for example --by view")
        least = modifiers.least(spec)
        require(self.size >= least, f"every client needs a size of {least} at least, not {self.size}")
        require(
            not (self.leak_test and self.disjoint_by),
            "with leak_test training and test images are the same: they cannot be disjoint by a column",
        )

    @classmethod
    def takes(cls, name: str, values: Mapping[str, Any]) -> bool:
        # A protocol's share of validation images refers to whole shards; here the user gives it with the sizes.
        return name != "validation" and super().takes(name, values)

    def label(self, spec: PartitionSpec) -> str:
        return f"by {self.by}, drawn"

    def details(self, spec: PartitionSpec) -> list[str]:
        own = [f"{self.size} training and {self.test_size} test images a client"]
        own += [] if self.threshold is None else [f"threshold {self.threshold:g}"]
        own += [f"every {self.disjoint_by} in one split only"] if self.disjoint_by else []
        leak = "training images among the test images, the same for all clients of a group"
        return own + ([leak] if self.leak_test else [])

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Raises FedbenchError for an unknown column, and if a drawn group has too few training samples."""
        names, group = self._groups(dataset)
        is_test = distribution.test_images(dataset, stream(spec.seed, "official split"))
        tested = ~is_test if self.leak_test else is_test
        if self.disjoint_by is not None:
            key = dataset.column(self.disjoint_by)
            tested = tested & ~np.isin(key, key[~is_test])
        trains = [np.flatnonzero((group == g) & ~is_test) for g in range(len(names))]
        tests = [np.flatnonzero((group == g) & tested) for g in range(len(names))]
        fit = [g for g in range(len(names)) if len(trains[g]) >= self.size and len(tests[g]) >= self.test_size]
        require(
            bool(fit),
            f"no group by {self.by} of {spec.dataset.name} has {self.size} training and {self.test_size} test images",
            "smaller sizes, or fewer columns",
        )
        of = [fit[int(stream(spec.seed, "natural group", c).integers(len(fit)))] for c in range(spec.clients)]
        named = [Distribution(name=names[g]) for g in of]
        drawn = Drawn.of([named, named])
        if self.leak_test:
            first = [(trains[g][: self.size], tests[g][: self.test_size]) for g in of]
            return Assignment.of(first, drawn=drawn)
        pools = {g: self._pieces(trains[g], of.count(g), spec.seed, names[g], g) for g in sorted(set(of))}
        sides = []
        for c, g in enumerate(of):
            mixed = stream(spec.seed, "natural test", c).permutation(tests[g])
            sides.append((pools[g].pop(0), mixed[: self.test_size]))
        return Assignment.of(sides, drawn=drawn)

    def _groups(self, dataset: Dataset) -> tuple[list[str], NDArray[np.int64]]:
        """Return the groups' names [G], and each sample's group [N]: a group is a combination of values of `by`.

        With a threshold, a column of numbers has two values: below it, and from it on.
        """
        parts = [_in_words(name, dataset.column(name), self.threshold) for name in self.by.split("+")]
        together = np.array([", ".join(those) for those in zip(*parts, strict=True)])
        names, group = np.unique(together, return_inverse=True)
        return [str(name) for name in names], group.astype(np.int64)

    def _pieces(self, pool: Indices, members: int, seed: int, name: str, group: int) -> list[Indices]:
        """Shuffle a group's training samples and divide them among its clients."""
        require(
            len(pool) >= members * self.size,
            f"{len(pool)} training images of {name} cannot give {members} clients {self.size} each",
            "fewer clients, or a smaller size",
        )
        mixed = stream(seed, "natural training", group).permutation(pool)
        return [mixed[i * self.size : (i + 1) * self.size] for i in range(members)]


def _in_words(name: str, values: NDArray[np.generic], threshold: float | None) -> Sequence[str]:
    """Describe each sample's value of a column in words."""
    if threshold is None or values.dtype.kind not in "iuf":
        return [f"{name} {value}" for value in values.tolist()]
    return [
        f"{name} below {threshold:g}" if value < threshold else f"{name} {threshold:g} or more"
        for value in values.tolist()
    ]
