"""Data sets without a recipe file, whose files determine shape and classes.

    ./FOLDER                       clients' data in the folders of PFLlib or of LEAF (train/ and test/)
    ./FILE.npz                     a file of MedMNIST
    hf:NAME[@REVISION][,OPTIONS]   a repository of the Hugging Face hub, or hf:./FOLDER, a local copy
    ./FILE.csv,label=COLUMN        a table of numbers (.csv, .parquet, .npz); group=COLUMN names natural groups
    torchvision:NAME[,OPTIONS]     a data set of torchvision, in the files that torchvision writes

Each becomes a recipe without shape and classes (`Recipe.told` is false), which `build` completes from the files.
OPTIONS are `KEY=VALUE` separated by commas; they are part of the data set's identity, but not of its name in specs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbench.data.archive import held
from fedbench.data.recipe import RESERVED, TABLES, File, Member, Recipe, Source
from fedbench.errors import FedbenchError, check_known
from fedbench.specs import require
from fedbench.store import Store
from fedbench.words import path_of

# torchvision's image classification data sets: the paths of their files, and their splits.


@dataclass(frozen=True)
class Set:
    """A data set of torchvision; its key in SETS is the class's name."""

    files: tuple[str, ...]  #: files and folders in torchvision's root; "{split}" is the variant
    #: Arguments that select the training and the test images.
    sides: tuple[tuple[str, object], tuple[str, object]] = (("split", "train"), ("split", "test"))
    variants: tuple[str, ...] = ()  #: EMNIST only: values of its argument `split`
    encoded: bool = False  #: whether its images are encoded (JPEG, ...), a file each, not arrays


_TRAIN: tuple[tuple[str, object], tuple[str, object]] = (("train", True), ("train", False))


def _idx(folder: str, train: str = "train", test: str = "t10k") -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{side}-{kind}" for side in (train, test) for kind in kinds)


SETS: dict[str, Set] = {
    "CIFAR10": Set(("cifar-10-batches-py",), _TRAIN),
    "CIFAR100": Set(("cifar-100-python",), _TRAIN),
    "Country211": Set(("country211",), encoded=True),
    "DTD": Set(("dtd",), encoded=True),
    "EMNIST": Set(
        _idx("EMNIST", "emnist-{split}-train", "emnist-{split}-test"),
        _TRAIN,
        ("balanced", "byclass", "bymerge", "digits", "letters", "mnist"),
    ),
    "FGVCAircraft": Set(("fgvc-aircraft-2013b",), encoded=True),
    "FashionMNIST": Set(_idx("FashionMNIST"), _TRAIN),
    "Flowers102": Set(("flowers-102",), encoded=True),
    "Food101": Set(("food-101",), encoded=True),
    "GTSRB": Set(("gtsrb",), encoded=True),
    "KMNIST": Set(_idx("KMNIST"), _TRAIN),
    "MNIST": Set(_idx("MNIST"), _TRAIN),
    "OxfordIIITPet": Set(("oxford-iiit-pet",), (("split", "trainval"), ("split", "test")), encoded=True),
    "STL10": Set(("stl10_binary",)),
    "SVHN": Set(("train_32x32.mat", "test_32x32.mat")),
    "USPS": Set(("usps.bz2", "usps.t.bz2"), _TRAIN),
}


HUB, TORCHVISION = "hf:", "torchvision:"
#: Folder within a data folder for repositories of the hub.
REPOSITORIES = "hf"
#: File in a repository's folder with the commit of its revision, which is part of the identity.
REVISION = ".revision"
#: Option -> word for its value in error messages.
_HUB = {
    "image": "column",
    "label": "column",
    "config": "name",
    "train": "split",
    "test": "split",
    "size": "pixels",
    "features": "column",
}
_TABLE = {"label": "column", "group": "column"}
_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:x([1-9][0-9]{0,3}))?")


def downloads(store: Store) -> Path:
    """The folder to which `fetch` downloads, which is also searched for files."""
    return store.home / "downloads"


def recipe(name: str) -> Recipe | None:
    """The recipe of a name in one of these forms; None for other names. Raises FedbenchError for an invalid one."""
    if name.startswith(HUB):
        return _repository(*_options(name, HUB, _HUB))
    if name.startswith(TORCHVISION):
        return _torchvision(*_options(name, TORCHVISION, {"size": "pixels", "split": "name"}))
    if (path := name.partition(",")[0]) != name and path.lower().endswith(TABLES):
        return _table(*_options(name, "", _TABLE))
    if "/" in name and not name.endswith(".toml") and path_of(name, "folder").is_dir():
        return _federation(path_of(name, "folder").resolve())
    if "/" in name and name.endswith(".npz") and (file := path_of(name, "file")).is_file():
        source = Source("medmnist", "medmnist", "MedMNIST's arrays", (File(file.name),))
        return _recipe(_plain(file.stem), f"{file.stem}, arrays as MedMNIST has them", source, file.resolve().parent)
    return None


def size_of(source: Source) -> tuple[int, int] | None:
    """Height and width from the option `size`, or None."""
    match = _SIZE.fullmatch(options_of(source).get("size", ""))
    return (int(match[1]), int(match[2] or match[1])) if match else None


def options_of(source: Source) -> dict[str, str]:
    """The options of a source, from its `loader`."""
    return dict(pair.split("=", 1) for pair in (source.loader or "").split(",") if pair)


def fetchable(source: Source) -> bool:
    """Whether `fedbench data fetch` can download it from the hub or with torchvision."""
    return source.kind == "torchvision" or (source.kind == "hf" and source.name == "hub")


def _options(name: str, prefix: str, known: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    own, *pairs = name.removeprefix(prefix).split(",")
    example = f"such as {prefix}{own or 'NAME'},size=32"
    require(bool(own), f"{name} names no data set", example)
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        check_known(f"option of {name}", key, known)
        require(bool(equals and value), f"option {key} of {name} needs a {known[key]}", f"{key}={known[key].upper()}")
        require(key not in options, f"{name} has the option {key} twice", "leave one of the two out")
        options[key] = value
    good = "size" not in options or bool(_SIZE.fullmatch(options["size"]))
    require(good, f"size of {name} must be pixels, not '{options.get('size')}'", "size=32, or size=HEIGHTxWIDTH")
    return own, options


def _loader(options: Mapping[str, str]) -> str | None:
    return ",".join(f"{key}={value}" for key, value in sorted(options.items())) or None


def _recipe(name: str, title: str, source: Source, folder: Path | None = None) -> Recipe:
    return Recipe(name, title, "unknown", "unknown", (), (), (source,), folder=folder)


def _repository(name: str, options: Mapping[str, str]) -> Recipe:
    title, features = "repository of the Hugging Face hub", tuple(filter(None, options.get("features", "").split("+")))
    images = next((one for one in ("image", "size") if one in options), None)
    require(
        not (features and images), f"hf:{name} has features: it holds vectors, which have no {images}", "leave one out"
    )
    if name.startswith(("./", "../", "/", "~")):
        folder = path_of(name, "repository").resolve()
        require(folder.is_dir(), f"there is no folder {folder}", "hf:./FOLDER is one that lies here, hf:NAME the hub's")
        source = Source("folder", "hf", title, (File(folder.name),), _loader(options), features=features)
        return _recipe(f"{HUB}{_plain(folder.name)}", f"{folder.name}, a {title}", source, folder.parent)
    good = re.fullmatch(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", name) and ".." not in name
    require(bool(good), f"'{name}' is no name of a repository of the hub", "such as hf:ylecun/mnist or hf:mnist@main")
    place = f"{REPOSITORIES}/{name}"
    source = Source("hub", "hf", title, (File(place), File(f"{place}/{REVISION}")), _loader(options), features=features)
    return _recipe(f"{HUB}{name}", f"{name}, a {title}", source)


def _torchvision(name: str, options: Mapping[str, str]) -> Recipe:
    check_known("data set of torchvision", name, SETS)
    known = SETS[name]
    if known.variants:
        if options.get("split") not in known.variants:
            listed = f"one of {', '.join(known.variants)}"
            raise FedbenchError(f"{TORCHVISION}{name} needs a split, {listed}", f"{TORCHVISION}{name},split=NAME")
    else:
        require("split" not in options, f"{TORCHVISION}{name} has no variants to split by", "leave split out")
    files = tuple(File(path.format(**options)) for path in known.files)
    return _recipe(
        f"{TORCHVISION}{name}",
        f"{name} as torchvision has it",
        Source("torchvision", "torchvision", "torchvision's files", files, _loader({"name": name, **options})),
    )


def _table(name: str, options: Mapping[str, str]) -> Recipe:
    path = path_of(name, "table").resolve()
    require(path.is_file(), f"there is no file {name}", "./FILE.csv,label=COLUMN is a table that lies here")
    require("label" in options, f"which column of {name} holds the classes?", f"{name},label=COLUMN")
    group = options.get("group")
    require(group not in RESERVED, f"{name}: a natural column cannot be called '{group}'", "rename it in the file")
    columns = {} if group is None else {group: group}
    source = Source("table", "table", "table of numbers", (File(path.name),), label=options["label"], columns=columns)
    return _recipe(_plain(path.stem), f"{path.name}, a table of numbers", source, path.parent)


def _federation(folder: Path) -> Recipe:
    name = _plain(folder.name)
    sides = [folder / side for side in ("train", "test")]
    for kind, ending in (("pflib", "npz"), ("leaf", "json")):
        if not all(side.is_dir() and any(side.glob(f"*.{ending}")) for side in sides):
            continue
        member = (Member(f"*.{ending}"),)
        files = [File(f"{folder.name}/{side.name}", split=side.name, member=member) for side in sides]
        if kind == "pflib" and (folder / "config.json").is_file():
            files.append(File(f"{folder.name}/config.json", role="config"))
        client = {"client": "client" if kind == "pflib" else "writer"}
        features, what = (("x",), "vectors") if _holds_vectors(kind, sides[0]) else ((), "images")
        source = Source(kind, kind, f"folders of {kind}", tuple(files), features=features, columns=client)
        return _recipe(name, f"{folder.name}, clients' {what} in the folders of {kind}", source, folder.parent)
    raise FedbenchError(
        f"{folder} is a folder neither of PFLlib (train/*.npz and test/*.npz) nor of LEAF (train/*.json and "
        f"test/*.json); {held(folder)}",
        "images in class folders (train/CAT/1.png) are hf:./FOLDER; other folders of images need a recipe: fedbench "
        "new dataset NAME",
    )


def _holds_vectors(kind: str, side: Path) -> bool:
    """Whether the first rows of a folder of PFLlib or LEAF are vectors, not images."""
    from fedbench.data import clients  # which imports NumPy

    return clients.pflib_vectors(side) if kind == "pflib" else clients.leaf_vectors(side)


def _plain(name: str) -> str:
    """A data set's name from that of a folder or file."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name) or "folder"
