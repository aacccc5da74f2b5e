"""No label shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedbench.partitions.scheme import Indices, Scheme
from fedbench.specs import PartitionSpec

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True)
class Iid(Scheme):
    """Any sample to any client, in equal numbers."""

    short: ClassVar[Mapping[str, str]] = {"iid": ""}
    by_class: ClassVar[bool] = False

    def label(self, spec: PartitionSpec) -> str:
        return "IID"

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        return np.array_split(rng.permutation(len(dataset.labels)), spec.clients)
