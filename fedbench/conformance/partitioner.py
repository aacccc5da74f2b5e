"""Checks of a partitioner, one function per check, on scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedbench import data, partitions
from fedbench.data import Dataset
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition, schemes
from fedbench.partitions.tables import read
from fedbench.plugins.load import forget
from fedbench.specs import PartitionSpec
from fedbench.store import Store

_CLIENTS, _SEED = 4, 7


@dataclass
class PartitionerSubject:
    """A partitioner (name, or FILE.py:Class) with these options, and its partitions."""

    folder: Path  #: of the store that the checks use
    given: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return Store(self.folder)

    @cached_property
    def dataset(self) -> Dataset:
        return data.load("digits", self.store)

    def spec(self, seed: int = _SEED) -> PartitionSpec:
        """The spec of its partition of the digits for _CLIENTS clients."""
        kind = schemes.load(schemes.named(self.given))
        share = 0.7 if "train_fraction" in kind.modifiers else None
        return schemes.spec(self.dataset.spec, self.given, _CLIENTS, seed, share, **self.overrides)

    def made(self, seed: int = _SEED) -> Partition:
        """Draw that partition with the user's file loaded again, as in a new process."""
        spec = self.spec(seed)
        forget(type(schemes.of(spec)))
        return partitions.make(spec, self.dataset)


def draws(it: PartitionerSubject) -> None:
    """It draws a partition of the data set for the given number of clients."""
    p = it.made()
    present = len(np.unique(p.client))
    if present != _CLIENTS:
        raise FedbenchError(f"{present} of {_CLIENTS} clients hold samples", "give each client some")
    wrong = p.sample[(p.sample < 0) | (p.sample >= len(it.dataset.labels))]
    if len(wrong):
        raise FedbenchError(f"sample {wrong[0]} is no row of the data set, which has {len(it.dataset.labels)}")


def same_seed_same_draw(it: PartitionerSubject) -> None:
    """The same seed draws the same partition: all random numbers come from the generator or the spec's seed."""
    one, two = it.made(), it.made()
    for name in ("client", "sample", "test", "label"):
        if not np.array_equal(getattr(one, name), getattr(two, name)):
            raise FedbenchError(
                f"two draws with the same seed differ in who holds which {name}",
                "draw from the generator that is handed over, or from fedbench.rng.stream(spec.seed, ...)",
            )


def both_splits(it: PartitionerSubject) -> None:
    """Every client has training and test samples."""
    p = it.made()
    for what, count in (("training", p.n_train), ("test", p.n_test)):
        if (empty := np.flatnonzero(count == 0)).size:
            raise FedbenchError(f"client {empty[0]} has no {what} sample")


def no_leak(it: PartitionerSubject) -> None:
    """No image is both a training and a test image, of any clients, unless it declares `leaks`."""
    p = it.made()
    shared = np.intersect1d(p.sample[~p.test], p.sample[p.test])
    if len(shared) and not schemes.of(p.spec).leaks:
        raise FedbenchError(
            f"{len(shared)} images are in a training and in a test split, such as {shared[0]}",
            "give each image to one client, or declare leaks: ClassVar[bool] = True",
        )


def valid_labels(it: PartitionerSubject) -> None:
    """Labels are classes of the partition, counted from 0."""
    p = it.made()
    outside = (p.label < 0) | (p.label >= len(p.classes))
    if outside.any():
        raise FedbenchError(f"label {p.label[outside][0]} is none of the {len(p.classes)} classes")


def read_back(it: PartitionerSubject) -> None:
    """Stored and read again, the partition is the same and has the same id."""
    p = it.made()
    artifact = partitions.obtain(p.spec, it.store)
    back, stored = read(artifact), PartitionSpec.from_dict(p.spec.to_dict())
    if stored.id != p.spec.id:
        raise FedbenchError("the id of its spec changes when it is written down", "options are plain values")
    same = np.array_equal(back.sample, p.sample) and np.array_equal(back.densities.train, p.densities.train)
    if not same or back.groups != p.groups:
        raise FedbenchError("a partition that was read back is another")
