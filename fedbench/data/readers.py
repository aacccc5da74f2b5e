"""Readers: the files of a source as parts, each with a split, images and the source's own columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedbench.data.archive import open_tree
from fedbench.data.encoded import read_folder, read_parquet
from fedbench.data.guard import content
from fedbench.data.hub import read_repository
from fedbench.data.idx import read_parts as read_idx_parts
from fedbench.data.leaf import read_leaf
from fedbench.data.mat import read_mat
from fedbench.data.part import Part
from fedbench.data.pflib import read_pflib
from fedbench.data.recipe import Recipe, Source
from fedbench.data.table import read_csv
from fedbench.data.torchvision_files import read_torchvision
from fedbench.errors import FedbenchError, unknown


def read(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """All parts of a source in the recipe's order; a union's are given by `union.read_union`.

    Raises FedbenchError for files that are not what they should be.
    """
    return _READERS[source.kind](recipe, source, paths)


def _builtin(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    if (name := str(source.loader)) not in _BUILTINS:
        raise unknown(f"loader in recipe {recipe.name}", name, _BUILTINS)
    images, labels = _BUILTINS[name]()
    yield Part(f"embedded {source.loader}", "train", images, {"label": labels})


def _digits() -> tuple[np.ndarray, np.ndarray]:
    # Grey levels 0..16 stretched to 0..255.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None], bunch.target.astype(np.int64)


_BUILTINS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"digits": _digits}


def _cifar(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    # A record is the label bytes, then the red, green and blue plane.
    for file, path in zip(source.file, paths, strict=True):
        if not file.member:
            yield _records(recipe, source, str(path), file.split, content(path))
            continue
        members = {member.path for member in file.member}
        with open_tree(path, members.__contains__) as tree:
            for member in file.member:
                yield _records(recipe, source, f"{path} ({member.path})", member.split, tree.read(member.path))


def _records(recipe: Recipe, source: Source, where: str, split: str, data: bytes | bytearray) -> Part:
    height, width, channels = recipe.shape
    front, size = len(source.fields), len(source.fields) + height * width * channels
    if len(data) == 0 or len(data) % size:
        raise FedbenchError(f"{where} is truncated: {len(data)} bytes are no whole number of {size}-byte records")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    images = records[:, front:].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    return Part(where, split, images, {name: records[:, i].astype(np.int64) for i, name in enumerate(source.fields)})


_READERS: dict[str, Callable[[Recipe, Source, Sequence[Path]], Iterator[Part]]] = {
    "builtin": _builtin,
    "idx": read_idx_parts,
    "cifar-binary": _cifar,
    "parquet": read_parquet,
    "folder": read_folder,
    "leaf": read_leaf,
    "mat": read_mat,
    "csv": read_csv,
    "pflib": read_pflib,
    "hf": read_repository,
    "torchvision": read_torchvision,
}
