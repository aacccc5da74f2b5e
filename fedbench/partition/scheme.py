"""Who holds which sample, in which split: Dirichlet, shards, IID and natural groups.

All draws of a partition come one after another from one NumPy legacy generator (Mersenne Twister) seeded with the
spec's seed, because the papers' partitions do: the same seed gives their very clients. Not a counter-based stream,
then; a partition is drawn once, by one process, and written down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.spec import PartitionSpec, require

Indices = NDArray[np.int64]

#: Whole draws of a Dirichlet partition before giving up. pFedFDA's CIFAR-10 Dir(0.1) over 100 clients takes 5,266.
ATTEMPTS = 10_000


def draw(
    labels: NDArray[np.integer], spec: PartitionSpec, groups: NDArray[np.generic] | None = None
) -> list[tuple[Indices, Indices]]:
    """The training and the test samples of each client, as positions in `labels`.

    Arguments:
        labels: the classes [N] to partition by, counted from 0 (CIFAR-20 is partitioned by its fine labels).
        spec: the scheme with its parameters.
        groups: the column [N] that `spec.by` names (scheme natural only).

    Raises FedbenchError if the data cannot serve as many clients, if no draw keeps the minimum size, or if a client
    is left without a training or without a test sample.
    """
    rng = np.random.RandomState(spec.seed)
    return split(assign(labels, spec, rng, groups), spec, rng)


def assign(
    labels: NDArray[np.integer],
    spec: PartitionSpec,
    rng: np.random.RandomState,
    groups: NDArray[np.generic] | None = None,
) -> list[Indices]:
    """The samples of each client before the split; see `draw`."""
    if spec.scheme == "natural":
        if groups is None:
            raise FedbenchError(f"a partition by {spec.by} needs that column")
        return _natural(groups, spec, rng)
    require(
        len(labels) >= 2 * spec.clients,
        f"{len(labels)} samples cannot serve {spec.clients} clients (each needs one to train on and one to test on)",
        f"ask for at most {len(labels) // 2} clients",
    )
    if spec.scheme == "dirichlet":
        return _dirichlet(labels, spec, rng)
    if spec.scheme == "shards":
        return _shards(labels, spec, rng)
    return np.array_split(rng.permutation(len(labels)), spec.clients)


def split(held: Sequence[Indices], spec: PartitionSpec, rng: np.random.RandomState) -> list[tuple[Indices, Indices]]:
    """Shuffle each client's samples, in client order: the first floor(share x n) are for training, the rest for tests.

    A natural group is taken as it comes, so there the floor gives way: one sample at least on either side.
    """
    assert spec.train_fraction is not None
    sides = []
    for client, samples in enumerate(held):
        mixed = samples.copy()
        rng.shuffle(mixed)
        n_train = int(spec.train_fraction * len(mixed))
        if spec.scheme == "natural":
            n_train = min(max(n_train, 1), len(mixed) - 1)
        if not 0 < n_train < len(mixed):
            side = "test" if n_train else "training"
            raise FedbenchError(
                f"client {client} holds {len(mixed)} samples: a training share of {spec.train_fraction:g} "
                f"leaves it without a {side} sample",
                "fewer clients, another --split" + (" or a larger --min-size" if spec.scheme == "dirichlet" else ""),
            )
        sides.append((mixed[:n_train], mixed[n_train:]))
    return sides


def _dirichlet(labels: NDArray[np.integer], spec: PartitionSpec, rng: np.random.RandomState) -> list[Indices]:
    """Each class is shared out by proportions from a symmetric Dirichlet distribution, until all clients hold enough.

    FedDRM (code; protocol 5.3) and pFedFDA (code; protocol 3.2) draw alike.
    """
    assert spec.alpha is not None
    least = spec.min_size or 1
    clients = f"{spec.clients} clients"
    require(
        spec.clients * least <= len(labels),
        f"{len(labels)} samples cannot give {clients} {least} each",
        "fewer clients or a smaller --min-size",
    )
    pools = [np.flatnonzero(labels == k) for k in range(int(labels.max()) + 1)]
    for _ in range(ATTEMPTS):
        shares = _share_out(pools, spec.alpha, spec.clients, rng)
        if np.diff(sum(cuts for _, cuts in shares)).min() >= least:
            break
    else:
        raise FedbenchError(
            f"no draw of Dir({spec.alpha:g}) over {clients} gave each {least} samples in {ATTEMPTS:,} attempts",
            "fewer clients, a larger alpha or a smaller --min-size",
        )
    held = [np.concatenate([pool[cuts[c] : cuts[c + 1]] for pool, cuts in shares]) for c in range(spec.clients)]
    for samples in held:
        rng.shuffle(samples)
    return held


def _share_out(
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


def _shards(labels: NDArray[np.integer], spec: PartitionSpec, rng: np.random.RandomState) -> list[Indices]:
    """S-SPC: samples sorted by label, cut into clients x S equal shards; each client gets S of them at random.

    The sort is stable, so that it does not depend on the NumPy build (FedDRM's is not; counts are the same). Where
    the shards cannot be equal, the first ones hold one sample more, and no sample is left out.
    """
    assert spec.shards is not None
    count = spec.clients * spec.shards
    require(
        count <= len(labels),
        f"{len(labels)} samples cannot be cut into {count} shards ({spec.clients} clients x {spec.shards})",
        "fewer clients or fewer shards per client",
    )
    shards = np.array_split(np.argsort(labels, kind="stable"), count)
    dealt = rng.permutation(count).reshape(spec.clients, spec.shards)
    return [np.concatenate([shards[s] for s in mine]) for mine in dealt]


def _natural(groups: NDArray[np.generic], spec: PartitionSpec, rng: np.random.RandomState) -> list[Indices]:
    """One client a group (a writer, a centre): `clients` of those with two samples or more, in order of their names."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    fit = np.flatnonzero(counts >= 2)
    require(
        spec.clients <= len(fit),
        f"there are {len(fit)} groups by {spec.by} with at least 2 samples, too few for {spec.clients} clients",
        f"ask for at most {len(fit)} with --clients",
    )
    chosen = np.sort(rng.permutation(fit)[: spec.clients])
    pieces = np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1])
    return [pieces[g] for g in chosen]
