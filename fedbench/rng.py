"""Counter-based random streams: every draw is from a generator with the key (seed, purpose, round, client, ...).

Therefore draws do not depend on the order of clients, the executor, the number of workers, or a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """An independent generator for a purpose and key; equal arguments always give the same stream."""
    name = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, name, *key])))
