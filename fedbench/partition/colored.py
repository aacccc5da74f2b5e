"""Colored MNIST: a binary label with noise, and a colour that agrees with it as often as the client's side says.

FTW-ERM (TMLR 2023), Tables 3 and 12, ftw_erm/protocol.md#colored-mnist, after Arjovsky et al. (2019): label 0 for the
lower half of the classes and 1 for the upper half, flipped with the probability of label noise; the colour is red
(channel 0) for the noisy label 0 and green (channel 1) for 1, flipped with the side's probability. The images are
those of the data set's official training split, cut into blocks in file order. All draws come one after another from
one NumPy legacy generator, as in `scheme`: client after client, training before test, all label flips before the
colour flips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset

COLOURS = ("red", "green")


@dataclass(frozen=True, eq=False)
class Colored:
    """One side of one client: n images with what was drawn for them."""

    sample: NDArray[np.int64]  #: [n] row of the data set
    label: NDArray[np.int32]  #: [n] 0 or 1: the noisy binary label
    colour: NDArray[np.int8]  #: [n] the channel that holds the grey image: 0 red, 1 green


def classes(dataset: Dataset) -> tuple[str, str]:
    """Names of the two classes: "0-4" and "5-9" for the digits. Of an odd number, the upper half is the larger."""
    half = len(dataset.classes) // 2
    low, high = dataset.classes[:half], dataset.classes[half:]
    return _span(low), _span(high)


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"


def draw(dataset: Dataset, spec: PartitionSpec) -> list[tuple[Colored, Colored]]:
    """The training and the test images of each client with their labels and colours.

    Raises FedbenchError if the images are not grey, the data set has a single class, or a block reaches beyond the
    official training images.
    """
    assert spec.blocks is not None
    assert spec.flips is not None
    noise = spec.label_noise
    assert noise is not None
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

    def side(client: int, first: float, last: float, flip: float) -> Colored:
        require(
            last <= len(rows),
            f"client {client} asks for images {first:.0f} to {last:.0f}, but {name} has {len(rows)} training images",
            "choose other blocks, or a larger data set",
        )
        sample = rows[int(first) : int(last)]
        label = binary[sample] ^ (rng.random_sample(len(sample)) < noise)
        colour = label ^ (rng.random_sample(len(sample)) < flip)
        return Colored(sample, label.astype(np.int32), colour.astype(np.int8))

    return [
        (side(client, block[0], block[1], flip[0]), side(client, block[2], block[3], flip[1]))
        for client, (block, flip) in enumerate(zip(spec.blocks, spec.flips, strict=True))
    ]


def paint(grey: NDArray[np.uint8], colour: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Grey images [N, H, W, 1] as [N, H, W, 3]: each in the channel of its colour, the other two channels dark."""
    out = np.zeros((*grey.shape[:3], 3), np.uint8)
    for channel in range(len(COLOURS)):
        chosen = colour == channel
        out[chosen, :, :, channel] = grey[chosen, :, :, 0]
    return out
