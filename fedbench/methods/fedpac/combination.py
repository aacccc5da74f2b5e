"""How FedPAC combines the clients' heads: the statistics that it needs, and the weights that follow from them.

Shapes: M clients, K classes, d features, n rows. Everything runs in float64. Equations are those of FedPAC (Xu, Tong
and Huang, ICLR 2023) as its official code computes them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedbench.methods.fedpac.simplex import nearest_to_origin
from fedbench.methods.parts.prototypes import class_means

#: Weights of a combination that do not exceed this are set to zero (official code).
LEAST_WEIGHT = 1e-3


def statistics(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(V, h) of a client's features, float64: the variance of its classifier estimate, a scalar, and h [K, d].

    h_k = p_k mu_k and V = (sum_k p_k tr E[z z^T | k] - sum_k p_k^2 |mu_k|^2) / n, where p_k is the share of class k.
    The first sum is the mean of |z|^2 over all rows.
    """
    z = rows.double()
    share = torch.bincount(labels, minlength=classes).double() / len(z)
    h = share[:, None] * class_means(z, labels, classes)
    variance = (z.square().sum(1).mean() - h.square().sum()) / len(z)
    return variance.clamp(min=0), h  # below zero by rounding alone


def combination(variances: Tensor, h: Tensor) -> Tensor:
    """Weights [M, M], float64 on the host: row i mixes the clients' heads into that of client i.

    Row i minimises a^T (diag V + D_i) a on the simplex, D_i[j, l] = sum_k <h_i,k - h_j,k, h_i,k - h_l,k>, for
    variances V [M] and h [M, K, d]. Weights up to LEAST_WEIGHT are dropped; where there is no solution, the client
    keeps its own head.
    """
    centred = h.double().flatten(1)
    centred = centred - centred.mean(0)  # only differences count, and of smaller numbers less is lost
    # Columns of these scalar products, but of few entries: <r_j, r_l> = <h_j, h_l>.
    r = torch.linalg.qr(centred.T, mode="r").R.cpu().numpy()
    deviations = np.diag(variances.double().sqrt().cpu().numpy())
    weights = np.eye(len(h))
    for i in range(len(h)):
        a = nearest_to_origin(np.vstack([deviations, r - r[:, i, None]]))
        if a is not None and (weight := np.where(a > LEAST_WEIGHT, a, 0.0)).any():
            weights[i] = weight / weight.sum()
    return torch.from_numpy(weights)
