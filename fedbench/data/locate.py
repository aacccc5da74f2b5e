"""Which variant of a data set is at hand: from a name and the data folders to a DatasetSpec."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.data.archive import open_tree
from fedbench.data.catalogue import candidates, recipe
from fedbench.data.recipe import File, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.files import sha256_of
from fedbench.spec import DatasetSpec
from fedbench.store import Store

#: Of the readers: raised when the same files should give other pixels, labels or columns.
VERSION = 1


def downloads(store: Store) -> Path:
    """Where `fetch` puts files: one more data folder."""
    return store.home / "downloads"


def places(chosen: Recipe, store: Store, roots: Sequence[Path]) -> list[Path]:
    """Folders searched for a recipe's files: beside the user's own recipe, the data folders, the downloads."""
    own = [chosen.folder] if chosen.folder else []
    return [*own, *roots, downloads(store)]


def find(file: File, folders: Sequence[Path]) -> Path | None:
    """The first of `folders` that holds the file, as the file's path; None if none does."""
    return next((folder / file.path for folder in folders if (folder / file.path).exists()), None)


def locate(source: Source, folders: Sequence[Path]) -> list[Path] | None:
    """Paths of all files of a source in the recipe's order, or None if one is missing."""
    found = [find(file, folders) for file in source.file]
    return [path for path in found if path is not None] if None not in found else None


def spec_of(chosen: Recipe, source: Source, paths: Sequence[Path]) -> DatasetSpec:
    """The spec of one source. Reads files only where the recipe declares no checksum."""
    return DatasetSpec(name=chosen.name, source=source.name, content=_content(chosen, source, paths), version=VERSION)


def resolve(name: str, store: Store, roots: Sequence[Path] = ()) -> DatasetSpec:
    """The data set that a name (or the path of a recipe) means here.

    In this order: the recipe's first source whose files lie in a data folder, beside the recipe or in the
    downloads (embedded sources always do); else the newest artifact of that name in the store.
    Raises FedbenchError if there is neither, saying where it looked.
    """
    try:
        chosen = recipe(name)
    except FedbenchError:
        built = _newest(name, store)
        if built is None:
            raise
        return built
    folders = places(chosen, store, roots)
    for source in chosen.sources:
        paths = locate(source, folders)
        if paths is not None:
            return spec_of(chosen, source, paths)
    built = _newest(chosen.name, store)
    if built is None:
        raise absent(chosen, chosen.sources, folders)
    return built


def variant(spec: DatasetSpec, store: Store, roots: Sequence[Path]) -> tuple[Recipe, Source, list[Path]]:
    """The recipe, source and files that make `spec`. Raises FedbenchError if they are not at hand."""
    found = [(r, s) for r in candidates(spec.name) for s in r.sources if s.name == spec.source]
    if not found:
        raise FedbenchError(
            f"no recipe for dataset {spec.name} (source {spec.source})", "give the path of its TOML file"
        )
    for chosen, source in found:
        paths = locate(source, places(chosen, store, roots))
        if paths is not None and spec_of(chosen, source, paths) == spec:
            return chosen, source, paths
    chosen, source = found[0]
    folders = places(chosen, store, roots)
    if locate(source, folders) is None:
        raise absent(chosen, [source], folders)
    raise FedbenchError(
        f"dataset {spec.name} {spec.id} was made from other files or by another recipe than {spec.source} is now",
        f"partition {spec.name} anew, or bring its artifact into the store",
    )


def absent(chosen: Recipe, sources: Sequence[Source], folders: Sequence[Path]) -> FedbenchError:
    """The error for a data set whose files are nowhere: what is missing, where it was looked for, what to do."""
    missing = [next(f.path for f in s.file if find(f, folders) is None) for s in sources]
    looked = ", ".join(str(folder) for folder in folders)
    fetchable = any(all(file.urls for file in source.file) for source in chosen.sources)
    bring = f"'fedbench data fetch {chosen.name}', or " if fetchable else ""
    return FedbenchError(
        f"the images of {chosen.name} are not at hand: no {' and no '.join(missing)} in {looked}",
        f"{bring}name the folder that holds them with --data or FEDBENCH_DATA",
    )


def _newest(name: str, store: Store) -> DatasetSpec | None:
    specs = [artifact.spec for artifact in store.list("dataset")]
    return next((s for s in reversed(specs) if isinstance(s, DatasetSpec) and s.name == name), None)


def _content(chosen: Recipe, source: Source, paths: Sequence[Path]) -> str:
    files: list[dict[str, Any]] = []
    for file, path in zip(source.file, paths, strict=True):
        how = {"split": file.split, "role": file.role, "rows": file.rows}
        members = [[m.path, m.split, m.annotations] for m in file.member]
        files.append({"checksum": file.checksum or _actual(path), **how, "members": members})
    told = {
        "shape": chosen.shape, "classes": chosen.classes,
        "partition": [chosen.partition_label, chosen.partition_classes],
        "kind": source.kind, "loader": source.loader, "fields": source.fields,
        "image": source.image, "label": source.label, "columns": sorted(source.columns.items()), "files": files,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def readable(what: object) -> Iterator[None]:
    """Turn the operating system's refusal to read into one clear line that names `what`."""
    try:
        yield
    except OSError as error:
        raise FedbenchError(f"cannot read {what} ({error})", "check that it is there and may be read") from error


def _actual(path: Path) -> str:
    if path.is_file():
        with readable(path):
            return f"sha256:{sha256_of(path)}"
    digest = hashlib.sha256()
    with readable(path), open_tree(path) as tree:
        for name in tree.names:
            digest.update(f"{name}\0{hashlib.sha256(tree.read(name)).hexdigest()}\n".encode())
    return f"tree:{digest.hexdigest()}"
