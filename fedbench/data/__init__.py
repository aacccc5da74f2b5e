"""Data sets: from a recipe (TOML) to a verified Parquet artifact to NumPy arrays."""

from __future__ import annotations

from fedbench.data.build import Finding, check, load, obtain, verify
from fedbench.data.catalogue import called, fetchable, parts_of, recipe, recipes
from fedbench.data.dataset import Dataset, Info, class_counts, from_artifact, group_names, groups, groups_of_test, info
from fedbench.data.fetch import fetch
from fedbench.data.foreign import downloads
from fedbench.data.locate import declared, locate, places, resolve, spec_of
from fedbench.data.recipe import File, Member, Recipe, Source

__all__ = [
    "Dataset",
    "File",
    "Finding",
    "Info",
    "Member",
    "Recipe",
    "Source",
    "called",
    "check",
    "class_counts",
    "declared",
    "downloads",
    "fetch",
    "fetchable",
    "from_artifact",
    "group_names",
    "groups",
    "groups_of_test",
    "info",
    "load",
    "locate",
    "obtain",
    "parts_of",
    "places",
    "recipe",
    "recipes",
    "resolve",
    "spec_of",
    "verify",
]
