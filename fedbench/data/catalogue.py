"""Recipes by name: fedbench's recipes, users' files, and parts of unions; parsing their TOML."""

from __future__ import annotations

import dataclasses
import os
import re
from functools import cache
from pathlib import Path, PurePosixPath

from fedbench import reader
from fedbench.data import foreign
from fedbench.data.names import composed
from fedbench.data.recipe import KINDS, RESERVED, SPLITS, VECTORS, File, Recipe, Source
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.resources import RECIPES
from fedbench.specs import require
from fedbench.words import path_of


@cache
def recipes() -> dict[str, Recipe]:
    """fedbench's recipes by name. Raises FedbenchError if one is invalid."""
    return {path.stem: read(path) for path in sorted(RECIPES.glob("*.toml"))}


#: Users' recipes that this process has read, because a spec has the name of its recipe and not the path.
_users: dict[str, Recipe] = {}


def recipe(name: str) -> Recipe:
    """The recipe of this name, or at this path if it looks like one ('./mine.toml').

    For a user's union, also loads parts that are recipes in the same folder.
    """
    if (of_files := foreign.recipe(name)) is not None:
        taken = of_files.name in recipes()
        require(
            not taken, f"{name} has the name of fedbench's own data set {of_files.name}", "rename the folder or file"
        )
        _users[of_files.name] = of_files
        return of_files
    if name.endswith(".toml") or "/" in name:
        path = path_of(name, "recipe")
        if path.suffix != ".toml" and path.is_file():
            raise _no_data_set(name)
        found = dataclasses.replace(read(path), folder=path.resolve().parent)
        _users[found.name] = found
        for part in (part for source in found.sources for part in source.parts):
            beside = path.with_name(f"{part}.toml")
            if part not in recipes() and part not in _users and beside.is_file():
                recipe(str(beside))
        return found
    for known in (recipes(), _users):
        if name in known:
            return known[name]
    if "." in name and os.path.isfile(name):
        raise _no_data_set(name)
    raise unknown("dataset", name, {**_users, **recipes()})


def _no_data_set(name: str) -> FedbenchError:
    return FedbenchError(
        f"the file {name} is no data set",
        "give a name of 'fedbench data list', a recipe (./mine.toml; 'fedbench new dataset mine' writes one, which may "
        "read a CSV of images), a table of numbers (./FILE.csv,label=COLUMN), a folder of PFLlib or LEAF (./FOLDER), a "
        "file of MedMNIST (./FILE.npz), hf:NAME, hf:./FOLDER or torchvision:NAME",
    )


def called(name: str) -> str:
    """The name in tables and specs of a data set, or of a user's recipe at this path.

    Raises FedbenchError for a user's recipe with the name of a fedbench recipe, because tables could not tell them
    apart.
    """
    if name.endswith(".toml") and (stem := path_of(name, "recipe").stem) in recipes():
        raise FedbenchError(f"{name} has the name of fedbench's own data set {stem}", "rename the file")
    return recipe(name).name


def candidates(name: str) -> list[Recipe]:
    """All recipes of this name, a user's first."""
    if name not in _users and name.startswith((foreign.HUB, foreign.TORCHVISION)):
        recipe(name)
    return [found[name] for found in (_users, recipes()) if name in found]


def parts_of(source: Source) -> list[Recipe]:
    """The recipes that a source of kind union joins, in order; empty for other kinds.

    Raises FedbenchError for an unknown name, and for a part that is itself a union.
    """
    parts = [recipe(part) for part in source.parts]
    for part in parts:
        require(not any(s.parts for s in part.sources), f"{part.name} is a union and cannot be a part of another")
    return parts


def fetchable(source: Source) -> bool:
    """Whether every file of a source, or every part of a union, has an address for downloads."""
    if source.parts:
        return all(any(map(fetchable, part.sources)) for part in parts_of(source))
    return foreign.fetchable(source) or all(file.urls for file in source.file)


# Read and validate a recipe's TOML; error messages name the file, the table and the key.


#: Fields that only some kinds of sources have -> these kinds.
_OF_KINDS = {
    "resize": ("parquet", "folder", "csv", "list"),
    "only_classes": ("folder",),
    "ordered_classes": ("folder",),
    **dict.fromkeys(("label_columns", "pattern"), ("csv",)),
    "prefix": ("csv", "list"),
    "label_values": ("csv", *VECTORS),
    "features": ("table",),
}


def read(path: Path) -> Recipe:
    """Read and validate a recipe. Raises FedbenchError with the file and the mistake."""
    where = f"recipe {path}"
    name = path.stem
    require(_is_name(name), f"{where}: the file's name must be letters, digits, _ or -")
    what = ("recipe file", "give the path of a TOML file") if path.suffix == ".toml" else ("file", "check the path")
    recipe = reader.read(Recipe, reader.toml(path, *what), where, name=name, folder=None)
    recipe = dataclasses.replace(recipe, classes=tuple(map(composed, recipe.classes)))
    _check_recipe(recipe, where)
    if not recipe.partition_classes:
        recipe = dataclasses.replace(recipe, partition_classes=len(recipe.classes))
    return recipe


def _check_recipe(recipe: Recipe, where: str) -> None:
    shape = recipe.shape
    good = bool(shape) and min(shape) >= 1 and (len(shape) == 1 or (len(shape) == 3 and shape[2] in (1, 3)))
    form = "[height, width, channels] with 1 or 3 channels (of vectors: how many values, as [30])"
    require(good, f"{where}: shape must be {form}, not {list(shape)}")
    require(len(recipe.classes) >= 2, f"{where}: classes must name at least 2 classes")
    require(len(set(recipe.classes)) == len(recipe.classes), f"{where}: classes holds a name twice")
    require(bool(recipe.source), f"{where} has no [[source]]")
    names = [source.name for source in recipe.source]
    require(len(set(names)) == len(names), f"{where}: two sources have the same name")
    require(
        (recipe.partition_label is None) == (recipe.partition_classes == 0),
        f"{where}: partition_label and partition_classes go together",
    )
    for source in recipe.source:
        _check_source(source, recipe, f"{where}, source {source.name}")


def _check_source(source: Source, recipe: Recipe, where: str) -> None:
    check_known(f"kind in {where}", source.kind, KINDS)
    reads, shape = ("vectors", "[values]") if source.kind in VECTORS else ("images", "[height, width, channels]")
    both = source.kind in ("builtin", "union", "leaf")
    good = both or (source.kind in VECTORS) == recipe.vectors == (len(recipe.shape) == 1)
    require(good, f"{where}: kind {source.kind} reads {reads}, so shape is {shape}")
    require(set(source.columns) == set(recipe.columns), f"{where}: every source must give the same columns")
    for name in source.columns:
        require(name not in RESERVED, f"{where}: a natural column cannot be called '{name}'")
    label = recipe.partition_label
    require(label is None or label in source.columns, f"{where}: there is no column '{label}' to partition by")
    embedded = source.kind == "builtin"
    require(embedded == (source.loader is not None), f"{where}: kind builtin, and only it, has a loader")
    union = source.kind == "union"
    require(union == bool(source.parts), f"{where}: kind union, and only it, has parts")
    for part in source.parts:
        require(_is_name(part), f"{where}: parts holds '{part}', which is no data set's name")
    require(len(set(source.parts)) == len(source.parts), f"{where}: parts holds a name twice")
    require(recipe.name not in source.parts, f"{where}: a data set cannot be a part of itself")
    require(
        (embedded or union) == (not source.file),
        f"{where}: every kind but builtin and union, and not those two, has [[source.file]]",
    )
    for name, kinds in _OF_KINDS.items():
        require(not getattr(source, name) or source.kind in kinds, f"{where}: kind {source.kind} has no {name}")
    require(not (source.only_classes and source.ordered_classes), f"{where}: only_classes or ordered_classes, not both")
    _check_labels(source, recipe, where)
    if source.kind == "cifar-binary":
        require(bool(source.fields), f"{where}: kind cifar-binary needs fields, the names of its label bytes")
    for name in (n for n in ("only_classes", "ordered_classes") if getattr(source, n)):
        for member in (m for file in source.file for m in file.member):
            require("{label}" in member.path, f"{where}: with {name} member {member.path} must have {{label}}")
    for file in source.file:
        _check_file(file, source.kind, f"{where}, file {file.path}")
    roles = [(file.split, file.role) for file in source.file if source.kind in ("idx", "text")]
    require(len(set(roles)) == len(roles), f"{where}: two files have the same role and split", "join them to one")


def _check_labels(source: Source, recipe: Recipe, where: str) -> None:
    require(
        bool(source.label_columns) == recipe.multi_label, f"{where}: every source must have several labels, or none"
    )
    if source.kind == "csv" and not source.label_columns:
        require(not source.label_values, f"{where}: label_values go with label_columns", "label names one class column")
    if source.label_columns:
        count = len(recipe.classes)
        require(len(source.label_columns) == count, f"{where}: label_columns must name {count} columns, one a class")
        good = bool(source.label_values) and set(source.label_values.values()) <= {0, 1}
        require(good, f"{where}: label_values must say which values of a label are 0 and which are 1")
        require(recipe.partition_label is None, f"{where}: there is no partition_label with multi-label images")
    if source.kind in VECTORS:
        codes, count = source.label_values.values(), len(recipe.classes)
        good = all(0 <= code < count for code in codes)
        require(good, f"{where}: label_values must say a class by its number, 0 to {count - 1}")
        require(not set(source.features) & {source.label, *source.columns.values()}, f"{where}: features holds a label")
        require(len(set(source.features)) == len(source.features), f"{where}: features holds a column twice")


def _check_file(file: File, kind: str, where: str) -> None:
    require(_inside(file.path), f"{where}: the path must be relative and stay below the data folder")
    for name, digits in (("sha256", 64), ("md5", 32)):
        value = getattr(file, name)
        good = value is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", value)
        require(bool(good), f"{where}: {name} must be {digits} hexadecimal digits in lower case")
    require(not file.urls or file.checksum is not None, f"{where}: a file with urls needs a checksum (sha256 or md5)")
    require(file.size is None or file.size >= 1, f"{where}: size must be at least 1")
    for url in file.urls:
        require(bool(re.match(r"https?://", url)), f"{where}: {url} is not an http(s) address")
    require(file.rows is None or file.rows >= 1, f"{where}: rows must be at least 1")
    require(
        file.rows is None or kind in ("idx", "parquet", "csv", "list", "table"), f"{where}: kind {kind} has no rows"
    )
    require(file.skip is None or file.skip >= 1, f"{where}: skip must be at least 1")
    require(file.skip is None or kind in ("csv", "list", "table"), f"{where}: kind {kind} has no skip")
    require(kind != "idx" or file.role is not None, f"{where}: kind idx needs a role (images, labels, ...)")
    require(kind != "text" or file.role is not None, f"{where}: kind text needs a role (features, labels, ...)")
    require(kind != "folder" or bool(file.member), f"{where}: kind folder needs member, the patterns of its images")
    require(not file.member or kind in ("folder", "cifar-binary"), f"{where}: kind {kind} has no members")
    require(file.split in SPLITS, f"{where}: split must be train or test, not '{file.split}'")
    for member in file.member:
        require(_inside(member.path), f"{where}: member {member.path} must be a relative path")
        require(member.split in SPLITS, f"{where}: split must be train or test, not '{member.split}'")
        if kind == "folder":
            named = "{label}" in member.path or member.annotations is not None
            require(named, f"{where}: member {member.path} has neither {{label}} nor annotations to tell the class")


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9_-]+", text))


def _inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and ":" not in parts[0]
