"""Build a partition from a data set: draw it once, store it, then load it."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.data.guard import reading
from fedbench.errors import FedbenchError
from fedbench.partitions import modifiers, schemes
from fedbench.partitions.artifact import Partition, numbered
from fedbench.partitions.scheme import Assignment, Indices, cut
from fedbench.partitions.tables import read, write
from fedbench.partitions.transforms import SHIFTS, Transform, of_clients
from fedbench.plugins import reported
from fedbench.specs import PartitionSpec, require
from fedbench.store import Artifact, Contents, Store, artifact_of

if TYPE_CHECKING:
    from fedbench.data import Dataset


def build(
    spec: PartitionSpec, store: Store, roots: Sequence[Path] = (), notify: Callable[[str], None] | None = None
) -> Partition:
    """Load the partition of `spec` from the store, or draw and store it.

    `notify` receives a line if the data set must be built first. Raises FedbenchError if the data set lacks the column
    to partition by, and as `make` does.
    """
    return read(obtain(spec, store, roots, notify))


def obtain(
    spec: PartitionSpec,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], None] | None = None,
    again: bool = False,
) -> Artifact:
    """Return the artifact of `spec`. Draw it if the store lacks it, or (`again`) if its code has changed since."""
    from fedbench.data.build import obtain as images_of
    from fedbench.data.dataset import from_artifact

    def drawn() -> Contents:
        images = images_of(spec.dataset, store, roots, notify, again)
        partition = make(spec, from_artifact(images))
        return Contents(lambda writer: write(writer, partition), {"dataset": images}, {"dataset": spec.dataset.id})

    return artifact_of(spec, store, ("partitions/builder.py", *schemes.code_of(spec.scheme)), drawn, again)


def make(spec: PartitionSpec, dataset: Dataset) -> Partition:
    """Draw the partition of a loaded data set without storing it.

    The partitioner draws first. Then the modifiers hold back validation images, subsample and repeat the rest, and
    append unseen clients under corruptions.
    """
    scheme = schemes.of(spec)
    if dataset.multi_label and scheme.needs_classes(spec):
        free = [name for name in schemes.names() if not schemes.load(name).by_class]
        what = "" if spec.shift == "none" else f" under shift {spec.shift}"
        raise FedbenchError(
            f"{spec.dataset.name} is multi-label, so it cannot be partitioned by {scheme.title()}{what}, which "
            "goes by classes",
            f"choose one of {', '.join(free)}",
        )
    with reported(f"{scheme.title()} draws no partition" if schemes.is_users(spec.scheme) else ""):
        assignment = scheme.draw(dataset, spec)
        count = len(assignment.train)
        require(count == spec.clients, f"{scheme.title()} gives samples to {count} clients, not to {spec.clients}")
        partition = _partition(spec, dataset, assignment)
        least = int(partition.sample.min())
        require(least >= 0, f"{scheme.title()} gives sample {least}, and rows of the data set count from 0")
    if dataset.spec.vectors and partition.alters:
        raise FedbenchError(
            f"{spec.dataset.name} holds vectors, which clients cannot see in colours, turned or under corruptions",
            "leave --shift (or what else changes images) out: labels, sizes and groups can differ",
        )
    with reported():
        groups, declared = scheme.groups(partition), scheme.densities(partition)
    return replace(partition, groups=groups or partition.groups, declared=declared)


def _partition(spec: PartitionSpec, dataset: Dataset, assignment: Assignment) -> Partition:
    """Turn the partitioner's assignment into a partition."""
    a = assignment
    sizes = [[*map(len, train), len(test)] for train, test in zip(a.train, a.test, strict=True)]
    rows = iter(cut(np.arange(sum(map(sum, sizes))), [n for mine in sizes for n in mine]))
    pieces: list[list[Indices]] = []  # [M][2P + 1]: training rows by phase, validation rows by phase, test rows
    for c, mine in enumerate(sizes):
        if a.held_back is None:
            halves = [modifiers.hold_back(next(rows), spec, c, s) for s in range(len(mine) - 1)]
        else:
            both, middle = next(rows), mine[0] - a.held_back[c]
            halves = [(both[:middle], both[middle:])]
        train = [modifiers.repeated(modifiers.subsampled(part, spec), spec) for part, _ in halves]
        pieces.append([*train, *(back for _, back in halves), next(rows)])
    again = modifiers.again(spec)
    pieces += [pieces[c] for c, _ in again]
    phases, validated = len(sizes[0]) - 1, spec.validation is not None or a.held_back is not None
    row = np.concatenate([piece for mine in pieces for piece in mine])
    sides = zip(a.train, a.test, strict=True)
    sample = np.concatenate([part for train, test in sides for part in (*train, test)])[row]

    def of_piece(values: list[Any], dtype: Any) -> NDArray[Any]:
        """[R] repeat a value for each row of a piece; the values are the same for all clients."""
        return np.repeat(np.array(values * len(pieces), dtype), [len(piece) for mine in pieces for piece in mine])

    transforms = _transforms(spec, a, dataset.images.shape[-1] == 1) + [transform for _, transform in again]
    partition = Partition(
        spec=spec,
        classes=a.classes or tuple(dataset.classes),
        client=np.repeat(np.arange(len(pieces), dtype=np.int32), [sum(map(len, mine)) for mine in pieces]),
        sample=sample.astype(np.int32),
        test=of_piece([False] * 2 * phases + [True], bool),
        label=_labels(dataset, sample) if a.label is None else a.label[row],
        transforms=tuple(transforms),
        groups=numbered(transforms) if a.drawn is None else a.drawn.groups,
        colour=None if a.colour is None else a.colour[row],
        validation=of_piece([False] * phases + [True] * phases + [False], bool) if validated else None,
        phase=of_piece([*range(phases), *range(phases), -1], np.int8) if spec.phases else None,
        drawn=a.drawn,
    )
    return partition if dataset.multi_label else replace(partition, label=_relabelled(partition))


def _labels(dataset: Dataset, sample: Indices) -> NDArray[np.integer]:
    return dataset.labels[sample] if dataset.multi_label else dataset.labels[sample].astype(np.int32)


def _relabelled(p: Partition) -> NDArray[np.integer]:
    """The labels [R] after each row's distribution has permuted them (under P(Y|X))."""
    if not any(one.labels for one in p.distributions):
        return p.label
    labels = np.tile(np.arange(len(p.classes), dtype=np.int32), (len(p.distributions), 1))
    for g, one in enumerate(p.distributions):
        for k, label in one.labels:
            labels[g, k] = label
    return np.asarray(labels[p.distribution, p.label])


def _transforms(spec: PartitionSpec, assignment: Assignment, grey: bool) -> list[Transform]:
    """[M] the partitioner's transforms combined with those of the shift, which come after."""
    shift = of_clients(spec.shift, spec.clients) if spec.shift in SHIFTS else [Transform()] * spec.clients
    own = assignment.transforms or [Transform()] * spec.clients

    @cache
    def both(a: Transform, b: Transform) -> Transform:
        return (a | b).on_grey() if grey else a | b

    return [both(a, b) for a, b in zip(own, shift, strict=True)]


# -- mixture csv -----------------------------------------------------------------------------------------------
# Class weights of a mixture from a CSV file with columns client, split, class, value.


_COLUMNS = ("client", "split", "class", "value")
_SIDES = ("train", "test")


def read_mixture(path: Path, classes: int) -> dict[str, Any]:
    """Read the fields `scheme`, `train_mix` and `test_mix` of a PartitionSpec from the class weights in a CSV file.

    A row gives the weight of a class (0 .. classes - 1) in the train or test split of a client; clients count from 0
    or from 1. Weights need not sum to 1, and a class without a row has weight 0. Additional columns are ignored, except
    that a column `table` must hold one value only.

    Raises FedbenchError if the file cannot be read, lacks a column, a client or one of its splits, or has an invalid or
    duplicate value for an entry.
    """
    weights: dict[tuple[int, str, int], float] = {}
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        client, category = (_whole(where, name, row[name]) for name in ("client", "class"))
        side = row["split"]
        if side not in _SIDES:
            raise FedbenchError(f"{where}: split must be train or test, not '{side}'")
        if not 0 <= category < classes:
            raise FedbenchError(f"{where}: class {category} is not one of the data set's classes 0 to {classes - 1}")
        entry = (client, side, category)
        if entry in weights:
            raise FedbenchError(f"{where}: class {category} of client {client}, {side}, has a value already")
        weights[entry] = _weight(where, row["value"])
    clients = sorted({client for client, _, _ in weights})
    if not clients:
        raise FedbenchError(f"{path} has no class weights", f"its columns are {','.join(_COLUMNS)}")
    if clients[0] not in (0, 1) or clients != list(range(clients[0], clients[0] + len(clients))):
        raise FedbenchError(f"{path}: clients must be counted from 0 or 1 without gaps, not {_few(clients)}")
    for client in clients:
        for side in _SIDES:
            if not any(weights.get((client, side, c)) for c in range(classes)):
                raise FedbenchError(f"{path} gives client {client} no {side} class with a weight above 0")
    mixes = (tuple(tuple(weights.get((k, side, c), 0.0) for c in range(classes)) for k in clients) for side in _SIDES)
    return {"scheme": "mixture", **dict(zip(("train_mix", "test_mix"), mixes, strict=True))}


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of the file's single table with their line numbers."""
    if path.exists() and not path.is_file():  # a folder, or a device that may never end
        raise FedbenchError(f"cannot read {path}: it is no file", "--counts takes a CSV file")
    with reading(path, "is not a CSV file in UTF-8"), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    lacking = [name for name in _COLUMNS if name not in names]
    if lacking:
        raise FedbenchError(f"{path} has no column '{lacking[0]}'", f"its columns must be {','.join(_COLUMNS)}")
    for line, row in rows:
        if None in row or None in row.values():
            raise FedbenchError(f"{path}, line {line}: has not as many values as the head has columns")
    tables = sorted({row["table"] for _, row in rows if "table" in row})
    if len(tables) > 1:
        raise FedbenchError(f"{path} holds several tables ({_few(tables)})", "keep the rows of one")
    return rows


def _whole(where: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FedbenchError(f"{where}: {name} must be a whole number, not '{text}'") from None


def _weight(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise FedbenchError(f"{where}: a class weight must be a number from 0 on, not '{text}'")
    return value


def _few(values: list[Any]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
