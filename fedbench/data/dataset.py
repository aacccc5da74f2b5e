"""Data sets in memory: pixels, labels and natural columns as NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data.catalogue import candidates, recipe
from fedbench.data.part import as_array
from fedbench.errors import FedbenchError, check_known
from fedbench.specs import DatasetSpec
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import pyarrow as pa

#: Key in the schema metadata of a data set's tables for its shape, classes and columns.
METADATA = b"dataset"


@dataclass(frozen=True)
class Info:
    """Facts of a data set without its images. `shape` is (height, width, channels)."""

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    partition_label: str | None  #: column to partition by instead of the class
    partition_classes: int  #: number of values of the labels to partition by
    columns: tuple[str, ...]  #: natural columns and additional labels
    offset: tuple[float, ...] = ()  #: of vectors: what was subtracted from each of the D values; () if nothing was


@dataclass(frozen=True)
class Dataset:
    """N images with labels: official training rows first, then official test rows.

    The arrays are ordinary writable copies that belong to the caller; the artifact does not change with them.
    """

    spec: DatasetSpec
    #: uint8 [N, H, W, C], C = 1 or 3; if `spec.vectors`, float32 [N, 1, 1, D], not normalised, and less `offset`
    images: np.ndarray
    labels: np.ndarray  #: int64 [N] classes; or for multi-label images uint8 [N, U], 0 or 1; `classes` has their names
    split: np.ndarray  #: uint8 [N]: 0 official training image, 1 official test image
    columns: dict[str, np.ndarray]  #: natural columns (writer, ...) and additional labels, each [N]
    classes: tuple[str, ...]
    partition_label: str | None = None
    _partition_classes: int = field(default=0, repr=False)
    offset: tuple[float, ...] = ()  #: see `Info`

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels instead of one class."""
        return self.labels.ndim > 1

    @property
    def partition_labels(self) -> np.ndarray:
        """int64 [N]: the labels to partition by (CIFAR-20 uses the 100 fine labels); for multi-label images the labels
        [N, U]."""
        if self.partition_label is None:
            return self.labels
        return self.columns[self.partition_label].astype(np.int64)

    @property
    def partition_classes(self) -> int:
        """Number of possible values of `partition_labels`."""
        return self._partition_classes or len(self.classes)

    def column(self, name: str) -> np.ndarray:
        """A natural column. Raises FedbenchError, with the most similar name, if it does not exist."""
        check_known(f"column of {self.spec.name}", name, self.columns)
        return self.columns[name]


def from_artifact(artifact: Artifact) -> Dataset:
    """The data set of an artifact, verified against its manifest."""
    spec = artifact.spec
    assert isinstance(spec, DatasetSpec)
    facts = _facts(artifact.schema("data").metadata, artifact)
    table = artifact.table("data", ["label", "split", *facts.columns])
    return Dataset(
        spec=spec,
        images=_pixels(artifact, len(table), facts.shape, np.dtype(np.float32 if spec.vectors else np.uint8)),
        labels=as_array(table["label"]),
        split=as_array(table["split"]),
        columns={name: _plain(table[name]) for name in facts.columns},
        classes=facts.classes,
        partition_label=facts.partition_label,
        _partition_classes=facts.partition_classes,
        offset=facts.offset,
    )


def info(which: DatasetSpec | str, store: Store | None = None) -> Info:
    """Shape and classes of a data set, from its artifact or else its recipe, without reading images.

    `which` is a spec, or a recipe's name or path. Raises FedbenchError if there is neither.
    """
    if isinstance(which, DatasetSpec):
        artifact = store.get(which) if store is not None else None
        if artifact is not None:
            return _facts(artifact.schema("classes").metadata, artifact)
        named = next(iter(candidates(which.name)), None) or recipe(which.name)
    else:
        named = recipe(which)
    return Info(named.name, named.form, named.classes, named.partition_label, named.partition_classes, named.columns)


def groups(spec: DatasetSpec, store: Store, column: str) -> dict[str | int, int]:
    """Group -> its number of images, of a natural column, in the order of the groups; "" are the images of no group.
    Raises FedbenchError for unknown columns."""
    check_known(f"column of {spec.name}", column, info(spec, store).columns)
    values, counts = np.unique(group_column(store.open(spec.kind, spec.id), column), return_counts=True)
    named = belongs(values)
    there = dict(zip(values[named].tolist(), counts[named].tolist(), strict=True))
    return there if named.all() else {**there, "": int(counts[~named].sum())}


def groups_of_test(spec: DatasetSpec, store: Store, column: str) -> list[str | int]:
    """The groups of a natural column in the official test set, if none is in the training set too; else none."""
    artifact = store.open(spec.kind, spec.id)
    values, split = group_column(artifact, column), as_array(artifact.table("data", ["split"])["split"])
    train, test = ({*values[(split == side) & belongs(values)].tolist()} for side in (0, 1))
    return sorted(test) if train and not train & test else []


def group_column(artifact: Artifact, column: str) -> np.ndarray:
    """[N] a natural column of a stored data set."""
    return _plain(artifact.table("data", [column])[column])


def belongs(groups: np.ndarray) -> np.ndarray:
    """bool [n]: whether each is a group's name; an empty text is none, so its images belong to no group."""
    return np.char.strip(groups) != "" if groups.dtype.kind == "U" else np.ones(len(groups), bool)


def group_names(spec: DatasetSpec, column: str, groups: Iterable[str | int]) -> list[str]:
    """The names of groups: text as it is, a number with its column (writer 12), a union's domain by its part."""
    sources = [source for known in candidates(spec.name) for source in known.sources if source.name == spec.source]
    parts = sources[0].parts if sources and column == "domain" else ()
    return [
        group if isinstance(group, str) else parts[group] if 0 <= group < len(parts) else f"{column} {group}"
        for group in groups
    ]


def class_counts(spec: DatasetSpec, store: Store) -> dict[str, tuple[int, int]] | None:
    """Class -> number of training and test images; None if the data set has not been built."""
    artifact = store.get(spec)
    if artifact is None:
        return None
    rows = artifact.table("classes").to_pylist()
    return {row["name"]: (row["train"], row["test"]) for row in rows}


def _facts(metadata: dict[bytes, bytes] | None, artifact: Artifact) -> Info:
    if not metadata or METADATA not in metadata:
        raise FedbenchError(
            f"{artifact.path} is not a data set that fedbench wrote", f"remove it with 'fedbench remove {artifact.id}'"
        )
    facts = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(metadata[METADATA]).items()}
    return Info(artifact.manifest["spec"]["name"], **facts)


def _pixels(artifact: Artifact, count: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    # In batches from Arrow's buffers, so that the pixels are copied only once.
    size = int(np.prod(shape))
    images = np.empty((count, *shape), dtype)
    at = 0
    for part in artifact.batches("data", "image"):
        flat = np.frombuffer(part.buffers()[1], dtype, len(part) * size, part.offset * size * dtype.itemsize)
        images[at : at + len(part)] = flat.reshape(-1, *shape)
        at += len(part)
    return images


def _plain(column: pa.ChunkedArray) -> np.ndarray:
    import pyarrow as pa

    return as_array(column) if pa.types.is_primitive(column.type) else np.array(column.to_pylist(), str)
