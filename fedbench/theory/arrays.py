"""Shared parts of the theories, and FLUX's xi."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import check_seed, require

Array = NDArray[np.float64]


def check_draws(draws: int, seed: int, most: int, because: str = "") -> None:
    """Raise FedbenchError unless `draws` is 1 to `most` and the seed is valid."""
    require(1 <= draws <= most, f"there must be at least 1 draw and at most {most:,}, {because}not {draws}")
    check_seed(seed)


# -- wasserstein -----------------------------------------------------------------------------------------------
# Difference between distances of FLUX's descriptors and the Wasserstein distances that they approximate (Fenoglio et
# al., NeurIPS 2025, Eq. 4, App. C.1 and Table 4, whose definition is that of the authors' notebook).
#
# A client's images and labels are modelled as one Gaussian of vectors [pixels; one-hot label] without covariances. The
# squared 2-Wasserstein distance of two such Gaussians is ||m - m'||^2 + ||s - s'||^2, with means m and standard
# deviations s: the Euclidean distance of the vectors (m, s). xi is its difference from the distance of the descriptors.


def deviations(descriptors: ArrayLike, gaussians: ArrayLike) -> Array:
    """Return xi = | ||d_i - d_j|| - W2(i, j) | for all pairs [N (N - 1) / 2] of N snapshots, in the order of
    np.triu_indices(N, 1).

    `descriptors` is [N, L], unscaled, and `gaussians` [N, 2 D], means before standard deviations. Raises FedbenchError
    for less than two snapshots and for NaN or infinite numbers.
    """
    from scipy.spatial.distance import pdist

    d, g = np.asarray(descriptors, float), np.asarray(gaussians, float)
    require(d.ndim == g.ndim == 2 and len(d) == len(g), "snapshots need descriptors [N, L] and Gaussians [N, 2 D]")
    require(len(d) >= 2, f"a pair needs two snapshots, and there are {len(d)}")
    if not (np.isfinite(d).all() and np.isfinite(g).all()):
        raise FedbenchError("a snapshot holds NaN or infinite moments: its model has diverged")
    return np.abs(pdist(d) - pdist(g))
