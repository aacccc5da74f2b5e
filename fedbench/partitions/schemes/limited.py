"""Label shift by a label prior for each client."""

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
class Limited(Scheme):
    """Each client draws a label prior of its own from a Dirichlet distribution and `size` samples by it, none of them
    twice; pFedFDA, Table 3: pfedfda/protocol.md#clients-of-one-size. A sample whose class is used up is drawn again:
    what is missing comes from the classes that are left, by the same prior."""

    short: ClassVar[Mapping[str, str]] = {"dir": "alpha"}
    remedy: ClassVar[str] = " or a larger --size"

    alpha: float = option(help="Dirichlet concentration: small is uneven", above=0)
    size: int = option(help="samples that each client draws", least=2)

    def label(self, spec: PartitionSpec) -> str:
        return f"Dir-{self.alpha:g} ({self.size} samples each)"

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        labels = dataset.partition_labels
        require(
            spec.clients * self.size <= len(labels),
            f"{len(labels)} samples cannot give {spec.clients} clients {self.size} each",
            "fewer clients or a smaller --size",
        )
        pools = [rng.permutation(np.flatnonzero(labels == k)) for k in range(int(labels.max()) + 1)]
        sizes = np.array([len(pool) for pool in pools])
        used = np.zeros_like(sizes)
        clients = []
        for _ in range(spec.clients):
            start, missing = used.copy(), self.size
            prior = rng.dirichlet(np.full(len(pools), self.alpha))
            while missing:
                p = prior * (used < sizes)
                if not p.sum() > 0:  # with a tiny alpha all the mass can fall on used-up classes (or underflow)
                    p = (sizes - used).astype(float)
                more = np.minimum(rng.multinomial(missing, p / p.sum()), sizes - used)
                used += more
                missing -= int(more.sum())
            clients.append(np.concatenate([pool[a:b] for pool, a, b in zip(pools, start, used, strict=True)]))
        return clients
