"""Do training and test inputs have alike eigenvalues? The check behind FTW-ERM's Figures 2 and 3.

Remark 3 asks for s_i = sqrt(λ'_i/λ_i) < (1 + sqrt(1 + 4ξ_i))/2, with λ_i the eigenvalues of E[xxᵀ], sorted. Of a data
matrix of n rows with singular values S_i these are S_i²/n. The paper's figures leave out the 1/n and so show
sqrt(n_test/n_train) times s_i: below 1 for want of test images. Both are computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import require
from fedbench.theory.arrays import Array
from fedbench.theory.ftw_erm.conditions import printed_bound

#: Bounds of s_i that hold whatever λ and μ are: the smallest (ξ = 0) and the largest (ξ = 1, the golden ratio).
LEAST_BOUND = 1.0
LARGEST_BOUND = (1 + 5**0.5) / 2
#: Rows that are converted to float64 at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values S_1 ≥ S_2 ≥ ... of an uncentred data matrix [n, d], as many as its smaller side."""

    values: Array  #: [min(n, d)]; from the rank on, rounding errors
    n: int
    d: int

    @property
    def rank(self) -> int:
        """Numerical rank: squares above the rounding error of the Gram matrix, max(n, d) · eps · S_1²."""
        squares = self.values**2
        return int((squares > max(self.n, self.d) * np.finfo(float).eps * squares[:1].sum()).sum())

    @property
    def eigenvalues(self) -> Array:
        """λ_i = S_i²/n of the second moment XᵀX/n."""
        return self.values**2 / self.n


def spectrum(data: NDArray[np.uint8] | Array) -> Spectrum:
    """Singular values of data [n, ...], every row flattened; uint8 pixels are divided by 255.

    They are roots of the eigenvalues of the Gram matrix of the smaller side. Products of bytes are summed exactly
    (integers below 2^53), so the Gram matrix of an image matrix is free of rounding. Raises FedbenchError if there are
    no data, or some are not finite.
    """
    require(data.ndim >= 2 and data.size > 0, f"a spectrum needs rows of numbers, not an array of shape {data.shape}")
    rows = data.reshape(len(data), -1)
    n, d = rows.shape
    rows = rows[:, rows.any(axis=0)]  # an empty channel or an empty border adds zeros only
    if rows.shape[1] == 0:
        return Spectrum(np.zeros(min(n, d)), n, d)
    if n > rows.shape[1]:
        gram = np.zeros((rows.shape[1],) * 2)
        for start in range(0, n, _BLOCK):
            block = rows[start : start + _BLOCK].astype(float)
            gram += block.T @ block
    else:
        block = rows.astype(float)
        gram = block @ block.T
    if not np.isfinite(gram).all():
        raise FedbenchError("a spectrum needs finite data, and some are not")
    squares = np.linalg.eigvalsh(gram)[::-1]
    values = np.zeros(min(n, d))
    values[: len(squares)] = np.sqrt(np.maximum(squares, 0))
    return Spectrum(values / 255 if data.dtype == np.uint8 else values, n, d)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Test against training spectrum, for the ranks i = 1..r with r the smaller of the two numerical ranks."""

    raw: Array  #: S'_i/S_i [r], as the paper's figures have it
    normalised: Array  #: s_i = sqrt(λ'_i/λ_i) [r]
    bound: Array  #: (1 + sqrt(1 + 4ξ_i))/2 [r]

    @property
    def rank(self) -> int:
        return len(self.raw)

    @property
    def largest(self) -> float:
        """max s_i; NaN without a rank."""
        return float(self.normalised.max()) if self.rank else float("nan")

    def share_below(self, bound: float | Array) -> float:
        """Share of the ranks with s_i below a bound (one number, or [r]); NaN without a rank."""
        return float((self.normalised < bound).mean()) if self.rank else float("nan")


def compare(train: Spectrum, test: Spectrum, ridge: float = 1.0) -> Comparison:
    """Set the test spectrum against the training spectrum.

    For the bound, ξ_i = λ/(λ + μ_i) takes λ = `ridge` and μ_i = S_i², the eigenvalues of the training inputs' XᵀX, as
    Theorem 2 defines them; pixels lie in [0, 1]. The paper fixes no λ for its figures: λ → 0 gives LEAST_BOUND in every
    rank, λ → ∞ gives LARGEST_BOUND. Raises FedbenchError if the inputs differ in dimension or the ridge is not above 0.
    """
    require(train.d == test.d, f"training inputs have {train.d} numbers and test inputs {test.d}")
    require(ridge > 0, f"the ridge penalty must be above 0, not {ridge}")
    rank = min(train.rank, test.rank)
    raw = test.values[:rank] / train.values[:rank]
    xi = ridge / (ridge + train.values[:rank] ** 2)
    return Comparison(raw, raw * np.sqrt(train.n / test.n), printed_bound(xi))
