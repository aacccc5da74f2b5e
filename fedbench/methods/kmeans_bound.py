"""The upper bound of density ratios by k-means: measures the clients' data and trains nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import Box, Client
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, check, knob
from fedbench.methods.parts import importance
from fedbench.ratios.bound import kmeans_bound
from fedbench.spec import Setting


@dataclass(frozen=True)
class KMeansBound(Method):
    """Estimated maximum of q_k(x) / p_k(x) of each client (FTW-ERM's paper, TMLR 2023, App. N, Table 13).

    The client's training and test images, as raw pixels, are clustered together; the estimate is the largest ratio of
    a cluster's share of the test images to its share of the training images. It is noted as ratio_bound. The network
    stays as it is: what it answers says nothing.
    """

    name = "kmeans_bound"
    title = "k-means bound"
    personal = (importance.OWN,)
    trains = False

    clusters: int = knob(20, "k-means clusters", "M", "App. N, Table 13")
    restarts: int = knob(10, "starts of k-means, of which the one of least inertia counts", source="code")

    def __post_init__(self) -> None:
        check(self.clusters >= 1, self.name, "clusters", self.clusters, "at least 1")
        check(self.restarts >= 1, self.name, "restarts", self.restarts, "at least 1")

    def variables(self, model: nn.Module, federation: Federation, generator: torch.Generator) -> State:
        return importance.unit_weights(federation)

    def describe(self, server: Server, federation: Federation, setting: Setting) -> tuple[int, int]:
        def job(client: int) -> float:
            sides = (federation.train[client], federation.test[client])
            train, test = (federation.images[rows].flatten(1).cpu().numpy() for rows in sides)
            return kmeans_bound(train, test, self.clusters, self.restarts, setting.seed).value

        for client, bound in enumerate(importance.each_client(federation, job)):
            unit = torch.ones(federation.n_train[client])
            importance.keep(server, federation, client, unit, bound)
        return 0, 0

    def local(self, client: Client) -> Box | None:
        return None

    def traffic(self, server: Server, t: int) -> tuple[int, int]:
        return 0, 0

    def personalise(self, client: Client) -> Box | None:
        importance.note(client)
        return None
