"""Distributions of the clients' data: classes, labels and rotations. Clients with equal ones form a group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.partitions.transforms.rotation import Rotation

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True, eq=False)
class Densities:
    """R samples in S strata, and the probability of each stratum for M clients; every row of both tables sums to 1.

    A stratum is what an importance weight depends on: the class under target shift (FTW-ERM, Proposition 4), and
    whether the colour agrees with the label on Colored MNIST. The probabilities are nominal if the partitioner knows
    them, and otherwise the shares among the client's samples.
    """

    strata: NDArray[np.int64]  #: [R] stratum of each row of the partition, 0..S-1
    train: NDArray[np.float64]  #: [M, S] under the client's training distribution
    test: NDArray[np.float64]  #: [M, S] under the client's test distribution


def normalised(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Divide each row by its sum, which gives class probabilities."""
    weights = np.array(rows, np.float64)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def realised(label: NDArray[np.integer], client: NDArray[np.integer], clients: int, classes: int) -> Densities:
    """Return the class shares of all samples of a client, for training and test alike: a random split is no shift.

    Arguments:
        label, client: class and client of each sample [R]; with multi-label data [R, U] all samples are one stratum.
        clients, classes: M and the number of classes, which are the strata.
    """
    if label.ndim > 1:
        return Densities(np.zeros(len(label), np.int64), np.ones((clients, 1)), np.ones((clients, 1)))
    counts = counted(client, label, clients, classes)
    shares = np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return Densities(label.astype(np.int64), shares, shares)


def counted(client: NDArray[np.integer], label: NDArray[np.integer], clients: int, classes: int) -> NDArray[np.int64]:
    """Count each client's samples by class, [M, K], from client and class of each sample [R], or from labels [R, K]."""
    if label.ndim > 1:
        counts = np.zeros((clients, classes), np.int64)
        np.add.at(counts, client, label)
        return counts
    flat = client.astype(np.int64) * classes + label
    return np.bincount(flat, minlength=clients * classes).reshape(clients, classes)


@dataclass(frozen=True)
class Distribution:
    """One true distribution; the default is that of the data set. Classes are numbers counted from 0.

    Clients share a distribution if they drew the same one: two class subsets of P(Y) that happen to coincide are
    two distributions, with different numbers.
    """

    number: int | None = None  #: its place in the bank, which tells equal entries apart
    name: str | None = None  #: name of the natural group
    rotation: Rotation = field(default_factory=Rotation)  #: rotation of all classes without an entry in `rotations`
    rotations: tuple[tuple[int, Rotation], ...] = ()  #: P(X|Y): (class, rotation)
    classes: tuple[int, ...] | None = None  #: P(Y): the classes that occur; None: all
    labels: tuple[tuple[int, int], ...] = ()  #: P(Y|X): (class, label given to its images)

    def described(self, names: Sequence[str]) -> str:
        """Describe it in words, given the names of all classes; omit changes to classes that do not occur."""
        present = range(len(names)) if self.classes is None else self.classes
        parts = [self.name] if self.name is not None else []
        if self.classes is not None:
            some = len(self.classes) < len(names)
            parts.append(f"classes {_listed([names[k] for k in self.classes])}" if some else "all classes")
        parts += [str(self.rotation)] if self.rotation != Rotation() else []
        turned: dict[Rotation, list[str]] = {}
        for k, rotation in self.rotations:
            if rotation != Rotation() and k in present:
                turned.setdefault(rotation, []).append(names[k])
        parts += [f"{_listed(those)} {rotation}" for rotation, those in turned.items()]
        moved = [f"{names[k]} as {names[given]}" for k, given in self.labels if k != given and k in present]
        parts += [_listed(moved)] if moved else []
        return "; ".join(parts) or "as it is"

    def to_json(self) -> str:
        """Return all fields as JSON, for a table of an artifact; `from_json` reads it."""
        raw = {_STORED.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(raw, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Distribution:
        """Inverse of `to_json`."""
        raw: dict[str, Any] = json.loads(text)
        return cls(
            number=raw["number"],
            name=raw["name"],
            rotation=Rotation(**raw["look"]),
            rotations=tuple((k, Rotation(**one)) for k, one in raw["looks"]),
            classes=None if raw["classes"] is None else tuple(raw["classes"]),
            labels=tuple((k, given) for k, given in raw["labels"]),
        )


#: Field -> its key in artifacts.
_STORED = {"rotation": "look", "rotations": "looks"}


@dataclass(frozen=True, eq=False)
class Drawn:
    """The G distributions of M clients, numbered in order of appearance, and which one each client has."""

    distributions: tuple[Distribution, ...]  #: [G]
    of_phase: NDArray[np.int32]  #: [P + 1, M] distribution of each drift phase of the training data, then of test data

    @classmethod
    def of(cls, phases: Sequence[Sequence[Distribution]]) -> Drawn:
        """Number the clients' distributions, given by drift phase [P][M] and last for the test data [M]."""
        numbers: dict[Distribution, int] = {}
        of_phase = [[numbers.setdefault(one, len(numbers)) for one in clients] for clients in phases]
        return cls(tuple(numbers), np.array(of_phase, np.int32))

    @property
    def groups(self) -> list[int]:
        """[M] the distribution of each client in the last phase of its training data."""
        return list(self.of_phase[-2].tolist())


def _listed(parts: Sequence[str]) -> str:
    """Join the parts; shorten long lists."""
    return ", ".join(parts) if len(parts) <= 12 else f"{', '.join(parts[:10])} and {len(parts) - 10} more"


def test_images(dataset: Dataset, rng: np.random.RandomState | np.random.Generator) -> NDArray[np.bool_]:
    """Return which images [N] are official test images. Without an official split (scikit-learn's digits), draw a fifth
    of each class; of multi-label images, draw a fifth of all."""
    official = dataset.split == 1
    if official.any():
        return np.asarray(official)
    chosen = np.zeros(len(dataset.labels), bool)
    if dataset.multi_label:
        chosen[rng.permutation(len(chosen))[: len(chosen) // 5]] = True
        return chosen
    for k in range(len(dataset.classes)):
        pool = rng.permutation(np.flatnonzero(dataset.labels == k))
        chosen[pool[: len(pool) // 5]] = True
    return chosen
