"""Upper bound of a client's ratio from a histogram or from k-means clusters (FTW-ERM, Sec. 3.2, App. G, Table 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.rng import stream

#: Maximum number of iterations of one k-means start (scikit-learn's default, as in the paper's experiment).
ITERATIONS = 300


@dataclass(frozen=True)
class Bound:
    """The largest ratio of shares over the bins.

    The value is unreliable if its bin has few training samples, as is common with many bins; see `train_count`.
    """

    value: float  #: r~, estimate of the upper bound of the ratio; c = 1 / r~
    train_count: int  #: training samples in the bin with the largest ratio (the first of equal bins)


def histogram_bound(train_bins: npt.ArrayLike, pool_bins: npt.ArrayLike, bins: int) -> Bound:
    """Compute the bound from the bin numbers 0..bins-1 of a client's training samples [n] and of the pool [m].

    r~_m = (share of the pool in bin m) / (share of the training samples in it), and 0 for a bin without training
    samples; r~ is the largest of these. Raises FedbenchError if no bin has both training and pool samples, because the
    ratio then has no bound.
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
    """Compute the bound with k-means clusters of the union of training samples and pool as bins.

    train [n, ...] and pool [m, ...] are raw features of the same shape (they are flattened; a common scale does not
    matter). The best of `restarts` k-means++ starts (lowest inertia) is used. It runs on one thread, so that the result
    does not depend on the number of CPU cores. Raises FedbenchError for more clusters than samples.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    samples = np.concatenate([np.asarray(x, np.float32).reshape(len(x), -1) for x in (train, pool)])
    if clusters > len(samples):
        raise FedbenchError(f"{len(samples)} samples cannot make {clusters} clusters", f"take 1 to {len(samples)}")
    start = int(stream(seed, "ratio clusters").integers(2**31))
    # Elkan's variant skips distances by the triangle inequality: the same clusters as Lloyd's in 0.6 of the time.
    kmeans = KMeans(
        clusters, init="k-means++", n_init=restarts, max_iter=ITERATIONS, random_state=start, algorithm="elkan"
    )
    with threadpool_limits(1):
        bins = np.asarray(kmeans.fit_predict(samples))
    return histogram_bound(bins[: len(train)], bins[len(train) :], clusters)
