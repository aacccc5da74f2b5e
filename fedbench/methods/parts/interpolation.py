"""How much a client trusts its own statistics: pFedFDA's beta (paper Sec. 4.2, Eq. 9; notes 1.4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.methods.parts.gaussian import Gaussian, classifier

FOLDS = 2
ITERATIONS = 10


def search_beta(
    rows: Tensor,
    labels: Tensor,
    common: Gaussian,
    class_prior: Tensor,
    estimate: Callable[[Tensor, Tensor], Gaussian],
    betas: int,
    previous: Tensor,
) -> Tensor:
    """The beta in [0, 1] (one, or one for means and one for covariance) with the least held-out cross-entropy.

    Two folds stratified by label; each half is judged by the interpolation of the other half's statistics with
    the common ones. L-BFGS-B from 0.5. Classes with a single row are left out of the search. Returns [betas]
    float64: zeros (the common statistics) if no search is possible, `previous` if the solver fails.
    """
    counts = torch.bincount(labels, minlength=len(class_prior))
    usable = (counts >= FOLDS)[labels]
    z, y = rows[usable].double(), labels[usable]
    if len(y) == 0:
        return torch.zeros(betas, dtype=torch.float64)
    try:
        folds = [_fold(z, y, held, kept, estimate) for kept, held in _splits(y)]
    except torch.linalg.LinAlgError:
        return torch.zeros(betas, dtype=torch.float64)
    try:
        found = _minimise(lambda beta: _objective(beta, folds, common, class_prior), betas)
    except (torch.linalg.LinAlgError, FloatingPointError):
        return previous.double().cpu()
    return torch.from_numpy(np.clip(found, 0.0, 1.0))


def _splits(y: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import StratifiedKFold

    labels = y.cpu().numpy()
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(labels)), labels))


def _fold(
    z: Tensor, y: Tensor, held: np.ndarray, kept: np.ndarray, estimate: Callable[[Tensor, Tensor], Gaussian]
) -> tuple[Gaussian, Tensor, Tensor]:
    inside, outside = torch.from_numpy(kept).to(z.device), torch.from_numpy(held).to(z.device)
    return estimate(z[inside], y[inside]), z[outside], y[outside]


def _objective(beta: Tensor, folds: list[tuple[Gaussian, Tensor, Tensor]], common: Gaussian, prior: Tensor) -> Tensor:
    """Sum over folds of the mean cross-entropy of the held-out half."""
    total = torch.zeros((), dtype=torch.float64)
    for own, z, y in folds:
        weight, bias = classifier(own.mix(common, beta[0], beta[-1]), prior)
        total = total + F.cross_entropy(z @ weight.T + bias, y).cpu()
    return total


def _minimise(objective: Callable[[Tensor], Tensor], betas: int) -> np.ndarray:
    from scipy.optimize import minimize

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        beta = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            loss = objective(beta)
            (gradient,) = torch.autograd.grad(loss, beta)
        value = float(loss.detach())
        if not np.isfinite(value):
            raise FloatingPointError("the objective of beta is not finite")
        return value, gradient.numpy()

    result = minimize(
        value_and_gradient,
        np.full(betas, 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * betas,
        options={"maxiter": ITERATIONS, "gtol": 1e-3},
    )
    found: np.ndarray = result.x
    return found
