"""Partitions of data sets that tests make up: what is drawn of mere labels, images of noise, and the view."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from rich.console import Console

from fedbench.data import Dataset
from fedbench.partitions import Partition, modifiers, read, schemes, view
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms.corruption import CORRUPTIONS
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support.frames import SEEDS

MADE = DatasetSpec("made", "here", "now")
SINGLE = ("px", "py", "pyx", "pxy")  #: the shifts of equal shards that have drift phases
#: Weights of four classes for two groups.
TRAIN, TEST = [[4, 1, 1, 1], [1, 4, 1, 1]], [[1, 1, 4, 1], [1, 1, 1, 4]]
Sides = list[tuple[np.ndarray, np.ndarray]]


def labelled(labels: np.ndarray, spec: PartitionSpec, groups: np.ndarray | None = None) -> Dataset:
    """Black images of these labels, whose groups stand in the column that the partitioner asks for."""
    labels = np.asarray(labels)
    scheme = schemes.of(spec)
    column = getattr(scheme, "by", None) or getattr(scheme, "within", None)
    columns = {str(column): groups} if groups is not None else {}
    images, classes = np.zeros((len(labels), 1, 1, 1), np.uint8), tuple(map(str, range(int(labels.max()) + 1)))
    return Dataset(DatasetSpec("labels", "", ""), images, labels, np.zeros(len(labels), np.uint8), columns, classes)


def deal(
    labels: np.ndarray, spec: PartitionSpec, rng: np.random.RandomState, groups: np.ndarray | None = None
) -> Sequence[np.ndarray]:
    """The samples of each client before the split."""
    return schemes.of(spec).deal(labelled(labels, spec, groups), spec, rng)


def draw(labels: np.ndarray, spec: PartitionSpec, groups: np.ndarray | None = None) -> Sides:
    """The training and the test samples of each client."""
    drawn = schemes.of(spec).draw(labelled(labels, spec, groups), spec)
    return [(modifiers.subsampled(train, spec), test) for (train,), test in zip(drawn.train, drawn.test, strict=True)]


def plain(sides: Sides) -> list[tuple[list[int], list[int]]]:
    return [(train.tolist(), test.tolist()) for train, test in sides]


def noise(
    labels: np.ndarray, split: np.ndarray | int = 0, shape: tuple[int, int, int] = (8, 8, 1), **fields: Any
) -> Dataset:
    """Images of noise without a black pixel, of these labels [n]; `fields` are other fields of a data set."""
    n = len(labels)
    images = np.random.default_rng(3).integers(1, 256, (n, *shape), dtype=np.uint8)
    names = tuple("abcdefghijklmnop"[: int(np.max(labels)) + 1])
    usual: dict[str, Any] = {"spec": MADE, "images": images, "columns": {}, "classes": names}
    return Dataset(**{**usual, "labels": labels, "split": np.broadcast_to(np.uint8(split), n), **fields})


def spec(scheme: str = "iid", clients: int = 4, seed: int = 1, **fields: Any) -> PartitionSpec:
    """Of the data set MADE."""
    return partition_spec(MADE, scheme, clients, seed, **fields)


def equals_of(n: int = 600, tests: int = 200, classes: int = 10, channels: int = 1) -> Dataset:
    """Of three domains; test images are not in one piece, so that only the split tells them."""
    rng = np.random.default_rng(0)
    labels, domain = rng.integers(0, classes, n + tests), rng.integers(0, 3, n + tests)
    split = rng.permutation(np.repeat(np.array([0, 1], np.uint8), [n, tests]))
    columns, names = {"domain": np.array(["Art", "Clip", "Real"])[domain]}, tuple(map(str, range(classes)))
    return noise(labels, split, (8, 8, channels), columns=columns, classes=names)


def equal(**fields: Any) -> PartitionSpec:
    """Equal shards with validation images."""
    return spec(**{"scheme": "equal", "seed": 42, "validation": 0.2, **fields})


@st.composite
def equals(draw: st.DrawFn) -> PartitionSpec:
    """Equal shards under any shift, whole or not."""
    shift = draw(st.sampled_from(("none", *LEVELLED)))
    own: dict[str, Any] = {"shift": shift}
    if shift != "none":
        own["level"] = draw(st.integers(1, 3))
    if shift in SINGLE and draw(st.booleans()):
        own["phases"] = draw(st.integers(2, 4))
    optional = {
        "validation": st.sampled_from((None, 0.1, 0.5)),
        "subsample": st.sampled_from((None, 0.3, 1)),
        "duplicates": st.integers(1, 3),
        "copies": st.integers(1, 3),
        "data_share": st.sampled_from((None, 0.05)),
    }
    own |= draw(st.fixed_dictionaries({}, optional=optional))
    return equal(clients=draw(st.integers(1, 9)), seed=draw(SEEDS), **own)


@st.composite
def unseens(draw: st.DrawFn) -> PartitionSpec:
    """Clients that never train, and come again under corruptions or not."""
    clients = draw(st.integers(2, 7))
    kinds = st.lists(st.sampled_from([f"{c}-{s}" for c in CORRUPTIONS for s in (1, 4)]), max_size=3, unique=True)
    own = draw(
        st.sampled_from(
            [{}, {"scheme": "limited", "alpha": 0.5, "size": 12}, {"scheme": "dirichlet", "alpha": 5.0, "min_size": 4}]
        )
    )
    return spec(
        clients=clients,
        train_fraction=0.75,
        unseen=draw(st.integers(1, clients - 1)),
        unseen_as=draw(kinds),
        subsample=draw(st.sampled_from([None, 0.5])),
        shift=draw(st.sampled_from(["none", "high", "corrupted"])),
        **own,
    )


def sides(p: Partition, c: int) -> tuple[list[int], list[int], list[int]]:
    """A client's training, validation and test samples."""
    spans = (p.rows(c, test=False), p.validation_rows(c), p.rows(c, test=True))
    return tuple(p.sample[span].tolist() for span in spans)


def same(a: Partition, b: Partition) -> bool:
    """Whether two partitions agree in all that they hold, in their types as well."""
    values = ("spec", "classes", "transforms", "groups", "clients", "phase_groups", "test_groups", "distributions")
    names = ("client", "sample", "test", "label", "n_train", "n_test", "unseen", "colour", "validation", "phase")
    arrays = [(getattr(a, n), getattr(b, n)) for n in names]
    arrays += [(getattr(a.densities, n), getattr(b.densities, n)) for n in ("strata", "train", "test")]
    return all(getattr(a, name) == getattr(b, name) for name in values) and all(
        (x is y is None) or (x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y))
        for x, y in arrays
    )


def weights(file: Path, first: int = 0) -> Path:
    """A CSV file of TRAIN and TEST, whose groups are counted from there, and the second comes first."""
    sides = [(side, k, mix[k]) for side, mix in (("train", TRAIN), ("test", TEST)) for k in (1, 0)]
    rows = [f"x,{k + first},{side},{c},{weight}\n" for side, k, row in sides for c, weight in enumerate(row)]
    file.write_text("table,client,split,class,value\n" + "".join(rows))
    return file


def current() -> Partition:
    """The store's current partition."""
    store = Store()
    return read(store.open("partition", store.current["partition"]))


def shown(p: Partition, width: int = 100, **options: Any) -> str:
    """The view of a partition, no wider than that on a terminal; plain text unless `options` say otherwise."""
    console = Console(width=width, **{"force_terminal": True, "color_system": None, **options})
    with console.capture() as captured:
        view.display(console, p)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    assert max(map(len, plain.splitlines())) <= width
    return captured.get()


def cells(text: str, first: str = r" +\d+[* ]") -> list[list[str]]:
    """The words of the lines that begin so: of clients."""
    return [line.split() for line in text.splitlines() if re.match(first, line)]
