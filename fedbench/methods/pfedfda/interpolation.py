"""Interpolation of a client's statistics with common ones: pFedFDA's beta (paper Sec. 4.3, Eq. 9; notes 1.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize  # at module level, so that the first client's time does not include the import
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch exports it without declaring it

from fedbench.methods.pfedfda.gaussian import Gaussian, Moments, shrunk

FOLDS = 2
ITERATIONS = 10


class FeatureRows(NamedTuple):
    """Feature rows z [n, d] float64 and their labels y [n]."""

    z: Tensor
    y: Tensor


def halves(rows: Tensor, labels: Tensor) -> list[FeatureRows]:
    """Split the rows into two halves stratified by label, and a rest: rows of classes with a single row.

    The halves are empty if no class has two rows.
    """
    z, y = rows.double(), labels.cpu().numpy()
    searched = np.flatnonzero(np.bincount(y)[y] >= FOLDS)
    parts = [searched, searched]
    if len(searched):
        fold = folds_of(y[searched])
        parts = [searched[fold == k] for k in range(FOLDS)]
    parts.append(np.setdiff1d(np.arange(len(y)), searched))
    on_device = [torch.from_numpy(part).to(z.device) for part in parts]
    return [FeatureRows(z[part], labels[part]) for part in on_device]


def folds_of(labels: np.ndarray) -> np.ndarray:
    """[n]: the fold of each row, stratified by label [n], equal to scikit-learn's StratifiedKFold shuffled with seed 0
    (importing that takes 80 MB and a second)."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[inverse]  # classes in order of first appearance
    ordered = np.sort(rank)
    sizes = np.stack([np.bincount(ordered[k::FOLDS], minlength=len(first)) for k in range(FOLDS)])
    generator, fold = np.random.RandomState(0), np.empty(len(labels), np.int64)
    for c in range(len(first)):
        mine = np.arange(FOLDS).repeat(sizes[:, c])
        generator.shuffle(mine)
        fold[rank == c] = mine
    return fold


def search_beta(
    parts: Sequence[FeatureRows],
    moments: Sequence[Moments],
    common: Gaussian,
    class_prior: Tensor,
    estimate: Callable[[Moments], Gaussian],
    betas: int,
    previous: Tensor,
) -> Tensor:
    """Return the beta in [0, 1] (one, or one for means and one for covariance) with the lowest held-out cross-entropy.

    `parts` are `halves` and `moments` theirs: each half's statistics, interpolated with the common ones, are evaluated
    on the other half. L-BFGS-B starts from 0.5. Returns [betas] float64: zeros (the common statistics) if no search is
    possible, `previous` if the solver fails.
    """
    first, second = parts[:2]
    if not len(first.y):
        return torch.zeros(betas, dtype=torch.float64)
    try:
        folds = [(estimate(moments[0]), second), (estimate(moments[1]), first)]
    except LinAlgError:
        return torch.zeros(betas, dtype=torch.float64)
    log_prior = class_prior.log()

    def value_and_gradient(beta: np.ndarray) -> tuple[float, np.ndarray]:
        losses = [held_out_loss(own, rows, common, log_prior, beta[0], beta[-1]) for own, rows in folds]
        value, by_mean, by_covariance = torch.stack(losses).sum(0).tolist()
        if not np.isfinite(value):
            raise FloatingPointError("the objective of beta is not finite")
        return value, np.array([by_mean, by_covariance] if betas == 2 else [by_mean + by_covariance])

    try:
        beta = _minimise(value_and_gradient, betas)
    except (LinAlgError, FloatingPointError):
        return previous.double().cpu()
    return torch.from_numpy(np.clip(beta, 0.0, 1.0))


def held_out_loss(
    own: Gaussian, rows: FeatureRows, common: Gaussian, log_prior: Tensor, beta_mean: float, beta_covariance: float
) -> Tensor:
    """[3]: mean cross-entropy of the rows under the interpolated classifier, d/d beta_mean, d/d beta_covariance.

    With mu and the shrunk covariance S of the interpolation a row z has the logits z.w_c - mu_c.w_c / 2 + log prior_c,
    w_c = S^-1 mu_c. Gradients are explicit, because autograd through the factorisation takes twice as long.
    """
    z, y = rows
    mixed = own.mix(common, beta_mean, beta_covariance)
    factor = torch.linalg.cholesky(shrunk(mixed.covariance))
    weight = torch.cholesky_solve(mixed.mean.T, factor).T
    log_posterior = (z @ weight.T + (log_prior - 0.5 * (mixed.mean * weight).sum(1))).log_softmax(1)
    at = y[:, None]
    loss = -log_posterior.gather(1, at).mean()
    error = log_posterior.exp_()  # from here d loss / d logits: posterior minus one-hot labels, divided by the rows
    error.scatter_add_(1, at, torch.full_like(error[:, :1], -1.0)).div_(len(y))
    total = error.sum(0)[:, None]
    by_mean = torch.cholesky_solve((error.T @ z - total * mixed.mean).T, factor).T  # [K, d]
    by_covariance = -(by_mean + 0.5 * total * weight).T @ weight
    return torch.stack(
        [
            loss,
            (by_mean * (own.mean - common.mean)).sum(),
            (by_covariance * shrunk(own.covariance - common.covariance)).sum(),
        ]
    )


def _minimise(value_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]], betas: int) -> np.ndarray:
    result = minimize(
        value_and_gradient,
        np.full(betas, 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * betas,
        options={"maxiter": ITERATIONS, "gtol": 1e-3},
    )
    beta: np.ndarray = result.x
    return beta
