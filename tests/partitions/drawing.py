"""What partitioners draw of mere labels, without a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.data import Dataset
from fedbench.partitions import modifiers, schemes
from fedbench.specs import DatasetSpec, PartitionSpec

Sides = list[tuple[np.ndarray, np.ndarray]]


def labelled(labels: np.ndarray, spec: PartitionSpec, groups: np.ndarray | None = None) -> Dataset:
    """Black images of these labels, whose groups stand in the column that the partitioner asks for."""
    labels = np.asarray(labels)
    scheme = schemes.of(spec)
    column = getattr(scheme, "by", None) or getattr(scheme, "within", None)
    columns = {str(column): groups} if groups is not None else {}
    images, classes = np.zeros((len(labels), 1, 1, 1), np.uint8), tuple(map(str, range(int(labels.max()) + 1)))
    return Dataset(DatasetSpec("labels", "", ""), images, labels, np.zeros(len(labels), np.uint8), columns, classes)


def deal(
    labels: np.ndarray, spec: PartitionSpec, rng: np.random.RandomState, groups: np.ndarray | None = None
) -> Sequence[np.ndarray]:
    """The samples of each client before the split."""
    return schemes.of(spec).deal(labelled(labels, spec, groups), spec, rng)


def draw(labels: np.ndarray, spec: PartitionSpec, groups: np.ndarray | None = None) -> Sides:
    """The training and the test samples of each client."""
    drawn = schemes.of(spec).draw(labelled(labels, spec, groups), spec)
    return [(modifiers.subsampled(train, spec), test) for (train,), test in zip(drawn.train, drawn.test, strict=True)]
