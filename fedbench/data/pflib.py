"""Clients' images in PFLlib's folders: train/N.npz and test/N.npz for client N, and config.json.

PFLlib itself saves one pickled object `data` in a file. A pickle can run any program when it is read, so it is refused;
what is read are the same two arrays as such, `x` and `y` (see partitions/README.md for the one line that it takes).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.data.guard import fits, reading, regular
from fedbench.data.part import Part
from fedbench.data.recipe import Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.reader import text
from fedbench.specs import require

#: The range that the values of a file say. Of 8 bits b, [-1, 1] has (2 b - 255) / 255 and [0, 1] has b / 255: a file
#: that is nowhere negative and has odd numerators only may be of either.
_SIGNED, _UNIT, _EITHER = "[-1, 1]", "[0, 1]", "either"


def read_pflib(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind pflib: a client's file a part, in the order of their numbers.

    `x` is uint8, or floating-point, in [-1, 1] as most of PFLlib's generators normalise (0.5 and 0.5) or in [0, 1] as
    some leave it (DomainNet, Camelyon17, COVIDx, kvasir): [n, C, H, W], [n, H, W, C] or [n, H, W]; `y` [n] whole
    numbers. Columns: label and client; a client may lack one side. Raises FedbenchError naming the file, also where
    files are of both ranges.
    """
    sides = [(file, path) for file, path in zip(source.file, paths, strict=True) if file.role != "config"]
    config = next((path for file, path in zip(source.file, paths, strict=True) if file.role == "config"), None)
    classes = () if config is None else _classes(config)
    parts, ranges, empty = [], [], []
    for file, folder in sides:
        numbered: dict[int, Path] = {}
        for path in sorted(folder.glob("*.npz")):
            require(
                path.stem.isascii() and path.stem.isdigit(),
                f"{path} should be called by its client's number",
                "such as 0.npz",
            )
            require(int(path.stem) not in numbered, f"{folder} has two files of client {int(path.stem)}")
            numbered[int(path.stem)] = path
        for client, path in sorted(numbered.items()):
            x, y = _arrays(path)
            if not len(y):
                empty.append(f"{folder.name}/{path.name}")
                continue
            pixels, values = _pixels(x, str(path))
            columns = {"label": y, "client": np.full(len(y), client, np.int64)}
            parts.append(Part(str(path), file.split, pixels, columns, classes))
            ranges.append(values)
    first = {values: part.where for values, part in zip(reversed(ranges), reversed(parts), strict=True)}
    signed, unit = first.get(_SIGNED), first.get(_UNIT)
    require(
        not (signed and unit),
        f"{unit} holds images in [0, 1] and {signed} in [-1, 1]",
        "bring all clients to one range, or give them as uint8",
    )
    found = [f"the values of its images lie in {_UNIT if unit else _SIGNED}"] if any(ranges) else []
    if empty:
        few = ", ".join([*empty[:5], *(["..."] if empty[5:] else [])])
        found.append(f"no row in {few}: a client without any is left out")
    for part, values in zip(parts, ranges, strict=True):
        images = _signed(part.images) if values == _EITHER and not unit else part.images
        yield replace(part, images=images, found="; ".join(found))


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    with reading(path, "is damaged or not an npz file"), np.load(regular(path), allow_pickle=False) as content:
        require(hasattr(content, "files"), f"{path} is not an npz file")
        if "data" in content.files and not {"x", "y"} <= set(content.files):
            raise FedbenchError(
                f"{path} holds a pickled object, which could run any program and is not read",
                "save the arrays x and y as such: np.savez_compressed(f, **train_dict) in PFLlib's save_file",
            )
        for name in ("x", "y"):
            require(
                name in content.files, f"{path} has no array {name}", "it holds x, the images, and y, their classes"
            )
        fits(sum(info.file_size for info in content.zip.infolist()), path)
        x, y = content["x"], content["y"]
    whole = y.ndim == 1 and (y.dtype.kind in "iu" or not len(y))  # an empty list becomes an array of floats
    require(whole, f"{path}: y must be whole numbers [n], not {y.dtype} {list(y.shape)}")
    require(len(x) == len(y), f"{path}: {len(x)} images but {len(y)} classes")
    return x, y.astype(np.int64)


def _pixels(x: NDArray[Any], where: str) -> tuple[NDArray[np.uint8], str]:
    """uint8 [n, H, W, C], of _EITHER as if in [0, 1]; and the range that the values say, none if they are bytes."""
    if x.ndim == 3:
        x = x[..., None]
    elif x.ndim == 4 and x.shape[1] in (1, 3):
        x = x.transpose(0, 2, 3, 1)
    shape = f"{where}: x must be images [n, C, H, W] of 1 or 3 channels, not {x.dtype} {list(x.shape)}"
    require(x.ndim == 4 and x.shape[3] in (1, 3) and min(x.shape[1:]) > 0, shape)
    if x.dtype == np.uint8:
        return x, ""
    require(x.dtype.kind == "f", shape)
    least, most = float(x.min()), float(x.max())
    # A NaN is in no interval, so it fails here too.
    require(
        -1 - 1e-6 <= least <= most <= 1 + 1e-6,
        f"{where}: the images must lie in [-1, 1], as PFLlib normalises them, or in [0, 1]; they lie in "
        f"[{least:g}, {most:g}]",
        "or give them as uint8",
    )
    if least < -1e-6:
        return np.rint((x.astype(np.float64) + 1) * 127.5).clip(0, 255).astype(np.uint8), _SIGNED
    levels = x.astype(np.float64) * 255
    numerators = np.rint(levels)
    odd = bool((numerators % 2 == 1).all() and (np.abs(levels - numerators) < 0.2).all())
    return numerators.clip(0, 255).astype(np.uint8), _EITHER if odd else _UNIT


def _signed(numerators: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of images in [-1, 1], by the numerators of their values n / 255."""
    return (numerators.astype(np.uint16) + 255 >> 1).astype(np.uint8)


def _classes(path: Path) -> tuple[str, ...]:
    """Names of the classes: the config's own `classes`, which fedbench writes, else their numbers; () without both."""
    try:
        config = json.loads(text(path, "config of PFLlib"))
    except (ValueError, RecursionError) as error:
        raise FedbenchError(f"{path} is not JSON ({error})", "it is PFLlib's config.json") from error
    require(isinstance(config, dict), f"{path} must hold an object of JSON", "it is PFLlib's config.json")
    if not {"classes", "num_classes"} & set(config):  # as PFLlib's own of MNIST
        return ()
    names, count = config.get("classes"), config.get("num_classes")
    if isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        return tuple(names)
    good = isinstance(count, int) and not isinstance(count, bool) and 2 <= count <= 1_000_000
    require(good, f"{path}: num_classes must be a number of classes, 2 at least, not {str(count)[:60]}")
    return tuple(map(str, range(int(count or 0))))
