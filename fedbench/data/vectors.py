"""Vectors of numbers with labels: columns of CSV, Parquet or NPZ files (tabular sets, embeddings), or text files (HAR).

A vector of D values is stored as an image of one pixel with D channels, float32 [1, 1, D], so that partitions, methods
and networks handle it like an image. `Partition.distinct` normalises the values. They are stored unchanged, but for
those that float32 cannot tell apart, such as time stamps of one minute: these are stored less an offset, see `offsets`.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.data.guard import fits, npz, reading, regular
from fedbench.data.images import parquet_table
from fedbench.data.names import composed, wholes
from fedbench.data.part import LONGEST, Part, filled, text, values_of
from fedbench.data.recipe import SPLITS, File, Recipe, Source
from fedbench.data.spreadsheet import Form, decoded, form, lines
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa

#: Column names under which libraries save a table's index.
_INDEX = ("", "Unnamed: 0", "__index_level_0__")
_NUMBERS = "write it as numbers, or take other columns: features = [...] in a recipe of kind table"
_MISSING = "fill such values in, or leave their rows or columns out: fedbench guesses none"


def read_table(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    """Read the part of a file of kind table: .csv, .parquet or .npz, by its suffix.

    The vectors are the source's `features`, else all columns except the label and the natural ones, in the file's
    order; a column (or array) may hold W values per row. Raises FedbenchError, with file, column and row, for a missing
    column, text or a missing value among the features, and rows of different lengths.
    """
    if path.suffix.lower() not in _FORMATS:
        raise unknown("ending of a table", path.suffix, _FORMATS)
    heads, load = _FORMATS[path.suffix.lower()]
    names = heads(path)
    others = list(dict.fromkeys((source.label, *source.columns.values())))
    features = list(source.features) or [name for name in names if name not in others]
    for name in (*features, *others):
        check_known(f"column of {path}", name, names)
        require(names.count(name) == 1, f"{path} has two columns {name}")
    require(bool(features), f"{path} has no column of numbers besides {', '.join(others)}")
    index = next((name for name in features if name in _INDEX and not source.features), None)
    require(index is None, f"{path} has a column '{index}', which is its rows' index", "write the file without it")
    first, last = file.skip or 0, None if file.rows is None else (file.skip or 0) + file.rows
    columns, found = load(path, features, others, last)
    lengths = {len(values) for values in columns.values()}
    require(len(lengths) == 1, f"{path} has arrays of {' and '.join(f'{n:,}' for n in sorted(lengths))} rows")
    require(lengths != {0}, f"{path} holds no row")
    values = numbers({name: columns[name] for name in features}, str(path))
    own = {name: columns[name][first:] for name in others}
    yield _part(recipe, source, str(path), file.split, values[first:], own, first, found)


def read_text(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind text: one array per file, by role; lines of numbers between blanks or commas.

    Raises FedbenchError with the file for text that is not a number, and for rows or files of different lengths.
    """
    for split in SPLITS:
        files = [(file.role, path) for file, path in zip(source.file, paths, strict=True) if file.split == split]
        if not files:
            continue
        arrays = {role: _matrix(path) for role, path in files}
        where = f"{recipe.name} ({source.name}, {split})"
        good = {"features", "labels"} <= set(arrays)
        require(good, f"{where} needs a file with role features and one with role labels")
        features = arrays.pop("features")
        for role, path in files:
            alone = role == "features" or arrays[role].shape[1] == 1
            require(alone, f"{path} has several numbers a line, and its role {role} is one")
            here = len(features) if role == "features" else len(arrays[role])
            require(here == len(features), f"{path} has {here:,} lines where the features have {len(features):,}")
        columns = {source.label if role == "labels" else str(role): one[:, 0] for role, one in arrays.items()}
        whole = {name: one.astype(np.int64) if (one == np.rint(one)).all() else one for name, one in columns.items()}
        path = next(path for role, path in files if role == "features")
        yield _part(recipe, source, where, split, numbers({"features": features}, str(path)), whole)


def _part(
    recipe: Recipe,
    source: Source,
    where: str,
    split: str,
    values: np.ndarray,
    columns: Mapping[str, np.ndarray],
    first: int = 0,
    found: str = "",
) -> Part:
    """`first`: number of the file's rows before these, for error messages; `found`: see `Part`."""
    require(len(values) > 0, f"{where} holds no row")
    named, classes = labelled(recipe, source, where, columns, first)
    return Part(where, split, values[:, None, None, :], named, classes, found)


def labelled(
    recipe: Recipe, source: Source, where: str, columns: Mapping[str, np.ndarray], first: int = 0
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The labels [n] and natural columns [n] of `columns`, and the names of the classes if only the labels give them.

    Raises FedbenchError for a row without a label and for labels that are no classes; `first` is as in `_part`.
    """
    texts = {name: _names(one, f"{where}: column {name}") for name, one in columns.items()}
    unlabelled = texts[source.label] == ""
    row = first + 1 + int(unlabelled.argmax())
    require(
        not unlabelled.any(), f"{where}: column {source.label} is empty in row {row}", "leave rows without a value out"
    )
    labels, classes = _labels(recipe, source, texts[source.label], f"{where}: column {source.label}")
    own = {name: _group(one) for name, one in texts.items() if name != source.label}
    return {**own, source.label: labels}, classes


def numbers(columns: Mapping[str, np.ndarray], where: str) -> np.ndarray:
    """float32 [n, D]: concatenate the columns; float64 if float32 does not hold a value exactly.

    Raises FedbenchError with column and row for values without a number.
    """
    fits(sum(8 * one.size for one in columns.values()), where)
    parts = []
    for name, one in columns.items():
        wide = one[:, None] if one.ndim == 1 else one.reshape(len(one), -1)
        if one.dtype.kind not in "biuf":
            raise FedbenchError(f"{where}: column {name} holds text, such as '{str(one.flat[0])[:60]}'", _NUMBERS)
        with np.errstate(over="ignore", invalid="ignore"):
            short = wide.astype(np.float32)
        parts.append(short if np.array_equal(short, wide) else wide.astype(np.float64))
        good = np.isfinite(short).all(axis=1)
        row = int(good.argmin())
        require(
            bool(good[row]),
            f"{where}: column {name} has no number in row {row + 1} (missing, NaN or too large)",
            _MISSING,
        )
    return np.concatenate(parts, axis=1)


#: An offset is subtracted from a column that float32 holds with a larger error than this multiple of the standard
#: deviation, if that makes the error as many times smaller.
_ERROR, _SMALLER = 1e-5, 8


def offsets(values: np.ndarray) -> np.ndarray | None:
    """float64 [D]: what to subtract from each column of [n, D] so that float32 holds it; None if it holds all.

    A column's offset is its median, one of its values, so that whole numbers stay whole; 0 if none is needed.
    """
    if values.dtype == np.float32 or not len(values):
        return None
    out = np.zeros(values.shape[1])
    for i, column in enumerate(values.T):
        error = np.abs(column.astype(np.float32) - column).max()
        if not error or error <= _ERROR * column.std() or column.min() == column.max():
            continue
        median = np.partition(column, len(column) // 2)[len(column) // 2]
        moved = column - median
        if _SMALLER * np.abs(moved.astype(np.float32) - moved).max() <= error:
            out[i] = median
    return out if out.any() else None


def _labels(recipe: Recipe, source: Source, names: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """[n] labels, by name or by number, and the names of the classes if only the values give them."""
    unique, index = np.unique(names, return_inverse=True)
    if source.label_values:
        codes = {_name(value): code for value, code in source.label_values.items()}
        for value in unique.tolist():
            check_known(f"label value in {where}:", value, codes)
        return np.array([codes[value] for value in unique.tolist()], np.int64)[index], ()
    number = wholes(unique.tolist())
    if number is not None:  # 01 is 1
        unique = np.array([str(number[value]) for value in unique.tolist()], np.str_)
    if not recipe.told:
        ordered = sorted(set(unique.tolist()), key=str if number is None else int)
        require(len(ordered) <= max(2, len(names) // 2), f"{where} has {len(ordered):,} values: it holds no classes")
        return unique[index], tuple(ordered)
    called = {str(value): name for name, value in (wholes(recipe.classes) or {}).items()}
    if number is not None and not called.keys().isdisjoint(unique.tolist()):  # classes whose names are numbers: 01 is 1
        return np.array([called.get(value, value) for value in unique.tolist()], np.str_)[index], ()
    if number is None or set(names.tolist()) & set(recipe.classes):
        return names, ()
    return unique.astype(np.int64)[index], ()


def _names(values: np.ndarray, where: str) -> np.ndarray:
    """[n] values as text; 1.0 becomes "1", and a missing value ""."""
    if values.ndim == 2 and values.shape[1] == 1:  # [n, 1], as many libraries save labels
        values = values[:, 0]
    require(values.ndim == 1, f"{where} holds several values a row: it is {list(values.shape)} and should be [n]")
    unique, index = np.unique(values, return_inverse=True)
    names = [_name(value) for value in unique.tolist()]
    return text(["" if name == "nan" else name for name in names], where)[index]


def _name(value: object) -> str:
    said = str(int(value)) if isinstance(value, bool) else composed(str(value).strip())
    return said[: -len(said.partition(".")[2]) - 1] if re.fullmatch(r"-?\d+\.0*", said) else said


def _group(names: np.ndarray) -> np.ndarray:
    """[n] a natural column: integers if all values are, else text, in which "" is no group."""
    unique, index = np.unique(names, return_inverse=True)
    number = wholes(filter(None, unique.tolist()))
    if number is None:
        return names
    if "" in unique:
        return np.array([str(number.get(value, "")) for value in unique.tolist()], np.str_)[index]
    return np.array([number[value] for value in unique.tolist()], np.int64)[index]


# For each file format: the names of its columns, and the first `rows` rows of some columns as arrays, [n] or [n, W],
# with a note for the user on how the file was read.

_Loaded = tuple[dict[str, np.ndarray], str]


def _csv_heads(path: Path) -> list[str]:
    heads = list(form(path).heads)
    require(max(map(len, heads), default=0) <= LONGEST, f"{path} has the name of a column of over {LONGEST:,} letters")
    return heads


def _csv(path: Path, features: Sequence[str], others: Sequence[str], rows: int | None) -> _Loaded:
    fits(4 * path.stat().st_size, path)
    how = form(path)
    try:
        decimal = _decimal(path, how, features)
        table = _csv_table(path, how, features, others, decimal)
    except FedbenchError as error:
        place = re.search(r"column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*?)'", error.message)
        if place is None:
            raise
        line = f", line {place[2]}" if place[2] else ""
        wrong = f"{path}{line}: column {how.heads[int(place[1])]} holds '{place[3][:60]}', which is no number"
        raise FedbenchError(wrong + (f" (the file has {told})" if (told := how.said()) else ""), _NUMBERS) from error
    columns = {name: _array(table[name].slice(0, rows), f"{path}: column {name}") for name in (*features, *others)}
    return columns, f"{path.name} has {told}" if (told := how.said(decimal)) else ""


def _csv_table(path: Path, how: Form, features: Sequence[str], others: Sequence[str], decimal: str) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as reader

    types = {name: pa.float64() for name in features} | {name: pa.string() for name in others}
    convert = reader.ConvertOptions(
        column_types=types,
        include_columns=[*features, *others],
        strings_can_be_null=False,
        decimal_point=decimal,
    )
    source: Any = path
    if how.encoding != "utf-8-sig":
        source = pa.BufferReader(decoded(path, how).encode())
    try:
        with reading(path, "is damaged or not a CSV file"):
            return reader.read_csv(
                source,
                reader.ReadOptions(use_threads=False),  # so that errors contain the line
                reader.ParseOptions(delimiter=how.separator),
                convert,
            )
    except FedbenchError as error:
        if "UTF8" in error.message:
            decoded(path, how)  # raises an error that names the line
        raise


def _decimal(path: Path, how: Form, features: Sequence[str]) -> str:
    """The decimal sign of a CSV file: a comma if another separates the values and a value of `features` has one."""
    if how.separator == ",":
        return "."
    places = [i for i, name in enumerate(how.heads) if name in features]
    rows = itertools.islice(lines(path, how), 1, None)
    there = ("," in row[i] for row in rows for i in places if i < len(row))
    return "," if any(there) else "."


def _parquet_heads(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    with reading(path, "is damaged or not a Parquet file"):
        return list(pq.read_schema(regular(path)).names)


def _parquet(path: Path, features: Sequence[str], others: Sequence[str], rows: int | None) -> _Loaded:
    with reading(path, "is damaged or not a Parquet file"):
        table = parquet_table(path, [*features, *others], rows)
    return {name: _array(table[name], f"{path}: column {name}") for name in (*features, *others)}, ""


def _array(column: pa.ChunkedArray | pa.Array, where: str) -> np.ndarray:
    """[n] numbers, with NaN for nulls, or text of a column; [n, W] for lists of W numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = np.unique(filled(pa.chunked_array(pc.list_value_length(column)), -1.0)).astype(int).tolist()
        some = " and ".join(map(str, lengths[:3]))
        require(len(lengths) <= 1 and 0 not in lengths, f"{where} holds lists of {some} values, not all as many")
        flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return _array(flat.flatten(), where).reshape(len(column), -1)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    if any(is_one(kind) for is_one in texts):
        return text([str(value) for value in column.to_pylist()], where)
    numbers = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    if not any(is_one(kind) for is_one in numbers):
        raise FedbenchError(f"{where} holds {kind}, which is neither numbers nor text", _NUMBERS)
    if pa.types.is_decimal(kind) and not column.null_count and kind.scale == 0 and kind.precision <= 18:
        column = column.cast(pa.int64())  # a number such as an account's, which floating-point could make another's
    elif column.null_count or pa.types.is_decimal(kind):
        return filled(pa.chunked_array(column.cast(pa.float64())), np.nan)
    return values_of(column).copy()


def _npz_heads(path: Path) -> list[str]:
    with npz(path) as arrays:
        return list(arrays.files)


def _npz(path: Path, features: Sequence[str], others: Sequence[str], rows: int | None) -> _Loaded:
    with npz(path) as arrays:
        out = {name: arrays[name] for name in (*features, *others)}
    for name, one in out.items():
        good = one.ndim >= 1 and one.dtype.kind in "biufU"
        require(good, f"{path}: {name} is an array of {one.dtype} {list(one.shape)}, not of numbers or text")
    return {name: one[:rows] for name, one in out.items()}, ""


def _matrix(path: Path) -> np.ndarray:
    """Read a text file of numbers as float64 [n, W]."""
    how = form(path)
    data = decoded(path, how)
    decimal = re.search(r"\d,\d[^\n]*\d[ \t]+[-+.\d]|\d[ \t]+[-+.]?\d+,\d", data)
    require(
        ";" not in data and decimal is None,
        f"{path} has {'semicolons' if ';' in data else 'blanks and commas'} between its numbers, and a comma may be "
        "a decimal point",
        "write 0.5 for 0,5 and blanks between numbers",
    )
    with reading(path, "is no table of numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for an empty file, which raises an error below
        values = np.loadtxt(io.StringIO(data.replace(",", " ")), np.float64, ndmin=2)
    require(values.size > 0, f"{path} holds no number")
    return values


_Load = Callable[[Path, Sequence[str], Sequence[str], int | None], _Loaded]
_FORMATS: dict[str, tuple[Callable[[Path], list[str]], _Load]] = {
    ".csv": (_csv_heads, _csv),
    ".npz": (_npz_heads, _npz),
    ".parquet": (_parquet_heads, _parquet),
}
