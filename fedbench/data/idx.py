"""IDX files, the format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedbench.data.guard import at_most, fits, reading, regular
from fedbench.data.part import Part
from fedbench.data.recipe import SPLITS, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.specs import require

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """One IDX file (optionally gzipped) as an array in native byte order.

    Format: two zero bytes, type, number of dimensions, the dimensions as big-endian uint32, the values big-endian.
    Raises FedbenchError if it is truncated, too long, or not IDX. Memory follows what the file really holds.
    """
    with reading(path, "is truncated or damaged"):
        with regular(path).open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as f:
            head = f.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or head[3] == 0:
                raise FedbenchError(f"{path} is not an IDX file", "get the file again")
            shape = struct.unpack(f">{head[3]}I", f.read(4 * head[3]))
            dtype = np.dtype(_IDX_TYPES[head[2]])
            size = dtype.itemsize * math.prod(shape)
            length = path.stat().st_size - f.tell()  # what a packed file holds only its end tells
            if packed or length == size:
                fits(size, path)
                data = at_most(f, size + 1)
                length = len(data)
        if length != size:
            there = "more" if length > size else f"only {length}"
            raise FedbenchError(f"{path} should hold {size} bytes of values and holds {there}", "get the file again")
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_parts(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind idx: a file an array, told apart by role."""
    for split in SPLITS:
        arrays = {f.role: read_idx(p)[: f.rows] for f, p in zip(source.file, paths, strict=True) if f.split == split}
        if not arrays:
            continue
        where = f"{recipe.name} ({source.name}, {split})"
        require(
            "images" in arrays and "labels" in arrays, f"{where} needs a file with role images and one with role labels"
        )
        images = arrays.pop("images")
        require(
            images.dtype == np.uint8 and images.ndim in (3, 4), f"{where}: the images must be bytes [n, height, width]"
        )
        columns = {"label" if role == "labels" else str(role): values for role, values in arrays.items()}
        yield Part(where, split, images[..., None] if images.ndim == 3 else images, columns)
