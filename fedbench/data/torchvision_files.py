"""Data sets of torchvision by name: read by torchvision from its files, and downloaded with its downloader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data import foreign
from fedbench.data.foreign import SETS
from fedbench.data.guard import fits, reading
from fedbench.data.images import channels_of, fitted, mixed
from fedbench.data.locate import downloads
from fedbench.data.part import Part
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
    first, grey, parts = size, 0, []
    for side in SPLITS:
        where = f"{recipe.name}, {side}, in {root}"
        with reading(where, "is damaged or not as torchvision lays it"):
            content = _opened(source, root, side, download=False)
            first = first or content[0][0].size[::-1]
            images, labels, few = _items(content, first, size is not None, where, recipe.name)
        grey += few
        parts.append(Part(where, side, images, {"label": labels}, tuple(map(str, getattr(content, "classes", ())))))
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


def _items(
    content: Any, size: tuple[int, int], resize: bool, where: str, name: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """uint8 [n, H, W, C] images, with three channels if any is in colour; int64 [n] classes; number of grey images."""
    fits(len(content) * int(np.prod(size)), where)
    images, labels = np.empty((len(content), *size, 1), np.uint8), np.empty(len(content), np.int64)
    grey = 0
    with bar("images", len(content)) as advance:
        for i in range(len(content)):
            image, labels[i] = content[i]
            if not resize and image.size[::-1] != size:
                raise FedbenchError(
                    f"{where}: image {i} is {image.size[0]} x {image.size[1]} pixels and the first one "
                    f"{size[1]} x {size[0]}",
                    f"bring all to one size: {name},size={size[0]}",
                )
            channels = channels_of(image)
            grey += channels == 1
            if channels > images.shape[3]:
                fits(3 * images.nbytes, where)
                images = np.repeat(images, 3, axis=3)
            images[i] = fitted(image, (*size, channels), f"{where}: image {i}")
            if i % 256 == 255:
                advance(256)
    return images, labels, grey
