"""From a dataset to its partition: drawn once, written down, then loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partition import bank, colored, equal, mixture, sampled
from fedbench.partition.artifact import Partition
from fedbench.partition.distribution import Distribution
from fedbench.partition.scheme import draw
from fedbench.partition.shift import Shift, shifts
from fedbench.partition.tables import read, write
from fedbench.specs import LABEL_FREE, SHIFTS, PartitionSpec, corruption
from fedbench.store import Artifact, Contents, Store, artifact_of

if TYPE_CHECKING:
    from fedbench.data import Dataset


def build(
    spec: PartitionSpec, store: Store, roots: Sequence[Path] = (), notify: Callable[[str], None] | None = None
) -> Partition:
    """The partition of `spec`: loaded if the store has it, else drawn and written.

    `notify` gets a line when the dataset has to be built first. Raises FedbenchError if the dataset lacks the column
    to part by, and as `fedbench.partition.draw` does.
    """
    return read(obtain(spec, store, roots, notify))


def obtain(
    spec: PartitionSpec,
    store: Store,
    roots: Sequence[Path] = (),
    notify: Callable[[str], None] | None = None,
    again: bool = False,
) -> Artifact:
    """The artifact of `spec`, drawn if the store lacks it, or (`again`) if stale code drew it or read its images."""
    from fedbench.data.build import obtain as images_of
    from fedbench.data.dataset import from_artifact

    def drawn() -> Contents:
        images = images_of(spec.dataset, store, roots, notify, again)
        partition = make(spec, from_artifact(images))
        return Contents(lambda writer: write(writer, partition), {"dataset": images}, {"dataset": spec.dataset.id})

    return artifact_of(spec, store, "partition/builder.py", drawn, again)


def make(spec: PartitionSpec, dataset: Dataset) -> Partition:
    """Draw the partition of a loaded dataset; nothing is written."""
    plain = spec.scheme in LABEL_FREE or (spec.scheme == "equal" and spec.shift in ("none", "px"))
    if dataset.many_labels and not plain:
        what = f"under shift {spec.shift}" if spec.scheme == "equal" else f"by scheme {spec.scheme}"
        raise FedbenchError(
            f"{spec.dataset.name} has many labels an image, so it cannot be dealt out {what}, which goes by classes",
            f"choose one of {', '.join(LABEL_FREE)}",
        )
    if spec.scheme == "colored":
        return _colored(spec, dataset)
    if spec.scheme == "equal":
        return _equal(spec, dataset)
    if spec.scheme == "mixture":
        return _of_sides(spec, dataset, mixture.draw(dataset, spec))
    if spec.scheme == "sampled":
        return _sampled(spec, dataset)
    name = spec.by if spec.scheme == "natural" else spec.within
    column = dataset.column(name) if name is not None else None
    if spec.validation is None:
        made = _of_sides(spec, dataset, draw(dataset.partition_labels, spec, column))
    else:
        whole = draw(dataset.partition_labels, replace(spec, subsample=None), column)
        backed = [(*equal.hold_back(train, spec, c), test) for c, (train, test) in enumerate(whole)]
        held = [(equal.subsampled(train, spec), back, test) for train, back, test in backed]
        made = _of_sides(spec, dataset, [(train, test) for train, _, test in held], [back for _, back, _ in held])
    if spec.round_robin and column is not None:
        first = [column[made.sample[made.rows(c).start]] for c in range(made.clients)]
        named = [Distribution(name=f"{spec.by} {one}") for one in first]
        return replace(made, drawn=bank.numbered([named, named]))
    return made


def _of_sides(
    spec: PartitionSpec,
    dataset: Dataset,
    drawn: Sequence[tuple[NDArray[np.integer], NDArray[np.integer]]],
    validation: Sequence[NDArray[np.integer]] | None = None,
) -> Partition:
    """The partition whose clients hold these training and test samples, and perhaps validation samples between them,
    under the data set's own labels."""
    seen = shifts(spec.shift, spec.clients) if spec.shift in SHIFTS else [Shift()] * spec.clients
    between = [train[:0] for train, _ in drawn] if validation is None else validation
    held = [(train, back, test) for (train, test), back in zip(drawn, between, strict=True)]
    newcomers = held[spec.clients - spec.newcomers :] if spec.newcomers else []
    for again in spec.newcomers_as or ():
        name, severity = corruption(again)
        seen += [Shift(corruption=name, severity=severity)] * len(newcomers)
        held += newcomers
    if dataset.images.shape[-1] == 1:
        seen = [shift.on_grey() for shift in seen]
    sample = np.concatenate([side for sides in held for side in sides]).astype(np.int32)
    sizes = np.array([[len(side) for side in sides] for sides in held])
    return Partition(
        spec=spec,
        classes=tuple(dataset.classes),
        client=np.repeat(np.arange(len(held), dtype=np.int32), sizes.sum(axis=1)),
        sample=sample,
        test=np.repeat(np.tile([False, False, True], len(held)), sizes.ravel()),
        label=dataset.labels[sample] if dataset.many_labels else dataset.labels[sample].astype(np.int32),
        shifts=tuple(seen),
        validation=None if validation is None else np.repeat(np.tile([False, True, False], len(held)), sizes.ravel()),
    )


def _sampled(spec: PartitionSpec, dataset: Dataset) -> Partition:
    """Samples of natural groups."""
    drawn = sampled.draw(dataset, spec)
    backed = [(*equal.hold_back(train, spec, c), test) for c, (train, test) in enumerate(drawn.sides)]
    backs = None if spec.validation is None else [back for _, back, _ in backed]
    made = _of_sides(spec, dataset, [(train, test) for train, _, test in backed], backs)
    named = [Distribution(name=name) for name in drawn.groups]
    return replace(made, drawn=bank.numbered([named, named]))


def _colored(spec: PartitionSpec, dataset: Dataset) -> Partition:
    """The same with two classes, and labels and colours that were drawn with the samples."""
    drawn = colored.draw(dataset, spec)
    flat = [side for sides in drawn for side in sides]
    return replace(
        _of_sides(spec, dataset, [(train.sample, test.sample) for train, test in drawn]),
        classes=colored.classes(dataset),
        label=np.concatenate([side.label for side in flat]),
        colour=np.concatenate([side.colour for side in flat]),
    )


def _equal(spec: PartitionSpec, dataset: Dataset) -> Partition:
    """The same with the labels of the clients' distributions, stage by stage where the data drift."""
    drawn = None if spec.shift == "none" else bank.draw(spec, len(dataset.classes))
    held = equal.draw(dataset, spec, drawn)
    backs = None if spec.validation is None else [np.concatenate(mine.validation) for mine in held]
    made = _of_sides(spec, dataset, [(np.concatenate(mine.train), mine.test) for mine in held], backs)
    if drawn is None:
        return made
    if dataset.many_labels:  # under P(X), which leaves labels as they are
        return replace(made, drawn=drawn)
    if spec.stages:
        pieces = [
            np.repeat(np.array([*range(spec.stages), *range(spec.stages), -1], np.int8), [len(part) for part in parts])
            for parts in ((*mine.train, *mine.validation, mine.test) for mine in held)
        ]
        made = replace(made, stage=np.concatenate(pieces))
    made = replace(made, drawn=drawn)
    given = np.tile(np.arange(len(dataset.classes), dtype=np.int32), (len(drawn.distributions), 1))
    for g, one in enumerate(drawn.distributions):
        for k, label in one.labels:
            given[g, k] = label
    return replace(made, label=given[made.distribution, made.label])
