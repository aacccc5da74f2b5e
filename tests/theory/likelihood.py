"""Theorem 2.2 of FedDRM: the profile log empirical likelihood, by its definition (5) and (6).

The target's cross-entropy is the same on both sides, so only the clients' part is here:

    ℓ(p) = Σ_ij (γ_i + ξ_iᵀh_ij + log p_ij),  Σ p_ij = 1,  Σ p_ij exp(γ_l + ξ_lᵀh_ij) = 1 for all l

Only `dual` uses the theorem's claim. Shapes: N samples h [N, d] of clients [N] in 0..m-1; γ [m] is the paper's γ†,
and ξ [m, d]. (The equation under (6), again in App. D, lacks the "1 +" that App. C.2 has.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from tests.theory.softmax import Array, Labels, minimise


@dataclass(frozen=True, eq=False)
class Profile:
    """The supremum over p at given parameters; -inf if no weights satisfy the constraints."""

    value: float
    multipliers: Array  #: ρ_l [m]
    weights: Array  #: p_ij [N]


def profile(h: Array, client: Labels, gamma: Array, xi: Array) -> Profile:
    """Solve for the Lagrange multipliers at any parameters (App. C.2)."""
    tilts = gamma + h @ xi.T
    excess, (n, m) = np.expm1(tilts), tilts.shape

    def dual(rho: Array) -> tuple[float, Array, Array]:
        inside = 1 + excess @ rho
        if (inside <= 0).any():
            return np.inf, rho, np.eye(m)
        scaled = excess / inside[:, None]
        return -float(np.log(inside).sum()), -scaled.sum(axis=0), scaled.T @ scaled

    try:
        rho = minimise(dual, np.zeros(m), "the constraints (5)")
    except ArithmeticError:  # the dual is unbounded below: no weights satisfy the constraints
        return Profile(-np.inf, np.full(m, np.nan), np.full(n, np.nan))
    weights = 1 / (n * (1 + excess @ rho))
    own = tilts[np.arange(n), client]
    return Profile(float((own + np.log(weights)).sum()), rho, weights)


def optimal_intercepts(h: Array, client: Labels, xi: Array) -> Array:
    """Return γ [m] that maximises the profile log-likelihood for these ξ, computed without multipliers.

    For weights p the constraints give γ_l = -log Σ p_ij exp(ξ_lᵀh_ij). With this, ℓ depends on p only, and it is
    concave in u = log p.
    """
    (n, m), log_tilt = (len(h), len(xi)), h @ xi.T
    counts = np.bincount(client, minlength=m)

    def loss(u: Array) -> tuple[float, Array, Array]:
        log_q = log_softmax((u[:, None] + log_tilt).T, axis=-1)  # for each client over the samples [m, N]
        q = np.exp(log_q)
        total = u[0] + log_tilt[0] - log_q[:, 0]  # log Σ exp(u + ξ_lᵀh) [m]
        mass = np.asarray(counts @ q, float)
        return float(counts @ total - u.sum()), mass - 1, np.diag(mass) - (q.T * counts) @ q

    u = minimise(loss, np.zeros(n), "the largest empirical likelihood")
    joint = log_softmax(u)[:, None] + log_tilt
    top = joint.max(axis=0)
    return np.asarray(-top - np.log(np.exp(joint - top).sum(axis=0)))


def dual(h: Array, client: Labels, gamma: Array, xi: Array) -> float:
    """Return the profile as Theorem 2.2 claims it: minus the client cross-entropy of the logits
    log n_l + γ_l + ξ_lᵀh, plus the constant -Σ n_l log n_l."""
    counts = np.bincount(client, minlength=len(xi)).astype(float)
    log_p = log_softmax(np.log(counts) + gamma + h @ xi.T, axis=-1)
    return float(log_p[np.arange(len(h)), client].sum() - (counts * np.log(counts)).sum())
