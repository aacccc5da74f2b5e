"""Clustering of clients' descriptors: FLUX's density-based rule, and alternatives (Tables 63 and 64).

K descriptors of L entries, Euclidean distance. Cluster ids count from 0 in order of first appearance. Equal
descriptors, also that of a single client, are always one cluster.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt

from fedbench.methods.parts.linkage import at_elbow, distances, elbow, nearest_other, numbered

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: The released code's settings.
SEED, WARD_THRESHOLD = 42, 1.2


#: The clusterings of `cluster`; "prior" (FLUX-prior) knows the number of clusters.
KINDS = ("density", "prior", "k_means", "hdbscan", "agglomerative")


#: How the neighbours of the density-based rule are found: by distances that are bitwise equal wherever they are
#: compared, or as in the released code, by those of two of scikit-learn's routines, each with its own rounding.
NEIGHBOURS = ("exact", "rounded")


def cluster(
    kind: str, descriptors: Floats, scale: float, reach: float, count: int, neighbours: str = "exact"
) -> tuple[Ints, float]:
    """Return cluster ids [K] and epsilon, by one of KINDS. Epsilon, scaled by `scale`, is NaN if no elbow is computed,
    as when a `reach` above 0 replaces it. `neighbours` is one of NEIGHBOURS."""
    if kind == "density" and reach:
        return density(descriptors, reach), math.nan
    if kind == "density":
        return (dynamic if neighbours == "exact" else dynamic_rounded)(descriptors, scale)
    if kind == "prior":
        return k_means(descriptors, count)[0], math.nan
    if kind == "k_means":
        return k_means_silhouette(descriptors)[0], math.nan
    return {"hdbscan": hdbscan, "agglomerative": agglomerative}[kind](descriptors), math.nan


def dynamic(descriptors: Floats, scale: float = 1.0) -> tuple[Ints, float]:
    """Return FLUX's cluster ids [K] and the epsilon at the elbow (see `elbow` and `density`)."""
    eps = elbow(descriptors, scale)
    return density(descriptors, eps), eps


def density(descriptors: Floats, eps: float) -> Ints:
    """Return cluster ids [K] by DBSCAN: clients up to `eps` apart share a cluster, transitively; a client without such
    neighbours is a cluster of one.

    If every client has an equal one and eps is 0, all are one cluster, because such descriptors distinguish no client.
    """
    if _all_equal(descriptors) or (eps == 0 and not nearest_other(descriptors).any()):
        return _one_cluster(descriptors)
    from sklearn.cluster import DBSCAN

    # eps is one of these distances, so they must be computed in the same way to be bitwise equal. DBSCAN does not
    # accept 0, so the smallest positive number replaces it.
    scan = DBSCAN(eps=max(eps, np.nextafter(0, 1)), min_samples=2, metric="precomputed")
    return numbered(scan.fit_predict(distances(descriptors, descriptors)))


def dynamic_rounded(descriptors: Floats, scale: float = 1.0) -> tuple[Ints, float]:
    """Return what `dynamic` does, as the released code computes it: epsilon is one of NearestNeighbors' distances, and
    DBSCAN compares it with distances of its own. Rounding decides whether the two clients that lie exactly epsilon
    apart are neighbours, and another processor may round otherwise."""
    if _all_equal(descriptors):
        return dynamic(descriptors, scale)
    from sklearn.cluster import DBSCAN
    from sklearn.neighbors import NearestNeighbors

    gaps, _ = NearestNeighbors(n_neighbors=2).fit(descriptors).kneighbors(descriptors)
    eps = at_elbow(gaps[:, 1], scale)
    scan = DBSCAN(eps=max(eps, np.nextafter(0, 1)), min_samples=2)
    return numbered(scan.fit_predict(descriptors)), eps


def k_means(descriptors: Floats, k: int, seed: int = SEED) -> tuple[Ints, Floats]:
    """Return cluster ids [K] and centres [M, L] by k-means from one k-means++ start.

    M is k, or less if there are fewer clients or fewer distinct descriptors.
    """
    k = min(k, len(np.unique(descriptors, axis=0)))
    if k == 1:
        return _one_cluster(descriptors), descriptors.mean(0, keepdims=True)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Descriptors that differ only by rounding may be equal to k-means.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = KMeans(k, init="k-means++", n_init=1, random_state=seed).fit(descriptors)
    labels = numbered(fit.labels_)
    first = np.unique(labels, return_index=True)[1]  # first client of each cluster
    centres = np.stack([fit.cluster_centers_[fit.labels_[i]] for i in first])
    return labels, centres


def k_means_silhouette(descriptors: Floats, seed: int = SEED) -> tuple[Ints, Floats]:
    """Run `k_means` with the k of 2 to K - 1 with the largest mean silhouette (the smallest k of equal ones); return
    one cluster for fewer than three clients."""
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
    """Return cluster ids [K] by HDBSCAN with clusters of at least 2; each noise point is a separate cluster."""
    if _all_equal(descriptors):
        return _one_cluster(descriptors)
    from sklearn.cluster import HDBSCAN

    return numbered(HDBSCAN(min_cluster_size=2, copy=True).fit_predict(descriptors))


def agglomerative(descriptors: Floats, threshold: float = WARD_THRESHOLD) -> Ints:
    """Return cluster ids [K] by Ward's linkage, merged up to the threshold."""
    if _all_equal(descriptors):
        return _one_cluster(descriptors)
    from sklearn.cluster import AgglomerativeClustering

    ward = AgglomerativeClustering(n_clusters=None, linkage="ward", distance_threshold=threshold)
    return numbered(ward.fit_predict(descriptors))


def centroids(descriptors: Floats, labels: Ints) -> Floats:
    """Return the mean descriptor of each cluster [M, L]; ids [K] are 0 to M - 1."""
    members = np.eye(int(labels.max()) + 1)[labels]
    means: Floats = members.T @ descriptors / members.sum(0)[:, None]
    return means


def nearest(points: Floats, centres: Floats) -> Ints:
    """Return the cluster whose centre [M, L] is nearest to each point [P, L], [P]; the smallest of equals (Eq. 9)."""
    return np.asarray(distances(points, centres).argmin(1), np.int64)


def _all_equal(x: Floats) -> bool:
    return bool((x == x[0]).all())


def _one_cluster(x: Floats) -> Ints:
    return np.zeros(len(x), np.int64)
