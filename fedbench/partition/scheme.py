"""Who holds which sample, in which split: Dirichlet, a fixed size each, shards, IID and natural groups.

All draws of a partition come one after another from one NumPy legacy generator (Mersenne Twister) seeded with the
spec's seed, because the papers' partitions do: the same seed gives their very clients. Not a counter-based stream,
then; a partition is drawn once, by one process, and written down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partition import dirichlet
from fedbench.specs import PartitionSpec, require

Indices = NDArray[np.int64]


def draw(
    labels: NDArray[np.integer], spec: PartitionSpec, groups: NDArray[np.generic] | None = None
) -> list[tuple[Indices, Indices]]:
    """The training and the test samples of each client, as positions in `labels`.

    Arguments:
        labels: the classes [N] to partition by, counted from 0 (CIFAR-20 is partitioned by its fine labels).
        spec: the scheme with its parameters.
        groups: the column [N] that `spec.by` (scheme natural) or `spec.within` names, of codes or strings.

    With `spec.subsample` a client keeps the first floor(share x n) of its n shuffled training samples, one at least:
    smaller sets lie in larger ones, the test samples are the same for all shares, and no draw depends on the share.
    Raises FedbenchError if the data cannot serve as many clients, if no draw keeps the minimum size, or if a client
    is left without a training or without a test sample.
    """
    rng = np.random.RandomState(spec.seed)
    sides = split(assign(labels, spec, rng, groups), spec, rng)
    if spec.subsample is None:
        return sides
    return [(train[: max(1, int(spec.subsample * len(train)))], test) for train, test in sides]


def assign(
    labels: NDArray[np.integer],
    spec: PartitionSpec,
    rng: np.random.RandomState,
    groups: NDArray[np.generic] | None = None,
) -> list[Indices]:
    """The samples of each client before the split; see `draw`."""
    column = spec.by if spec.scheme == "natural" else spec.within
    if column is not None and groups is None:
        raise FedbenchError(f"a partition by {column} needs that column")
    if spec.scheme == "natural":
        assert groups is not None
        return (_round_robin if spec.round_robin else _natural)(groups, spec, rng)
    require(
        len(labels) >= 2 * spec.clients,
        f"{len(labels)} samples cannot serve {spec.clients} clients (each needs one to train on and one to test on)",
        f"ask for at most {len(labels) // 2} clients",
    )
    if groups is not None and spec.within is not None:
        return dirichlet.within(labels, groups, spec, rng)
    if spec.scheme == "dirichlet":
        return dirichlet.deal(labels, np.arange(len(labels)), spec.clients, spec, rng)
    if spec.scheme == "limited":
        return dirichlet.limited(labels, spec, rng)
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
            larger = {"dirichlet": " or a larger --min-size", "limited": " or a larger --size"}.get(spec.scheme, "")
            raise FedbenchError(
                f"client {client} holds {len(mixed)} samples: a training share of {spec.train_fraction:g} "
                f"leaves it without a {side} sample",
                f"fewer clients, another --split{larger}",
            )
        sides.append((mixed[:n_train], mixed[n_train:]))
    return sides


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


def _round_robin(groups: NDArray[np.generic], spec: PartitionSpec, rng: np.random.RandomState) -> list[Indices]:
    """Groups (domains) dealt to the clients in turn and shuffled; a group's samples shared out evenly to its clients.

    FLUX on Office-Home (flux/protocol.md#chexpert-and-office-home). Groups come in the order in which they first
    appear in the data set.
    """
    names, first, group = np.unique(groups, return_index=True, return_inverse=True)
    require(
        spec.clients >= len(names),
        f"{spec.clients} clients are too few for the {len(names)} groups by {spec.by}: each group needs one",
        f"ask for {len(names)} at least with --clients",
    )
    of = rng.permutation(np.argsort(first)[np.arange(spec.clients) % len(names)])
    held: list[Indices] = [np.empty(0, np.int64)] * spec.clients
    for g in np.argsort(first):
        members = np.flatnonzero(of == g)
        rows = rng.permutation(np.flatnonzero(group == g))
        require(
            len(rows) >= 2 * len(members),
            f"the {len(rows)} samples of {spec.by} {names[g]} cannot serve {len(members)} clients "
            "(each needs one to train on and one to test on)",
            "fewer clients",
        )
        for client, piece in zip(members, np.array_split(rows, len(members)), strict=True):
            held[client] = piece
    return held
