"""Label shift by Dirichlet distributions: classes shared out to clients, and clients that draw from the classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec, require

Indices = NDArray[np.int64]

#: Whole draws of a Dirichlet partition before giving up. pFedFDA's CIFAR-10 Dir(0.1) over 100 clients takes 5,266.
ATTEMPTS = 10_000


def within(
    labels: NDArray[np.integer], groups: NDArray[np.generic], spec: PartitionSpec, rng: np.random.RandomState
) -> list[Indices]:
    """Each group (a domain) is dealt out by itself to as many clients; pFedFDA, Appendix D.1.

    Groups and their clients come in the order in which the groups first appear in the data set, which is the order
    of its recipe's files whether the column holds codes or names.
    """
    names, first, group = np.unique(groups, return_index=True, return_inverse=True)
    require(
        spec.clients % len(names) == 0,
        f"{spec.clients} clients cannot be shared out evenly among the {len(names)} groups by {spec.within}",
        f"ask for a multiple of {len(names)} with --clients",
    )
    held: list[Indices] = []
    for g in np.argsort(first):
        rows = np.flatnonzero(group == g)
        if spec.cap is not None and spec.cap < len(rows):
            rows = rng.permutation(rows)[: spec.cap]
        held += deal(labels, rows, spec.clients // len(names), spec, rng, f" of {spec.within} {names[g]}")
    return held


def deal(
    labels: NDArray[np.integer],
    rows: Indices,
    members: int,
    spec: PartitionSpec,
    rng: np.random.RandomState,
    where: str = "",
) -> list[Indices]:
    """Each class of the `rows` is shared out to `members` clients by proportions from a symmetric Dirichlet
    distribution, until all of them hold enough.

    FedDRM and pFedFDA draw alike: feddrm/protocol.md#dirichlet-partition.
    """
    assert spec.alpha is not None
    least = spec.min_size or 1
    clients = f"{members} clients"
    require(
        members * least <= len(rows),
        f"{len(rows)} samples{where} cannot give {clients} {least} each",
        "fewer clients or a smaller --min-size",
    )
    pools = [rows[labels[rows] == k] for k in range(int(labels.max()) + 1)]
    for _ in range(ATTEMPTS):
        shares = share_out(pools, spec.alpha, members, rng)
        if np.diff(sum(cuts for _, cuts in shares)).min() >= least:
            break
    else:
        raise FedbenchError(
            f"no draw of Dir({spec.alpha:g}) over {clients}{where} gave each {least} samples in {ATTEMPTS:,} attempts",
            "fewer clients, a larger alpha or a smaller --min-size",
        )
    held = [np.concatenate([pool[cuts[c] : cuts[c + 1]] for pool, cuts in shares]) for c in range(members)]
    for samples in held:
        rng.shuffle(samples)
    return held


def share_out(
    pools: Sequence[Indices], alpha: float, clients: int, rng: np.random.RandomState
) -> list[tuple[Indices, Indices]]:
    """One draw: each class's shuffled samples, and the cuts [clients + 1] between the clients' pieces.

    A client that already holds its even part of all samples gets no more of the later classes.
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
        # With a tiny alpha all the mass can fall on full clients (or underflow): this class then goes to the last one.
        p = p / total if total > 0 else np.zeros(clients)
        cuts = np.zeros(clients + 1, np.int64)
        cuts[1:] = np.cumsum(p) * len(mixed)
        cuts[-1] = len(mixed)
        sizes += cuts[1:] - cuts[:-1]
        shares.append((mixed, cuts))
    return shares


def limited(labels: NDArray[np.integer], spec: PartitionSpec, rng: np.random.RandomState) -> list[Indices]:
    """Each client draws a label prior of its own and `size` samples by it, none of them twice.

    pFedFDA, Table 3: pfedfda/protocol.md#clients-of-one-size. A sample whose class is used up is drawn again: what is
    missing comes from the classes that are left, by the same prior.
    """
    assert spec.alpha is not None
    assert spec.size is not None
    require(
        spec.clients * spec.size <= len(labels),
        f"{len(labels)} samples cannot give {spec.clients} clients {spec.size} each",
        "fewer clients or a smaller --size",
    )
    pools = [rng.permutation(np.flatnonzero(labels == k)) for k in range(int(labels.max()) + 1)]
    sizes = np.array([len(pool) for pool in pools])
    used = np.zeros_like(sizes)
    held = []
    for _ in range(spec.clients):
        start, missing = used.copy(), spec.size
        prior = rng.dirichlet(np.full(len(pools), spec.alpha))
        while missing:
            p = prior * (used < sizes)
            if not p.sum() > 0:  # a tiny alpha can put all the mass on classes without a sample (or underflow)
                p = (sizes - used).astype(float)
            taken = np.minimum(rng.multinomial(missing, p / p.sum()), sizes - used)
            used += taken
            missing -= int(taken.sum())
        held.append(np.concatenate([pool[a:b] for pool, a, b in zip(pools, start, used, strict=True)]))
    return held
