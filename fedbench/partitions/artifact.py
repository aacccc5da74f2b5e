"""A partition: which client holds which sample, in which split, with which label and which image transform."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.partitions.distribution import Densities, Distribution, Drawn, counted, realised
from fedbench.partitions.transforms import Transform, apply, paint
from fedbench.partitions.transforms.corruption import Images
from fedbench.partitions.transforms.rotation import Rotation, rotated
from fedbench.specs import PartitionSpec

if TYPE_CHECKING:
    from fedbench.data import Dataset


def distinct_images(
    dataset: Dataset,
    sample: NDArray[np.integer],
    distribution: NDArray[np.integer],
    distributions: Sequence[Distribution],
    channels: int,
) -> tuple[Images, NDArray[np.int64]]:
    """Return the images as the clients see them, uint8 [U, H, W, channels], and each row's index into them, int64 [R].
    Each pair of sample and rotation is computed once, even if many rows show it.

    Arguments:
        sample, distribution: for each of the R rows, its row in the data set and the number of its distribution.
        distributions: the distributions by number; if empty, no image is rotated.
    """
    those = distributions or (Distribution(),)
    rotations = list(dict.fromkeys([d.rotation for d in those] + [one for d in those for _, one in d.rotations]))
    number = {rotation: i for i, rotation in enumerate(rotations)}
    table = np.empty((len(those), len(dataset.classes)), np.int64)  # [G, K] the rotation of each class
    for g, d in enumerate(those):
        table[g] = number[d.rotation]
        for k, rotation in d.rotations:
            table[g, k] = number[rotation]
    n = len(dataset.labels)
    classes = 0 if dataset.multi_label else dataset.labels[sample]  # multi-label data have no rotation per class
    key = table[distribution, classes] * n + sample
    present = np.zeros(len(rotations) * n, bool)
    present[key] = True
    if rotations == [Rotation()] and channels == dataset.images.shape[-1] and present.all():
        return dataset.images, sample.astype(np.int64)  # nothing changes, so avoid a copy
    place = np.cumsum(present) - 1
    out = np.empty((int(place[-1]) + 1, *dataset.images.shape[1:3], channels), np.uint8)
    for i, rotation in enumerate(rotations):
        rows = np.flatnonzero(present[i * n : (i + 1) * n])
        if len(rows):
            first = int(place[i * n + rows[0]])
            out[first : first + len(rows)] = rotated(dataset.images[rows], rotation, channels)
    return out, np.asarray(place[key])


@dataclass(frozen=True, eq=False)
class Partition:
    """M clients' R samples of a dataset with K classes.

    Rows are ordered by client: its training rows first, then its validation rows, then its test rows.
    """

    spec: PartitionSpec
    classes: tuple[str, ...]  #: names of the K classes
    client: NDArray[np.int32]  #: [R]
    sample: NDArray[np.int32]  #: [R] row of the dataset
    test: NDArray[np.bool_]  #: [R]
    label: NDArray[np.integer]  #: [R] int32 0..K-1; with multi-label images, 0 or 1 for each [R, K] uint8
    transforms: tuple[Transform, ...]  #: [M] how each client sees its images
    #: [M] true groups: clients with the same distribution share a number, numbered in order of appearance. If the
    #: distributions are known, this is the index into `distributions` (under drift: of the last phase). Otherwise the
    #: partitioner sets it, or clients with the same transform form a group.
    groups: list[int]
    colour: NDArray[np.int8] | None = None  #: [R] channel in which a grey image is painted: 0 red, 1 green
    validation: NDArray[np.bool_] | None = None  #: [R] whether a row is for validation; None: no row is
    #: [R] drift phase of each training and validation row, counted from 0; -1 for test rows. None: no drift.
    phase: NDArray[np.int8] | None = None
    drawn: Drawn | None = None  #: true distributions of the clients; None: the partitioner did not draw distributions
    #: Training and test distributions of the clients, if the partitioner knows them; None: estimate them from samples.
    declared: Densities | None = None
    names: tuple[str, ...] = ()  #: [M] of clients that are natural groups, such as hospitals; () if they have none

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def clients(self) -> int:
        """M, including the unseen clients and their copies under corruptions."""
        return self.spec.all_clients

    @property
    def multi_label(self) -> bool:
        """Whether an image has a 0/1 label for each class, instead of one class."""
        return self.label.ndim > 1

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """[M] whether each client never trains; unseen clients come last."""
        return np.arange(self.spec.all_clients) >= self.spec.trainees

    @cached_property
    def training(self) -> NDArray[np.bool_]:
        """[R] whether a row is a training row."""
        return ~self.test if self.validation is None else ~(self.test | self.validation)

    @cached_property
    def n_train(self) -> NDArray[np.int64]:
        """[M] training samples of each client; under drift, of all phases."""
        return np.bincount(self.client[self.training], minlength=self.clients)

    @cached_property
    def n_validation(self) -> NDArray[np.int64]:
        """[M] validation samples of each client."""
        rows = slice(0) if self.validation is None else self.validation
        return np.bincount(self.client[rows], minlength=self.clients)

    @cached_property
    def n_test(self) -> NDArray[np.int64]:
        """[M] test samples of each client."""
        return np.bincount(self.client[self.test], minlength=self.clients)

    @cached_property
    def leaked(self) -> int:
        """Number of test rows whose image is a training image of another client."""
        trained = np.unique(np.stack([self.sample[self.training], self.client[self.training]], axis=1), axis=0)
        images, trainers = np.unique(trained[:, 0], return_counts=True)
        place = np.searchsorted(images, self.sample[self.test])
        there = np.append(images, -1)[place] == self.sample[self.test]
        by_anyone = np.where(there, np.append(trainers, 0)[place], 0)
        held = trained[:, 0].astype(np.int64) * self.clients + trained[:, 1]
        own = np.isin(self.sample[self.test].astype(np.int64) * self.clients + self.client[self.test], held)
        return int((by_anyone > own).sum())

    @property
    def phase_groups(self) -> list[list[int]]:
        """[P][M] the true group of each client in each drift phase of its training data; without drift P is 1."""
        return [self.groups] if self.drawn is None else self.drawn.of_phase[:-1].tolist()

    @property
    def test_groups(self) -> list[int]:
        """[M] the true group of each client's test data, with the same numbers as `groups`."""
        return self.groups if self.drawn is None else list(self.drawn.of_phase[-1].tolist())

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        """[G] the true distributions by group number; empty if the partitioner did not draw distributions."""
        return () if self.drawn is None else self.drawn.distributions

    @cached_property
    def distribution(self) -> NDArray[np.int32]:
        """[R] number of the distribution that each row was drawn from; zeros if no distributions were drawn."""
        if self.drawn is None:
            return np.zeros(len(self.sample), np.int32)
        phase = self.phase if self.phase is not None else np.where(self.test, -1, 0)
        return np.asarray(self.drawn.of_phase[phase, self.client])

    @cached_property
    def densities(self) -> Densities:
        """The probability of each stratum under the clients' training and test distributions."""
        return self.declared or realised(self.label, self.client, self.clients, len(self.classes))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """[M, 4] start of each client's training rows, and the ends of its training, validation and test rows."""
        sizes = np.stack([self.n_train, self.n_validation, self.n_test], axis=1)
        ends = np.cumsum(sizes).reshape(-1, 3)
        return np.concatenate([ends[:, :1] - sizes[:, :1], ends], axis=1)

    def rows(self, client: int, test: bool | None = None) -> slice:
        """Return the client's rows: all of them (None), its training rows (test=False) or its test rows (test=True)."""
        start, trained, validated, stop = self._ends[client].tolist()
        return slice(validated if test else start, trained if test is False else stop)

    def validation_rows(self, client: int) -> slice:
        """Return the client's validation rows."""
        return slice(*self._ends[client, 1:3].tolist())

    def class_counts(self, test: bool | None = None) -> NDArray[np.int64]:
        """Count each client's samples by class (or label), [M, K]: all of them (None), the training samples
        (test=False) or the test samples (test=True)."""
        chosen = slice(None) if test is None else self.test if test else self.training
        return counted(self.client[chosen], self.label[chosen], self.clients, len(self.classes))

    @property
    def _rotations(self) -> Iterator[Rotation]:
        """The rotations of all distributions."""
        return (r for d in self.distributions for r in (d.rotation, *(one for _, one in d.rotations)))

    @property
    def alters(self) -> bool:
        """Whether any client may see images that differ from those of the data set."""
        seen = any(one != Transform() for one in self.transforms) or any(r != Rotation() for r in self._rotations)
        return seen or self.image_shape((1, 1, 1)) != (1, 1, 1)

    def image_shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return (H, W, C) of an image as the clients see it, from the data set's shape; coloured images have C = 3.

        Under P(X) and P(X|Y) C is 3 even at levels without a colour (flux/protocol.md#shards-and-images).
        """
        height, width, channels = shape
        lit = any(rotation.colour for rotation in self._rotations)
        coloured = self.colour is not None or lit or self.spec.shift.partition("+")[0] in ("px", "pxy")
        return height, width, 3 if coloured else channels

    def moments(self, dataset: Dataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean and standard deviation [D] of each component of a vector over the distinct training samples;
        the deviation of a constant component is set to 1."""
        rows = np.unique(self.sample[self.training & ~self.unseen[self.client]])
        values = dataset.images[rows].astype(np.float64).reshape(len(rows), -1)
        std = values.std(axis=0)
        return values.mean(axis=0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)

    def distinct(self, dataset: Dataset) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the distinct images that the clients see, uint8 [U, H, W, C], and each row's index into them [R].

        Copies of an image count once. If a client sees images through colour steps or corruptions, every row has an
        image of its own. A corruption uses one random stream for each side of a client and draws image by image, so a
        subsampled client sees a subset of the full client's images, and the same test images.

        Vectors, float32 [U, 1, 1, D], are standardised by the `moments` of this partition's training samples.
        """
        if dataset.spec.id != self.spec.dataset.id:
            raise FedbenchError(f"partition {self.id} is of dataset {self.spec.dataset.id}, not {dataset.spec.id}")
        if dataset.spec.vectors:
            mean, std = self.moments(dataset)
            return (dataset.images - mean) / std, self.sample.astype(np.int64)
        plain = not any(transform.alters for transform in set(self.transforms))
        if self.colour is not None:
            images, index = paint(dataset.images[self.sample], self.colour), np.arange(len(self.sample))
        elif plain or self.drawn is not None:
            channels = self.image_shape(dataset.images.shape[1:])[-1]
            images, index = distinct_images(dataset, self.sample, self.distribution, self.distributions, channels)
        else:
            images, index = dataset.images, self.sample.astype(np.int64)
        if plain:
            return images, index
        out = np.empty((len(self.sample), *images.shape[1:]), np.uint8)

        def transformed(side: int) -> None:
            client, test = divmod(side, 2)
            start, _, middle, stop = self._ends[client].tolist()  # validation images belong to the training side
            rows, transform = slice(middle, stop) if test else slice(start, middle), self.transforms[client]
            own = images[index[rows]]
            out[rows] = apply(own, transform, key=side) if transform.alters else own

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads help: Pillow and NumPy release the GIL
            list(pool.map(transformed, range(2 * self.clients)))
        return out, np.arange(len(out))

    def scaling(self) -> NDArray[np.float32] | None:
        """[R, 2, C] factor 1/(2s) and offset (1/2 - m)/s that turn channels in [-1, 1] into channels normalised by the
        client's mean m and standard deviation s. None if no client has a personal normalisation."""
        own = {c: (t.mean, t.std) for c, t in enumerate(self.transforms) if t.mean is not None}
        if not own:
            return None
        channels = len(next(mean for mean, _ in own.values()))
        of_client = np.tile(np.array([[1.0], [0.0]]), (len(self.transforms), 1, channels))
        for c, both in own.items():
            mean, std = np.array(both, np.float64)
            of_client[c] = 0.5 / std, (0.5 - mean) / std
        return of_client.astype(np.float32)[self.client]

    def transformed_images(self, dataset: Dataset) -> NDArray[Any]:
        """[R, H, W, C]: image r is the image of `sample[r]` as its client sees it; see `distinct`."""
        images, index = self.distinct(dataset)
        alone = len(images) == len(index) and np.array_equal(index, np.arange(len(index)))
        return images if alone else images[index]


def leakage(leaked: int, tests: int, samples: str) -> str:
    """How many of the test images (or what `samples` calls them) are training images of other clients; "" if none."""
    return f"{leaked:,} of {tests:,} test {samples} are training {samples} of other clients" if leaked else ""


def numbered(of: Sequence[Hashable]) -> list[int]:
    """Number the clients' groups: clients with equal values share a number, in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in of]
