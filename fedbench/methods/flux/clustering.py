"""Clients' descriptors to clusters: FLUX's density-based rule, and those that it is compared with (Tables 63 and 64).

K descriptors of L entries, Euclidean distance. Cluster ids count from 0 in the order in which clients first show
them. Descriptors that are all equal, such as that of a client alone, are always one cluster.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt

from fedbench.methods.parts.linkage import distances, elbow, nearest_other, numbered

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: The released code's settings.
SEED, WARD_THRESHOLD = 42, 1.2


#: The clusterings that `cluster` knows; "prior" (FLUX-prior) knows how many clusters there are.
KINDS = ("density", "prior", "k_means", "hdbscan", "agglomerative")


def cluster(kind: str, descriptors: Floats, scale: float, reach: float, count: int) -> tuple[Ints, float]:
    """(cluster ids [K], epsilon) by one of KINDS; epsilon, scaled by `scale`, is NaN where no elbow is looked for, as
    where a `reach` above 0 replaces it."""
    if kind == "density" and reach:
        return density(descriptors, reach), math.nan
    if kind == "density":
        return dynamic(descriptors, scale)
    if kind == "prior":
        return k_means(descriptors, count)[0], math.nan
    if kind == "k_means":
        return k_means_silhouette(descriptors)[0], math.nan
    return {"hdbscan": hdbscan, "agglomerative": agglomerative}[kind](descriptors), math.nan


def dynamic(descriptors: Floats, scale: float = 1.0) -> tuple[Ints, float]:
    """FLUX's clustering: cluster ids [K], and the epsilon that the elbow chose (see `elbow` and `density`)."""
    eps = elbow(descriptors, scale)
    return density(descriptors, eps), eps


def density(descriptors: Floats, eps: float) -> Ints:
    """Cluster ids [K] by DBSCAN: clients up to `eps` apart share a cluster, and so do theirs in turn; who has nobody
    so near is a cluster of one.

    Where every client has its equal and eps is 0, all are one cluster: such descriptors distinguish nobody.
    """
    if _all_equal(descriptors) or (eps == 0 and not nearest_other(descriptors).any()):
        return _one_cluster(descriptors)
    from sklearn.cluster import DBSCAN

    # eps is one of these very distances: computed in another way it might be a last bit too short. And DBSCAN takes
    # no 0: the smallest number above it instead.
    scan = DBSCAN(eps=max(eps, np.nextafter(0, 1)), min_samples=2, metric="precomputed")
    return numbered(scan.fit_predict(distances(descriptors, descriptors)))


def k_means(descriptors: Floats, k: int, seed: int = SEED) -> tuple[Ints, Floats]:
    """(cluster ids [K], centres [M, L]) by k-means from one k-means++ start.

    M is k, or less if there are fewer clients or fewer distinct descriptors.
    """
    k = min(k, len(np.unique(descriptors, axis=0)))
    if k == 1:
        return _one_cluster(descriptors), descriptors.mean(0, keepdims=True)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Descriptors apart by rounding alone may still be one to it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = KMeans(k, init="k-means++", n_init=1, random_state=seed).fit(descriptors)
    labels = numbered(fit.labels_)
    first = np.unique(labels, return_index=True)[1]  # client of each cluster
    centres = np.stack([fit.cluster_centers_[fit.labels_[i]] for i in first])
    return labels, centres


def k_means_silhouette(descriptors: Floats, seed: int = SEED) -> tuple[Ints, Floats]:
    """`k_means` with the k of 2 to K - 1 whose clusters have the largest mean silhouette, the smallest of equals; one
    cluster if there are fewer than three clients."""
    from sklearn.metrics import silhouette_score

    gaps = distances(descriptors, descriptors)
    np.fill_diagonal(gaps, 0)
    best_score, best = -np.inf, (_one_cluster(descriptors), descriptors.mean(0, keepdims=True))
    for k in range(2, min(len(descriptors) - 1, len(np.unique(descriptors, axis=0))) + 1):
        labels, centres = k_means(descriptors, k, seed)
        if len(centres) < 2:
            continue
        score = silhouette_score(gaps, labels, metric="precomputed")
        if score > best_score:
            best_score, best = score, (labels, centres)
    return best


def hdbscan(descriptors: Floats) -> Ints:
    """Cluster ids [K] by HDBSCAN with clusters of at least 2; each noise point is a cluster of its own."""
    if _all_equal(descriptors):
        return _one_cluster(descriptors)
    from sklearn.cluster import HDBSCAN

    return numbered(HDBSCAN(min_cluster_size=2, copy=True).fit_predict(descriptors))


def agglomerative(descriptors: Floats, threshold: float = WARD_THRESHOLD) -> Ints:
    """Cluster ids [K] by Ward's linkage, merged up to this distance."""
    if _all_equal(descriptors):
        return _one_cluster(descriptors)
    from sklearn.cluster import AgglomerativeClustering

    ward = AgglomerativeClustering(n_clusters=None, linkage="ward", distance_threshold=threshold)
    return numbered(ward.fit_predict(descriptors))


def centroids(descriptors: Floats, labels: Ints) -> Floats:
    """[M, L] mean descriptor of the members of each cluster, ids [K] from 0 to M - 1."""
    members = np.eye(int(labels.max()) + 1)[labels]
    means: Floats = members.T @ descriptors / members.sum(0)[:, None]
    return means


def nearest(points: Floats, centres: Floats) -> Ints:
    """[P] the cluster whose centre [M, L] is nearest to each point [P, L]; the smallest id of equals (Eq. 9)."""
    return np.asarray(distances(points, centres).argmin(1), np.int64)


def _all_equal(x: Floats) -> bool:
    return bool((x == x[0]).all())


def _one_cluster(x: Floats) -> Ints:
    return np.zeros(len(x), np.int64)
