"""Upper bound of a client's ratio from a histogram or from k-means clusters (FTW-ERM, Sec. 3.2, App. G, Table 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.ratios.scale import factor
from fedbench.rng import stream

#: Iterations of one k-means start at most (scikit-learn's default, as in the paper's experiment).
ITERATIONS = 300


@dataclass(frozen=True)
class Bound:
    """The largest ratio of shares over the bins, and where it is reached.

    The value means little when that bin holds a handful of training samples: with many bins it is a lottery, which
    `train_count` shows.
    """

    value: float  #: r~, estimate of the ratio's upper bound; c = 1 / r~
    bin: int  #: the bin that attains it, the first if there are several
    train_count: int  #: training samples in that bin
    pool_count: int  #: samples of the pool in that bin
    bins: int
    without_train: int  #: bins that hold samples of the pool but no training sample: they count as ratio 0


def histogram_bound(
    train_bins: npt.ArrayLike, pool_bins: npt.ArrayLike, bins: int, scale: str = "mean", clients: int = 1
) -> Bound:
    """The bound from the bin numbers 0..bins-1 of a client's training samples [n] and of the pool [m].

    r~_m = (share of the pool in bin m) / (share of the training samples in it), times `clients` with scale "sum", and
    0 for a bin without training samples; r~ is the largest. Raises FedbenchError for an empty set, a bin that does
    not exist, and if no bin holds both kinds (then nothing can be said about the ratio).
    """
    times = factor(scale, clients)
    train, pool = (_counts(values, bins, what) for values, what in ((train_bins, "training set"), (pool_bins, "pool")))
    has_train = train > 0
    ratio = np.zeros(bins)
    ratio[has_train] = times * (pool[has_train] / pool.sum()) / (train[has_train] / train.sum())
    best = int(ratio.argmax())
    if ratio[best] == 0:
        raise FedbenchError(
            f"no bin of {bins} holds both training samples and samples of the pool, so the ratio has no bound",
            "take fewer bins",
        )
    without = int(np.count_nonzero(~has_train & (pool > 0)))
    return Bound(float(ratio[best]), best, int(train[best]), int(pool[best]), bins, without)


def kmeans_bound(
    train: np.ndarray,
    pool: np.ndarray,
    clusters: int,
    restarts: int = 10,
    seed: int = 0,
    scale: str = "mean",
    clients: int = 1,
) -> Bound:
    """The bound with k-means clusters of the union of training samples and pool as bins.

    train [n, ...] and pool [m, ...] are raw features of the same shape (they are flattened; their common scale is
    irrelevant). k-means++ starts, `restarts` of them, the one of lowest inertia kept. On one thread, so that the bits
    do not depend on the machine's cores. Raises FedbenchError for empty, unlike or non-finite samples and for more
    clusters than samples.
    """
    if not len(train) or not len(pool):
        raise FedbenchError(
            "clusters need training samples and samples of the pool", f"given {len(train)}, {len(pool)}"
        )
    if train.shape[1:] != pool.shape[1:]:
        raise FedbenchError(f"training samples are of shape {train.shape[1:]}, samples of the pool {pool.shape[1:]}")
    samples = len(train) + len(pool)
    if not 1 <= clusters <= samples:
        raise FedbenchError(f"{samples} samples cannot make {clusters} clusters", f"take 1 to {samples}")
    if restarts < 1:
        raise FedbenchError(f"k-means needs at least one start, not {restarts}")
    both = np.concatenate([np.asarray(x, np.float32).reshape(len(x), -1) for x in (train, pool)])
    if not np.isfinite(both).all():
        raise FedbenchError("the samples to cluster hold NaN or infinite values")
    bins = _clusters(both, clusters, restarts, seed)
    return histogram_bound(bins[: len(train)], bins[len(train) :], clusters, scale, clients)


def _clusters(samples: np.ndarray, clusters: int, restarts: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    start = int(stream(seed, "ratio clusters").integers(2**31))
    # Elkan's variant skips distances that the triangle inequality decides: Lloyd's clusters in 0.6 of the time.
    kmeans = KMeans(
        clusters, init="k-means++", n_init=restarts, max_iter=ITERATIONS, random_state=start, algorithm="elkan"
    )
    with threadpool_limits(1):
        return np.asarray(kmeans.fit_predict(samples))


def _counts(values: npt.ArrayLike, bins: int, what: str) -> np.ndarray:
    numbers = np.asarray(values)
    if not len(numbers):
        raise FedbenchError(f"the {what} is empty, so the ratio has no bound")
    if numbers.min() < 0 or numbers.max() >= bins:
        raise FedbenchError(f"bins of the {what} run from {numbers.min()} to {numbers.max()}", f"give 0 to {bins - 1}")
    return np.bincount(numbers, minlength=bins)
