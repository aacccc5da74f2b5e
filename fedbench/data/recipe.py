"""Recipes: a data set described in one TOML file (data_recipes/NAME.toml, or a user's own file).

A recipe names the classes, the shape, and one or more sources. A source is one form in which the data set is
handed round (official archive, re-encoded copy, ...): its files with checksums and mirrors, and how to read them.
Sources stand in order of preference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = (
    "builtin", "idx", "cifar-binary", "parquet", "folder", "leaf", "mat", "csv", "list", "union", "pflib", "table",
    "text",
)  # fmt: skip
#: Of these, those that read vectors.
VECTORS = ("table", "text")
#: Endings of the files of kind table.
TABLES = (".csv", ".parquet", ".npz")
SPLITS = ("train", "test")
#: Columns that every data set has; natural columns need other names.
RESERVED = ("image", "label", "split")


@dataclass(frozen=True)
class Member:
    """A file inside an archive, or for kind `folder` a pattern of files inside an archive or a folder.

    In a pattern, `*` and `?` stand for anything but a slash, and `{name}` for one folder level that becomes the
    column `name` (`{label}` is the class). `annotations` names a text file beside the images instead: lines of file
    name and class, separated by a tab or, where a line has none, by its last blank.
    """

    path: str
    split: str = "train"
    annotations: str | None = None


@dataclass(frozen=True)
class File:
    """One file (or, for kinds `folder` and `leaf`, one folder) of a source, below a data root."""

    path: str
    sha256: str | None = None
    md5: str | None = None
    urls: tuple[str, ...] = ()  #: mirrors, tried in this order
    size: int | None = None  #: bytes, beyond which a mirror is not listened to
    split: str = "train"
    #: Kind idx: "images", "labels" or the name of another array; kind text: "features", "labels" or another's name.
    role: str | None = None
    rows: int | None = None  #: read only the first so many rows
    #: Kinds csv, list and table: of those behind the first so many; one file may so be training and test images.
    skip: int | None = None
    member: tuple[Member, ...] = ()

    @property
    def checksum(self) -> str | None:
        """The strongest declared checksum, such as 'sha256:ab...'."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}" if self.md5 else None


@dataclass(frozen=True)
class Source:
    """One form of the data set: its files and how they are read."""

    name: str
    kind: str  #: one of KINDS
    title: str = ""
    file: tuple[File, ...] = ()
    loader: str | None = None  #: kind builtin: which embedded data set; kinds hf and torchvision: options
    fields: tuple[str, ...] = ()  #: kind cifar-binary: names of the label bytes before the pixels
    image: str = "image"  #: kind parquet: column of the encoded images
    label: str = "label"  #: which of the source's columns is the class, by name or by number
    resize: bool = (
        False  #: kinds parquet, folder, csv and list: bring images of another size to the recipe's (bilinear)
    )
    only_classes: bool = False  #: kind folder: images of other classes than the recipe's are left out, not an error
    #: Kind folder: a class is its folder's place in alphabetical order, whatever it is called, among the class folders
    #: of the same member whose other {name}s agree (as torchvision's ImageFolder numbers each of them).
    ordered_classes: bool = False
    #: Kind table: the columns of the vector, in this order; none: all others. Kind hf: the same, or "all" of numbers;
    #: none: it holds images.
    features: tuple[str, ...] = ()
    #: Kind csv, with several labels an image in place of one class: the columns of the labels, in the order of the
    #: recipe's classes, and what their values mean, 0 or 1 ("" is an empty field; numbers are compared as such). Kinds
    #: table and text: which class, counted from 0, a value of the label means, where it is neither name nor number.
    label_columns: tuple[str, ...] = ()
    label_values: Mapping[str, int] = field(default_factory=dict)
    #: Kinds csv and list: what the names of the images (column `image`) begin with that is no folder below the file's;
    #: kind csv: what they look like, as a member pattern whose {name} becomes a column.
    prefix: str = ""
    pattern: str | None = None
    parts: tuple[str, ...] = ()  #: kind union: the data sets that it joins, in this order
    columns: Mapping[str, str] = field(default_factory=dict)  #: natural column -> the source's column
    train: int | None = None  #: how many training and
    test: int | None = None  #: test images there must be


@dataclass(frozen=True)
class Recipe:
    """A validated recipe. `shape` is (height, width, channels), or (values,) of vectors; `folder` is where a user's own
    recipe lies.

    One that stands for a data set without a recipe file (see `foreign`) has neither shape nor classes: its files say.
    """

    name: str
    title: str
    licence: str
    citation: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    source: tuple[Source, ...]
    partition_label: str | None = None  #: column to partition by instead of the class
    partition_classes: int = 0  #: how many values that column has (0: as many as there are classes)
    protocol: str | None = None  #: whose defaults hold for it (None: FedDRM's for the papers' data sets, else `plain`)
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
        """The shape of an image in memory; that of a vector of D values is (1, 1, D)."""
        return (1, 1, *self.shape) if len(self.shape) == 1 else self.shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources in order of preference."""
        return self.source

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, 0 or 1 each, instead of one class; the classes are then these labels."""
        return bool(self.source[0].label_columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns besides image, label and split."""
        return tuple(self.source[0].columns)
