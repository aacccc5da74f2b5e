"""Upper bound of a client's ratio from a histogram or from k-means clusters (FTW-ERM, Sec. 3.2, App. G, Table 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.rng import stream

#: Iterations of one k-means start at most (scikit-learn's default, as in the paper's experiment).
ITERATIONS = 300


@dataclass(frozen=True)
class Bound:
    """The largest ratio of shares over the bins.

    The value means little when its bin holds a handful of training samples: with many bins it is a lottery, which
    `train_count` shows.
    """

    value: float  #: r~, estimate of the ratio's upper bound; c = 1 / r~
    train_count: int  #: training samples in the bin that attains it, the first of equal ones


def histogram_bound(train_bins: npt.ArrayLike, pool_bins: npt.ArrayLike, bins: int) -> Bound:
    """The bound from the bin numbers 0..bins-1 of a client's training samples [n] and of the pool [m].

    r~_m = (share of the pool in bin m) / (share of the training samples in it), and 0 for a bin without training
    samples; r~ is the largest. Raises FedbenchError if no bin holds both kinds (then nothing can be said about the
    ratio).
    """
    train, pool = (np.bincount(np.asarray(values), minlength=bins) for values in (train_bins, pool_bins))
    has_train = train > 0
    ratio = np.zeros(bins)
    ratio[has_train] = (pool[has_train] / pool.sum()) / (train[has_train] / train.sum())
    best = int(ratio.argmax())
    if ratio[best] == 0:
        raise FedbenchError(
            f"no bin of {bins} holds both training samples and samples of the pool, so the ratio has no bound",
            "take fewer bins",
        )
    return Bound(float(ratio[best]), int(train[best]))


def kmeans_bound(train: np.ndarray, pool: np.ndarray, clusters: int, restarts: int = 10, seed: int = 0) -> Bound:
    """The bound with k-means clusters of the union of training samples and pool as bins.

    train [n, ...] and pool [m, ...] are raw features of the same shape (they are flattened; their common scale is
    irrelevant). k-means++ starts, `restarts` of them, the one of lowest inertia kept. On one thread, so that the bits
    do not depend on the machine's cores. Raises FedbenchError for more clusters than samples.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    samples = np.concatenate([np.asarray(x, np.float32).reshape(len(x), -1) for x in (train, pool)])
    if clusters > len(samples):
        raise FedbenchError(f"{len(samples)} samples cannot make {clusters} clusters", f"take 1 to {len(samples)}")
    start = int(stream(seed, "ratio clusters").integers(2**31))
    # Elkan's variant skips distances that the triangle inequality decides: Lloyd's clusters in 0.6 of the time.
    kmeans = KMeans(
        clusters, init="k-means++", n_init=restarts, max_iter=ITERATIONS, random_state=start, algorithm="elkan"
    )
    with threadpool_limits(1):
        bins = np.asarray(kmeans.fit_predict(samples))
    return histogram_bound(bins[: len(train)], bins[len(train) :], clusters)
