"""The different images of a federation: each (sample, rotation) once, however many rows show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.partitions.distribution import Distribution
from fedbench.partitions.transforms.corruption.pixels import Images
from fedbench.partitions.transforms.rotation import Rotation, rotated

if TYPE_CHECKING:
    from fedbench.data import Dataset


def distinct_images(
    dataset: Dataset,
    sample: NDArray[np.integer],
    distribution: NDArray[np.integer],
    distributions: Sequence[Distribution],
    channels: int,
) -> tuple[Images, NDArray[np.int64]]:
    """The images as the clients see them, uint8 [U, H, W, channels], and which of them each row shows, int64 [R].

    Arguments:
        sample, distribution: the data set's row of each of the R rows, and the number of its distribution.
        distributions: those that the numbers stand for; none: all images are seen as they are.
    """
    those = distributions or (Distribution(),)
    rotations = list(dict.fromkeys([d.rotation for d in those] + [one for d in those for _, one in d.rotations]))
    number = {rotation: i for i, rotation in enumerate(rotations)}
    table = np.empty((len(those), len(dataset.classes)), np.int64)  # [G, K] the rotation of each class
    for g, d in enumerate(those):
        table[g] = number[d.rotation]
        for k, rotation in d.rotations:
            table[g, k] = number[rotation]
    n = len(dataset.labels)
    classes = 0 if dataset.multi_label else dataset.labels[sample]  # all alike where there are several labels
    key = table[distribution, classes] * n + sample
    present = np.zeros(len(rotations) * n, bool)
    present[key] = True
    if rotations == [Rotation()] and channels == dataset.images.shape[-1] and present.all():
        return dataset.images, sample.astype(np.int64)  # as they are: no copy of them all
    place = np.cumsum(present) - 1
    out = np.empty((int(place[-1]) + 1, *dataset.images.shape[1:3], channels), np.uint8)
    for i, rotation in enumerate(rotations):
        rows = np.flatnonzero(present[i * n : (i + 1) * n])
        if len(rows):
            first = int(place[i * n + rows[0]])
            out[first : first + len(rows)] = rotated(dataset.images[rows], rotation, channels)
    return out, np.asarray(place[key])
