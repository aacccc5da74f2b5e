"""Label shift by Dirichlet distributions: each class is divided among the clients by Dirichlet proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.options import option
from fedbench.partitions.scheme import Indices, Scheme
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: Maximum number of draws of the whole partition. pFedFDA's CIFAR-10 Dir(0.1) over 100 clients needs 5,266.
ATTEMPTS = 10_000


@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Each class is shared out to the clients by proportions from a symmetric Dirichlet distribution, until all of them
    hold enough. FedDRM and pFedFDA draw alike: feddrm/protocol.md#dirichlet-partition.

    With `within`, each group of a column (a domain) is divided separately among the same number of clients, as in
    pFedFDA's federations of several digit data sets (Appendix D.1). Groups, and so their clients, are in the order of
    their first appearance in the data set. This is the order of its recipe's files, even if the column holds names.
    """

    short: ClassVar[Mapping[str, str]] = {"dir": "alpha"}
    remedy: ClassVar[str] = " or a larger --min-size"

    alpha: float = option(help="Dirichlet concentration: small is uneven", above=0)
    min_size: int | None = option(None, "draw again until every client holds as many samples", least=1)
    within: str | None = option(None, "column, such as domain, whose groups are partitioned separately")
    cap: int | None = option(None, "samples of each such group at most, drawn at random", least=2)

    def check(self, spec: PartitionSpec) -> None:
        require(
            self.cap is None or self.within is not None,
            "a cap needs the column whose groups it limits",
            "for example --within domain",
        )

    def label(self, spec: PartitionSpec) -> str:
        return f"Dir-{self.alpha:g}"

    def details(self, spec: PartitionSpec) -> list[str]:
        if self.within is None:
            return []
        return [f"within {self.within}" + (f", at most {self.cap:,} samples of each" if self.cap else "")]

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        labels = dataset.partition_labels
        if self.within is None:
            return self._share(labels, np.arange(len(labels)), spec.clients, rng)
        names, first, group = np.unique(dataset.column(self.within), return_index=True, return_inverse=True)
        require(
            spec.clients % len(names) == 0,
            f"{spec.clients} clients cannot be shared out evenly among the {len(names)} groups by {self.within}",
            f"ask for a multiple of {len(names)} with --clients",
        )
        clients: list[Indices] = []
        for g in np.argsort(first):
            rows = np.flatnonzero(group == g)
            if self.cap is not None and self.cap < len(rows):
                rows = rng.permutation(rows)[: self.cap]
            members = spec.clients // len(names)
            clients += self._share(labels, rows, members, rng, f" of {self.within} {names[g]}")
        return clients

    def _share(
        self, labels: NDArray[np.integer], rows: Indices, members: int, rng: np.random.RandomState, where: str = ""
    ) -> list[Indices]:
        """Divide `rows` among `members` clients; return the samples of each."""
        least, clients = self.min_size or 1, f"{members} clients"
        require(
            members * least <= len(rows),
            f"{len(rows)} samples{where} cannot give {clients} {least} each",
            "fewer clients or a smaller --min-size",
        )
        pools = [rows[labels[rows] == k] for k in range(int(labels.max()) + 1)]
        for _ in range(ATTEMPTS):
            shares = share_out(pools, self.alpha, members, rng)
            if np.diff(sum(cuts for _, cuts in shares)).min() >= least:
                break
        else:
            raise FedbenchError(
                f"no draw of Dir({self.alpha:g}) over {clients}{where} gave each {least} samples in {ATTEMPTS:,} "
                "attempts",
                "fewer clients, a larger alpha or a smaller --min-size",
            )
        mine = [np.concatenate([pool[cuts[c] : cuts[c + 1]] for pool, cuts in shares]) for c in range(members)]
        for samples in mine:
            rng.shuffle(samples)
        return mine


def share_out(
    pools: Sequence[Indices], alpha: float, clients: int, rng: np.random.RandomState
) -> list[tuple[Indices, Indices]]:
    """Draw once: return each class's shuffled samples, and the boundaries [clients + 1] between the clients' samples.

    A client that already holds its even share of all samples gets none of the later classes.
    """
    even = sum(len(pool) for pool in pools) / clients
    concentration = np.full(clients, alpha)
    sizes = np.zeros(clients, np.int64)
    shares = []
    for pool in pools:
        mixed = pool.copy()
        rng.shuffle(mixed)
        p = rng.dirichlet(concentration) * (sizes < even)
        total = p.sum()
        # With a tiny alpha all the mass can fall on full clients (or underflow): the last client gets this class.
        p = p / total if total > 0 else np.zeros(clients)
        cuts = np.zeros(clients + 1, np.int64)
        cuts[1:] = np.cumsum(p) * len(mixed)
        cuts[-1] = len(mixed)
        sizes += cuts[1:] - cuts[:-1]
        shares.append((mixed, cuts))
    return shares
