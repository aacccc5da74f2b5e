"""The data set's own split into training and test images, and what stands in where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedbench.data import Dataset


def test_images(dataset: Dataset, rng: np.random.RandomState | np.random.Generator) -> NDArray[np.bool_]:
    """Which images [N] are official test images; without any (scikit-learn's digits) a fifth of each class, drawn;
    with multi-label images a fifth of all."""
    official = dataset.split == 1
    if official.any():
        return np.asarray(official)
    chosen = np.zeros(len(dataset.labels), bool)
    if dataset.multi_label:
        chosen[rng.permutation(len(chosen))[: len(chosen) // 5]] = True
        return chosen
    for k in range(len(dataset.classes)):
        pool = rng.permutation(np.flatnonzero(dataset.labels == k))
        chosen[pool[: len(pool) // 5]] = True
    return chosen
