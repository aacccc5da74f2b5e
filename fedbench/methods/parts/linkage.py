"""Agglomerative clustering by complete linkage: two clusters are as far apart as their farthest members."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fedbench.measure import Measure

# -- elbow -----------------------------------------------------------------------------------------------------
# The reach of a neighbourhood, from the elbow of clients' distances to their nearest other client (FLUX, Sec. D.2).
#
# K descriptors of L entries, Euclidean distance, float64 throughout.


Floats = npt.NDArray[np.float64]

#: What methods that cluster by it report of their rounds.
MEASURES = (
    Measure("elbow", "distance at the elbow by which the clients were clustered", "distance", source="FLUX, section 5"),
    Measure("clustering_round", "round in which the clients were clustered", "round", source="FLUX, section 5"),
)


def distances(points: Floats, others: Floats) -> Floats:
    """[P, K] distances of points [P, L] to others [K, L], coordinate by coordinate: unlike through inner products,
    that of i to j is to the bit that of j to i, which ties need."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, others), np.float64)


def nearest_other(descriptors: Floats) -> Floats:
    """[K] each client's distance to its nearest other client; 0 for a client alone."""
    if len(descriptors) == 1:
        return np.zeros(1)
    gaps = distances(descriptors, descriptors)
    np.fill_diagonal(gaps, np.inf)
    nearest: Floats = gaps.min(1)
    return nearest


def elbow(descriptors: Floats, scale: float = 1.0) -> float:
    """epsilon: the distance at the elbow of the ascending curve of nearest-other-client distances, times `scale`.

    The elbow is Kneedle's (Satopaa et al. 2011) of a convex increasing curve over 0 to K - 1, by kneed at its
    defaults. Where it finds none, as with up to 3 clients or a constant or linear curve, the curve's largest value
    is taken. Equal values, such as those of mutual neighbours, can move the elbow; so it does in the released code.
    """
    curve = np.sort(nearest_other(descriptors))
    return float(curve[_elbow_of(curve)] * scale)


def _elbow_of(curve: Floats) -> int:
    """Position of the elbow on an ascending curve [K]; the last one where there is none."""
    last = len(curve) - 1
    if curve[0] == curve[last]:
        return last  # kneed would divide by a range of 0
    from kneed import KneeLocator

    position = KneeLocator(np.arange(len(curve)), curve, curve="convex", direction="increasing").elbow
    return last if position is None else int(position)


# -- linkage ---------------------------------------------------------------------------------------------------


Labels = NDArray[np.int64]


def _tree(distances: NDArray[np.float64]) -> Any:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(distances, checks=False), method="complete")


def halves(distances: NDArray[np.float64]) -> Labels:
    """The last two clusters [n] (0 or 1, that of the first point is 0) from symmetric distances [n, n], n >= 2.

    Both have members, even where all distances are equal.
    """
    from scipy.cluster.hierarchy import cut_tree

    return numbered(cut_tree(_tree(distances), n_clusters=[2])[:, 0])


def within(distances: NDArray[np.float64], cut: float) -> Labels:
    """The clusters [n] whose members are all at most `cut` apart, numbered by their first members, from symmetric
    distances [n, n], n >= 1."""
    from scipy.cluster.hierarchy import fcluster

    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    return numbered(fcluster(_tree(distances), t=cut, criterion="distance"))


def noise_alone(labels: NDArray[np.integer]) -> Labels:
    """Cluster ids in which each -1 (noise) is a cluster of its own, behind the others."""
    ids = labels.astype(np.int64)
    noise = ids < 0
    ids[noise] = ids.max() + 1 + np.arange(noise.sum())
    return ids


def numbered(labels: NDArray[np.integer]) -> Labels:
    """Ids 0 to M - 1 in order of first appearance; each -1 (noise) is a cluster of its own."""
    _, first, position = np.unique(noise_alone(labels), return_index=True, return_inverse=True)
    return np.asarray(first.argsort().argsort()[position], np.int64)
