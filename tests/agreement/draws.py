"""Dirichlet draws of other projects' code beside fedbench's, from the same state of NumPy's legacy generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.conformance.lab import digits
from fedbench.methods.agreement import Difference
from fedbench.partitions.schemes.dirichlet import Dirichlet
from tests.agreement.compare import Against

SEEDS = range(5)
#: Clients and alpha of the draws, which are of all digits.
SHARED_OUT = ((10, 0.1), (10, 0.5), (20, 0.3))

#: Labels [N], number of clients and alpha -> rows of each client
Draw = Callable[[np.ndarray, int, float], Sequence[Sequence[int]]]


def owners(clients: Sequence[Sequence[int]], samples: int) -> Tensor:
    """The client of each sample [N], from the samples of each client; -1: nobody's."""
    owner = torch.full((samples,), -1, dtype=torch.long)
    for i, rows in enumerate(clients):
        owner[torch.as_tensor(np.asarray(rows))] = i
    return owner


def differences(project: str, draw: Draw, least: Callable[[int, int], int]) -> Iterator[Difference]:
    """Compare draws; `least`: of the numbers of samples and clients, how many samples each client must get."""
    _, labels = digits()
    data: Any = SimpleNamespace(partition_labels=labels)
    for clients, alpha in SHARED_OUT:
        found = Against("dirichlet", project, f"{clients} clients, Dir({alpha:g})")
        how, spec = Dirichlet(alpha=alpha, min_size=least(len(labels), clients)), SimpleNamespace(clients=clients)
        for seed in SEEDS:
            mine = how.deal(data, spec, np.random.RandomState(seed))  # type: ignore[arg-type]
            np.random.seed(seed)  # what theirs draws from
            theirs = draw(labels, clients, alpha)
            found.see("clients' samples", {"owner": owners(mine, len(labels))}, {"owner": owners(theirs, len(labels))})
        yield from found.differences({})
