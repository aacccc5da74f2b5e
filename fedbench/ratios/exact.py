"""Exact ratios where the densities of a few strata (classes, or class and colour) say everything.

Under target shift with labels that are a function of the input, the ratio of inputs is that of class probabilities
(FTW-ERM, Prop. 4). Use nominal probabilities, not realised counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.ratios.scale import factor

Floats = npt.NDArray[np.float64]


def stratum_ratios(train_density: npt.ArrayLike, test_density: npt.ArrayLike, scale: str = "mean") -> Floats:
    """The ratio of every stratum [S] for a client with training density p [S]: mean (or sum) over l of q_l / p.

    `test_density` is [K, S] for K clients (FTW-ERM), or one row or [S] for the own test set (FITW-ERM). Where p is 0
    the ratio is NaN: no training sample may ask for it (`weights.weights_of` refuses). Raises FedbenchError for
    negative or non-finite values, sums other than 1, and unequal numbers of strata.
    """
    p = np.asarray(train_density, np.float64)
    q = np.atleast_2d(np.asarray(test_density, np.float64))
    if p.ndim != 1 or q.ndim != 2 or q.shape[1] != len(p):
        raise FedbenchError(f"training density of shape {p.shape} and test densities of shape {q.shape} do not match")
    density(p, "training density")
    for client, row in enumerate(q):
        density(row, f"test density of client {client}")
    return divided(factor(scale, len(q)) * q.mean(axis=0), p)


def divided(q: Floats, p: Floats) -> Floats:
    """q / p [S], NaN where p is 0."""
    ratio = np.full(len(p), np.nan)
    np.divide(q, p, out=ratio, where=p > 0)
    return ratio


def density(probabilities: npt.ArrayLike, what: str) -> Floats:
    """The probabilities as float64. Raises FedbenchError unless they are finite, >= 0 and sum to 1."""
    values = np.asarray(probabilities, np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise FedbenchError(f"the {what} has a negative or non-finite value", "give probabilities")
    if abs(values.sum() - 1) > 1e-6:
        raise FedbenchError(f"the {what} sums to {values.sum():g}", "give probabilities that sum to 1")
    return values
