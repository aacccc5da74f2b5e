"""Columns of Parquet as arrays, without pandas, and arrays [N, W] as columns: of lists of one length, as many labels or
scores of an image are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def as_column(values: np.ndarray) -> Any:
    """[N] as it is, [N, W] as a column of lists of W values."""
    import pyarrow as pa

    if values.ndim == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def as_array(column: pa.ChunkedArray) -> np.ndarray:
    """Inverse of `as_column`, in memory of its own; of lists none may be missing."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(column.type):
        return values_of(column).copy()
    return values_of(column.combine_chunks().flatten()).copy().reshape(len(column), column.type.list_size)


def values_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """[N] a column of numbers or truth values without gaps, not to be written to.

    By DLPack, which has no truth values: pyarrow's own to_numpy imports pandas (half a second, 40 MB), and so does
    every function that is handed a Python value.
    """
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(whole.type):
        return np.from_dlpack(whole.cast("uint8")).view(bool)
    return np.from_dlpack(whole)


def filled(column: pa.ChunkedArray, missing: float) -> np.ndarray:
    """[N] a column of numbers with `missing`, which says the type, in its gaps."""
    values = np.full(len(column), missing)
    values[values_of(column.is_valid())] = values_of(column.drop_null())
    return values
