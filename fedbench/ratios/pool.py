"""The server's pool of unlabelled test samples (FTW-ERM, Sec. 2 "Privacy", Algorithm 1, lines 1-3, and App. E)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.rng import stream

Ints = npt.NDArray[np.int64]


def contribution(count: int, size: int, seed: int, client: int) -> Ints:
    """What a client sends of its `count` test samples: `size` positions among them, drawn without replacement.

    The draw depends on the seed, on the client and on how many samples it has. Raises FedbenchError if `size` is below
    1, or if the client has fewer samples.
    """
    if size < 1:
        raise FedbenchError(f"every client must give at least one test sample to the pool, not {size}")
    if not count:
        raise FedbenchError(f"client {client} has no test samples to give to the pool")
    if count < size:
        raise FedbenchError(
            f"client {client} has {count} test samples and is to give {size} to the pool", f"give at most {count}"
        )
    return stream(seed, "ratio pool", client).choice(count, size, replace=False)


def shuffle(count: int, seed: int) -> Ints:
    """The order [count] of the anonymous pool that the server broadcasts, uniformly drawn: it says nothing of who sent
    what. Equal numbers from each client make the pool a sample of the mean test density."""
    return stream(seed, "ratio shuffle").permutation(count)
