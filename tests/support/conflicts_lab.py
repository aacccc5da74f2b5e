"""ConFREE's rules once more, by loops over whole updates: what its inner products are held against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Vectors = npt.NDArray[np.float64]

ALPHA = 0.4
SIZES = [30, 10, 25, 35, 20]


def updates(n: int = 5, d: int = 12, seed: int = 0) -> Vectors:
    """Updates [n, d] of which many conflict."""
    return np.random.default_rng(seed).normal(size=(n, d)) * np.geomspace(0.01, 0.05, n)[:, None]


def projected_pairs(u: Vectors, sizes: list[int]) -> Vectors:
    """FedDRM's rule [d], pair by pair: both lose their projection on the other as it came."""
    adjusted = u.copy()
    for i in range(len(u)):
        for j in range(i + 1, len(u)):
            dot = u[i] @ u[j]
            if dot < 0:
                adjusted[i] -= dot / (u[j] @ u[j] + 1e-8) * u[j]
                adjusted[j] -= dot / (u[i] @ u[i] + 1e-8) * u[i]
    mean: Vectors = np.array(sizes) @ adjusted / sum(sizes)
    return mean


def guide(u: Vectors, order: npt.NDArray[np.int64]) -> Vectors:
    """The guidance vector [d], vector by vector."""
    total = np.zeros(u.shape[1])
    for i in range(len(u)):
        g = u[i].copy()
        for j in order[i]:
            g -= min(0.0, g @ u[j]) / (u[j] @ u[j]) * u[j]
        total += g
    mean: Vectors = total / len(u)
    return mean


def step(u: Vectors, order: npt.NDArray[np.int64], alpha: float = ALPHA) -> Vectors:
    """The paper's step [d], by what it is the dual of: the most that the worst client can gain, <g, u_i>, of all g
    within alpha |c| of the guidance vector c; over (1 + alpha^2)."""
    c = guide(u, order)
    size = float(np.linalg.norm(c))
    basis = np.linalg.qr(u.T)[0]  # of what lies outside of it no client gains
    gains, centre = u @ basis / size, basis.T @ c / size
    constraints: Any = [
        {
            "type": "ineq",
            "fun": lambda v: gains @ (centre + v[1:]) - v[0],
            "jac": lambda v: np.hstack([-np.ones((len(u), 1)), gains]),
        },
        {"type": "ineq", "fun": lambda v: alpha**2 - v[1:] @ v[1:], "jac": lambda v: np.append(0, -2 * v[1:])},
    ]
    best: Any = minimize(  # type: ignore[call-overload]
        lambda v: -float(v[0]),  # v: the worst gain, and the way from c, in units of |c|
        np.zeros(1 + len(centre)),
        jac=lambda v: np.append(-1.0, 0 * v[1:]),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 2000},
    )
    assert np.linalg.norm(best.x[1:]) < alpha + 1e-6
    moved: Vectors = (c + size * basis @ best.x[1:]) / (1 + alpha**2)
    return moved
