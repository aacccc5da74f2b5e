"""Damped Newton steps for the small convex problems of this room."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.theory.arrays import Array

#: A step predicts to gain so little, relative to the value: the next one would be rounding.
_ENOUGH = 1e-11
_MOST = 200
#: Eigenvalues below this share of the largest are directions in which nothing changes.
_FLAT = 1e-11


def minimise(function: Callable[[Array], tuple[float, Array, Array]], start: Array, problem: str) -> Array:
    """Where a convex function is least.

    Arguments:
        function: point [k] -> value, gradient [k], Hessian [k, k]; the value is inf outside of its domain.
        start: a point of the domain; in directions in which the function is flat the answer keeps to it.
        problem: what has no solution if the function has no least value.

    Raises FedbenchError if the steps do not settle, as where it falls for ever.
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
                raise FedbenchError(f"{problem}: no step lowers the value")
        point, (value, gradient, hessian) = point + size * step, after
        if settled:
            return np.asarray(point)
    raise FedbenchError(f"{problem}: no solution within {_MOST} Newton steps")
