"""FedDRM's theory (Theorems 2.1, 2.2 and 2.5, Figure 3) on simulated data, where the truth is known. NumPy only.

`model` has the functions: class-conditional distributions and their marginals, the empirical likelihood by its
definition, Gaussian clients and the ratios that a head recovers, a head's fit, and its training by FedAvg. `rates` sets
what the paper says against what is measured, with the two terms of Theorem 2.5, and has what Figure 3 shows.
"""

from __future__ import annotations

import numpy as np

from fedbench.theory.arrays import check_draws
from fedbench.theory.feddrm.model import Check, Point
from fedbench.theory.feddrm.rates import of_descent, of_likelihood, of_marginals, of_ratios, of_statistics

__all__ = ["DRAWS", "MOST", "Check", "Point", "checks"]

DRAWS = 20
#: They take some half a second each.
MOST = 10_000


def checks(draws: int = DRAWS, seed: int = 0) -> list[Check]:
    """Every statement on `draws` simulated problems. Raises FedbenchError unless draws are 1 to MOST and the seed is
    one."""
    check_draws(draws, seed, MOST)
    parts = (of_marginals, of_likelihood, of_ratios, of_statistics, of_descent)
    streams = np.random.default_rng(seed).spawn(len(parts))
    return [check for part, rng in zip(parts, streams, strict=True) for check in part(rng, draws)]
