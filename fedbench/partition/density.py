"""What is known of the clients' training and test distributions: the probability of each stratum.

A stratum is what an importance weight depends on: the class under target shift (FTW-ERM, Proposition 4), and
whether the colour agrees with the label on Colored MNIST. Nominal probabilities where the partition has them; the
shares of the samples that the clients hold where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedbench.partition.artifact import Partition

#: The strata of a colored partition, in the order of the columns of its densities.
COLORED_STRATA = ("disagree", "agree")


@dataclass(frozen=True, eq=False)
class Densities:
    """R samples in S strata, and the probability of each stratum for M clients; every row of both tables sums to 1."""

    strata: NDArray[np.int64]  #: [R] 0..S-1: the stratum of each row of the partition
    train: NDArray[np.float64]  #: [M, S] under the client's training distribution
    test: NDArray[np.float64]  #: [M, S] under its test distribution


def densities(p: Partition) -> Densities:
    """The densities of a partition.

    mixture: a stratum is a class; nominal class probabilities, which neither `keep` nor rounding to whole samples
    changes (FTW-ERM, Proposition 4). colored: a stratum is whether the colour agrees with the noisy label,
    COLORED_STRATA; (e, 1 - e) with the spec's flip probabilities (FTW-ERM, Table 12). Any other scheme: a stratum is a
    class; `realised`. Where images have many labels there is one stratum.
    """
    spec = p.spec
    if spec.scheme == "mixture":
        assert spec.train_mix is not None
        assert spec.test_mix is not None
        members = spec.clients // len(spec.train_mix)
        train, test = (np.repeat(normalised(rows), members, axis=0) for rows in (spec.train_mix, spec.test_mix))
        return Densities(p.label.astype(np.int64), train, test)
    if spec.scheme == "colored":
        assert spec.flips is not None
        assert p.colour is not None
        train, test = (np.stack([e, 1 - e], axis=1) for e in np.array(spec.flips).T)
        return Densities((p.colour == p.label).astype(np.int64), train, test)
    return realised(p.label, p.client, p.clients, len(p.classes))


def normalised(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Class probabilities: each row divided by its sum."""
    weights = np.array(rows, np.float64)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def realised(label: NDArray[np.integer], client: NDArray[np.integer], clients: int, classes: int) -> Densities:
    """The class shares of all of a client's samples, for both of its sides: a random split is no shift.

    Arguments:
        label, client: class and client of each sample [R]; with many labels [R, U] all samples are one stratum.
        clients, classes: M and the number of classes, which are the strata.
    """
    if label.ndim > 1:
        return Densities(np.zeros(len(label), np.int64), np.ones((clients, 1)), np.ones((clients, 1)))
    counts = np.zeros((clients, classes))
    np.add.at(counts, (client, label), 1)
    shares = np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return Densities(label.astype(np.int64), shares, shares)
