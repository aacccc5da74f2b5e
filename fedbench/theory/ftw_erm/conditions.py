"""When does weighting help, coordinate by coordinate? FTW-ERM's conditions as printed, and the exact ones.

All are functions of w_i, s_i = sqrt(λ'_i/λ_i) and ξ_i = λ/(λ+μ_i) alone (arrays of one shape), and return booleans.
The exact ones follow from the closed forms of `OneHot` without an inequality lost: they are equivalences wherever
θ_i ≠ 0 and σ² > 0. Written without divisions, so that μ_i = 0 (ξ_i = 1) needs no special limit.

The printed ones are indicators: (4.3) does not imply that FTW-ERM wins, and Proposition 3's half about the variance
has the wrong direction; `fedbench.theory.ftw_erm.census` counts how often either fails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbench.theory.arrays import Array

Truth = NDArray[np.bool_]


def printed_lower(w: Array, s: Array) -> Truth:
    """The lower half of (4.3), s - 1 ≤ w; meant to give B_FTW ≤ B_ERM, which it does not."""
    return w >= s - 1


def printed_upper(w: Array, s: Array, xi: Array) -> Truth:
    """The upper half of (4.3), w ≤ ξ/s: sufficient for V_FTW ≤ V_ERM."""
    return w * s <= xi


def printed_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """Condition (4.3) of Theorem 2: s - 1 ≤ w ≤ ξ/s."""
    return printed_lower(w, s) & printed_upper(w, s, xi)


def printed_bound(xi: Array) -> Array:
    """Largest s for which some w satisfies (4.3) (Remark 3): (1 + sqrt(1 + 4ξ))/2, from 1 (ξ = 0) to 1.618 (ξ = 1)."""
    return (1 + np.sqrt(1 + 4 * xi)) / 2


def printed_for_true_ratio(s: Array, xi: Array) -> Truth:
    """(4.3) with the true ratio w = s²: s ≤ ξ^⅓ < 1. Both probabilities sum to 1, so never in all coordinates."""
    return printed_theorem(s**2, s, xi)


def printed_proposition(w: Array, s: Array, xi: Array) -> Truth:
    """Proposition 3: s ≥ max(ξ, 1-ξ) and w ≤ min(1/((s-1)/ξ + 1), s + (s-1) λ/μ)."""
    return (s >= np.maximum(xi, 1 - xi)) & (w * (s - 1 + xi) <= xi) & (w * (1 - xi) <= s - xi)


def bias_falls(w: Array, s: Array, xi: Array) -> Truth:
    """B_FTW ≤ B_ERM in the paper's scoring ⇔ w ≥ s + (s-1) λ/μ ⇔ w (1-ξ) ≥ s - ξ."""
    return w * (1 - xi) >= s - xi


def variance_falls(w: Array, s: Array, xi: Array) -> Truth:
    """V_FTW ≤ V_ERM in the paper's scoring ⇔ s ≤ 1-ξ or w ≤ ξ/(s-1+ξ) ⇔ w (s-1+ξ) ≤ ξ; or μ = 0: nothing to vary."""
    return (w * (s - 1 + xi) <= xi) | (xi >= 1)


def exact_theorem(w: Array, s: Array, xi: Array) -> Truth:
    """What Theorem 2 needs: neither bias nor variance rises. Some w does that only where s ≤ 1."""
    return bias_falls(w, s, xi) & variance_falls(w, s, xi)


def corrected_proposition(w: Array, s: Array, xi: Array) -> Truth:
    """Proposition 3 with its variance half turned round: ξ/(s-1+ξ) ≤ w ≤ s + (s-1) λ/μ; neither bias nor variance of
    ERM is above FTW-ERM's. Some w does that only where s ≥ 1."""
    return (w * (1 - xi) <= s - xi) & ((w * (s - 1 + xi) >= xi) | (xi >= 1))


def consistent_bias_falls(w: Array, xi: Array) -> Truth:
    """B_FTW ≤ B_ERM, both under Σ_te ⇔ w ≥ 1 (or μ = 0)."""
    return (w >= 1) | (xi >= 1)


def consistent_variance_falls(w: Array, xi: Array) -> Truth:
    """V_FTW ≤ V_ERM, both under Σ_te ⇔ w ≤ 1 (or μ = 0): with the bias's, a pure trade-off."""
    return (w <= 1) | (xi >= 1)
