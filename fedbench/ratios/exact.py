"""Exact ratios for densities that depend only on a stratum (class, or class and colour); the special cases with client
0 as the only target; and samples' weights from ratios.

Under target shift with labels that are a function of the input, the ratio of inputs equals that of class probabilities
(FTW-ERM, Prop. 4). Use nominal probabilities, not realised counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError, check_known

Floats = npt.NDArray[np.float64]


def stratum_ratios(train_density: npt.ArrayLike, test_density: npt.ArrayLike, scale: str = "mean") -> Floats:
    """Return the ratio of every stratum [S] for a client with training density p [S]: mean (or sum) over l of q_l / p.

    `test_density` is [K, S] for K clients (FTW-ERM), or one row or [S] for the client's test set (FITW-ERM). If p is 0
    the ratio is NaN, and `weights_of` rejects training samples of that stratum. Raises FedbenchError for negative or
    non-finite values, sums other than 1, and unequal numbers of strata.
    """
    p = np.asarray(train_density, np.float64)
    q = np.atleast_2d(np.asarray(test_density, np.float64))
    if p.ndim != 1 or q.ndim != 2 or q.shape[1] != len(p):
        raise FedbenchError(f"training density of shape {p.shape} and test densities of shape {q.shape} do not match")
    _check_density(p, "training density")
    for client, row in enumerate(q):
        _check_density(row, f"test density of client {client}")
    return _divided((len(q) if scale == "sum" else 1) * q.mean(axis=0), p)


def _divided(q: Floats, p: Floats) -> Floats:
    """Return q / p [S]; NaN if p is 0."""
    ratio = np.full(len(p), np.nan)
    np.divide(q, p, out=ratio, where=p > 0)
    return ratio


def _check_density(values: Floats, what: str) -> None:
    """Raise FedbenchError unless the values are finite, >= 0 and sum to 1."""
    if not np.isfinite(values).all() or (values < 0).any():
        raise FedbenchError(f"the {what} has a negative or non-finite value", "give probabilities")
    if abs(values.sum() - 1) > 1e-6:
        raise FedbenchError(f"the {what} sums to {values.sum():g}", "give probabilities that sum to 1")


CASES = ("no_cs", "cs_one", "cs_both", "cs_multi")


def case_ratios(case: str, train_densities: npt.ArrayLike, test_densities: npt.ArrayLike) -> Floats:
    """Return weights [K, S] of each client's training samples by stratum, in the special cases with client 0 as the
    only target (FTW-ERM, Sec. 2 and App. C, Table 5); densities are [K, S].

    With training densities p and test densities q, the weight of client 0 and then that of the others:

    - no_cs (K = 2, p_k = q_k, p_0 != p_1): 1, and p_0 / p_1
    - cs_one (K = 2, p_0 != q_0, p_1 = q_1): q_0 / p_0, and q_0 / p_1
    - cs_both (K = 2, p_k != q_k for both): as cs_one
    - cs_multi (p_k != q_0 for every k): q_0 / p_k

    Each weighted client average is consistent for the target's risk: E_{p_k}[weight_k loss] = E_{q_0}[loss], provided
    p_k > 0 wherever q_0 > 0. The weight is NaN if p_k is 0. Raises FedbenchError, with its name, for an assumption of
    the case that does not hold, and for values that are not a density.
    """
    check_known("case of covariate shift", case, CASES)
    p, q = np.asarray(train_densities, np.float64), np.asarray(test_densities, np.float64)
    if p.ndim != 2 or p.shape != q.shape:
        raise FedbenchError(f"training and test densities must both be [clients, strata], not {p.shape} and {q.shape}")
    for k in range(len(p)):
        _check_density(p[k], f"training density of client {k}")
        _check_density(q[k], f"test density of client {k}")
    _check_case(case, p, q)  # the formula is the same in all cases
    return np.stack([_divided(q[0], own) for own in p])


def _check_case(case: str, p: Floats, q: Floats) -> None:
    """Raise FedbenchError unless the densities meet the case's assumptions."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise FedbenchError(f"case {case} needs {what}", f"cases: {', '.join(CASES)}")

    same = [_equal(p[k], q[k]) for k in range(len(p))]
    if case == "cs_multi":
        for k, own in enumerate(p):
            require(not _equal(own, q[0]), f"client {k} to train on another density than the target's test one")
        return
    require(len(p) == 2, f"2 clients, not {len(p)}")
    if case == "no_cs":
        require(all(same), "each client's training and test density to be equal")
        require(not _equal(p[0], p[1]), "the two clients' densities to differ")
        return
    require(not same[0], "client 0's training and test density to differ")
    require(same[1] == (case == "cs_one"), f"client 1's to {'be equal' if case == 'cs_one' else 'differ'}")


def _equal(a: Floats, b: Floats) -> bool:
    return np.allclose(a, b, rtol=1e-9, atol=1e-12)


def weights_of(strata: npt.ArrayLike, ratios: npt.ArrayLike, client: int) -> Floats:
    """Return the weights [n] of a client's training samples from their strata [n] and the ratios [S].

    Raises FedbenchError for an unknown stratum, for a stratum whose ratio is undefined (its training density is 0
    although it has a sample), and as `check_weights` does.
    """
    numbers, table = np.asarray(strata, np.int64), np.asarray(ratios, np.float64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(table)):
        wrong = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise FedbenchError(
            f"client {client} has a training sample of stratum {wrong}", f"there are {len(table)} ratios"
        )
    weights = table[numbers]
    undefined = np.unique(numbers[np.isnan(weights)])
    if len(undefined):
        raise FedbenchError(
            f"client {client} has training samples of stratum {undefined[0]}, whose training density is declared 0",
            "declare the densities that the training set was drawn from",
        )
    check_weights(weights, client)
    return weights


def check_weights(weights: npt.ArrayLike, client: int) -> None:
    """Raise FedbenchError if any weight [n] of a client is negative, NaN or infinite, or all are 0."""
    values = np.asarray(weights, np.float64)
    for wrong, what in ((np.isnan(values), "NaN"), (np.isinf(values), "infinite"), (values < 0, "negative")):
        if wrong.any():
            raise FedbenchError(
                f"client {client} has {int(wrong.sum())} {what} sample weights, the first at position "
                f"{int(wrong.argmax())}",
                "check its densities or its ratio network",
            )
    if not values.any():
        raise FedbenchError(
            f"client {client} has no training sample of positive weight", "its data say nothing about the test data"
        )
