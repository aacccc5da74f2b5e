"""JSON files of the LEAF benchmark (Caldas et al. 2018): what each user wrote, one file a hundred users or so.

A file holds `users`, `num_samples`, and in `user_data` for each user `x`, the images as rows of height * width grey
levels in 0..1 (white paper is 1), and `y`, the classes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data import guard
from fedbench.data.archive import Tree, open_tree
from fedbench.data.part import Part, text
from fedbench.data.recipe import Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.specs import require

#: As objects of Python, JSON of many small lists takes more than this many times its size.
_WEIGHT = 16
PATTERN = "all_data*.json"  #: names of the files that are read; LEAF puts a number behind `all_data_`


def read_leaf(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind leaf: a JSON file a part, in the order of their numbers, one in memory at a time.

    Columns: label and writer (the user). Grey levels become bytes by rounding 255 x; nothing is inverted.
    Raises FedbenchError naming file and user for truncated JSON, absent users, counts that disagree, values outside
    0..1, and a user that two files hold (LEAF's folders hold the same images several times: one of them is wanted).
    """
    for file, path in zip(source.file, paths, strict=True):
        pattern = file.member[0].path if file.member else PATTERN
        with open_tree(path, lambda name: fnmatch(name.rsplit("/", 1)[-1], pattern)) as tree:  # noqa: B023
            require(bool(tree.names), f"{path} has no file like {pattern}", "it should be LEAF's folder all_data")
            file_of: dict[str, str] = {}
            for name in sorted(tree.names, key=lambda name: (len(name), name)):
                where = f"{path}/{name}"
                content = _parsed(tree, name, where)
                images, labels, writers = _users(content, where, recipe.shape or _shape(content, where))
                for writer in dict.fromkeys(writers):
                    require(
                        writer not in file_of,
                        f"{where}: user {writer} is in {file_of.get(writer)} too",
                        "give one of LEAF's folders, such as all_data, not several",
                    )
                    file_of[writer] = name
                yield Part(where, file.split, images, {"label": labels, "writer": text(writers, where)})


class _Floats(dict[str, float]):
    # LEAF's images have few grey levels, so that one object for each saves most of the memory that parsing takes.
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


def _shape(content: dict[str, Any], where: str) -> tuple[int, ...]:
    """Of square images of grey levels or of three channels, by the length of the first row."""
    first = next((own["x"][0] for own in content["user_data"].values() if isinstance(own, dict) and own.get("x")), None)
    length = len(first) if isinstance(first, list) else 0
    for channels in (1, 3):
        side = math.isqrt(length // channels)
        if side and side * side * channels == length:
            return side, side, channels
    raise FedbenchError(
        f"{where}: its images are no rows of square ones ({length} numbers each)",
        "write a recipe of kind leaf that says their shape",
    )


def _users(content: dict[str, Any], where: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, list[str]]:
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
        counts = f"{len(x)} images, {len(y)} labels, num_samples {str(size)[:60]}"
        require(len(x) == len(y) == size, f"{where}: user {user} has {counts}")
        if y:
            images.append(_bytes(x, f"{where}, user {user}", shape))
            labels.append(_whole(y, f"{where}, user {user}"))
            writers += [user] * len(y)
    require(bool(images), f"{where}: no user has an image")
    return np.concatenate(images), np.concatenate(labels), writers


def _bytes(rows: list[Any], where: str, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    with guard.reading(f"{where}:", f"the images are not rows of {size} numbers"):
        values = np.array(rows, np.float64)
    actual = list(values.shape[1:])
    require(actual == [size], f"{where}: images of shape {actual}; the recipe says {size} numbers a row")
    # A NaN is in no interval, so it fails here too.
    require(bool(((values >= 0) & (values <= 1)).all()), f"{where}: grey levels must lie in 0..1")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, *shape)


def _whole(values: list[Any], where: str) -> np.ndarray:
    good = all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values)
    require(good, f"{where}: labels must be whole numbers")
    return np.array(values, np.int64)
