"""MATLAB files of cropped digits, the format of SVHN: X uint8 [height, width, channels, n] and y [n, 1]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedbench.data.guard import fits, reading, regular
from fedbench.data.part import Part
from fedbench.data.recipe import Recipe, Source
from fedbench.specs import require


def read_mat(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind mat: a file a part, with the column label.

    MATLAB counts from 1, so that in these files the number of classes (10) stands for class 0.
    Raises FedbenchError for files that are truncated, of another format, or without X and y.
    """
    for file, path in zip(source.file, paths, strict=True):
        content = _variables(path)
        images, labels = content["X"], content["y"].reshape(-1)
        good = images.dtype == np.uint8 and images.ndim == 4
        require(good, f"{path}: X must be bytes [height, width, channels, n], not {images.dtype} {list(images.shape)}")
        good = labels.dtype.kind in "iuf" and bool((np.isfinite(labels) & (labels == np.floor(labels))).all())
        require(good, f"{path}: y must be whole numbers")
        number = len(recipe.classes)
        codes = labels.clip(-1, number + 1).astype(np.int64)  # what is beyond is refused as such, not turned around
        require(not {0, number} <= set(codes.tolist()), f"{path}: y holds both 0 and {number}, which stands for 0")
        codes[codes == number] = 0
        yield Part(str(path), file.split, images.transpose(3, 0, 1, 2), {"label": codes})


#: Classes of MATLAB's arrays that are numbers or text; the others nest, or are read as objects.
_CLASSES = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single", "double", "logical", "char",
)  # fmt: skip


def _variables(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat, whosmat

    with reading(path, "is damaged or not a MATLAB file of version 5 to 7"):
        heads = {name: (tuple(shape), kind) for name, shape, kind in whosmat(regular(path))}
        for name in ("X", "y"):
            require(name in heads, f"{path} has no variable {name}", "it should hold the images X and the labels y")
            shape, kind = heads[name]
            require(kind in _CLASSES, f"{path}: {name} must be an array of numbers, not of class {kind}")
            fits(8 * math.prod(shape), f"{path} ({name})")  # of at most 8 bytes each, however few the file has
        content: dict[str, np.ndarray] = loadmat(path, variable_names=("X", "y"))
        for name in ("X", "y"):
            require(isinstance(content.get(name), np.ndarray), f"{path} has no variable {name}")
    return content
