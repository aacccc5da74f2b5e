"""Build a data set's Parquet artifact from the files of a source.

Tables of the artifact: `data`, one row per image (image: H*W*C bytes, or a vector's D values as float32; label: a
class, or a list of 0 and 1 for multi-label images; split: 0 train, 1 test; natural columns), training images first,
each split in its official order; and `classes`, one row per class (name, train, test), small and quick to read. The
schema metadata of both holds the recipe's shape, classes and partition label; of vectors that float32 does not hold
also the `offset`, what was subtracted from them (see `vectors`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data.catalogue import parts_of, recipe
from fedbench.data.dataset import METADATA, Dataset, from_artifact
from fedbench.data.guard import readable, reading, regular
from fedbench.data.images import fit
from fedbench.data.locate import find, places, resolve, variant_of
from fedbench.data.names import first_number
from fedbench.data.part import Part, as_array, as_column
from fedbench.data.recipe import ARRAYS, MOST_CLASSES, SPLITS, File, Recipe, Source
from fedbench.data.vectors import offsets
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.specs import DatasetSpec, require
from fedbench.store import MANIFEST, Artifact, Contents, DamagedError, Store, Writer, artifact_of

if TYPE_CHECKING:
    import pyarrow as pa


# Several data sets as one: images resized to one shape, and a column for the data set of each.


def read_union(recipe: Recipe, parts: Iterable[Dataset]) -> Iterator[Part]:
    """Read the images of `parts`; the column `domain` is the part's position.

    Resizes images to the union's shape by bilinear interpolation and replicates grey to RGB. Images keep their official
    split. Raises FedbenchError for a part with other classes, or if only one of union and part has vectors.
    """
    for code, part in enumerate(parts):
        name = part.spec.name
        require(part.classes == recipe.classes, f"{name}, a part of {recipe.name}, has other classes than that")
        vectors, size = bool(part.spec.vectors), part.images.shape[1:]
        good = vectors == recipe.vectors and (not vectors or size == recipe.form)
        what = f"vectors of {size[-1]} values" if vectors else "images"
        require(good, f"{name}, a part of {recipe.name}, holds {what}, unlike that (shape {list(recipe.shape)})")
        for number, split in enumerate(SPLITS):
            rows = part.split == number
            if not rows.any():  # some data sets have no official test set
                continue
            own = part.images[rows] + np.array(part.offset) if part.offset else part.images[rows]
            images, domain = fit(own, recipe.form), np.full(int(rows.sum()), code, np.int64)
            yield Part(f"{name} ({split})", split, images, {"label": part.labels[rows], "domain": domain})


def obtain(
    spec: DatasetSpec,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], object] | None = None,
    again: bool = False,
) -> Artifact:
    """The artifact of `spec`. Builds it from its files or parts if the store lacks it, or with `again` if other code
    built it.

    `notify` receives progress messages. Raises FedbenchError for missing, altered, truncated or unreadable files, and
    for labels, shapes or sizes that differ from the recipe's.
    """

    def make() -> Contents:
        # Imported here, because every command looks up data sets and few build one.
        from fedbench.data.readers import read

        if spec.source == ARRAYS:
            raise FedbenchError(
                f"the arrays of data set {spec.id} are not in the store {store.home}",
                "give them again: fedbench.partition((X, y)) stores them",
            )
        variant = variant_of(spec, store, roots)
        recipe, source, paths = variant.recipe, variant.source, variant.paths
        if notify:
            notify(f"reading {recipe.title} ({source.title or source.name}) into {store.home}; this is done once")
        for file, path in zip(source.file, paths, strict=True):
            verify(file, path)
        with readable(f"the files of {recipe.name}"):
            joined = [obtain(part, store, roots, notify, again) for part in variant.parts]
            union = read_union(recipe, map(from_artifact, joined))
            parts = list(union if joined else read(recipe, source, paths))
            whole, source, parts = _told(recipe, source, parts)
            if notify:
                for line in _found(recipe, whole, parts):
                    notify(f"{recipe.name}: {line}")
            tables = _tables(whole, source, parts)

        def write(writer: Writer) -> None:
            writer.provenance["files"] = [str(path) for path in paths]
            writer.provenance["inputs"] = [part.id for part in joined]
            for name, table in tables.items():
                writer.table(name, table)

        return Contents(write, {part.id: part for part in joined})

    return artifact_of(spec, store, ("data/build.py",), make, again and spec.source != ARRAYS)


def load(
    which: DatasetSpec | str,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], None] | None = None,
) -> Dataset:
    """The data set of a spec, or of a name that `resolve` accepts; builds its artifact first if necessary.

    Raises FedbenchError if files are missing or damaged, or if the artifact was altered.
    """
    spec = resolve(which, store, roots) if isinstance(which, str) else which
    return from_artifact(obtain(spec, store, roots, notify))


def verify(file: File, path: Path) -> None:
    """Check a file against its recipe's checksums. Raises FedbenchError with the file and both checksums."""
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected is None:
            continue
        with readable(path), regular(path).open("rb") as f:
            actual = hashlib.file_digest(f, kind).hexdigest()
        if actual != expected:
            raise FedbenchError(
                f"{path} is not the file that its recipe means: {kind} should be {expected} and is {actual} "
                f"({path.stat().st_size} bytes)",
                "it is truncated, altered or of another version: delete it and get it again",
            )


def tables_of(recipe: Recipe, source: Source, parts: list[Part]) -> dict[str, pa.Table]:
    """The tables of the artifact (see above), with shape, classes and columns from the parts if the recipe has none."""
    return _tables(*_told(recipe, source, parts))


def _told(recipe: Recipe, source: Source, parts: list[Part]) -> tuple[Recipe, Source, list[Part]]:
    """Recipe and source, with shape, classes and columns from the files if the recipe has none; and the parts.

    Labels may count from 1: without a 0 they make no class 0, and none is left without images.
    """
    if recipe.told or not parts:
        return recipe, source, parts
    classes = parts[0].classes
    if not classes:
        labels = [part.column(source.label) for part in parts]
        text = any(one.dtype.kind == "U" for one in labels)
        most = 0 if text else max(int(one.max()) for one in labels)
        require(most < MOST_CLASSES, f"{recipe.name} has class {most}, and {MOST_CLASSES - 1:,} is the largest")
        first = 0 if text else first_number(min(int(one.min()) for one in labels))
        names = np.unique(np.concatenate(labels)).tolist() if text else range(first, 1 + most)
        classes, parts = tuple(map(str, names)), _counted(parts, source.label, first)
    elif source.kind == "pflib":  # whose config names the classes
        labels = [part.column(source.label) for part in parts]
        first = int(min(one.min() for one in labels) == 1 and max(one.max() for one in labels) == len(classes))
        parts = _counted(parts, source.label, first)
    require(len(classes) >= 2, f"{recipe.name} holds one class only", "it takes two to tell apart")
    columns = source.columns or {name: name for name in parts[0].columns if name != source.label}
    shape = parts[0].images.shape[3 if recipe.vectors else 1 :]
    several = classes if parts[0].columns[source.label].ndim > 1 else ()
    source = dataclasses.replace(source, columns=columns, label_columns=several)
    whole = dataclasses.replace(recipe, shape=shape, classes=classes, partition_classes=len(classes), source=(source,))
    return whole, source, parts


def _counted(parts: list[Part], label: str, first: int) -> list[Part]:
    """The parts with labels that count from 0 instead of `first`."""
    if not first:
        return parts
    return [replace(part, columns={**part.columns, label: part.columns[label] - first}) for part in parts]


def _found(recipe: Recipe, whole: Recipe, parts: list[Part]) -> list[str]:
    """Notes for the user: how files were read, and for a recipe without shape and classes, what they contain."""
    lines = list(dict.fromkeys(part.found for part in parts if part.found))
    if recipe.told or not parts:
        return lines
    count = sum(len(part.images) for part in parts)
    if whole.vectors:
        return [*lines, f"{count:,} vectors of {whole.shape[0]} values, {len(whole.classes)} classes"]
    height, width, channels = whole.shape
    kind = "grey" if channels == 1 else "colour"
    return [*lines, f"{count:,} {kind} images of {height} x {width} pixels, {len(whole.classes)} classes"]


def _tables(recipe: Recipe, source: Source, parts: list[Part]) -> dict[str, pa.Table]:
    import pyarrow as pa

    ordered = [part for split in SPLITS for part in parts if part.split == split]
    for part in ordered:
        _check(recipe, source, part)
    require(
        any(len(part.images) for part in ordered),
        f"{recipe.name} ({source.name}) holds no image: {ordered[0].where if ordered else 'its files'} has none",
        "get its files again",
    )
    number = len(recipe.classes)
    require(
        recipe.multi_label or number <= MOST_CLASSES,
        f"{recipe.name} has {number:,} classes, and {MOST_CLASSES:,} is the most (predictions have 16 bits)",
        "join classes, or take a part of them",
    )
    images = np.concatenate([part.images.reshape(len(part.images), -1) for part in ordered])
    offset = offsets(images) if recipe.vectors else None
    if recipe.vectors:
        images = (images if offset is None else images - offset).astype(np.float32)
    images = np.ascontiguousarray(images).view(np.uint8)
    if recipe.multi_label:
        labels = np.concatenate([part.columns["label"] for part in ordered])
    else:
        labels = np.concatenate([_labels(part.column(source.label), recipe.classes, part.where) for part in ordered])
    split = np.repeat(np.array([SPLITS.index(p.split) for p in ordered], np.uint8), [len(p.images) for p in ordered])
    for name, code in (("train", 0), ("test", 1)):
        declared, number = getattr(source, name), int((split == code).sum())
        require(
            declared is None or declared == number,
            f"{recipe.name} ({source.name}) holds {number} {name} images; its recipe says {declared}",
        )
    columns = {}
    for name, own in sorted(source.columns.items()):
        with reading(f"{recipe.name}, column {name}", "is of different kinds in different files"):
            columns[name] = np.concatenate([part.column(own) for part in ordered])
    if recipe.partition_label is not None:
        _codes(columns[recipe.partition_label], recipe.partition_classes, f"{recipe.name}, {recipe.partition_label}")
    facts: dict[str, object] = {
        "shape": recipe.form,
        "classes": recipe.classes,
        "columns": sorted(columns),
        "partition_label": recipe.partition_label,
        "partition_classes": recipe.partition_classes,
    }
    if offset is not None:
        facts["offset"] = offset.tolist()
    metadata = {METADATA: json.dumps(facts).encode()}
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(images.shape[1]), len(images), [None, pa.py_buffer(images)])
    data = {"image": pixels, "label": as_column(labels), "split": split, **columns}
    counts = {name: _label_counts(labels[split == code], len(recipe.classes)) for code, name in enumerate(SPLITS)}
    return {
        "data": pa.table(data).replace_schema_metadata(metadata),
        "classes": pa.table({"name": list(recipe.classes), **counts}).replace_schema_metadata(metadata),
    }


def _label_counts(labels: np.ndarray, classes: int) -> np.ndarray:
    """Number of images per class, or per label [U]."""
    counts: np.ndarray = (
        labels.sum(axis=0, dtype=np.int64) if labels.ndim > 1 else np.bincount(labels, minlength=classes)
    )
    return counts


def _check(recipe: Recipe, source: Source, part: Part) -> None:
    shape = part.images.shape
    require(
        shape[1:] == tuple(recipe.form),
        f"{part.where}: images of shape {list(shape[1:])}; the recipe says {list(recipe.form)}"
        if not recipe.vectors
        else f"{part.where}: vectors of {shape[-1]} values; the recipe says {recipe.shape[0]}",
    )
    one = () if recipe.multi_label else (source.label,)
    for name in (*one, *source.columns.values()):
        values = len(part.column(name))
        require(values == shape[0], f"{part.where}: {shape[0]} images but {values} values of {name}")


def _labels(values: np.ndarray, classes: tuple[str, ...], where: str) -> np.ndarray:
    if values.dtype.kind == "U":
        order = {name: i for i, name in enumerate(classes)}
        strangers = sorted(set(values.tolist()) - set(order))
        require(
            not strangers, f"{where}: class '{strangers[0] if strangers else ''}' is not among the recipe's classes"
        )
        return np.array([order[name] for name in values.tolist()], np.int64)
    return _codes(values, len(classes), where)


def _codes(values: np.ndarray, number: int, where: str) -> np.ndarray:
    require(values.dtype.kind in "iu", f"{where}: labels must be whole numbers, not {values.dtype}")
    good = values.size == 0 or (values.min() >= 0 and values.max() < number)
    require(bool(good), f"{where}: labels must lie in 0..{number - 1}")
    return values.astype(np.int64)


# Verify source files against their recipe's checksums, and artifacts against their manifests; look for test images
# among the training images.


GOOD, UNDECLARED, MISSING, DAMAGED, REPEATED = "good", "no checksum", "missing", "damaged", "repeated"


@dataclass(frozen=True)
class Finding:
    """Result for one source file or artifact."""

    dataset: str
    what: str  #: source and path of the file, or id of the artifact
    state: str  #: GOOD, UNDECLARED, MISSING, DAMAGED, or REPEATED: of an artifact's images some train and test
    detail: str  #: its path, the error, or how many are repeated


def check(name: str, store: Store, roots: Sequence[Path] = ()) -> list[Finding]:
    """Verify all files of all sources of a data set, of all parts of a union, and its artifacts. Reads every file."""
    chosen = recipe(name)
    folders = places(chosen, store, roots)
    findings = []
    for source in chosen.sources:
        for part in parts_of(source):
            findings += check(part.name, store, roots)
        for file in source.file:
            what, path = f"{source.name}: {file.path}", find(file, folders)
            if path is None:
                findings.append(Finding(chosen.name, what, MISSING, ""))
                continue
            wrong = _complaint(verify, file, path)
            state = DAMAGED if wrong else GOOD if file.checksum else UNDECLARED
            findings.append(Finding(chosen.name, what, state, wrong or str(path)))
    for artifact in store.scan("dataset"):
        if isinstance(artifact, DamagedError) and _owner(store.path("dataset", artifact.id)) in (chosen.name, None):
            findings.append(Finding(chosen.name, f"artifact {artifact.id}", DAMAGED, str(artifact)))
        elif isinstance(artifact, Artifact) and artifact.manifest["spec"].get("name") == chosen.name:
            wrong = _complaint(lambda a: [a.file(name) for name in a.manifest["files"]], artifact)
            state = DAMAGED if wrong else GOOD
            findings.append(Finding(chosen.name, f"artifact {artifact.id}", state, wrong or str(artifact.path)))
            if not wrong and (said := _repeated(artifact)):
                findings.append(Finding(chosen.name, f"artifact {artifact.id}", REPEATED, said))
    return findings


def _repeated(artifact: Artifact) -> str:
    """How many test images are, value by value, among the training images; "" if none is."""
    test = as_array(artifact.table("data", ["split"])["split"]).astype(bool)
    if test.all() or not test.any():
        return ""
    hashes = [hashlib.sha256(one.as_buffer()).digest() for part in artifact.batches("data", "image") for one in part]
    trained = {digest for digest, later in zip(hashes, test.tolist(), strict=True) if not later}
    count = sum(digest in trained for digest, later in zip(hashes, test.tolist(), strict=True) if later)
    samples = "vectors" if artifact.manifest["spec"].get("vectors") else "images"
    return f"{count:,} of {int(test.sum()):,} test {samples} are among its training {samples}" if count else ""


def _owner(path: Path) -> str | None:
    """The name of the data set in this artifact folder, from the spec in its manifest; None if that spec does not match
    the id, so that the name is unknown."""
    try:
        spec = DatasetSpec.shared(read_json(path / MANIFEST)["spec"])
    except (FedbenchError, OSError, KeyError):
        return None
    return spec.name if spec.id == path.name else None


def _complaint(act: Callable[..., object], *arguments: object) -> str:
    try:
        act(*arguments)
    except FedbenchError as error:
        return str(error)
    return ""
