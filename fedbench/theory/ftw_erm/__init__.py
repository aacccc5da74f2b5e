"""FTW-ERM's theory (Lemma 1, Theorem 2, Proposition 3, the check behind Figures 2 and 3). NumPy only.

`ridge` gives bias and variance of weighted ridge regression, `onehot` its closed forms where inputs are unit vectors,
`conditions` says when weighting helps there (exactly, and as the paper prints it), `census` counts on random problems
what the printed conditions are worth, and `spectrum` compares the eigenvalues of two data matrices.
"""

from __future__ import annotations

from fedbench.theory.ftw_erm.census import DRAWS, Finding, OneHot, census
from fedbench.theory.ftw_erm.ridge import (
    Comparison,
    Expectation,
    Risk,
    Spectrum,
    compare,
    estimate,
    expected_risk,
    risk,
    spectrum,
)

__all__ = [
    "DRAWS",
    "Comparison",
    "Expectation",
    "Finding",
    "OneHot",
    "Risk",
    "Spectrum",
    "census",
    "compare",
    "estimate",
    "expected_risk",
    "risk",
    "spectrum",
]
