"""Gaussian class-conditional features with one tied covariance, as pFedFDA estimates and interpolates them.

Shapes: K classes, d features, n rows; mean [K, d], covariance [d, d], prior [K]. Everything runs in float64.
Sections are those of pFedFDA's protocol notes; Eq. of the paper (NeurIPS 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Share of the isotropic part in the covariance that the solver uses (official code; not in the paper).
SHRINKAGE = 1e-4
#: Added to every class's frequency, so that an absent class has a finite logit (official code).
PRIOR_FLOOR = 1e-4
#: Smaller eigenvalues of a correlation matrix are raised to this.
EIGENVALUE_FLOOR = 1e-15


@dataclass(frozen=True)
class Gaussian:
    """Class means and tied covariance."""

    mean: Tensor
    covariance: Tensor

    def mix(self, other: Gaussian, beta_mean: Tensor | float, beta_covariance: Tensor | float) -> Gaussian:
        """Return beta times this one plus (1 - beta) times the other (Alg. 1, lines 10 and 11)."""
        return Gaussian(
            beta_mean * self.mean + (1 - beta_mean) * other.mean,
            beta_covariance * self.covariance + (1 - beta_covariance) * other.covariance,
        )


@dataclass(frozen=True)
class Moments:
    """Sums over feature rows: counts [K], mean [K, d] and scatter [d, d] about the class means.

    The sum of two gives the moments of the rows of both (Chan, Golub and LeVeque 1979, for each class). The mean of a
    class without rows is zero.
    """

    counts: Tensor
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int) -> Moments:
        """Compute the moments of feature rows [n, d] with labels [n]."""
        z = rows.double()
        counts = torch.bincount(labels, minlength=classes).double()
        sums = torch.zeros(classes, z.shape[1], dtype=torch.float64, device=z.device).index_add_(0, labels, z)
        mean = sums / counts.clamp(min=1)[:, None]
        centred = z - mean[labels]
        return cls(counts, mean, centred.T @ centred)

    def __add__(self, other: Moments) -> Moments:
        counts = self.counts + other.counts
        share = (other.counts / counts.clamp(min=1))[:, None]
        gap = other.mean - self.mean
        between = gap.T @ (self.counts[:, None] * share * gap)
        return Moments(counts, self.mean + share * gap, self.scatter + other.scatter + between)


def prior(class_counts: Tensor) -> Tensor:
    """Return smoothed label frequencies [K] (Sec. 1.1)."""
    share = class_counts.double() / class_counts.double().sum() + PRIOR_FLOOR
    return share / share.sum()


def classifier(gaussian: Gaussian, class_prior: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear head (weight [K, d], bias [K]) whose softmax is the classes' posterior (Eq. 3 and 4).

    S w_c = mu_c by a Cholesky solve of the shrunk covariance S, b_c = -mu_c.w_c / 2 + log prior_c.
    """
    mean = gaussian.mean.double()
    factor = torch.linalg.cholesky(shrunk(gaussian.covariance.double()))
    weight = torch.cholesky_solve(mean.T, factor).T
    return weight, class_prior.log() - 0.5 * (mean * weight).sum(1)


def shrunk(covariance: Tensor) -> Tensor:
    """Mix the covariance with a share of the isotropic matrix with the same trace (Sec. 1.1)."""
    out = (1 - SHRINKAGE) * covariance
    out.diagonal().add_(SHRINKAGE * covariance.diagonal().mean())
    return out


def estimate(moments: Moments, fallback: Gaussian, ridge: float, offset: float, min_rows: int = 1) -> Gaussian:
    """Estimate mean and covariance from the moments of feature rows (Sec. 1.3, Eq. 6 to 8).

    A class with fewer than `min_rows` rows gets the fallback's mean, but its rows are still centred by their mean. The
    tied covariance gets `offset` on every entry and `ridge` on the diagonal, and is made positive semi-definite if it
    is not.
    """
    covariance = moments.scatter / (moments.counts.sum() - 1).clamp(min=1) + offset
    covariance.diagonal().add_(ridge)
    enough = (moments.counts >= min_rows)[:, None]
    mean = torch.where(enough, moments.mean, fallback.mean.double())
    return Gaussian(mean, positive_semidefinite(covariance))


def positive_semidefinite(covariance: Tensor) -> Tensor:
    """Raise the eigenvalues of the correlation matrix to a floor, with unchanged variances (paper Sec. 4.3).

    Returns the same matrix if no eigenvalue is below; a cheap Cholesky factorisation checks this first.
    """
    scale = covariance.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    outer = scale[:, None] * scale[None, :]
    correlation = covariance / outer
    above = correlation.clone()
    above.diagonal().sub_(EIGENVALUE_FLOOR)
    if not bool(torch.linalg.cholesky_ex(above).info):
        return covariance
    values, vectors = torch.linalg.eigh(correlation)
    if bool(values.min() >= EIGENVALUE_FLOOR):
        return covariance
    fixed = (vectors * values.clamp(min=EIGENVALUE_FLOOR)) @ vectors.T
    unit = fixed.diagonal().sqrt()
    fixed = fixed / (unit[:, None] * unit[None, :])
    symmetric: Tensor = 0.5 * (fixed + fixed.T) * outer
    return symmetric


def packed(matrix: Tensor) -> Tensor:
    """Return the upper triangle [d (d + 1) / 2] of a symmetric matrix [d, d], in which a covariance is sent."""
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def unpacked(triangle: Tensor) -> Tensor:
    """Inverse of `packed`."""
    d = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    rows, columns = torch.triu_indices(d, d, device=triangle.device)
    matrix = triangle.new_empty(d, d)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix
