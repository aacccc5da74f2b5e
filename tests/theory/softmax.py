"""A linear softmax head on fixed features: its cross-entropy, minimiser and Fisher information.

Shapes: n samples, d features (including a constant 1 if the head has an intercept), C classes; coefficients [d, C].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def cross_entropy(logits: Array, labels: Labels) -> float:
    """Return the cross-entropy summed over all samples; logits [n, C]."""
    return -float(log_softmax(logits, axis=-1)[np.arange(len(labels)), labels].sum())


def with_constant(features: Array) -> Array:
    """Prepend a constant 1 to features [..., d]: [..., 1 + d]."""
    return np.concatenate([np.ones((*features.shape[:-1], 1)), features], axis=-1)


def centred(coefficients: Array) -> Array:
    """Shift coefficients to mean 0 over the classes, as those of a fit; probabilities do not change."""
    return np.asarray(coefficients - coefficients.mean(axis=-1, keepdims=True))


def information(features: Array, coefficients: Array) -> Array:
    """Return the mean Fisher information [d C, d C]: E (diag(p) - p pᵀ) ⊗ x xᵀ, in the order of `coefficients.ravel()`.

    It is 0 in directions that shift all classes equally, because probabilities do not depend on them.
    """
    return _information(features, np.exp(log_softmax(features @ coefficients, axis=-1)))


def fit(features: Array, labels: Labels, classes: int, *, scale: float = 1.0, ridge: float = 0.0) -> Array:
    """Return argmin of `scale` · mean cross-entropy + (`ridge`/2) ‖B‖², with mean 0 over the classes.

    Without a ridge there is no minimum if a hyperplane separates the classes: the coefficients are then merely large.
    """
    (n, d), one_hot = features.shape, np.eye(classes)[labels]

    def loss(flat: Array) -> tuple[float, Array, Array]:
        b = flat.reshape(d, classes)
        log_p = log_softmax(features @ b, axis=-1)
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


#: The iteration ends if the predicted gain, relative to the value, is at most this, because more would be rounding.
_ENOUGH = 1e-11
_MOST = 200
#: Eigenvalues below this share of the largest count as 0: the function is flat in these directions.
_FLAT = 1e-11


def minimise(function: Callable[[Array], tuple[float, Array, Array]], start: Array, problem: str) -> Array:
    """Minimise a convex function.

    Arguments:
        function: point [k] -> value, gradient [k], Hessian [k, k]; the value is inf outside of its domain.
        start: a point of the domain; the result does not leave it in directions in which the function is flat.
        problem: name of the problem in errors.

    Raises ArithmeticError if the steps do not converge, for example if the function is unbounded below.
    """
    point = np.asarray(start, float)
    value, gradient, hessian = function(point)
    for _ in range(_MOST):
        values, vectors = np.linalg.eigh(hessian)
        curved = values > _FLAT * max(values[-1], np.finfo(float).tiny)
        step = -vectors[:, curved] @ ((vectors[:, curved].T @ gradient) / values[curved])
        gain = -float(gradient @ step)
        settled, size = gain <= _ENOUGH * (1 + abs(value)), 1.0
        while True:
            after = function(point + size * step)
            if after[0] <= value - 0.1 * size * gain or (settled and np.isfinite(after[0])):
                break
            size /= 2
            if size < 1e-12:
                raise ArithmeticError(f"{problem}: no step lowers the value")
        point, (value, gradient, hessian) = point + size * step, after
        if settled:
            return np.asarray(point)
    raise ArithmeticError(f"{problem}: no solution within {_MOST} Newton steps")
