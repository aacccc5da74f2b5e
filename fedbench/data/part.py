"""The output of every reader: images of one split, with the source's columns; conversions of columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.data.names import composed
from fedbench.errors import FedbenchError, check_known
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa


#: Maximum characters of a class or natural value, because a NumPy text array reserves the longest for every row.
LONGEST = 1_000


def text(values: Sequence[str], where: str) -> np.ndarray:
    """Text as an array, in Unicode's form NFC, so that the two forms of a name are one class and one group.

    Raises FedbenchError for text that is too long, not Unicode, or has a zero character.
    """
    forms = {value: composed(value) for value in values}
    for value in forms:
        require(len(value) <= LONGEST, f"{where} holds text of {len(value):,} characters; the most is {LONGEST:,}")
        # NumPy drops trailing zero characters, which could make two names equal.
        require("\0" not in value, f"{where} holds text with a zero character: {value[:60]!a}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FedbenchError(f"{where} holds text that is not Unicode: {value[:60]!a}") from error
    return np.array([forms[value] for value in values], np.str_)


@dataclass(frozen=True)
class Part:
    """Images of one split, uint8 [n, H, W, C], or vectors, float32 or float64 [n, 1, 1, D]; columns are [n], or [n, k]
    with several values per row."""

    where: str  #: name of the file for error messages
    split: str
    images: np.ndarray
    columns: dict[str, np.ndarray]
    classes: tuple[str, ...] = ()  #: names of the classes, if the files give them and the recipe does not
    found: str = ""  #: note for the user on how the files were read, such as the range of their values

    def column(self, selector: str) -> np.ndarray:
        """A column by name, or 'name[k]' for the k-th of several values per row."""
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


# Conversions of Parquet columns to arrays, without pandas, and of arrays [N, W] to columns of lists of fixed length,
# which store several labels or scores per image.


def as_column(values: np.ndarray) -> Any:
    """[N] unchanged; [N, W] as a column of lists of W values."""
    import pyarrow as pa

    if values.ndim == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def as_array(column: pa.ChunkedArray) -> np.ndarray:
    """Inverse of `as_column`, as a copy; lists must not be null."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(column.type):
        return values_of(column).copy()
    return values_of(column.combine_chunks().flatten()).copy().reshape(len(column), column.type.list_size)


def values_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """[N] a column of numbers or booleans without nulls, read-only.

    Uses DLPack, which has no booleans, because pyarrow's to_numpy and all its functions that accept a Python value
    import pandas (half a second, 40 MB).
    """
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(whole.type):
        return np.from_dlpack(whole.cast("uint8")).view(bool)
    return np.from_dlpack(whole)


def filled(column: pa.ChunkedArray, missing: float) -> np.ndarray:
    """[N] a column of numbers, with nulls replaced by `missing`, which also determines the type."""
    values = np.full(len(column), missing)
    values[values_of(column.is_valid())] = values_of(column.drop_null())
    return values
