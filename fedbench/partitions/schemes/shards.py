"""Label shift by shards of samples that are sorted by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedbench.options import option
from fedbench.partitions.scheme import Indices, Scheme
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True)
class Shards(Scheme):
    """S-SPC: samples sorted by label, cut into clients x S equal shards; each client gets S of them at random.

    The sort is stable, so the result does not depend on the NumPy build (FedDRM's sort is not; counts are the same). If
    the shards cannot be equal, the first ones have one sample more, and no sample is left out.
    """

    short: ClassVar[Mapping[str, str]] = {"spc": "shards"}

    shards: int = option(help="shards a client: at most about as many classes each", least=1)

    def label(self, spec: PartitionSpec) -> str:
        return f"{self.shards}-SPC"

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        labels, count = dataset.partition_labels, spec.clients * self.shards
        require(
            count <= len(labels),
            f"{len(labels)} samples cannot be cut into {count} shards ({spec.clients} clients x {self.shards})",
            "fewer clients or fewer shards per client",
        )
        shards = np.array_split(np.argsort(labels, kind="stable"), count)
        dealt = rng.permutation(count).reshape(spec.clients, self.shards)
        return [np.concatenate([shards[s] for s in mine]) for mine in dealt]
