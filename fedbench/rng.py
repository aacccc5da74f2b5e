"""Counter-based random streams: every draw comes from a generator keyed by (seed, purpose, round, client, ...).

So the order in which clients are processed, the executor, the number of workers and a resume change nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """An independent generator for this purpose and key; the same arguments always give the same stream."""
    name = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, name, *key])))
