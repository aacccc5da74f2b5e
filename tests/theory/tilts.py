"""Theorem 2.1 of FedDRM: if class-conditional distributions are tilts of each other, so are the clients' marginals.

Distributions are weights of S atoms, so every probability is an exact sum, not an estimate. Class 1 has α = 0 and
β = 0, as (2) tacitly assumes. Index 0 is the server, 1..m are the clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.theory.softmax import Array, with_constant


@dataclass(frozen=True, eq=False)
class Joint:
    """Distributions of input and class of the server and m clients, and the values of h at the atoms."""

    probability: Array  #: [1 + m, K, S], each with sum 1
    h: Array  #: [S, d]

    @property
    def log_ratios(self) -> Array:
        """log dP_X^(i)/dP_X^(0) of the clients [m, S]."""
        marginal = np.log(self.probability.sum(axis=1))
        return np.asarray(marginal[1:] - marginal[0])


def tilted(base: Array, g: Array, h: Array, alpha: Array, beta: Array, xi: Array) -> tuple[Joint, Array]:
    """Return the distributions that (2) and (3) determine, and γ† + ξᵀh of (4) [m, S].

    (2) with one α for all clients and α†_ik = α_k + log(π_i1/π_ik) determines π_i: each class's tilt has sum 1.

    Arguments: base P_1^(0) [S], g [S, q], h [S, d], α [K] and β [K, q] (first ones 0), ξ of the clients [m, d].
    """
    tilt = np.exp(xi @ h.T)
    gamma = -np.log(tilt @ base)
    first = np.concatenate([base[None], tilt * np.exp(gamma)[:, None] * base])  # P_1^(i) [1 + m, S], by (3)
    against = np.exp(alpha + g @ beta.T).T * first[:, None]  # (π_ik/π_i1) P_k^(i), by (2)
    share = 1 / against.sum(axis=(1, 2))  # π_i1
    claimed = gamma + np.log(share[1:] / share[0])
    return Joint(against * share[:, None, None], h), claimed[:, None] + xi @ h.T


def label_shift(joint: Joint, classes: Array) -> Joint:
    """Apply label shift as in Section 2.1: the server's P_k for all clients, with class shares [m, K] by client."""
    conditional = joint.probability[0] / joint.probability[0].sum(axis=1, keepdims=True)
    return Joint(np.concatenate([joint.probability[:1], classes[:, :, None] * conditional]), joint.h)


def distance(joint: Joint) -> float:
    """Return the distance of the clients' log ratios from the nearest γ + ξᵀh: root mean square over atoms, weighted by
    the server's marginal."""
    weight = np.sqrt(joint.probability[0].sum(axis=0))
    design, wanted = with_constant(joint.h) * weight[:, None], joint.log_ratios.T * weight[:, None]
    rest = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    return float(np.sqrt(np.square(rest).sum(axis=0).mean()))


def random_joint(rng: np.random.Generator, clients: int = 3, classes: int = 4, atoms: int = 60) -> tuple[Joint, Array]:
    """Draw a random case of `tilted`, with g = h of two dimensions."""
    g = rng.standard_normal((atoms, 2))
    alpha, beta = rng.standard_normal(classes), rng.standard_normal((classes, 2))
    alpha[0], beta[0] = 0, 0
    return tilted(rng.dirichlet(np.ones(atoms)), g, g, alpha, beta, rng.standard_normal((clients, 2)))
