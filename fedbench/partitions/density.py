"""What is known of the clients' training and test distributions: the probability of each stratum.

A stratum is what an importance weight depends on: the class under target shift (FTW-ERM, Proposition 4), and
whether the colour agrees with the label on Colored MNIST. Nominal probabilities where the partitioner knows
them; the shares of the samples that the clients hold where it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Densities:
    """R samples in S strata, and the probability of each stratum for M clients; every row of both tables sums to 1."""

    strata: NDArray[np.int64]  #: [R] 0..S-1: the stratum of each row of the partition
    train: NDArray[np.float64]  #: [M, S] under the client's training distribution
    test: NDArray[np.float64]  #: [M, S] under its test distribution


def normalised(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Class probabilities: each row divided by its sum."""
    weights = np.array(rows, np.float64)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def realised(label: NDArray[np.integer], client: NDArray[np.integer], clients: int, classes: int) -> Densities:
    """The class shares of all of a client's samples, for both of its sides: a random split is no shift.

    Arguments:
        label, client: class and client of each sample [R]; with several labels [R, U] all samples are one stratum.
        clients, classes: M and the number of classes, which are the strata.
    """
    if label.ndim > 1:
        return Densities(np.zeros(len(label), np.int64), np.ones((clients, 1)), np.ones((clients, 1)))
    counts = counted(client, label, clients, classes)
    shares = np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return Densities(label.astype(np.int64), shares, shares)


def counted(client: NDArray[np.integer], label: NDArray[np.integer], clients: int, classes: int) -> NDArray[np.int64]:
    """[M, K]: samples of each class, from client and class of each sample [R]."""
    flat = client.astype(np.int64) * classes + label
    return np.bincount(flat, minlength=clients * classes).reshape(clients, classes)
