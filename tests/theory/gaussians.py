"""Density ratios of clients with Gaussian inputs, recovered from a client head and known exactly (FedDRM, Section 2.4).

With equal covariances the density-ratio model (4) holds with h(x) = x; with unequal ones h also needs the products of
coordinates (Example B.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.theory.softmax import Array, Labels, fit, with_constant


@dataclass(frozen=True, eq=False)
class Gaussians:
    """m clients with inputs of d dimensions."""

    mean: Array  #: [m, d]
    covariance: Array  #: [m, d, d]
    shares: Array  #: [m] of the samples, with sum 1

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Labels]:
        """Draw about n inputs [N, d] with the client of each [N]; clients have their shares, rounded."""
        client = np.repeat(np.arange(len(self.mean)), np.rint(self.shares * n).astype(int))
        root = np.linalg.cholesky(self.covariance)[client]
        noise = rng.standard_normal((len(client), self.mean.shape[1]))
        return self.mean[client] + np.einsum("nij,nj->ni", root, noise), client

    def log_ratios(self, x: Array) -> Array:
        """Return log dP^(i)/dP^(1) of every client at inputs [N, d]: [N, m]."""
        apart = x[:, None] - self.mean
        square = np.einsum("nmi,mij,nmj->nm", apart, np.linalg.inv(self.covariance), apart)
        log_density = -(square + np.linalg.slogdet(self.covariance)[1]) / 2
        return np.asarray(log_density - log_density[:, :1])


def random_gaussians(rng: np.random.Generator, *, equal: bool, clients: int = 3, d: int = 2) -> Gaussians:
    """Draw means of N(0, I/4) and covariances, one for all clients if `equal`; the shares are 1 : 2 : 4 ..."""
    root = np.eye(d) + rng.uniform(-0.3, 0.3, (1 if equal else clients, d, d))
    covariance = np.broadcast_to(root @ np.swapaxes(root, 1, 2), (clients, d, d))
    shares = 2.0 ** np.arange(clients)
    return Gaussians(rng.standard_normal((clients, d)) / 2, covariance, shares / shares.sum())


def products(x: Array) -> Array:
    """Return coordinates and their products [N, d + d (d + 1)/2]: the h of Example B.1."""
    first, second = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, first] * x[:, second]], axis=1)


@dataclass(frozen=True, eq=False)
class Head:
    """A client head fitted to features of a sample."""

    coefficients: Array  #: [1 + d, m]
    counts: Array  #: n_i [m]

    def log_ratios(self, features: Array, *, prior: bool = True) -> Array:
        """Return log density ratios to the first client at features [n, d]: [n, m].

        They are logit_i - log n_i, minus that of the first client (Theorem 2.2); with `prior` False log n_i stays in.
        """
        logits = with_constant(features) @ self.coefficients
        ratios = logits - np.log(self.counts) if prior else logits
        return np.asarray(ratios - ratios[:, :1])


def head(features: Array, client: Labels) -> Head:
    """Fit the client head with the smallest cross-entropy on features [N, d]."""
    counts = np.bincount(client).astype(float)
    return Head(fit(with_constant(features), client, len(counts)), counts)
