"""A linear softmax head on fixed features: its cross-entropy, its minimiser, its Fisher information.

Shapes: n samples, d features (a constant 1 among them where the head has an intercept), C classes; coefficients [d, C].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm.newton import minimise

Labels = NDArray[np.int64]


def log_probabilities(logits: Array) -> Array:
    """Of classes, along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def cross_entropy(logits: Array, labels: Labels) -> float:
    """Its sum over all samples; logits [n, C]."""
    return -float(log_probabilities(logits)[np.arange(len(labels)), labels].sum())


def with_constant(features: Array) -> Array:
    """Features [..., d] behind a constant 1: [..., 1 + d]."""
    return np.concatenate([np.ones((*features.shape[:-1], 1)), features], axis=-1)


def centred(coefficients: Array) -> Array:
    """The coefficients that give the same probabilities and have mean 0 over the classes, as a fit's have."""
    return np.asarray(coefficients - coefficients.mean(axis=-1, keepdims=True))


def information(features: Array, coefficients: Array) -> Array:
    """Mean Fisher information [d C, d C]: E (diag(p) - p pᵀ) ⊗ x xᵀ, in the order of `coefficients.ravel()`.

    It is 0 along what moves all classes alike, on which probabilities do not depend.
    """
    return _information(features, np.exp(log_probabilities(features @ coefficients)))


def fit(features: Array, labels: Labels, classes: int, *, scale: float = 1.0, ridge: float = 0.0) -> Array:
    """argmin of `scale` · mean cross-entropy + (`ridge`/2) ‖B‖²; of mean 0 over the classes.

    Without a ridge, classes that a hyperplane parts have no minimum: their coefficients are then merely large.
    """
    (n, d), one_hot = features.shape, np.eye(classes)[labels]

    def loss(flat: Array) -> tuple[float, Array, Array]:
        b = flat.reshape(d, classes)
        log_p = log_probabilities(features @ b)
        p = np.exp(log_p)
        value = -scale * float((one_hot * log_p).sum()) / n + ridge / 2 * float(flat @ flat)
        gradient = scale * features.T @ (p - one_hot) / n + ridge * b
        return value, gradient.ravel(), scale * _information(features, p) + ridge * np.eye(d * classes)

    return minimise(loss, np.zeros(d * classes), "fit of a softmax head").reshape(d, classes)


def _information(features: Array, p: Array) -> Array:
    (n, d), c = features.shape, p.shape[1]
    weighted = (p[:, :, None] * features[:, None]).reshape(n, c * d)
    whole = -(weighted.T @ weighted).reshape(c, d, c, d)
    whole[np.arange(c), :, np.arange(c)] += (weighted.T @ features).reshape(c, d, d)
    return np.asarray(whole.transpose(1, 0, 3, 2).reshape(d * c, d * c) / n)
