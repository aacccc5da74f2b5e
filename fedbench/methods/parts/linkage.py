"""Clustering by distances: agglomerative with complete linkage, where the distance of two clusters is that of their
farthest members; and the radius of a neighbourhood, from the elbow of clients' distances to their nearest other client
(FLUX, Sec. D.2; K descriptors of L entries, Euclidean distance, float64).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fedbench.measure import Measure

Floats = npt.NDArray[np.float64]

#: Round measures of the methods that cluster with it.
MEASURES = (
    Measure("elbow", "distance at the elbow by which the clients were clustered", "distance", source="FLUX, section 5"),
    Measure("clustering_round", "round in which the clients were clustered", "round", source="FLUX, section 5"),
)


def distances(points: Floats, others: Floats) -> Floats:
    """Return distances [P, K] from points [P, L] to others [K, L], computed by coordinate. Unlike with inner products,
    the distances of i to j and of j to i are bitwise equal, which ties need."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, others), np.float64)


def nearest_other(descriptors: Floats) -> Floats:
    """[K] each client's distance to its nearest other client; 0 for a single client."""
    if len(descriptors) == 1:
        return np.zeros(1)
    gaps = distances(descriptors, descriptors)
    np.fill_diagonal(gaps, np.inf)
    nearest: Floats = gaps.min(1)
    return nearest


def elbow(descriptors: Floats, scale: float = 1.0) -> float:
    """Return epsilon (`at_elbow`) of the distances to the nearest other client."""
    return at_elbow(nearest_other(descriptors), scale)


def at_elbow(nearest: Floats, scale: float) -> float:
    """Return epsilon: the distance at the elbow of the sorted nearest-other-client distances [K], times `scale`.

    The elbow is Kneedle's (Satopaa et al. 2011) of a convex increasing curve over 0 to K - 1, by kneed with default
    settings. If it finds none, as for up to 3 clients or a constant or linear curve, the curve's largest value is
    used. Equal values, such as those of mutual neighbours, can move the elbow, as in the released code.
    """
    curve = np.sort(nearest)
    return float(curve[_elbow_of(curve)] * scale)


def _elbow_of(curve: Floats) -> int:
    """Return the position of the elbow on an ascending curve [K], or the last position if there is none."""
    last = len(curve) - 1
    if curve[0] == curve[last]:
        return last  # kneed would divide by a range of 0
    from kneed import KneeLocator

    position = KneeLocator(np.arange(len(curve)), curve, curve="convex", direction="increasing").elbow
    return last if position is None else int(position)


Labels = NDArray[np.int64]


def _tree(distances: NDArray[np.float64]) -> Any:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(distances, checks=False), method="complete")


def halves(distances: NDArray[np.float64]) -> Labels:
    """Cut symmetric distances [n, n], n >= 2, into the last two clusters: [n] 0 or 1, with 0 for the first point.

    Both clusters are non-empty, even if all distances are equal.
    """
    from scipy.cluster.hierarchy import cut_tree

    return numbered(cut_tree(_tree(distances), n_clusters=[2])[:, 0])


def within(distances: NDArray[np.float64], cut: float) -> Labels:
    """Return clusters [n] whose members are at most `cut` apart, numbered by their first members, from symmetric
    distances [n, n], n >= 1."""
    from scipy.cluster.hierarchy import fcluster

    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    return numbered(fcluster(_tree(distances), t=cut, criterion="distance"))


def noise_alone(labels: NDArray[np.integer]) -> Labels:
    """Turn each -1 (noise) into a new cluster, with ids after the others."""
    ids = labels.astype(np.int64)
    noise = ids < 0
    ids[noise] = ids.max() + 1 + np.arange(noise.sum())
    return ids


def numbered(labels: NDArray[np.integer]) -> Labels:
    """Renumber ids as 0 to M - 1 in order of first appearance; each -1 (noise) becomes a separate cluster."""
    _, first, position = np.unique(noise_alone(labels), return_index=True, return_inverse=True)
    return np.asarray(first.argsort().argsort()[position], np.int64)
