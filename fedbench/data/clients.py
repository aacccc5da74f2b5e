"""Clients' data in the folders of other benchmarks: LEAF's JSON and PFLlib's arrays; images, or vectors."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench import reader
from fedbench.data import guard
from fedbench.data.archive import Tree, open_tree
from fedbench.data.part import Part, text
from fedbench.data.recipe import MOST_CLASSES, File, Recipe, Source
from fedbench.data.vectors import numbers
from fedbench.errors import FedbenchError
from fedbench.specs import require

# JSON files of the LEAF benchmark (Caldas et al. 2018), each with the data of about a hundred users.
#
# A file holds `users`, `num_samples`, and `user_data`, which has for each user `x`, the images as rows of height *
# width grey levels in 0..1 (white paper is 1) or vectors as rows of numbers, and `y`, the classes.


#: JSON of many small lists takes more than this multiple of its size as Python objects.
_WEIGHT = 16
PATTERN = "all_data*.json"  #: default pattern for the names of the files; LEAF appends a number to `all_data_`


def read_leaf(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    """Read the parts of a folder of kind leaf: one per JSON file, by number, with one file in memory at a time.

    Columns: label and writer (the user). Grey levels become bytes by rounding 255 x, without inversion; the recipe says
    whether the rows are vectors instead. Raises FedbenchError, with file and user, for truncated JSON, missing users,
    inconsistent counts, grey levels outside 0..1, and a user in two files of one side (several of LEAF's folders hold
    the same images; only one should be given).
    """
    pattern = file.member[0].path if file.member else PATTERN
    with open_tree(path, lambda name: fnmatch(name.rsplit("/", 1)[-1], pattern)) as tree:
        require(bool(tree.names), f"{path} has no file like {pattern}", "it should be LEAF's folder all_data")
        file_of: dict[str, str] = {}
        for name in sorted(tree.names, key=lambda name: (len(name), name)):
            where = f"{path}/{name}"
            content = _parsed(tree, name, where)
            shape = (1, 1, len(_first_row(content))) if recipe.vectors else recipe.shape or _shape(content, where)
            images, labels, writers = _users(content, where, shape, recipe.vectors)
            for writer in dict.fromkeys(writers):
                require(
                    writer not in file_of,
                    f"{where}: user {writer} is in {file_of.get(writer)} too",
                    "give one of LEAF's folders, such as all_data, not several",
                )
                file_of[writer] = name
            yield Part(where, file.split, images, {"label": labels, "writer": text(writers, where)})


class _Floats(dict[str, float]):
    # LEAF's images have few grey levels, so sharing one object per level saves most of the memory for parsing.
    def __missing__(self, text: str) -> float:
        value = self[text] = float(text)
        return value


def _parsed(tree: Tree, name: str, where: str) -> dict[str, Any]:
    data = tree.read(name, guard.LIMIT // _WEIGHT)
    with guard.reading(where, "is truncated or not JSON"):
        content = json.loads(data, parse_float=_Floats().__getitem__)
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        good = isinstance(content, dict) and isinstance(content.get(key), kind)
        require(good, f"{where} is not a LEAF file: it lacks '{key}' or that is no {kind.__name__}")
    return dict(content)


def _first_row(content: dict[str, Any]) -> list[Any]:
    """The first row of the first user that has one; empty if there is none or it is no list."""
    rows = (own["x"][0] for own in content["user_data"].values() if isinstance(own, dict) and own.get("x"))
    row = next(rows, None)
    return row if isinstance(row, list) else []


def _square(length: int) -> tuple[int, int, int] | None:
    """Height, width and channels of a square image of so many values, with one or three channels."""
    for channels in (1, 3):
        side = math.isqrt(length // channels)
        if side and side * side * channels == length:
            return side, side, channels
    return None


def _shape(content: dict[str, Any], where: str) -> tuple[int, int, int]:
    """The shape of square images, from the length of the first row."""
    length = len(_first_row(content))
    require(length > 0, f"{where}: its rows are no lists of numbers", "text is not read")
    shape = _square(length)
    if shape is None:
        raise FedbenchError(
            f"{where}: its rows are no square images ({length} numbers each)",
            "vectors and images cannot be in one folder",
        )
    return shape


#: So many characters of a LEAF file are looked at for its first row.
_PEEK = 1 << 22


def leaf_vectors(side: Path) -> bool:
    """Whether LEAF's folder holds vectors: its first row has not as many values as a square image, or values outside
    of 0..1, the range of grey levels, that are not all whole numbers up to 255, as forgotten to be scaled."""
    for path in sorted(side.glob("*.json"), key=lambda path: (len(path.name), path.name)):
        with guard.readable(path), guard.regular(path).open(encoding="utf-8", errors="replace") as file:
            head = file.read(_PEEK)
        if row := re.search(r'"x"\s*:\s*\[\s*(\[[^\[\]{}"]*\])', head):
            try:
                values = np.array(json.loads(row[1]), np.float64)
            except (ValueError, OverflowError, RecursionError):  # said when it is read
                return False
            unscaled = bool(((values >= 0) & (values <= 255) & (values == np.rint(values))).all())
            image = unscaled or bool(((values >= 0) & (values <= 1)).all())
            return len(values) > 0 and (_square(len(values)) is None or not image)
    return False


def _users(
    content: dict[str, Any], where: str, shape: tuple[int, ...], vectors: bool
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    users, sizes, data = content["users"], content["num_samples"], content["user_data"]
    require(bool(users), f"{where}: there are no users")
    require(len(users) == len(sizes), f"{where}: {len(users)} users but {len(sizes)} num_samples")
    for user in users:
        require(isinstance(user, str), f"{where}: the name of a user must be text, not {str(user)[:60]}")
    text(users, where)
    twice = next((user for user, times in Counter(users).items() if times > 1), None)
    require(twice is None, f"{where}: user {twice} is listed twice")
    images, labels, writers = [], [], []
    for user, size in zip(users, sizes, strict=True):
        own = data.get(user)
        good = isinstance(own, dict) and isinstance(own.get("x"), list) and isinstance(own.get("y"), list)
        require(good, f"{where}: user {user} has no x and y in user_data")
        x, y = own["x"], own["y"]
        counts = f"{len(x)} {'vectors' if vectors else 'images'}, {len(y)} labels, num_samples {str(size)[:60]}"
        require(len(x) == len(y) == size, f"{where}: user {user} has {counts}")
        if y:
            images.append((_numbers if vectors else _bytes)(x, f"{where}, user {user}", shape))
            labels.append(_whole(y, f"{where}, user {user}"))
            writers += [user] * len(y)
    require(bool(images), f"{where}: no user has an image")
    return np.concatenate(images), np.concatenate(labels), writers


def _matrix(rows: list[Any], where: str, shape: tuple[int, ...], what: str) -> np.ndarray:
    size = int(np.prod(shape))
    with guard.reading(f"{where}:", f"the {what} are not rows of {size} numbers"):
        values = np.array(rows, np.float64)
    actual = list(values.shape[1:])
    require(actual == [size], f"{where}: {what} of shape {actual}, not {size} numbers a row")
    return values


def _bytes(rows: list[Any], where: str, shape: tuple[int, ...]) -> np.ndarray:
    values = _matrix(rows, where, shape, "images")
    # This check also rejects NaN.
    require(
        bool(((values >= 0) & (values <= 1)).all()),
        f"{where}: grey levels must lie in 0..1",
        f"divide bytes by 255; of vectors, a recipe of kind leaf says shape = [{values.shape[1]}]",
    )
    return np.rint(values * 255).astype(np.uint8).reshape(-1, *shape)


def _numbers(rows: list[Any], where: str, shape: tuple[int, ...]) -> np.ndarray:
    return numbers({"x": _matrix(rows, where, shape, "vectors")}, where).reshape(-1, *shape)


def _whole(values: list[Any], where: str) -> np.ndarray:
    """Labels as integers: some of LEAF's generators write 3.0."""
    good = all(
        (type(value) is int or (type(value) is float and value.is_integer())) and abs(value) < 2**63 for value in values
    )
    require(good, f"{where}: labels must be whole numbers")
    return np.array([int(value) for value in values], np.int64)


# Clients' data in PFLlib's folders: train/N.npz and test/N.npz for client N, and config.json.
#
# PFLlib itself saves one pickled object `data` per file. Loading a pickle can run any code, so it is refused. Files
# must hold its two arrays `x` and `y` instead (partitions/README.md shows the line to change).


#: Range of a file's values. Bytes b become (2 b - 255) / 255 in [-1, 1] and b / 255 in [0, 1], so a file without
#: negative values and with only odd numerators can be in either range.
_SIGNED, _UNIT, _EITHER = "[-1, 1]", "[0, 1]", "either"


def read_pflib(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind pflib: one per client's file, by number.

    Of images `x` is uint8, or floating-point in [-1, 1], as most of PFLlib's generators normalise (0.5 and 0.5), or in
    [0, 1], as some do not (DomainNet, Camelyon17, COVIDx, kvasir): [n, C, H, W], [n, H, W, C] or [n, H, W]. Vectors are
    numbers of any other form (`_is_vectors`): [n, D], or [n, C, 1, T] of time series (HAR, PAMAP2), of which D = C T.
    `y` [n] integers. Columns: label and client; a client may lack one split. Raises FedbenchError with the file, also
    if files have different ranges.
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
            samples, values = (_vectors(x, str(path)), "") if recipe.vectors else _pixels(x, str(path))
            columns = {"label": y, "client": np.full(len(y), client, np.int64)}
            parts.append(Part(str(path), file.split, samples, columns, classes))
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


def npz_arrays(path: Path, names: Sequence[str], hint: str) -> dict[str, NDArray[Any]]:
    """These arrays of a NumPy archive. Raises FedbenchError if it is damaged, lacks an array or holds objects."""
    with guard.npz(path) as content:
        if "data" in content.files and not set(names) <= set(content.files):
            raise FedbenchError(
                f"{path} holds a pickled object, which could run any program and is not read",
                "save the arrays x and y as such: in PFLlib's save_file (f, **train_dict) and (f, **test_dict)",
            )
        for name in names:
            there = ", ".join(content.files) or "none"
            require(name in content.files, f"{path} has no array {name} but {there}", hint)
        return {name: content[name] for name in names}


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    x, y = npz_arrays(path, ("x", "y"), "it holds x, the images, and y, their classes").values()
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.ndim == 1 and (y.dtype.kind in "iu" or not len(y))  # np.array([]) has a floating-point type
    require(whole, f"{path}: y must be whole numbers [n], not {y.dtype} {list(y.shape)}")
    require(x.ndim > 0, f"{path}: x must hold a row for each of y, not one {x.dtype}")
    require(len(x) == len(y), f"{path}: {len(x)} rows of x but {len(y)} of y")
    return x, y.astype(np.int64)


def _is_vectors(x: NDArray[Any]) -> bool:
    """Whether x is no image: one number a feature [n, D], or time series [n, C, 1, T]."""
    if x.ndim != 4:
        return x.ndim == 2
    images = (size for channels, *size in (x.shape[1:], x.shape[:0:-1]) if channels in (1, 3))
    return not any(min(size) > 1 for size in images)


def pflib_vectors(side: Path) -> bool:
    """Whether PFLlib's folder holds vectors: the first file with a row decides."""
    for path in sorted(side.glob("*.npz"), key=lambda path: (len(path.name), path.name)):
        try:
            x, _ = _arrays(path)
        except FedbenchError:  # said when it is read
            return False
        if len(x):
            return _is_vectors(x)
    return False


def _vectors(x: NDArray[Any], where: str) -> np.ndarray:
    """float32 or float64 [n, 1, 1, D]."""
    good = x.dtype.kind in "biuf" and _is_vectors(x) and x[0].size > 0
    require(
        good,
        f"{where}: x must be vectors [n, D] or [n, C, 1, T], as that of the first client, not {x.dtype} "
        f"{list(x.shape)}",
    )
    return numbers({"x": x}, where)[:, None, None, :]


def _pixels(x: NDArray[Any], where: str) -> tuple[NDArray[np.uint8], str]:
    """uint8 [n, H, W, C], for _EITHER as if in [0, 1]; and the range of the values, "" if they are bytes."""
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
    # This check also rejects NaN.
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
    """The bytes of images in [-1, 1] whose values are n / 255, from the numerators n."""
    return (numerators.astype(np.uint16) + 255 >> 1).astype(np.uint8)


def _classes(path: Path) -> tuple[str, ...]:
    """Names of the classes: `classes` in the config, which fedbench writes, else their numbers; () without both."""
    try:
        config = json.loads(reader.text(path, "config of PFLlib"))
    except (ValueError, RecursionError) as error:
        raise FedbenchError(f"{path} is not JSON ({error})", "it is PFLlib's config.json") from error
    require(isinstance(config, dict), f"{path} must hold an object of JSON", "it is PFLlib's config.json")
    if not {"classes", "num_classes"} & set(config):  # as in PFLlib's config of MNIST
        return ()
    names, count = config.get("classes"), config.get("num_classes")
    if isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        return tuple(names)
    good = isinstance(count, int) and not isinstance(count, bool) and 2 <= count <= MOST_CLASSES
    require(good, f"{path}: num_classes must be a number of classes, 2 at least, not {str(count)[:60]}")
    return tuple(map(str, range(int(count or 0))))
