"""Build a partition from a data set: draw it once, store it, then load it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partitions import modifiers, names, schemes
from fedbench.partitions.artifact import Partition, numbered
from fedbench.partitions.scheme import Assignment, Indices, cut
from fedbench.partitions.tables import read, write
from fedbench.partitions.transforms import SHIFTS, Transform, of_clients
from fedbench.plugins import reported
from fedbench.specs import PartitionSpec, require
from fedbench.store import Artifact, Contents, Store, Writer, artifact_of

if TYPE_CHECKING:
    from fedbench.data import Dataset


def build(
    spec: PartitionSpec, store: Store, roots: Sequence[Path] = (), notify: Callable[[str], None] | None = None
) -> Partition:
    """Load the partition of `spec` from the store, or draw and store it.

    `notify` receives a line if the data set must be built first. Raises FedbenchError if the data set lacks the column
    to partition by, and as `make` does.
    """
    partition = read(obtain(spec, store, roots, notify))
    return replace(partition, names=names.of(spec, store))


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

        def written(writer: Writer) -> None:
            write(writer, partition)
            if partition.names:
                writer.provenance[names.NAMES] = list(partition.names)

        return Contents(written, {"dataset": images}, {"dataset": spec.dataset.id})

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
            f"{spec.dataset.name} has vectors, which cannot be coloured, rotated or corrupted",
            "leave --shift (or what else changes images) out: labels, sizes and groups can differ",
        )
    with reported():
        groups, declared = scheme.groups(partition), scheme.densities(partition)
    called = names.drawn(spec, dataset, partition.client, partition.sample)
    return replace(partition, groups=groups or partition.groups, declared=declared, names=called)


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
