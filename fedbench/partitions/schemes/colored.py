"""Colored MNIST: a noisy binary label, and a colour that agrees with it with a probability that the client sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedbench.options import option
from fedbench.partitions.distribution import Densities
from fedbench.partitions.scheme import Assignment, Scheme
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbench.data import Dataset
    from fedbench.partitions.artifact import Partition


@dataclass(frozen=True)
class Colored(Scheme):
    """FTW-ERM (TMLR 2023), Tables 3 and 12, ftw_erm/protocol.md#colored-mnist, after Arjovsky et al. (2019): label 0
    for the lower half of the classes and 1 for the upper half, flipped with the probability of label noise; the colour
    is red (channel 0) for the noisy label 0 and green (channel 1) for 1, flipped with the side's probability.

    The images are those of the data set's official training split, cut into blocks in file order. All draws come from
    one NumPy legacy generator: by client, training before test, all label flips before the colour flips.
    """

    shifts: ClassVar[tuple[str, ...]] = ("none",)
    modifiers: ClassVar[tuple[str, ...]] = ()
    #: Whether the colour agrees with the noisy label, in the order of the densities' columns.
    strata: ClassVar[tuple[str, ...]] = ("disagree", "agree")

    blocks: tuple[tuple[float, ...], ...] = option(
        help="first and last training image, first and last test image of each client, as rows of the data set"
    )
    flips: tuple[tuple[float, ...], ...] = option(
        help="probabilities that the colour of a training and of a test image is flipped, of each client"
    )
    label_noise: float = option(help="probability that the binary label is flipped")

    def label(self, spec: PartitionSpec) -> str:
        return "coloured"

    def check(self, spec: PartitionSpec) -> None:
        """Check that each client has four bounds and two probabilities, and that probabilities are in [0, 1]."""
        for name, rows, width in (("blocks", self.blocks, 4), ("flips", self.flips, 2)):
            require(
                len(rows) == spec.clients and all(len(row) == width for row in rows),
                f"a colored partition needs {name}: {width} numbers for each of its {spec.clients} clients",
            )
        for client, row in enumerate(self.blocks):
            a, b, c, d = row
            require(
                all(v.is_integer() for v in row) and 0 <= a < b and 0 <= c < d,
                f"blocks, row {client}: needs two ranges of whole numbers, first < last, not {list(row)}",
            )
        for one, (a, b, *_) in enumerate(self.blocks):
            for other, (*_, c, d) in enumerate(self.blocks):
                require(b <= c or d <= a, f"blocks: client {one} trains on test images of client {other}")
        require(
            all(0 <= e <= 1 for row in self.flips for e in row) and 0 <= self.label_noise <= 1,
            "flips and label_noise are probabilities in [0, 1]",
        )

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Raises FedbenchError if the images are not grey, the data set has a single class, or a block exceeds the
        official training images."""
        name = dataset.spec.name
        require(
            dataset.images.shape[-1] == 1,
            f"a colored partition needs grey images, and {name} has {dataset.images.shape[-1]} channels",
            "mnist and fashion_mnist are grey",
        )
        require(len(dataset.classes) > 1, f"a colored partition needs two classes or more, and {name} has one")
        rows = np.flatnonzero(dataset.split == 0)
        binary = dataset.labels >= len(dataset.classes) // 2
        rng = np.random.RandomState(spec.seed)
        samples, labels, colours = [], [], []
        for client, (block, flips) in enumerate(zip(self.blocks, self.flips, strict=True)):
            for (first, last), flip in zip((block[:2], block[2:]), flips, strict=True):
                require(
                    last <= len(rows),
                    f"client {client} asks for images {first:.0f} to {last:.0f}, but {name} has {len(rows)} training "
                    "images",
                    "choose other blocks, or a larger data set",
                )
                sample = rows[int(first) : int(last)]
                label = binary[sample] ^ (rng.random_sample(len(sample)) < self.label_noise)
                samples.append(sample)
                labels.append(label)
                colours.append(label ^ (rng.random_sample(len(sample)) < flip))
        return Assignment.of(
            zip(samples[::2], samples[1::2], strict=True),
            label=np.concatenate(labels).astype(np.int32),
            colour=np.concatenate(colours).astype(np.int8),
            classes=classes(dataset),
        )

    def densities(self, partition: Partition) -> Densities:
        """Return (e, 1 - e) for `strata`, where e is the flip probability."""
        assert partition.colour is not None
        train, test = (np.stack([e, 1 - e], axis=1) for e in np.array(self.flips).T)
        return Densities((partition.colour == partition.label).astype(np.int64), train, test)

    def groups(self, partition: Partition) -> list[int]:
        """Clients with the same flip probabilities form a group."""
        from fedbench.partitions.artifact import numbered

        return numbered(self.flips)

    def view(self, partition: Partition, width: int) -> Iterable[RenderableType]:
        from fedbench.partitions.sides import of_flips

        return of_flips(partition, self.label(partition.spec), self.strata, self.flips, self.label_noise)


def classes(dataset: Dataset) -> tuple[str, str]:
    """Name the two classes, "0-4" and "5-9" for the digits. For an odd number of classes, the upper half is larger."""
    half = len(dataset.classes) // 2
    low, high = dataset.classes[:half], dataset.classes[half:]
    return _span(low), _span(high)


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
