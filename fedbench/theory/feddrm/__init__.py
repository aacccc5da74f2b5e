"""FedDRM's theory (Theorems 2.1, 2.2 and 2.5, Figure 3) on simulated data, where the truth is known. NumPy only.

The functions: `tilts` has class-conditional distributions and their marginals, `profile` the empirical likelihood by
its definition, `densities` Gaussian clients and the ratios that a head recovers, `consistency` and `descent` the two
terms of Theorem 2.5, `drift` what Figure 3 shows; `softmax` fits a head (by `newton`), `federated` trains one by
FedAvg. The statements: `identities` and `rates` set what the paper says beside what is measured (`check`).
"""

from __future__ import annotations

import numpy as np

from fedbench.specs import check_seed, require
from fedbench.theory.feddrm.model import Check, Point
from fedbench.theory.feddrm.rates import of_descent, of_likelihood, of_marginals, of_ratios, of_statistics

__all__ = ["DRAWS", "MOST", "Check", "Point", "checks"]

DRAWS = 20
#: They take some half a second each.
MOST = 10_000


def checks(draws: int = DRAWS, seed: int = 0) -> list[Check]:
    """Every statement on `draws` simulated problems. Raises FedbenchError unless draws are 1 to MOST and the seed is
    one."""
    require(1 <= draws <= MOST, f"there must be at least 1 draw and at most {MOST:,}, not {draws}")
    check_seed(seed)
    parts = (of_marginals, of_likelihood, of_ratios, of_statistics, of_descent)
    streams = np.random.default_rng(seed).spawn(len(parts))
    return [check for part, rng in zip(parts, streams, strict=True) for check in part(rng, draws)]
