"""FLUX-soft: each client mixes the models of clients with similar data, without clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.client import UNLABELLED, Client, ClientUpdate
from fedbench.core.server import Server
from fedbench.core.state import State, weighted_mean
from fedbench.methods.base import FORWARD
from fedbench.methods.parts import description
from fedbench.methods.parts.clustered import side_by_side
from fedbench.methods.parts.description import Phase, phase_of
from fedbench.methods.parts.descriptor import Bounds, Scaling
from fedbench.methods.parts.linkage import distances, elbow, nearest_other
from fedbench.methods.parts.warm_up import WarmsUp
from fedbench.specs import Setting

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kernel:
    """Parameters of the clients' weights: the distance `reach`, the width tau, and the clients' sizes [K]."""

    reach: float
    width: float
    sizes: Tensor


@dataclass(frozen=True)
class Neighbours:
    """Message to a client without labels, sent with theta* and all models: the bounds, the scaling, the scaled
    descriptors [K, L] of the trained clients and the kernel, by which it finds its mixture."""

    bounds: Bounds
    scaling: Scaling
    descriptors: Tensor
    kernel: Kernel


@dataclass
class FluxSoftMemory(description.DescriptionMemory):
    """The server's memory, also of the last description: the kernel and the weights [K, K] with which clients mix."""

    kernel: Kernel | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class FluxSoft(WarmsUp):
    """FLUX with a model for every client (Fenoglio et al., NeurIPS 2025, Table 6).

    Warm-up and descriptors are FLUX's. After that, client i's model is, after every round, the mean of the trained
    models theta_j of the clients near it, weighted by n_j exp(-|d_i - d_j|^2 / tau). Near means up to the distance at
    the elbow of the nearest-neighbour curve, and i itself is always included; tau is the median squared distance to the
    nearest neighbour. A client without labels mixes the final models in the same way by its label-free moments. In a
    round of a drift, clients describe themselves again instead of training, and mix the current models by new weights.

    deviates: neither paper nor code defines FLUX-soft; the weights are ours.

    deviates: a client that is not in the round in which all are described keeps to theta*, the model of that moment; of
    the others, those in the round's cohort mix their models, and the others keep theirs.
    """

    name = "flux_soft"
    title = "FLUX-soft"
    clusters_by = "descriptors"
    version = 2  #: the released code's synthetic points
    memory = FluxSoftMemory

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        phase = phase_of(server, t)
        if phase == Phase.WARM_UP:
            super().aggregate(server, cohort, t)
            return
        if phase == Phase.REGROUPING:
            before = [{**server.shared, **server.model(c.index)} for c in cohort]
            self.weigh(server, cohort, t)
            server.models = before
        else:
            if phase == Phase.DESCRIPTION:  # from now on the shared model is theta*
                self.weigh(server, cohort, t)
                server.models = [server.shared] * len(cohort)
                server.memory.phase = Phase.GROUPED
            for client in cohort:
                if client.index in server.assigned:
                    server.models[server.assigned[client.index]] = {n: client.state[n] for n in server.shared}
        self.mix(server, cohort)

    def weigh(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """Compute the weights of the cohort's clients from their descriptors."""
        d = description.remember(server, cohort, t, self.components)
        sizes = torch.tensor([float(c.n_train) for c in cohort], dtype=torch.float64)
        kernel = Kernel(elbow(d, self.scale), bandwidth(d), sizes)
        weights = soft_weights(d, d, sizes.numpy(), kernel.reach, kernel.width)
        server.memory.kernel, server.memory.weights = kernel, torch.from_numpy(weights)
        server.assigned = {c.index: k for k, c in enumerate(cohort)}

    def mix(self, server: Server, cohort: Sequence[Client]) -> None:
        """Replace the model of each client in the cohort by the weighted mean of its own and its neighbours' models."""
        weights, trained = server.memory.weights, list(server.models)
        for k in (server.assigned[c.index] for c in cohort if c.index in server.assigned):
            server.models[k] = mixture(trained, weights[k].tolist())

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        memory = server.memory
        if memory.phase != Phase.GROUPED:
            return {}
        return {"elbow": memory.kernel.reach, "clustering_round": float(memory.described.round)}

    def serve(self, server: Server, client: Client) -> None:
        memory = server.memory
        if client.kind == UNLABELLED and memory.phase == Phase.GROUPED:
            client.state = {**client.state, **side_by_side(server.models)}
            client.inbox = Neighbours(memory.bounds, memory.scaling, memory.described.descriptors, memory.kernel)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return n_test * FORWARD

    def personalise(self, client: Client) -> ClientUpdate:
        at: Neighbours | None = client.inbox
        if at is None:
            return
        d = yield from self.describe(client, "test")
        point = description.scaled(at.scaling, d.cpu().numpy()[None], self.components, client.context.classes)
        others, sizes = at.descriptors.cpu().numpy()[:, : point.shape[1]], at.kernel.sizes.cpu().numpy()
        weights = soft_weights(point, others, sizes, at.kernel.reach, at.kernel.width)[0].tolist()
        client.put(mixture([client.model(str(j)) for j in range(len(weights))], weights))


def mixture(models: Sequence[State], weights: Sequence[float]) -> State:
    """Return the weighted mean of the models; models with weight 0 are ignored."""
    near = [j for j, w in enumerate(weights) if w]
    return weighted_mean([models[j] for j in near], [weights[j] for j in near], models[near[0]])


def soft_weights(points: Floats, descriptors: Floats, sizes: Floats, eps: float, tau: float) -> Floats:
    """Return weights [P, K], with row sums 1, that mix the clients' models for each point (FLUX-soft, Table 6).

    w_ij is proportional to n_j exp(-|p_i - d_j|^2 / tau) over clients j up to `eps` from the point [P, L], and always
    over the nearest one, which is the client itself if the points are the descriptors [K, L]. `sizes` n [K] are numbers
    of training images; tau comes from `bandwidth`, and with tau = 0 only the nearest have weight.
    """
    square = np.square(distances(points, descriptors))
    beyond = square - square.min(1, keepdims=True)  # a row's common factor cancels
    near = (beyond == 0) | (square <= eps * eps)
    decay = np.exp(-beyond / tau) if tau > 0 else beyond == 0
    weights = near * decay * np.asarray(sizes, np.float64)
    shares: Floats = weights / weights.sum(1, keepdims=True)
    return shares


def bandwidth(descriptors: Floats) -> float:
    """Return tau of `soft_weights`: the median squared distance of a client to its nearest other client."""
    return float(np.median(np.square(nearest_other(descriptors))))
