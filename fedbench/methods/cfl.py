"""CFL: a cluster is split in two if the updates of its clients disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.clustered import Clustered, average_by_cluster
from fedbench.methods.parts.linkage import halves
from fedbench.methods.parts.steps import trainable

#: From FedDrift's code: eps1 and eps2 as shares of the largest norm of a mean update, and the minimum gap between the
#: two halves.
SHARES, GAP = (0.1, 0.6), 0.1


@dataclass
class Largest:
    """The largest norm of a cluster's mean update so far."""

    mean: float = 0.0


@dataclass(frozen=True)
class CFL(Clustered):
    """Clustered federated learning (Sattler, Müller and Samek, IEEE TNNLS 2021), as FLUX compares it.

    All clients start in one cluster, and FedAvg runs in each cluster separately. A client's update Delta is the change
    of its parameters by training. A cluster of more than two is split if its mean update is small although a single
    update is not, that is, if norm(mean) < eps1 and the largest norm > eps2. The split uses the cosine similarities of
    the updates, and the round's models are averaged within the halves. A client predicts with its cluster's model; a
    client without labels with the ensemble of all clusters' models.

    Only inner products of the updates are needed: they give all norms, that of the mean, and the similarities.

    The code behind FLUX's comparison (FedRC's) sums the squares of an update over an axis of length one, so the largest
    single entry of all updates replaces the largest norm (`largest` entry, which FLUX's protocol sets). It rarely
    exceeds eps2, so that comparison's CFL hardly ever splits, and is FedAvg.

    deviates: the halves come from complete linkage on cosine distances, as in the authors' code and FLUX's comparison,
    where the paper's criterion, the least similarity across the halves at most, would be single linkage; the thresholds
    0.4 and 0.6 are that comparison's.

    deviates: the mean update weighs clients by training images, as the average does; in FedRC's code it is the plain
    mean (`mean` plain), and a client's momentum lives on between rounds (`--momentum-lives`).

    deviates: FLUX's own CFL was run in FedDrift's code (`variant` feddrift, which sets all of this). There the mean
    update is plain and the largest norm counts; eps1 is a tenth of the largest norm that a cluster's mean update has
    had so far, in a round that raises it there is no split, and eps2 is six tenths of it; sqrt((1 - the greatest cosine
    across the halves) / 2) must be above 0.1. After a split no model is averaged in that round, and both halves begin
    anew, here with the weights that the run began with; that code draws those of one half, and splits nine times at
    most.

    deviates: with partial participation the updates of the round's members decide. Members who are absent, or met for
    the first time, are in the larger half, which keeps the cluster's number (of equals, that of the first member), and
    in the first cluster; the paper would let each walk down the tree of all splits by its own update.
    """

    name = "cfl"
    title = "CFL"
    clusters_by = "parameters"

    eps1: float = hyperparameter(
        0.4, "a cluster may be split when the norm of its mean update is below", "ε₁", "FedRC's code", least=0
    )
    eps2: float = hyperparameter(0.6, "... and the largest norm of an update is above", "ε₂", "FedRC's code", least=0)
    largest: str = hyperparameter(
        "norm", "what is measured of the largest update", source="paper; FedRC's code: entry", choices=("norm", "entry")
    )
    mean: str = hyperparameter(
        "weighted",
        "mean update that must have vanished",
        source="FedRC's code: plain",
        choices=("weighted", "plain"),
        later=True,
    )
    variant: str = hyperparameter(
        "paper",
        "thresholds, and what becomes of a cluster that is split",
        source="FedDrift's code: feddrift",
        choices=("paper", "feddrift"),
        later=True,
    )

    def start(self, server: Server) -> None:
        server.memory = Largest()

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.models = server.models or [dict(server.shared)]
        for client in cohort:
            server.assigned.setdefault(client.index, 0)
        count = len(server.models)
        for m in range(count):
            members = [c for c in cohort if server.assigned[c.index] == m]
            if len(members) > 2:
                self.split(server, members, m)
        if self.variant == "paper" or len(server.models) == count:
            average_by_cluster(server, cohort)
        server.shared = server.models[0]  # the model of clients that have not participated yet

    def split(self, server: Server, members: Sequence[Client], m: int) -> None:
        """Move half of cluster m to a new cluster if its members' updates meet the criteria."""
        updates = [update(c) for c in members]
        products = inner_products(updates)
        sizes = np.sqrt(products.diagonal())
        if self.largest == "entry" and self.variant == "paper":
            sizes = np.array([max(float(t.abs().max()) for t in u.values()) for u in updates])
        plain = self.mean == "plain" or self.variant == "feddrift"
        weights = np.array([1.0 if plain else c.n_train for c in members])
        share = weights / weights.sum()
        mean, largest = float(np.sqrt(max(share @ products @ share, 0.0))), float(sizes.max())
        eps1, eps2 = self.eps1, self.eps2
        if self.variant == "feddrift":
            if mean > server.memory.mean:
                server.memory = Largest(mean)
                return
            eps1, eps2 = (share * server.memory.mean for share in SHARES)
        if not (mean < eps1 and largest > eps2):
            return
        distances = cosine_distances(products)
        half = halves(distances)
        if self.variant == "feddrift":
            if np.sqrt(distances[np.ix_(half == 0, half == 1)].min() / 2) <= GAP:
                return
            server.models[m] = {name: server.initial[name] for name in server.models[m]}
        leaving = 1 if half.sum() <= len(half) / 2 else 0
        for client, side in zip(members, half.tolist(), strict=True):
            if side == leaving:
                server.assigned[client.index] = len(server.models)
        server.models.append(server.models[m])


def update(client: Client) -> State:
    """Return the change of the client's parameters by training, by name."""
    return {name: client.state[name] - client.received[name] for name in trainable(client.received)}


def inner_products(updates: Sequence[State]) -> NDArray[np.float64]:
    """Return inner products [n, n] of n updates, in float64; processes one tensor of all updates at a time."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in updates[0]:
        rows = torch.stack([u[name].flatten() for u in updates]).double()
        total += (rows @ rows.T).cpu()
    return total.numpy()


def cosine_distances(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return distances [n, n] in [0, 2] of vectors from inner products; a zero vector has distance 1 to all others."""
    norms = np.sqrt(products.diagonal())
    scale = np.outer(norms, norms)
    similar: NDArray[np.float64] = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    distances = 1 - similar.clip(-1, 1)
    np.fill_diagonal(distances, 0)
    return distances
