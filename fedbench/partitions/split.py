"""Random splits of what clients hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec

#: Rows of a data set.
Indices = NDArray[np.int64]


def split(
    clients: Sequence[Indices],
    spec: PartitionSpec,
    rng: np.random.RandomState,
    as_it_comes: bool = False,
    remedy: str = "",
) -> list[tuple[Indices, Indices]]:
    """Shuffle each client's samples, in client order: the first floor(share x n) are for training, the rest for tests.

    With `as_it_comes` the floor gives way to one sample at least for either. Raises FedbenchError for a client that is
    left without a training or without a test sample; `remedy` says what else would help.
    """
    assert spec.train_fraction is not None
    sides = []
    for client, samples in enumerate(clients):
        mixed = samples.copy()
        rng.shuffle(mixed)
        n_train = int(spec.train_fraction * len(mixed))
        if as_it_comes:
            n_train = min(max(n_train, 1), len(mixed) - 1)
        if not 0 < n_train < len(mixed):
            side = "test" if n_train else "training"
            raise FedbenchError(
                f"client {client} holds {len(mixed)} samples: a training share of {spec.train_fraction:g} "
                f"leaves it without a {side} sample",
                f"fewer clients, another --split{remedy}",
            )
        sides.append((mixed[:n_train], mixed[n_train:]))
    return sides


def shards(samples: Indices, clients: int) -> list[Indices]:
    """Equal consecutive pieces, one a client; the last one takes what is left over."""
    return cut(samples, [len(samples) // clients] * (clients - 1) + [len(samples)])


def cut(samples: Indices, sizes: Sequence[int]) -> list[Indices]:
    """Consecutive pieces of these sizes (np.split takes ten times as long for so many)."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [samples[a:b] for a, b in pairwise(ends)]
