"""How far FLUX's descriptors are from the distances they stand for (Fenoglio et al., NeurIPS 2025, Eq. 4 and App. C.1).

A snapshot is what a client looks like through one model: mean and covariance of its reduced latents, over all images
and over each class. Two snapshots have a descriptor distance, that of means and standard deviations, and a Gaussian
2-Wasserstein distance, which knows the whole covariances: xi is how far the two lie apart. The standard deviations are
all that a Gaussian's coordinates have, one by one, and transport of the whole costs at least the sum of that of the
coordinates: so the descriptor distance is never the larger one, and the same if the covariances are diagonal.

Shapes: N snapshots, B blocks (all images and U classes), l reduced latents. NumPy only, in float64.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import require
from fedbench.theory.arrays import Array

#: Images that a class needs before it has moments, and what stands for those it lacks in a descriptor.
LEAST, MISSING = 2, -1.0
#: Pairs whose blocks are worked on at once.
_PAIRS = 1024


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Moments of N snapshots; what stands where a block has fewer than two images does not matter."""

    count: Array  #: images [N, B]
    mean: Array  #: [N, B, l]
    covariance: Array  #: dividing by the count [N, B, l, l]

    def __post_init__(self) -> None:
        for name in ("count", "mean", "covariance"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), float))
        n, b, width = self.mean.shape if self.mean.ndim == 3 else (0, 0, 0)
        fits = self.count.shape == (n, b) and self.covariance.shape == (n, b, width, width)
        require(fits and width > 0, "snapshots need counts [N, B], means [N, B, l] and covariances [N, B, l, l]")
        for part in (self.mean, self.covariance):
            if not np.isfinite(part[self.there]).all():
                raise FedbenchError("a snapshot holds NaN or infinite moments: its model has diverged")

    @classmethod
    def of(cls, rows: ArrayLike, width: int) -> Snapshots:
        """From rows [N, B (1 + l + l^2)]: of each block count, mean and covariance. Raises FedbenchError if a row has
        another length than whole blocks of so many latents l."""
        flat = np.asarray(rows, float)
        block = 1 + width + width**2
        if flat.ndim != 2 or not flat.shape[1] or flat.shape[1] % block:
            raise FedbenchError(f"snapshots of {width} latents are rows of blocks of {block} numbers")
        parts = flat.reshape(len(flat), -1, block)
        count, mean, covariance = np.split(parts, [1, 1 + width], axis=2)
        return cls(count[..., 0], mean, covariance.reshape(*mean.shape, width))

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which blocks have moments [N, B]: those of at least two images."""
        return self.count >= LEAST

    def descriptors(self) -> Array:
        """[N, 2 B l]: means and standard deviations, unscaled, and -1 for a block that has none."""
        there = self.there[..., None]
        variance = np.where(there, np.diagonal(self.covariance, axis1=2, axis2=3), 0.0)
        moments = np.where(there, self.mean, MISSING), np.where(there, np.sqrt(np.maximum(variance, 0.0)), MISSING)
        return np.concatenate([t.reshape(len(t), -1) for t in moments], axis=1)


def root(covariance: ArrayLike) -> Array:
    """The symmetric square roots of symmetric matrices [..., l, l] without negative eigenvalues (those below 0 by
    rounding count as 0)."""
    values, vectors = np.linalg.eigh(np.asarray(covariance, float))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def squared_bures(first: ArrayLike, second: ArrayLike) -> Array:
    """Squared Bures distances [...] of covariances, tr A + tr B - 2 tr (A^1/2 B A^1/2)^1/2, from the square *roots* of
    A and B [..., l, l]. The last trace is the sum of the singular values of A^1/2 B^1/2, which loses no digits to a
    square."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    shared = np.linalg.svd(a @ b, compute_uv=False).sum(axis=-1)
    return np.asarray(np.maximum(np.square(a).sum(axis=(-2, -1)) + np.square(b).sum(axis=(-2, -1)) - 2 * shared, 0))


def deviations(snapshots: Snapshots) -> Array:
    """xi of all pairs [N (N - 1) / 2], in the order of np.triu_indices(N, 1).

    The squared Wasserstein distance of two clients is the sum of those of all images and of each class that both have;
    their descriptor distance takes the -1 of missing classes in. Raises FedbenchError for less than two snapshots.
    """
    n = len(snapshots.mean)
    require(n >= 2, f"a pair needs two snapshots, and there are {n}")
    there = snapshots.there
    mean = np.where(there[..., None], snapshots.mean, 0.0)
    roots = root(np.where(there[..., None, None], snapshots.covariance, 0.0))
    d = snapshots.descriptors()
    i_all, j_all = np.triu_indices(n, 1)

    def of(start: int) -> Array:
        i, j = i_all[start : start + _PAIRS], j_all[start : start + _PAIRS]
        transport = np.square(mean[i] - mean[j]).sum(axis=-1) + squared_bures(roots[i], roots[j])
        wasserstein = np.sqrt(np.where(there[i] & there[j], transport, 0.0).sum(axis=-1))
        return np.asarray(np.abs(np.linalg.norm(d[i] - d[j], axis=-1) - wasserstein))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # LAPACK works outside Python's lock
        return np.concatenate(list(pool.map(of, range(0, len(i_all), _PAIRS))))
