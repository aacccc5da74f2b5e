"""Repositories of the Hugging Face hub, read by the hub's library `datasets` (extra `hf`) from a local folder.

Reading does not use the network. `fedbench data fetch hf:NAME` downloads a repository at one revision and writes that
revision's commit to the folder. The contents and the commit are the data set's identity.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedbench.data import foreign
from fedbench.data.archive import held
from fedbench.data.guard import IMAGE, content, explained, fits, reading
from fedbench.data.images import decode, mixed, shapes_of
from fedbench.data.names import composed, first_number
from fedbench.data.part import LONGEST, Part, text
from fedbench.data.recipe import MOST_CLASSES, RESERVED, Recipe, Source
from fedbench.data.vectors import numbers
from fedbench.errors import FedbenchError, check_known
from fedbench.files import whole_folder
from fedbench.specs import require
from fedbench.store import Store

#: Usual names of a label column and of a test split, in order of preference.
_LABELS = ("label", "labels", "fine_label", "class", "target", "digit", "character")
_TESTS = ("test", "validation", "valid", "val", "dev")
#: Rows that tell the kinds of a CSV file's columns.
_FIRST = 1_000


def library(name: str) -> ModuleType:
    """Import a module. Raises FedbenchError with the extra to install if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FedbenchError(f"{error.name} is not installed", "pip install 'fedbench-fl[hf]'") from error


def fetch(recipe: Recipe, store: Store) -> Path:
    """Download a repository, at the revision in its name or the newest, into the store; returns its folder.

    Raises FedbenchError if the hub does not respond or does not have it.
    """
    (source,) = recipe.sources
    target = foreign.downloads(store) / source.file[0].path
    repository, _, revision = source.file[0].path.removeprefix(f"{foreign.REPOSITORIES}/").partition("@")
    hub = library("huggingface_hub")
    store.prepare()
    with whole_folder(target, f"downloading {recipe.name}") as part:
        with reading(f"{recipe.name} on the hub", "cannot be had"):
            commit = hub.HfApi().dataset_info(repository, revision=revision or None).sha
            hub.snapshot_download(repository, repo_type="dataset", revision=commit, local_dir=part)
        shutil.rmtree(part / ".cache", ignore_errors=True)  # the library's notes on the download
        (part / foreign.REVISION).write_text(f"{commit}\n")
        shutil.rmtree(target, ignore_errors=True)
    return target


def read_repository(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind hf: training and test images, in the repository's order.

    Options select the image and label columns; default: the only column of images, and the first of _LABELS or the only
    column of classes. Other columns of integers and text become natural columns. Options select the splits; default:
    `train` and the first of _TESTS. Raises FedbenchError if a choice is ambiguous, and for damaged files.
    """
    options, name, folder = foreign.options_of(source), recipe.name, paths[0].resolve()
    with tempfile.TemporaryDirectory() as cache:
        splits = _opened(folder, options.get("config"), cache)
        sides = {side: _split(splits, side, options, name) for side in ("train", "test")}
        features = _features(next(iter(splits.values())), name)
        require(bool(features), f"{name} does not say which columns it has", "it is no data set of images")
        image = None if source.features else options.get("image") or _image(features, name)
        label = options.get("label") or _label(splits, features, name, folder)
        chosen = _chosen(source, features, label)
        require(bool(image or chosen), f"{name} has no column of numbers besides {label}")
        for column in (*chosen, *([image] if image else []), label):
            check_known(f"column of {name}", column, features)
        require(label not in chosen, f"the features of {name} hold {label}, which is its label", "leave it out")
        require(len(set(chosen)) == len(chosen), f"the features of {name} hold a column twice", "leave one out")
        columns = [
            column
            for column in features
            if column not in (image, label, *chosen, *RESERVED) and _plain(features[column])
        ]
        wanted = [*(chosen or [image]), label, *columns]
        tables = [
            (side, _rows(splits[split], wanted, image, f"{name}, {split}", folder))
            for side, split in sides.items()
            if split is not None
        ]
    for side, table in tables:
        table[label] = _whole(table[label], f"{name}, {sides[side]}: column {label}")
    classes, number = _classes(features[label], [table[label] for _, table in tables], name)
    short = [c for c in columns if all(_fits(value) for _, table in tables for value in table[c])]
    if chosen:
        for side, table in tables:
            where = f"{name}, {sides[side]}"
            with reading(where, "holds text, gaps or lists of different lengths in these columns"):
                vectors = numbers({column: np.array(table[column], np.float64) for column in chosen}, where)
            own = {column: _values(table[column], f"{where}: column {column}") for column in short}
            codes = {"label": _codes(table[label], number, where), **own}
            yield Part(where, side, vectors[:, None, None, :], codes, classes)
        return
    every = [
        _Image(one, folder, f"{name}, {sides[side]}", row)
        for side, table in tables
        for row, one in enumerate(table[image])
    ]
    require(bool(every), f"{name} holds no image", "see its page on the hub")
    _once(every, [code for _, table in tables for code in table[label]])
    shapes = shapes_of(len(every), lambda i: every[i].read(), lambda i: every[i].where)
    size = foreign.size_of(source)
    height, width = size or _alike(shapes, every, name)
    shape, grey = (height, width, int(shapes[:, 2].max())), int((shapes[:, 2] == 1).sum())
    images = decode(len(every), lambda i: every[i].read(), lambda i: every[i].where, shape, size is not None)
    start = 0
    for side, table in tables:
        where, stop = f"{name}, {sides[side]}", start + len(table[image])
        own = {column: _values(table[column], f"{where}: column {column}") for column in short}
        codes = {"label": _codes(table[label], number, where), **own}
        yield Part(where, side, images[start:stop], codes, classes, mixed(grey, len(every)))
        start = stop


@dataclass(frozen=True)
class _Image:
    """An encoded image of a repository, stored in the row or in a file."""

    value: Any  #: dictionary with bytes and path, from the library
    folder: Path
    split: str  #: for error messages
    row: int  #: index in the split

    @property
    def file(self) -> str | None:
        """Path relative to the folder, if the image is in a file."""
        own = self.value or {}
        return None if own.get("bytes") or not own.get("path") else os.path.relpath(own["path"], self.folder)

    @property
    def where(self) -> str:
        return ", ".join(filter(None, (self.split, self.file, f"row {self.row}")))

    def read(self) -> bytes | bytearray:
        if self.value and self.value.get("bytes"):
            return bytes(self.value["bytes"])
        path = Path(str((self.value or {}).get("path") or ""))
        inside = path.resolve().is_relative_to(self.folder)
        require(inside, f"{self.split}, row {self.row}: an image of {self.folder} does not lie in it: {path}")
        return content(path, IMAGE)


def _once(images: Sequence[_Image], labels: Sequence[Any]) -> None:
    """Raise FedbenchError if a file is listed with two classes."""
    seen: dict[str, tuple[str, Any]] = {}
    for image, label in zip(images, labels, strict=True):
        if image.file:
            before, known = seen.setdefault(image.file, (image.where, label))
            require(known == label, f"{image.where} has another class than {before}", "list a file once")


def _alike(shapes: np.ndarray, images: Sequence[_Image], name: str) -> tuple[int, int]:
    """Height and width of the images. Raises FedbenchError if an image differs in size from the first."""
    height, width = map(int, shapes[0, :2])
    other = np.flatnonzero((shapes[:, :2] != shapes[0, :2]).any(axis=1))
    if len(other):
        raise FedbenchError(
            f"{images[other[0]].where} is {shapes[other[0], 1]} x {shapes[other[0], 0]} pixels; the first image has "
            f"{width} x {height}",
            f"bring all to one size: {name},size={height}",
        )
    return height, width


def _opened(folder: Path, config: str | None, cache: str) -> Mapping[str, Any]:
    """Split -> its rows, which are loaded on access."""
    datasets = library("datasets")
    with reading(folder, "is no repository that the library datasets reads"):
        opened = datasets.load_dataset(str(folder), config, streaming=True, cache_dir=cache)
        return dict(opened)


def _features(rows: Any, name: str) -> Mapping[str, Any]:
    """Column -> its kind; of CSV files, whose kinds the library does not tell, from the first rows."""
    import pyarrow as pa

    if rows.features is not None:
        return dict(rows.features)
    with reading(name, "does not say which columns it has"):
        first = pa.Table.from_pylist(list(rows.take(_FIRST)))
        return dict(library("datasets").Features.from_arrow_schema(first.schema))


def _split(splits: Mapping[str, Any], side: str, options: Mapping[str, str], name: str) -> str | None:
    if side in options:
        check_known(f"split of {name}", options[side], splits)
        return options[side]
    usual = ("train",) if side == "train" else _TESTS
    split = next((one for one in usual if one in splits), None)
    require(
        split is not None or side == "test",
        f"{name} has no split 'train' but {', '.join(map(str, splits))}",
        f"say which are the training images: {name},train=SPLIT",
    )
    return split


def _chosen(source: Source, features: Mapping[str, Any], label: str) -> list[str]:
    """The columns of the vectors, from the source; "all": columns of numbers and of lists of numbers. Else empty."""
    if source.features != ("all",):
        return list(source.features)
    kinds = {column: getattr(kind, "feature", kind) for column, kind in features.items() if column != label}
    of_numbers = ("int", "uint", "float", "bool")
    return [
        name
        for name, kind in kinds.items()
        if str(getattr(kind, "dtype", "")).startswith(of_numbers) and type(kind).__name__ != "ClassLabel"
    ]


def _image(features: Mapping[str, Any], name: str) -> str:
    images = [column for column, kind in features.items() if type(kind).__name__ == "Image" or _is_blob(kind)]
    if len(images) != 1:
        raise FedbenchError(
            f"{name} has {len(images)} columns of images among {', '.join(features)}",
            f"say which: {name},image=COLUMN"
            + ("" if images else f"; if it holds numbers, which are the vectors: {name},features=all"),
        )
    return images[0]


def _is_blob(kind: Any) -> bool:
    """Whether a column holds images as dictionaries with bytes, as hubs store them if the schema has no image type."""
    return isinstance(kind, Mapping) and "bytes" in kind


def _label(splits: Mapping[str, Any], features: Mapping[str, Any], name: str, folder: Path) -> str:
    if len(features) == 1 and any(map(_is_folder, splits.values())):
        raise _unclassed(name, folder)
    classes = [column for column, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    usual = [column for column in _LABELS if column in features and _plain(features[column], ("float",))]
    preferred = [column for column in usual if column in classes] or usual or classes
    if not usual and len(classes) != 1:
        raise FedbenchError(
            f"{name} has no column of classes that can be told among {', '.join(features)}",
            f"say which: {name},label=COLUMN",
        )
    return preferred[0]


def _is_folder(rows: Any) -> bool:
    """Whether the library reads the rows from an image folder (class folders or a metadata file), not from tables."""
    return rows.info.builder_name == "imagefolder"


def _unclassed(where: str, folder: Path) -> FedbenchError:
    return FedbenchError(
        f"{where}: the classes of its images cannot be told; {held(folder)}",
        "unpack archives; images lie in class folders, two or more in each split (train/CAT/1.png), or a metadata.csv "
        "beside them lists file_name and label",
    )


def _plain(kind: Any, more: tuple[str, ...] = ()) -> bool:
    """Whether a column holds integers, classes or text, or a kind of `more`."""
    return type(kind).__name__ == "ClassLabel" or str(getattr(kind, "dtype", "")).startswith(
        ("int", "uint", "string", "large_string", "bool", *more)
    )


def _whole(labels: list[Any], where: str) -> list[Any]:
    """Labels with whole numbers for 1.0, as which a column of integers is saved that once had a gap."""
    if not any(isinstance(value, float) for value in labels):
        return labels
    row = next((i for i, value in enumerate(labels) if value is None or value != value), None)
    require(row is None, f"{where} is empty in row {row}", "leave rows without a class out")
    other = next((one for one in labels if not isinstance(one, int | float) or not float(one).is_integer()), None)
    require(other is None, f"{where} holds {other}, which is no class", "say which column does: label=COLUMN")
    return [int(value) for value in labels]


def _rows(rows: Any, columns: list[str], image: str | None, where: str, folder: Path) -> dict[str, list[Any]]:
    """The columns of a split; images as bytes or paths, not decoded."""
    kind = (rows.features or {}).get(image)
    if image and type(kind).__name__ == "Image":
        rows = rows.cast_column(image, type(kind)(decode=False))
    out: dict[str, list[Any]] = {column: [] for column in columns}
    size = 0
    try:
        for row in rows.select_columns(columns):
            for column in columns:
                out[column].append(row[column])
            size += len((row[image] or {}).get("bytes") or b"") if image else 64 * len(columns)
            fits(size, where)
    except Exception as error:
        if isinstance(error, KeyError | ValueError) and _is_folder(rows):  # no image has been read yet
            raise _unclassed(where, folder) from error
        raise explained(error, where, "is damaged or not readable") from error
    return out


def _classes(kind: Any, labels: list[list[Any]], name: str) -> tuple[tuple[str, ...], dict[int, int]]:
    """Names of the classes: the column's, else its sorted values; and the class of each value that is a number."""
    if given := getattr(kind, "names", None):  # of folders, whose names may come in two forms of Unicode
        names = [composed(one) for one in given]
        classes = tuple(dict.fromkeys(names))
        return classes, {value: classes.index(one) for value, one in enumerate(names)}
    values = {value for side in labels for value in side}
    require(None not in values, f"{name}: images without a class", f"say which column has it: {name},label=COLUMN")
    if all(isinstance(value, int) for value in values) and values:
        good = min(values) >= 0 and max(values) < MOST_CLASSES
        require(good, f"{name}: classes must be numbers from 0 to {MOST_CLASSES - 1:,}")
        numbers = range(first_number(int(min(values))), int(max(values)) + 1)
        return tuple(map(str, numbers)), {value: code for code, value in enumerate(numbers)}
    return tuple(sorted({composed(str(value)) for value in values})), {}


def _codes(labels: list[Any], number: Mapping[int, int], where: str) -> np.ndarray:
    """[n] classes, by name or by number; `number` is the class of each value."""
    if labels and isinstance(labels[0], str):
        return text(labels, f"{where}: the labels")
    good = all(isinstance(value, int) and value in number for value in labels)
    span = f"{min(number, default=0)}..{max(number, default=0)}"
    require(good, f"{where}: labels must lie in {span}", "a split without labels cannot be tested on")
    return np.array([number[value] for value in labels], np.int64)


def _fits(value: Any) -> bool:
    return not isinstance(value, str) or (len(value) <= LONGEST and "\0" not in value)


def _values(values: Iterable[Any], where: str) -> np.ndarray:
    listed = list(values)
    if all(isinstance(value, int) and abs(value) < 2**63 for value in listed):
        return np.array(listed, np.int64)
    return text(["" if value is None else str(value) for value in listed], where)
