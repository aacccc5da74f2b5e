"""The special cases with client 0 as the only target (FTW-ERM, Sec. 2 and App. C, Table 5)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError, unknown
from fedbench.ratios.exact import Floats, density, divided

CASES = ("no_cs", "cs_one", "cs_both", "cs_multi")


def case_ratios(
    case: str,
    train_densities: npt.ArrayLike,
    test_densities: npt.ArrayLike,
    lambdas: npt.ArrayLike | None = None,
) -> Floats:
    """Weights [K, S] of every client's training samples by stratum; client 0 is the target, densities are [K, S].

    With training densities p and test densities q, client 0's weight before the others':

    - no_cs (K = 2, p_k = q_k, p_0 != p_1): 1, and p_0 / p_1
    - cs_one (K = 2, p_0 != q_0, p_1 = q_1): q_0 / p_0, and q_0 / p_1
    - cs_both (K = 2, p_k != q_k for both): as cs_one
    - cs_multi (p_k != q_0 for every k): lambda_k q_0 / p_k, with lambda >= 0 that sum to 1; without `lambdas` all
      are 1, as in the paper (the common factor is irrelevant)

    Each weighted client average is consistent for the target's risk: E_{p_k}[weight_k loss] = E_{q_0}[loss] (times
    lambda_k), provided p_k > 0 wherever q_0 > 0. NaN where p_k is 0. Raises FedbenchError if a case's assumption
    does not hold, naming it, and for what is not a density.
    """
    if case not in CASES:
        raise unknown("case of covariate shift", case, CASES)
    p, q = np.asarray(train_densities, np.float64), np.asarray(test_densities, np.float64)
    if p.ndim != 2 or p.shape != q.shape:
        raise FedbenchError(f"training and test densities must both be [clients, strata], not {p.shape} and {q.shape}")
    for k in range(len(p)):
        density(p[k], f"training density of client {k}")
        density(q[k], f"test density of client {k}")
    _check(case, p, q)  # what tells the cases apart: the formula is one and the same
    factors = _lambdas(case, lambdas, len(p))
    return np.stack([factor * divided(q[0], own) for factor, own in zip(factors, p, strict=True)])


def _check(case: str, p: Floats, q: Floats) -> None:
    """Raise FedbenchError unless the densities are as the case assumes."""
    same = [_equal(p[k], q[k]) for k in range(len(p))]
    if case == "cs_multi":
        for k, own in enumerate(p):
            _require(case, not _equal(own, q[0]), f"client {k} to train on another density than the target's test one")
        return
    _require(case, len(p) == 2, f"2 clients, not {len(p)}")
    if case == "no_cs":
        _require(case, all(same), "each client's training and test density to be equal")
        _require(case, not _equal(p[0], p[1]), "the two clients' densities to differ")
        return
    _require(case, not same[0], "client 0's training and test density to differ")
    _require(case, same[1] == (case == "cs_one"), f"client 1's to {'be equal' if case == 'cs_one' else 'differ'}")


def _lambdas(case: str, values: npt.ArrayLike | None, clients: int) -> Floats:
    if values is None:
        return np.ones(clients)
    lambdas = np.asarray(values, np.float64)
    _require(case, case == "cs_multi", "no lambdas")
    _require(case, lambdas.shape == (clients,), f"one lambda a client ({clients})")
    return density(lambdas, "lambdas")


def _equal(a: Floats, b: Floats) -> bool:
    return np.allclose(a, b, rtol=1e-9, atol=1e-12)


def _require(case: str, holds: bool, what: str) -> None:
    if not holds:
        raise FedbenchError(f"case {case} needs {what}", f"cases: {', '.join(CASES)}")
