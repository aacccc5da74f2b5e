"""A partition: who holds which sample, in which split, under which label and seen how."""

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
from fedbench.partitions.transforms import Rotation, Transform, apply, paint, rotated
from fedbench.partitions.transforms.corruption import Images
from fedbench.specs import PartitionSpec

if TYPE_CHECKING:
    from fedbench.data import Dataset


# -- distinct --------------------------------------------------------------------------------------------------
# The different images of a federation: each (sample, rotation) once, however many rows show it.


def distinct_images(
    dataset: Dataset,
    sample: NDArray[np.integer],
    distribution: NDArray[np.integer],
    distributions: Sequence[Distribution],
    channels: int,
) -> tuple[Images, NDArray[np.int64]]:
    """The images as the clients see them, uint8 [U, H, W, channels], and which of them each row shows, int64 [R].

    Arguments:
        sample, distribution: the data set's row of each of the R rows, and the number of its distribution.
        distributions: those that the numbers stand for; none: all images are seen as they are.
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
    classes = 0 if dataset.multi_label else dataset.labels[sample]  # all alike where there are several labels
    key = table[distribution, classes] * n + sample
    present = np.zeros(len(rotations) * n, bool)
    present[key] = True
    if rotations == [Rotation()] and channels == dataset.images.shape[-1] and present.all():
        return dataset.images, sample.astype(np.int64)  # as they are: no copy of them all
    place = np.cumsum(present) - 1
    out = np.empty((int(place[-1]) + 1, *dataset.images.shape[1:3], channels), np.uint8)
    for i, rotation in enumerate(rotations):
        rows = np.flatnonzero(present[i * n : (i + 1) * n])
        if len(rows):
            first = int(place[i * n + rows[0]])
            out[first : first + len(rows)] = rotated(dataset.images[rows], rotation, channels)
    return out, np.asarray(place[key])


# -- artifact --------------------------------------------------------------------------------------------------


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
    #: [M] true groups: clients of one distribution share a number, counted in order of appearance. Where distributions
    #: were drawn it is their number in `distributions`, where data drift that of the last phase; elsewhere the
    #: partitioner says it, or clients of one transform are a group.
    groups: list[int]
    colour: NDArray[np.int8] | None = None  #: [R] 0 red, 1 green: the channel that a grey image is painted in
    validation: NDArray[np.bool_] | None = None  #: [R] held back from training; None: no row is
    #: [R] drift phase of each training and validation row, from 0, where the data drift; test rows have -1.
    phase: NDArray[np.int8] | None = None
    drawn: Drawn | None = None  #: true distributions of the clients, where they were drawn as such
    #: What the partitioner knows of the clients' training and test distributions; None: no more than the samples tell.
    declared: Densities | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def clients(self) -> int:
        """M, unseen clients and those that they are again under corruptions included."""
        return self.spec.all_clients

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, 0 or 1 each, instead of one class."""
        return self.label.ndim > 1

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """Whether each client [M] never trains; such clients come last."""
        return np.arange(self.spec.all_clients) >= self.spec.trainees

    @cached_property
    def training(self) -> NDArray[np.bool_]:
        """[R] whether a row is trained on."""
        return ~self.test if self.validation is None else ~(self.test | self.validation)

    @cached_property
    def n_train(self) -> NDArray[np.int64]:
        """Training samples of each client [M]; in drift phases, those of all phases."""
        return np.bincount(self.client[self.training], minlength=self.clients)

    @cached_property
    def n_validation(self) -> NDArray[np.int64]:
        """Validation samples of each client [M]."""
        rows = slice(0) if self.validation is None else self.validation
        return np.bincount(self.client[rows], minlength=self.clients)

    @cached_property
    def n_test(self) -> NDArray[np.int64]:
        """Test samples of each client [M]."""
        return np.bincount(self.client[self.test], minlength=self.clients)

    @property
    def phase_groups(self) -> list[list[int]]:
        """[P][M] the true group of each client in each drift phase of its training data; one where none drifts."""
        return [self.groups] if self.drawn is None else self.drawn.of_phase[:-1].tolist()

    @property
    def test_groups(self) -> list[int]:
        """[M] the true group of each client's test data, by the same numbers."""
        return self.groups if self.drawn is None else list(self.drawn.of_phase[-1].tolist())

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        """[G] the true distributions by group number, where they were drawn as such; else none."""
        return () if self.drawn is None else self.drawn.distributions

    @cached_property
    def distribution(self) -> NDArray[np.int32]:
        """[R] number of the distribution that each row was drawn from; zeros where none were drawn as such."""
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
        """[M, 4] where each client's training rows begin, and where training, validation and test rows end."""
        sizes = np.stack([self.n_train, self.n_validation, self.n_test], axis=1)
        ends = np.cumsum(sizes).reshape(-1, 3)
        return np.concatenate([ends[:, :1] - sizes[:, :1], ends], axis=1)

    def rows(self, client: int, test: bool | None = None) -> slice:
        """A client's rows: all of them, its training rows (test=False) or its test rows (test=True)."""
        start, trained, validated, stop = self._ends[client].tolist()
        return slice(validated if test else start, trained if test is False else stop)

    def validation_rows(self, client: int) -> slice:
        """A client's rows that are held back from training."""
        return slice(*self._ends[client, 1:3].tolist())

    def class_counts(self, test: bool | None = None) -> NDArray[np.int64]:
        """Samples of each client in each class (or with each label) [M, K]: all of them, those to train on (test=False)
        or to test on."""
        chosen = slice(None) if test is None else self.test if test else self.training
        return counted(self.client[chosen], self.label[chosen], self.clients, len(self.classes))

    @property
    def _rotations(self) -> Iterator[Rotation]:
        """How the distributions see images."""
        return (r for d in self.distributions for r in (d.rotation, *(one for _, one in d.rotations)))

    @property
    def alters(self) -> bool:
        """Whether a client may see images other than as the data set has them."""
        seen = any(one != Transform() for one in self.transforms) or any(r != Rotation() for r in self._rotations)
        return seen or self.image_shape((1, 1, 1)) != (1, 1, 1)

    def image_shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """(H, W, C) of an image as the clients see it, given that of the data set: coloured ones have 3 channels.

        So has every image under P(X) and P(X|Y), even at levels without a colour (flux/protocol.md#shards-and-images).
        """
        height, width, channels = shape
        lit = any(rotation.colour for rotation in self._rotations)
        coloured = self.colour is not None or lit or self.spec.shift.partition("+")[0] in ("px", "pxy")
        return height, width, 3 if coloured else channels

    def moments(self, dataset: Dataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation [D] of each value of a vector, over the samples that are trained on (each once);
        of a value that never differs the deviation is 1."""
        rows = np.unique(self.sample[self.training & ~self.unseen[self.client]])
        values = dataset.images[rows].astype(np.float64).reshape(len(rows), -1)
        std = values.std(axis=0)
        return values.mean(axis=0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)

    def distinct(
        self, dataset: Dataset, moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The different images that the clients see, uint8 [U, H, W, C], and which of them each row shows [R].

        Copies of an image are one. Where clients see images through steps of colour or corruptions, every row is an
        image of its own: a corruption draws from a stream for either side of a client, image after image, so that
        the images of a subsampled client are among those of the whole one, whose test images are the same.

        Vectors, float32 [U, 1, 1, D], are normalised: less the mean and by the deviation of `moments`, by default those
        of this partition's own training samples.
        """
        if dataset.spec.id != self.spec.dataset.id:
            raise FedbenchError(f"partition {self.id} is of dataset {self.spec.dataset.id}, not {dataset.spec.id}")
        if dataset.spec.vectors:
            mean, std = moments or self.moments(dataset)
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
            start, _, middle, stop = self._ends[client].tolist()  # validation images are a part of the training side
            rows, transform = slice(middle, stop) if test else slice(start, middle), self.transforms[client]
            own = images[index[rows]]
            out[rows] = apply(own, transform, key=side) if transform.alters else own

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow and NumPy let go of the interpreter's lock
            list(pool.map(transformed, range(2 * self.clients)))
        return out, np.arange(len(out))

    def scaling(self) -> NDArray[np.float32] | None:
        """[R, 2, C] factor and offset by which channels in [-1, 1] become what their client's mean m and deviation s
        make of them: 1/(2s) and (1/2 - m)/s. None where no client has a normalisation of its own."""
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
        """[R, H, W, C]: row r is the image of `sample[r]` as its client sees it; see `distinct`."""
        images, index = self.distinct(dataset)
        alone = len(images) == len(index) and np.array_equal(index, np.arange(len(index)))
        return images if alone else images[index]


def numbered(of: Sequence[Hashable]) -> list[int]:
    """The group of each client by what is its own: those with equal ones share a number."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in of]
