"""Models that do as well on each other's clients become one (FedDrift, AISTATS 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.state import weighted_mean
from fedbench.methods.parts.linkage import within


def apart(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances [M, M] of models from the accuracy [M, M] of each (row) on each one's data (column)."""
    lost = accuracy.diagonal()[:, None] - accuracy
    return np.maximum(np.maximum(lost, lost.T), 0)


def groups(server: Server, cohort: Sequence[Client], count: int, delta: float) -> list[list[int]]:
    """Which models become one: those that the cohort has compared, of the first `count`, and all others alone. A
    client's upload has the `accuracy` [M] of each model on its training images."""
    holders: dict[int, list[Client]] = {}
    for client in cohort:
        if (m := server.assigned[client.index]) < count:
            holders.setdefault(m, []).append(client)
    clusters, compared = [[m] for m in range(len(server.models)) if m not in holders], sorted(holders)
    if compared:
        rows = [
            np.average([c.upload.accuracy.numpy() for c in holders[m]], 0, [c.n_train for c in holders[m]])
            for m in compared
        ]
        labels = within(apart(np.stack(rows, 1)[compared]), delta)
        clusters += [[compared[k] for k in np.flatnonzero(labels == g)] for g in range(labels.max() + 1)]
    return sorted(clusters)


def merge(server: Server, groups: Sequence[Sequence[int]], images: Mapping[int, float]) -> None:
    """Make one model of each group, weighted by the training images of the clients that hold its models; a group that
    no client holds is dropped, the others are numbered anew."""
    weight: dict[int, float] = {}
    for i, m in server.assigned.items():
        weight[m] = weight.get(m, 0.0) + images[i]
    old, server.models, new = server.models, [], dict[int, int]()
    for group in groups:
        in_use = [m for m in group if m in weight]
        if in_use:
            new.update(dict.fromkeys(in_use, len(server.models)))
            states, first = [old[m] for m in in_use], old[in_use[0]]
            server.models.append(
                first if len(in_use) == 1 else weighted_mean(states, [weight[m] for m in in_use], first)
            )
    server.assigned = {i: new[m] for i, m in server.assigned.items()}
