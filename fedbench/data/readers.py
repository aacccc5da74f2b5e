"""Readers: convert the files of a source to parts, each with a split, images and the source's columns."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedbench.data.archive import open_tree
from fedbench.data.clients import npz_arrays, read_leaf, read_pflib
from fedbench.data.guard import at_most, content, fits, reading, regular
from fedbench.data.hub import read_repository
from fedbench.data.images import read_folder, read_parquet
from fedbench.data.part import Part
from fedbench.data.recipe import MOST_CLASSES, SPLITS, File, Recipe, Source
from fedbench.data.table import read_csv
from fedbench.data.torchvision_files import read_torchvision
from fedbench.data.vectors import read_table, read_text
from fedbench.errors import FedbenchError, unknown
from fedbench.specs import require

# IDX files, the format of MNIST and similar data sets.


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """Read one IDX file (optionally gzipped) to an array in native byte order.

    Format: two zero bytes, type, number of dimensions, the dimensions as big-endian uint32, the values big-endian.
    Raises FedbenchError if it is truncated, too long, or not IDX. Memory is limited by the file's actual contents.
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
            length = path.stat().st_size - f.tell()  # without gzip; a gzipped file's length is known after unpacking
            if packed or length == size:
                fits(size, path)
                data = at_most(f, size + 1)
                length = len(data)
        if length != size:
            there = "more" if length > size else f"only {length}"
            raise FedbenchError(f"{path} should hold {size} bytes of values and holds {there}", "get the file again")
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_idx_parts(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind idx: one array per file, identified by role."""
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


# MATLAB files of cropped digits, the format of SVHN: X uint8 [height, width, channels, n] and y [n, 1].


def read_mat(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    """Read the part of a file of kind mat, with the column label.

    MATLAB counts from 1, so in these files the number of classes (10) means class 0.
    Raises FedbenchError for files that are truncated, of another format, or without X and y.
    """
    content = _variables(path)
    images, labels = content["X"], content["y"].reshape(-1)
    good = images.dtype == np.uint8 and images.ndim == 4
    require(good, f"{path}: X must be bytes [height, width, channels, n], not {images.dtype} {list(images.shape)}")
    good = labels.dtype.kind in "iuf" and bool((np.isfinite(labels) & (labels == np.floor(labels))).all())
    require(good, f"{path}: y must be whole numbers")
    number = len(recipe.classes)
    codes = labels.clip(-1, number + 1).astype(np.int64)  # without wrapping around, so that they are refused later
    require(not {0, number} <= set(codes.tolist()), f"{path}: y holds both 0 and {number}, which stands for 0")
    codes[codes == number] = 0
    yield Part(str(path), file.split, images.transpose(3, 0, 1, 2), {"label": codes})


#: MATLAB classes of numbers and text; others are nested or contain objects.
_CLASSES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "single",
    "double",
    "logical",
    "char",
)


def _variables(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat, whosmat

    with reading(path, "is damaged or not a MATLAB file of version 5 to 7"):
        heads = {name: (tuple(shape), kind) for name, shape, kind in whosmat(regular(path))}
        for name in ("X", "y"):
            require(name in heads, f"{path} has no variable {name}", "it should hold the images X and the labels y")
            shape, kind = heads[name]
            require(kind in _CLASSES, f"{path}: {name} must be an array of numbers, not of class {kind}")
            fits(8 * math.prod(shape), f"{path} ({name})")  # values take at most 8 bytes in memory
        content: dict[str, np.ndarray] = loadmat(path, variable_names=("X", "y"))
        for name in ("X", "y"):
            require(isinstance(content.get(name), np.ndarray), f"{path} has no variable {name}")
    return content


# MedMNIST's archives (Yang et al., Scientific Data 2023; medmnist.com): {train,val,test}_images uint8 [n, H, W] or
# [n, H, W, 3], and {train,val,test}_labels [n, 1], or [n, U] for multi-label images (ChestMNIST).


def read_medmnist(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind medmnist: training and test images; column label, [n] or uint8 [n, U].

    Skips the validation images, because clients have their own validation images. Raises FedbenchError for volumes, and
    for arrays that are missing or inconsistent.
    """
    (path,) = paths
    names = [f"{side}_{what}" for side in ("train", "val", "test") for what in ("images", "labels")]
    arrays = npz_arrays(path, names, "MedMNIST's files hold images and labels of train, val and test")
    counts, several = [], 0
    for side in ("train", "val", "test"):
        x, y = arrays[f"{side}_images"], arrays[f"{side}_labels"]
        require(
            x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] == 3)),
            f"{path}: {side}_images must be bytes [n, H, W] or [n, H, W, 3], not {x.dtype} {list(x.shape)}",
            "volumes (the 3D sets) are not read",
        )
        good = y.dtype.kind in "iu" and y.ndim == 2 and len(x) == len(y) and y.shape[1] >= 1
        require(
            good, f"{path}: {side}_labels must be whole numbers [{len(x)}, 1 or more], not {y.dtype} {list(y.shape)}"
        )
        require(y.min(initial=0) >= 0, f"{path}: {side}_labels cannot be negative, unlike {y.min()}")
        counts.append(y.shape[1])
        several = max(several, int(y.max(initial=0)) + 1)
    require(len(set(counts)) == 1, f"{path}: {counts} labels an image in train, val and test")
    many = counts[0] > 1
    require(not many or several <= 2, f"{path}: several labels an image must be 0 or 1 each")
    require(several <= MOST_CLASSES, f"{path} has class {several - 1}, and {MOST_CLASSES - 1:,} is the largest")
    classes = tuple(map(str, range(counts[0] if many else several)))
    left = len(arrays["val_images"])
    for side in SPLITS:
        x, y = arrays[f"{side}_images"], arrays[f"{side}_labels"]
        labels = y.astype(np.uint8) if many else y[:, 0].astype(np.int64)
        images = x if x.ndim == 4 else x[..., None]
        yield Part(f"{path} ({side})", side, images, {"label": labels}, classes, f"{left:,} validation images left out")


def read(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read all parts of a source in the recipe's order; for a union use `build.read_union`.

    Raises FedbenchError for invalid files.
    """
    if source.kind in _OF_ALL:
        return _OF_ALL[source.kind](recipe, source, paths)
    by_file, files = _BY_FILE[source.kind], zip(source.file, paths, strict=True)
    return (part for file, path in files for part in by_file(recipe, source, file, path))


def _builtin(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    if (name := str(source.loader)) not in _BUILTINS:
        raise unknown(f"loader in recipe {recipe.name}", name, _BUILTINS)
    return _BUILTINS[name]()


def _digits() -> Iterator[Part]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]  # grey levels 0..16 scaled to 0..255
    yield Part("embedded digits", "train", images, {"label": bunch.target.astype(np.int64)})


def _breast_cancer() -> Iterator[Part]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    values = bunch.data.astype(np.float32)[:, None, None, :]
    yield Part("embedded breast_cancer", "train", values, {"label": bunch.target.astype(np.int64)})


def _synth_cover() -> Iterator[Part]:
    """Synthetic data like UCI's Covertype: ten measurements, one-hot area (4) and soil (40), seven unequal classes.
    Each area has other frequent classes, soils and measurements."""
    rng = np.random.RandomState(0)  # a legacy generator, whose stream NumPy guarantees to keep
    frequent = np.array([0.365, 0.488, 0.062, 0.005, 0.016, 0.030, 0.034])
    areas = [rng.dirichlet(20 * frequent + 0.05) for _ in range(4)]
    soils = [[rng.dirichlet(np.full(40, 0.5)) for _ in frequent] for _ in areas]
    centres, moves, mix = rng.normal(size=(7, 10)) / 2, 0.5 * rng.normal(size=(4, 10)), rng.normal(size=(10, 10)) / 2
    for split, n in (("train", 8000), ("test", 2000)):
        area = rng.choice(4, n, p=[0.45, 0.05, 0.44, 0.06])
        label = np.array([rng.choice(7, p=areas[a]) for a in area])
        soil = np.array([rng.choice(40, p=soils[a][y]) for a, y in zip(area, label, strict=True)])
        measured = centres[label] + moves[area] + rng.normal(size=(n, 10)) @ mix
        values = np.concatenate([measured, np.eye(4)[area], np.eye(40)[soil]], axis=1).astype(np.float32)
        yield Part("drawn", split, values[:, None, None, :], {"label": label, "area": area})


_BUILTINS: dict[str, Callable[[], Iterator[Part]]] = {
    "breast_cancer": _breast_cancer,
    "digits": _digits,
    "synth_cover": _synth_cover,
}


def _cifar(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    # A record holds the label bytes, then the red, green and blue planes.
    if not file.member:
        yield _records(recipe, source, str(path), file.split, content(path))
        return
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


#: Kind -> reader, for all files of a source or for one file at a time.
_OF_ALL: dict[str, Callable[[Recipe, Source, Sequence[Path]], Iterator[Part]]] = {
    "builtin": _builtin,
    "idx": read_idx_parts,
    "csv": read_csv,
    "list": read_csv,
    "pflib": read_pflib,
    "hf": read_repository,
    "medmnist": read_medmnist,
    "torchvision": read_torchvision,
    "text": read_text,
}
_BY_FILE: dict[str, Callable[[Recipe, Source, File, Path], Iterator[Part]]] = {
    "cifar-binary": _cifar,
    "parquet": read_parquet,
    "folder": read_folder,
    "leaf": read_leaf,
    "mat": read_mat,
    "table": read_table,
}
