"""Whether training and test inputs have similar eigenvalues: the check behind FTW-ERM's Figures 2 and 3.

Remark 3 needs s_i = sqrt(λ'_i/λ_i) < (1 + sqrt(1 + 4ξ_i))/2, with λ_i the sorted eigenvalues of E[xxᵀ]. For a data
matrix of n rows with singular values S_i these are S_i²/n. The paper's figures omit the 1/n and so show
sqrt(n_test/n_train) times s_i, which is below 1 because there are fewer test images. Both are computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import require

Array = NDArray[np.float64]

#: Bounds of s_i for all λ and μ: the smallest (ξ = 0) and the largest (ξ = 1, the golden ratio).
LEAST_BOUND = 1.0
LARGEST_BOUND = (1 + 5**0.5) / 2
#: Number of rows that are converted to float64 at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values S_1 ≥ S_2 ≥ ... of an uncentred data matrix [n, d]; min(n, d) of them."""

    values: Array  #: [min(n, d)]; only rounding errors beyond the rank
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
    """Return the singular values of data [n, ...], with every row flattened; uint8 pixels are divided by 255.

    They are roots of the eigenvalues of the Gram matrix of the smaller side. Products of bytes are summed exactly
    (integers below 2^53), so the Gram matrix of uint8 images has no rounding errors. Raises FedbenchError if the data
    are empty or not finite.
    """
    require(data.ndim >= 2 and data.size > 0, f"a spectrum needs rows of numbers, not an array of shape {data.shape}")
    rows = data.reshape(len(data), -1)
    n, d = rows.shape
    rows = rows[:, rows.any(axis=0)]  # columns of an empty channel or border contribute only zeros
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


def bound(xi: Array) -> Array:
    """Largest s for which some weight satisfies Theorem 2's (4.3): (1 + sqrt(1 + 4ξ))/2, from 1 (ξ = 0) to 1.618
    (ξ = 1), with ξ = λ/(λ + μ) (Remark 3)."""
    return np.asarray((1 + np.sqrt(1 + 4 * xi)) / 2)


@dataclass(frozen=True, eq=False)
class SpectrumRatio:
    """Test spectrum relative to training spectrum, for i = 1..r with r the smaller of the two numerical ranks."""

    raw: Array  #: S'_i/S_i [r], as in the paper's figures
    normalised: Array  #: s_i = sqrt(λ'_i/λ_i) [r]
    bound: Array  #: (1 + sqrt(1 + 4ξ_i))/2 [r]

    @property
    def rank(self) -> int:
        return len(self.raw)

    @property
    def largest(self) -> float:
        """max s_i; NaN if the rank is 0."""
        return float(self.normalised.max()) if self.rank else float("nan")

    def share_below(self, bound: float | Array) -> float:
        """Return the share of i with s_i below a bound (one number, or [r]); NaN if the rank is 0."""
        return float((self.normalised < bound).mean()) if self.rank else float("nan")


def compare(train: Spectrum, test: Spectrum, ridge: float = 1.0) -> SpectrumRatio:
    """Compare the test spectrum with the training spectrum.

    The bound uses ξ_i = λ/(λ + μ_i) with λ = `ridge` and μ_i = S_i², the eigenvalues of the training inputs' XᵀX, as in
    Theorem 2; pixels are in [0, 1]. The paper specifies no λ for its figures: λ → 0 gives LEAST_BOUND for every i, and
    λ → ∞ gives LARGEST_BOUND. Raises FedbenchError if the inputs differ in dimension or the ridge is not above 0.
    """
    require(train.d == test.d, f"training inputs have {train.d} numbers and test inputs {test.d}")
    require(ridge > 0, f"the ridge penalty must be above 0, not {ridge}")
    rank = min(train.rank, test.rank)
    raw = test.values[:rank] / train.values[:rank]
    xi = ridge / (ridge + train.values[:rank] ** 2)
    return SpectrumRatio(raw, raw * np.sqrt(train.n / test.n), bound(xi))
