"""Data sets of torchvision by name: read by torchvision from its files, and downloaded with its downloader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data import foreign
from fedbench.data.foreign import SETS, downloads
from fedbench.data.guard import IMAGE, content, fits, reading
from fedbench.data.images import decode, fitted, mixed, shapes_of
from fedbench.data.part import Part
from fedbench.data.pixels import channels_of
from fedbench.data.recipe import SPLITS, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors
from fedbench.screen import bar
from fedbench.specs import require
from fedbench.store import Store
from fedbench.vision import torchvision


def fetch(recipe: Recipe, store: Store) -> list[Path]:
    """Download a data set's files into the store with torchvision's downloader; returns their paths.

    Raises FedbenchError if that fails.
    """
    (source,) = recipe.sources
    store.prepare()
    root = downloads(store)
    with disk_errors(f"downloading {recipe.name}", root):
        root.mkdir(parents=True, exist_ok=True)
    with reading(recipe.name, "cannot be downloaded"):
        for side in SPLITS:
            _opened(source, root, side, download=True)
    return [root / file.path for file in source.file]


def read_torchvision(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind torchvision: training and test images, in torchvision's order.

    Raises FedbenchError for files in different folders, damaged files, and images of several sizes without option size.
    """
    roots = {Path(*path.parts[: -len(Path(file.path).parts)]) for file, path in zip(source.file, paths, strict=True)}
    require(len(roots) == 1, f"the files of {recipe.name} lie in different folders: {', '.join(map(str, roots))}")
    (root,) = roots
    size = foreign.size_of(source)
    encoded = SETS[foreign.options_of(source)["name"]].encoded
    first, grey, parts = size, 0, []
    for side in SPLITS:
        where = f"{recipe.name}, {side}, in {root}"
        with reading(where, "is damaged or not as torchvision lays it"):
            rows = _opened(source, root, side, download=False)
            if encoded:
                images, labels = _from_files(rows, first, size is not None, where, recipe.name)
                few = 0  # torchvision gives them all as RGB
            else:
                images, labels, few = _items(rows, first or rows[0][0].size[::-1], size is not None, where, recipe.name)
        first, grey = first or images.shape[1:3], grey + few
        parts.append(Part(where, side, images, {"label": labels}, tuple(map(str, getattr(rows, "classes", ())))))
    if parts[0].classes[:1] == (_NO_CLASS,) and all((part.columns["label"] >= 1).all() for part in parts):
        parts = [
            dataclasses.replace(part, columns={"label": part.columns["label"] - 1}, classes=part.classes[1:])
            for part in parts
        ]
    found = mixed(grey, sum(len(part.images) for part in parts))
    for part in parts:  # one split may be all grey
        images = np.repeat(part.images, 3, axis=3) if found and part.images.shape[3] == 1 else part.images
        yield dataclasses.replace(part, images=images, found=found)


def _opened(source: Source, root: Path, side: str, download: bool) -> Any:
    options = foreign.options_of(source)
    name = options["name"]
    key, value = SETS[name].sides[SPLITS.index(side)]
    variant = {"split": options["split"]} if SETS[name].variants else {}
    return getattr(torchvision().datasets, name)(root=str(root), **{key: value}, **variant, download=download)


#: The name of class 0 of EMNIST's letters, which count from 1.
_NO_CLASS = "N/A"
#: Where torchvision's sets of files keep their paths and classes: pairs, or two lists.
_PAIRS, _LISTS = ("samples", "_samples"), (("_image_files", "_labels"), ("_images", "_labels"))


def _from_files(
    rows: Any, size: tuple[int, int] | None, resize: bool, where: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, H, W, 3] images and int64 [n] classes of a set of encoded images.

    Reads the files itself, because torchvision drops what they say of their pixels when it decodes them.
    """
    pairs = next((getattr(rows, one) for one in _PAIRS if hasattr(rows, one)), None)
    lists = next(([getattr(rows, one) for one in both] for both in _LISTS if all(hasattr(rows, o) for o in both)), None)
    if pairs is None and lists is None:
        raise FedbenchError(
            f"{where}: this version of torchvision does not say which files it reads", "install another version of it"
        )
    files, classes = zip(*(pairs if pairs is not None else zip(*(lists or ()), strict=True)), strict=True)

    def read(i: int) -> bytearray:
        return content(Path(files[i]), IMAGE)

    def place(i: int) -> str:
        return f"{where}: {Path(files[i]).name}"

    if not resize:
        sizes = shapes_of(len(files), read, place)[:, :2].tolist()
        size = size or tuple(sizes[0])
        other = next((i for i, one in enumerate(sizes) if tuple(one) != size), None)
        if other is not None:
            raise _unlike(place(other), sizes[other][::-1], size, name)
    assert size is not None
    return decode(len(files), read, place, (*size, 3), resize), np.array(classes, np.int64)


def _unlike(where: str, size: Sequence[int], first: tuple[int, int], name: str) -> FedbenchError:
    return FedbenchError(
        f"{where} is {size[0]} x {size[1]} pixels and the first one {first[1]} x {first[0]}",
        f"bring all to one size: {name},size={first[0]}",
    )


def _items(rows: Any, size: tuple[int, int], resize: bool, where: str, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Of a set of arrays: uint8 [n, H, W, C] images, with three channels if any is in colour; int64 [n] classes; number
    of grey images."""
    fits(len(rows) * int(np.prod(size)), where)
    images, labels = np.empty((len(rows), *size, 1), np.uint8), np.empty(len(rows), np.int64)
    grey = 0
    with bar("images", len(rows)) as advance:
        for i in range(len(rows)):
            image, labels[i] = rows[i]
            if not resize and image.size[::-1] != size:
                raise _unlike(f"{where}: image {i}", image.size, size, name)
            channels = channels_of(image)
            grey += channels == 1
            if channels > images.shape[3]:
                fits(3 * images.nbytes, where)
                images = np.repeat(images, 3, axis=3)
            images[i] = fitted(image, (*size, channels))
            if i % 256 == 255:
                advance(256)
    return images, labels, grey
