"""The server's pool of unlabelled test samples (FTW-ERM, Sec. 2 "Privacy", Algorithm 1, lines 1-3, and App. E)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedbench.core.rng import stream
from fedbench.errors import FedbenchError

Ints = npt.NDArray[np.int64]


def contributions(tests: Sequence[npt.ArrayLike], per_client: int, seed: int) -> list[Ints]:
    """What each client sends: `per_client` of its test samples, drawn at random without replacement.

    tests[k] are the indices of client k's test samples. Client k's draw depends on the seed, on k and on its own
    samples only. Raises FedbenchError if there is no client, if per_client < 1, and if a client has fewer samples.
    """
    if not len(tests):
        raise FedbenchError("a pool needs at least one client")
    if per_client < 1:
        raise FedbenchError(f"every client must give at least one test sample to the pool, not {per_client}")
    drawn = []
    for client, rows in enumerate(tests):
        own = np.asarray(rows, np.int64)
        if not len(own):
            raise FedbenchError(f"client {client} has no test samples to give to the pool")
        if len(own) < per_client:
            raise FedbenchError(
                f"client {client} has {len(own)} test samples and is to give {per_client} to the pool",
                f"give at most {len(own)}",
            )
        drawn.append(stream(seed, "ratio pool", client).choice(own, per_client, replace=False))
    return drawn


def shuffled_pool(tests: Sequence[npt.ArrayLike], per_client: int, seed: int) -> Ints:
    """The anonymous pool that the server broadcasts: indices [clients x per_client] of the samples.

    It carries neither labels nor clients, and its order says nothing about them: the samples are sorted and then
    shuffled uniformly, so the order is a function of the samples and the seed, not of who sent which. Equal numbers
    from each client make it a sample of the mean test density. Arguments and errors as for `contributions`.
    """
    samples = np.sort(np.concatenate(contributions(tests, per_client, seed)))
    return stream(seed, "ratio shuffle").permutation(samples)


class Traffic(NamedTuple):
    """Bytes of one client, once, before training."""

    up: int  #: own samples to the server
    down: int  #: the pool from the server


def pool_traffic(clients: int, per_client: int, sample_bytes: int) -> Traffic:
    """What the pool costs a client: 1000 CIFAR images of 3072 bytes are 3.1 MB (App. E)."""
    return Traffic(per_client * sample_bytes, clients * per_client * sample_bytes)
