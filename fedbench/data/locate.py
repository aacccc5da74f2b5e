"""Find a data set's files: from a name and the data folders to a DatasetSpec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.data.archive import open_tree
from fedbench.data.catalogue import candidates, fetchable, parts_of, recipe
from fedbench.data.foreign import SETS, downloads, options_of
from fedbench.data.guard import readable, regular
from fedbench.data.recipe import VECTORS, File, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.files import sha256_of
from fedbench.specs import DatasetSpec
from fedbench.store import Store

#: Version of the readers; increase it when the same files should give other pixels, labels or columns.
VERSION = 1
#: Version of the reader of one kind, if not 1. It is part of this kind's content hash only, so other ids do not change.
#: hf, 2: colour if any image is in colour, not if the first one is; pflib, 2: distinguishes [0, 1] from [-1, 1]; all,
#: last: labels may count from 1, and names are compared as `names` says.
_READER = {"hf": 3, "pflib": 3, "table": 2}
#: Version of how encoded images become pixels, if not 1. It is part of the content hash of kinds that decode images.
#: 2: upright, on white, in sRGB, and never of more than 8 bits (see `pixels`).
_DECODER = 2
_DECODES = ("parquet", "folder", "csv", "list", "hf", "torchvision")
#: fedbench's own recipes and sources of which every image was looked at: version 2 gives the same pixels as version 1,
#: so they keep their ids. Their files have checksums.
_SAME_PIXELS = (
    ("cifar10", "parquet"),
    ("cifar20", "parquet"),
    ("cifar100", "parquet"),
    ("mnist_m", "regenerated"),
    ("tinyimagenet", "subset"),
)


@dataclass(frozen=True)
class Variant:
    """A source whose files are available: their paths, or for a union the specs of its parts."""

    recipe: Recipe
    source: Source
    paths: tuple[Path, ...] = ()
    parts: tuple[DatasetSpec, ...] = ()

    @property
    def spec(self) -> DatasetSpec:
        """Its spec. Reads the files for which the recipe has no checksum, the images that a csv or list lists, and a
        user's vectors (see `_offset`)."""
        content = _content(self)
        of, vectors = self.recipe.name, self.recipe.vectors or None
        return DatasetSpec(name=of, source=self.source.name, content=content, version=VERSION, vectors=vectors)


def places(chosen: Recipe, store: Store, roots: Sequence[Path]) -> list[Path]:
    """Folders to search for a recipe's files: data folders, the folder of a user's recipe, downloads.

    For a data set without a recipe file (see `foreign`) only the folder that contains it.
    """
    own = [chosen.folder] if chosen.folder else []
    return own if own and not chosen.told else [*roots, *own, downloads(store)]


def find(file: File, folders: Sequence[Path]) -> Path | None:
    """The file's path in the first of `folders` that has it; None if none does."""
    for folder in folders:
        with readable(folder):  # the folder may be unreadable or the path too long
            if (folder / file.path).exists():
                return folder / file.path
    return None


def locate(source: Source, folders: Sequence[Path]) -> list[Path] | None:
    """Paths of all files of a source in the recipe's order (of a union: its parts' files); None if one is missing."""
    hits: list[Path | None] = [find(file, folders) for file in source.file]
    for part in parts_of(source):
        options = (locate(option, folders) for option in part.sources)
        hits += next((paths for paths in options if paths is not None), [None])
    paths = [path for path in hits if path is not None]
    return paths if len(paths) == len(hits) else None


def declared(chosen: Recipe, folders: Sequence[Path]) -> int:
    """Number of images that the recipe declares for the first source with files, else its first; 0 if undeclared."""
    source = next((s for s in chosen.sources if locate(s, folders) is not None), chosen.sources[0])
    counts = [declared(part, folders) for part in parts_of(source)] or [(source.train or 0) + (source.test or 0)]
    return sum(counts) if all(counts) else 0


def spec_of(chosen: Recipe, source: Source, paths: Sequence[Path]) -> DatasetSpec:
    """The spec of a source with these files. Reads files without a checksum in the recipe, and listed images."""
    return Variant(chosen, source, tuple(paths)).spec


def resolve(name: str, store: Store, roots: Sequence[Path] = ()) -> DatasetSpec:
    """The spec of a data set, from a name or the path of a recipe.

    Tries in this order: the recipe's first source with all files in the data folders, the recipe's folder or the
    downloads (embedded sources need no files; a union needs all its parts); else the newest artifact of this name in
    the store. Raises FedbenchError, with the searched folders, if there is neither.
    """
    try:
        chosen = recipe(name)
    except FedbenchError:
        built = _newest(name, store)
        if built is None:
            raise
        return built
    for source in chosen.sources:
        variant = _at_hand(chosen, source, store, roots)
        if variant is not None:
            return variant.spec
    built = _newest(chosen.name, store)
    if built is None:
        raise absent(chosen, chosen.sources, store, roots)
    return built


def variant_of(spec: DatasetSpec, store: Store, roots: Sequence[Path]) -> Variant:
    """The recipe, source and files or parts that give `spec`. Raises FedbenchError if they are missing or differ."""
    options = [(r, s) for r in candidates(spec.name) for s in r.sources if s.name == spec.source]
    if not options:
        raise FedbenchError(
            f"no recipe for dataset {spec.name} (source {spec.source})", "give the path of its TOML file"
        )
    for chosen, source in options:
        variant = _at_hand(chosen, source, store, roots)
        if variant is not None and variant.spec == spec:
            return variant
    chosen, source = options[0]
    if _at_hand(chosen, source, store, roots) is None:
        raise absent(chosen, [source], store, roots)
    raise FedbenchError(
        f"dataset {spec.name} {spec.id} was made from other files or by another recipe than {spec.source} is now",
        f"partition {spec.name} again, or bring its artifact into the store",
    )


def _at_hand(chosen: Recipe, source: Source, store: Store, roots: Sequence[Path]) -> Variant | None:
    if source.parts:  # which may exist as artifacts only
        parts = [_part(part, store, roots) for part in parts_of(source)]
        specs = tuple(part for part in parts if isinstance(part, DatasetSpec))
        return Variant(chosen, source, parts=specs) if len(specs) == len(parts) else None
    paths = locate(source, places(chosen, store, roots))
    return None if paths is None else Variant(chosen, source, tuple(paths))


def _part(part: Recipe, store: Store, roots: Sequence[Path]) -> DatasetSpec | FedbenchError:
    try:
        return resolve(part.name, store, roots)
    except FedbenchError as error:
        return error


def absent(chosen: Recipe, sources: Sequence[Source], store: Store, roots: Sequence[Path]) -> FedbenchError:
    """The error for missing files: what is missing, the searched folders, and what to do."""
    folders = places(chosen, store, roots)
    for part in (part for source in sources for part in parts_of(source)):
        error = _part(part, store, roots)
        if isinstance(error, FedbenchError):
            return FedbenchError(f"{chosen.name} lacks its part {part.name}: {error.message}", error.hint)
    missing = [next(f.path for f in s.file if find(f, folders) is None) for s in sources]
    looked = ", ".join(str(folder) for folder in folders)
    bring = f"'fedbench data fetch {chosen.name}', or " if any(map(fetchable, chosen.sources)) else ""
    return FedbenchError(
        f"the images of {chosen.name} are not available: no {' and no '.join(missing)} in {looked}",
        f"{bring}name the folder that holds them with --data or FEDBENCH_DATA",
    )


def _newest(name: str, store: Store) -> DatasetSpec | None:
    specs = [artifact.spec for artifact in store.list("dataset")]
    return next((s for s in reversed(specs) if isinstance(s, DatasetSpec) and s.name == name), None)


def _content(variant: Variant) -> str:
    chosen, source = variant.recipe, variant.source
    files: list[dict[str, Any]] = []
    for file, path in zip(source.file, variant.paths, strict=True):
        how = {"split": file.split, "role": file.role, "rows": file.rows}
        members = [[m.path, m.split, m.annotations] for m in file.member]
        files.append({"checksum": file.checksum or _actual(path), **how, "members": members})
    content: dict[str, Any] = {
        "shape": chosen.shape,
        "classes": chosen.classes,
        "partition": [chosen.partition_label, chosen.partition_classes],
        "kind": source.kind,
        "loader": source.loader,
        "fields": source.fields,
        "image": source.image,
        "label": source.label,
        "columns": sorted(source.columns.items()),
        "files": files,
    }
    # Included only if used, so that the ids of other data sets do not change.
    if source.resize:
        content["resize"] = True
    for name in ("only_classes", "ordered_classes"):
        if getattr(source, name):
            content[name] = True
    if source.kind in ("csv", "list"):
        from fedbench.data.table import images_of  # which imports NumPy

        content |= {
            "images": images_of(source, variant.paths),
            "labels": [source.label_columns, sorted(source.label_values.items())],
            "prefix": source.prefix,
            "pattern": source.pattern,
            "skip": [file.skip for file in source.file],
        }
    if source.kind in VECTORS:
        values, skip = sorted(source.label_values.items()), [file.skip for file in source.file]
        content |= {"features": source.features, "labels": values, "skip": skip}
    if version := _reader(chosen, source):
        content["reader"] = version
    if _decoded(chosen, source):
        content["decoder"] = _DECODER
    if variant.parts:
        content["parts"] = [part.id for part in variant.parts]
    if _offset(variant, json.dumps(content, sort_keys=True)):
        content["offset"] = 1
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _reader(chosen: Recipe, source: Source) -> int | None:
    """The version of its reader, if not 1."""
    options = options_of(source) if source.kind == "torchvision" else {}
    if options.get("split") == "letters" or (source.kind == "leaf" and not chosen.told):
        return 2  # labels may count from 1
    return _READER.get(source.kind)


def _decoded(chosen: Recipe, source: Source) -> bool:
    """Whether its pixels depend on `_DECODER`."""
    known = chosen.folder is None and (chosen.name, source.name) in _SAME_PIXELS
    arrays = source.kind == "torchvision" and not SETS[options_of(source)["name"]].encoded
    return source.kind in _DECODES and not (known or arrays or chosen.vectors)


#: Content of a source of vectors -> whether its values are stored less an offset.
_OFFSETS: dict[str, bool] = {}


def _offset(variant: Variant, content: str) -> bool:
    """Whether the values of a user's vectors are stored less an offset, which is known once they are read.

    Without one the id is that of before there were offsets. No recipe of fedbench's own needs any.
    """
    chosen, source = variant.recipe, variant.source
    if not chosen.vectors or source.kind in ("builtin", "union") or (chosen.told and chosen.folder is None):
        return False
    if content not in _OFFSETS:
        import numpy as np

        from fedbench.data.readers import read
        from fedbench.data.vectors import offsets

        try:
            values = [part.images.reshape(len(part.images), -1) for part in read(chosen, source, variant.paths)]
        except (FedbenchError, OSError):  # said when it is built
            return False
        same = len({one.shape[1] for one in values}) == 1
        _OFFSETS[content] = same and offsets(np.concatenate(values)) is not None
    return _OFFSETS[content]


def _actual(path: Path) -> str:
    if not path.is_dir():
        with readable(path):
            return f"sha256:{sha256_of(regular(path))}"
    digest = hashlib.sha256()
    with readable(path), open_tree(path) as tree:
        for name in tree.names:
            digest.update(f"{name}\0{hashlib.sha256(tree.read(name)).hexdigest()}\n".encode())
    return f"tree:{digest.hexdigest()}"
