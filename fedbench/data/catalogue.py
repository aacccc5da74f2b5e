"""The recipes by name: those that come with fedbench, and the user's own files; those that a union joins."""

from __future__ import annotations

import dataclasses
import os
from functools import cache

from fedbench.data import foreign
from fedbench.data.parse import read
from fedbench.data.recipe import Recipe, Source
from fedbench.errors import FedbenchError, unknown
from fedbench.resources import RECIPES
from fedbench.specs import require
from fedbench.words import path_of


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes that come with fedbench, by name. Raises FedbenchError if one of them is wrong."""
    return {path.stem: read(path) for path in sorted(RECIPES.glob("*.toml"))}


#: Recipes of the user that this process has read: a spec names its recipe, not the file it came from.
_users: dict[str, Recipe] = {}


def recipe(name: str) -> Recipe:
    """The recipe of that name, or of that path if it looks like one ('./mine.toml').

    The parts of a user's own union may be recipes that lie beside it.
    """
    if (of_files := foreign.recipe(name)) is not None:
        taken = of_files.name in recipes()
        require(not taken, f"{name} has the name of fedbench's own data set {of_files.name}", "rename the folder")
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
        "read a CSV of images), a folder of PFLlib or LEAF (./FOLDER), hf:NAME, hf:./FOLDER or torchvision:NAME",
    )


def called(name: str) -> str:
    """The name of a data set, or of the user's recipe of that path, by which tables and specs know it.

    Raises FedbenchError for a recipe that has the name of one that comes with fedbench: tables could not tell them
    apart.
    """
    if name.endswith(".toml") and (stem := path_of(name, "recipe").stem) in recipes():
        raise FedbenchError(f"{name} has the name of fedbench's own data set {stem}", "rename the file")
    return recipe(name).name


def candidates(name: str) -> list[Recipe]:
    """Every recipe known by that name: the user's own first."""
    if name not in _users and name.startswith((foreign.HUB, foreign.TORCHVISION)):
        recipe(name)
    return [found[name] for found in (_users, recipes()) if name in found]


def parts_of(source: Source) -> list[Recipe]:
    """The recipes that a source of kind union joins, in its order; none for other kinds.

    Raises FedbenchError for an unknown name, and for a part that is a union itself.
    """
    parts = [recipe(part) for part in source.parts]
    for part in parts:
        require(not any(s.parts for s in part.sources), f"{part.name} is a union and cannot be a part of another")
    return parts


def fetchable(source: Source) -> bool:
    """Whether an address is known for every file of a source, or for all parts of a union."""
    if source.parts:
        return all(any(map(fetchable, part.sources)) for part in parts_of(source))
    return foreign.fetchable(source) or all(file.urls for file in source.file)
