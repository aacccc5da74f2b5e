"""Recipes: a data set described in one TOML file (data_recipes/NAME.toml, or a user's file).

A recipe has the classes, the shape, and one or more sources. A source is one form in which the data set is distributed
(official archive, re-encoded copy, ...): its files with checksums and mirrors, and how to read them. Sources are in
order of preference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = (
    "builtin",
    "idx",
    "cifar-binary",
    "parquet",
    "folder",
    "leaf",
    "mat",
    "csv",
    "list",
    "union",
    "pflib",
    "table",
    "text",
)
#: The kinds that read vectors.
VECTORS = ("table", "text")
#: File suffixes of kind table.
TABLES = (".csv", ".parquet", ".npz")
SPLITS = ("train", "test")
#: Source of a data set of arrays in memory (see `arrays`), which no recipe names.
ARRAYS = "memory"
#: Most classes of a data set: a run stores its answers, the predictions, in 16 bits.
MOST_CLASSES = 2**16
#: Columns of every data set; natural columns need other names.
RESERVED = ("image", "label", "split")


@dataclass(frozen=True)
class Member:
    """A file in an archive, or for kind `folder` a pattern of files in an archive or a folder.

    In a pattern, `*` and `?` match anything but a slash, and `{name}` matches one folder level, which becomes the
    column `name` (`{label}` is the class). Alternatively `annotations` is a text file in the archive or folder: lines
    of file name and class, separated by a tab or, without a tab, by the last blank.
    """

    path: str
    split: str = "train"
    annotations: str | None = None


@dataclass(frozen=True)
class File:
    """One file of a source (for kinds `folder` and `leaf` one folder), relative to a data folder."""

    path: str
    sha256: str | None = None
    md5: str | None = None
    urls: tuple[str, ...] = ()  #: mirrors, tried in this order
    size: int | None = None  #: maximum bytes of a download
    split: str = "train"
    #: Kind idx: "images", "labels" or the name of another array; kind text: "features", "labels" or another name.
    role: str | None = None
    rows: int | None = None  #: read only this many rows
    #: Kinds csv, list and table: skip this many rows first; so one file can hold training and test images.
    skip: int | None = None
    member: tuple[Member, ...] = ()

    @property
    def checksum(self) -> str | None:
        """The strongest checksum, such as 'sha256:ab...'."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}" if self.md5 else None


@dataclass(frozen=True)
class Source:
    """One form of the data set: its files and how they are read."""

    name: str
    kind: str  #: one of KINDS
    title: str = ""
    file: tuple[File, ...] = ()
    loader: str | None = None  #: kind builtin: name of the embedded data set; kinds hf and torchvision: options
    fields: tuple[str, ...] = ()  #: kind cifar-binary: names of the label bytes before the pixels
    image: str = "image"  #: kind parquet: column of the encoded images; kinds csv and list: column of their names
    label: str = "label"  #: the source's column of classes, by name or by number
    resize: bool = (
        False  #: kinds parquet, folder, csv and list: resize images of another size to the recipe's (bilinear)
    )
    only_classes: bool = False  #: kind folder: skip images of classes that the recipe does not have
    #: Kind folder: an image's class is the rank of its class folder, whatever its name, in the alphabetical order of
    #: the member's class folders with the same other {name}s (as torchvision's ImageFolder numbers them).
    ordered_classes: bool = False
    #: Kind table: columns of the vector, in this order; empty: all others. Kind hf: the same, or "all" columns of
    #: numbers; empty: the data are images. Kinds pflib and leaf without a recipe file: "x" of vectors.
    features: tuple[str, ...] = ()
    #: Kind csv, for multi-label images: the columns of the labels, in the order of the recipe's classes, and the
    #: meaning of their values, 0 or 1 ("" is an empty field; numbers are compared as numbers). Kinds table and text:
    #: value of the label -> its class, counted from 0, if values are neither names nor numbers of classes.
    label_columns: tuple[str, ...] = ()
    label_values: Mapping[str, int] = field(default_factory=dict)
    #: Kinds csv and list: prefix of the images' names (column `image`) that is not a folder below the file's folder;
    #: kind csv: a member pattern for the names, whose {name}s become columns.
    prefix: str = ""
    pattern: str | None = None
    parts: tuple[str, ...] = ()  #: kind union: the data sets to join, in this order
    columns: Mapping[str, str] = field(default_factory=dict)  #: natural column -> the source's column
    train: int | None = None  #: expected number of training images
    test: int | None = None  #: expected number of test images


@dataclass(frozen=True)
class Recipe:
    """A validated recipe. `shape` is (height, width, channels), or (values,) for vectors; `folder` is the folder of a
    user's recipe.

    For a data set without a recipe file (see `foreign`), shape and classes are empty and come from the files.
    """

    name: str
    title: str
    licence: str
    citation: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    source: tuple[Source, ...]
    partition_label: str | None = None  #: column to partition by instead of the class
    partition_classes: int = 0  #: number of values of that column (0: the number of classes)
    protocol: str | None = None  #: protocol for its defaults (None: FedDRM's for the papers' data sets, else `plain`)
    folder: Path | None = None

    @property
    def told(self) -> bool:
        """Whether shape and classes are known before the files are read."""
        return bool(self.shape)

    @property
    def vectors(self) -> bool:
        """Whether it holds vectors instead of images."""
        return len(self.shape) == 1 or self.source[0].kind in VECTORS or bool(self.source[0].features)

    @property
    def form(self) -> tuple[int, ...]:
        """The shape of an image in memory; (1, 1, D) for a vector of D values."""
        return (1, 1, *self.shape) if len(self.shape) == 1 else self.shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources in order of preference."""
        return self.source

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, 0 or 1 each, instead of one class; `classes` has the labels' names."""
        return bool(self.source[0].label_columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the natural columns (not image, label and split)."""
        return tuple(self.source[0].columns)
