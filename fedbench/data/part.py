"""What every reader gives: images of one split, with the source's own columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError, check_known
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa


#: Most characters of a class or of a value of a natural column: an array of text takes the longest for all.
LONGEST = 1_000


def text(values: Sequence[str], where: str) -> np.ndarray:
    """Text as an array. Raises FedbenchError for what is no name: too long, not Unicode, or with a zero character."""
    for value in dict.fromkeys(values):
        require(len(value) <= LONGEST, f"{where} holds text of {len(value):,} characters; the most is {LONGEST:,}")
        # NumPy drops zeros at the end, and so would make one of two names.
        require("\0" not in value, f"{where} holds text with a zero character: {value[:60]!a}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FedbenchError(f"{where} holds text that is not Unicode: {value[:60]!a}") from error
    return np.array(values, np.str_)


@dataclass(frozen=True)
class Part:
    """Images of one split: uint8 [n, H, W, C], or vectors: float32 [n, 1, 1, D]; with columns of length n (values) or
    [n, k] (several values a row)."""

    where: str  #: names the file in an error
    split: str
    images: np.ndarray
    columns: dict[str, np.ndarray]
    classes: tuple[str, ...] = ()  #: names of the classes, where a source says them and no recipe does
    found: str = ""  #: what a person should know of how its files were read, such as the range of their values

    def column(self, selector: str) -> np.ndarray:
        """A column by name, or 'name[k]' for one of several values a row."""
        match = re.fullmatch(r"(.+)\[(\d+)\]", selector)
        name, index = (match[1], int(match[2])) if match else (selector, None)
        check_known(f"column of {self.where}", name, self.columns)
        values = self.columns[name]
        if index is None:
            require(
                values.ndim == 1, f"{self.where}: column {name} holds several values a row", f"choose one: {name}[0]"
            )
            return values
        good = values.ndim == 2 and index < values.shape[1]
        require(good, f"{self.where}: column {name} has no value [{index}]")
        picked: np.ndarray = values[:, index]
        return picked


# -- lists -----------------------------------------------------------------------------------------------------
# Columns of Parquet as arrays, without pandas, and arrays [N, W] as columns: of lists of one length, as many labels or
# scores of an image are kept.


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
