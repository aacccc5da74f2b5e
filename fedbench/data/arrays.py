"""A data set of arrays in memory, as `fedbench.partition((X, y), groups=g)` takes it.

It is stored at once, identified by its content: equal arrays are one data set, whatever they are called. There are no
files to read it from again, so another store needs the arrays again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbench.data.build import tables_of
from fedbench.data.guard import fits
from fedbench.data.part import Part
from fedbench.data.recipe import ARRAYS, Recipe, Source
from fedbench.data.vectors import labelled, numbers
from fedbench.errors import FedbenchError
from fedbench.specs import DatasetSpec, require
from fedbench.store import Contents, Store, Writer, artifact_of

#: Name of such a data set, and of its natural column.
NAME, GROUP = "arrays", "group"
#: Version of the conversion of arrays; increase it when the same arrays should give other samples or labels.
_VERSION = 1
_SHAPES = "vectors are [n, D] numbers, images [n, H, W] or [n, H, W, C] uint8 with 1 or 3 channels"


def store(x: Any, y: Any, groups: Any, home: Store) -> DatasetSpec:
    """Store a data set of n samples, and return its spec.

    Arguments:
        x: vectors, [n, D] numbers (also a data frame), or images, uint8 [n, H, W] or [n, H, W, C].
        y: [n] classes, as numbers or text.
        groups: [n] the natural group of each sample, such as its hospital, in the column `GROUP`; an empty text, None
            or NaN is no group. None: there are no groups.

    Raises FedbenchError for other shapes and types, and for missing values among numbers and classes.
    """
    samples = _samples(np.asarray(x))
    columns = {"y": _column("y", y, len(samples))}
    columns |= {} if groups is None else {GROUP: _column("groups", groups, len(samples))}
    vectors = samples.dtype != np.uint8
    natural = {name: name for name in columns if name != "y"}
    source = Source(ARRAYS, "table" if vectors else "medmnist", "arrays in memory", label="y", columns=natural)
    recipe = Recipe(NAME, "arrays in memory", "unknown", "unknown", (), (), (source,))
    named, classes = labelled(recipe, source, "the arrays", columns)
    part = Part("the arrays", "train", samples, named, classes)
    spec = DatasetSpec(NAME, ARRAYS, _digest(samples, named), vectors=vectors or None)

    def make() -> Contents:
        tables = tables_of(recipe, source, [part])

        def write(writer: Writer) -> None:
            for name, table in tables.items():
                writer.table(name, table)

        return Contents(write, {})

    artifact_of(spec, home, ("data/build.py",), make)
    return spec


def _samples(x: np.ndarray) -> np.ndarray:
    """[n, 1, 1, D] float32 or float64, or [n, H, W, C] uint8."""
    fits(x.nbytes, "X")
    require(x.ndim >= 1 and len(x) > 0, f"X is an array of shape {list(x.shape)}: it holds no sample", _SHAPES)
    if x.ndim == 2:
        require(x.shape[1] > 0, "X has no column", _SHAPES)
        plain = x if x.dtype.kind != "O" else _typed(x)
        return numbers({"X": plain}, "X")[:, None, None, :]
    images = x[..., None] if x.ndim == 3 else x
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise FedbenchError(f"X is an array of {x.dtype} {list(x.shape)}, neither vectors nor images", _SHAPES)
    return np.ascontiguousarray(images)


def _typed(x: np.ndarray) -> np.ndarray:
    """Numbers from an array of Python objects, such as a data frame's of several types."""
    try:
        return x.astype(np.float64)
    except (TypeError, ValueError):
        raise FedbenchError(f"X holds {x.dtype}, and not numbers alone", "encode text as numbers first") from None


def _column(name: str, values: Any, n: int) -> np.ndarray:
    """[n] a column of numbers or text, in which None and NaN are an empty text."""
    array = np.asarray(values)
    require(array.shape == (n,), f"{name} is an array of shape {list(array.shape)}, and X has {n} samples")
    if array.dtype.kind in "biufU":
        return array
    return np.array(["" if value is None or value != value else str(value) for value in array.tolist()], np.str_)


def _digest(samples: np.ndarray, columns: Mapping[str, np.ndarray]) -> str:
    """The content, whatever the types that the arrays had."""
    digest = hashlib.sha256(f"{_VERSION} {samples.dtype} {list(samples.shape)}\0".encode())
    digest.update(np.ascontiguousarray(samples).tobytes())
    for name, values in sorted(columns.items()):
        digest.update(f"\0{name}\0{values.tolist()}".encode())
    return digest.hexdigest()[:16]
