"""IFCA: each client trains the one of M models that suits it best at the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Box, Client, Train
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State, size_in_bytes
from fedbench.core.who import UNLABELLED, Who
from fedbench.methods.base import Method, check, cross_entropy
from fedbench.methods.parts.clustered import (
    answer_by_ensemble,
    asking,
    average_by_cluster,
    check_clusters,
    clusters_knob,
    count_of,
    ensemble,
    expected_groups,
    fresh_models,
    true_groups,
)
from fedbench.methods.parts.lowest_loss import choose, offer, offer_to_strangers
from fedbench.spec import Setting

#: The number of the model that a client has trained, in what it sends.
CHOICE = "choice"


@dataclass(frozen=True)
class IFCA(Method):
    """Iterative federated clustering (Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1, model averaging)
    as FLUX compares with it (NeurIPS 2025, App. E.1).

    The server keeps M models. In each of its rounds a client receives all, takes the one with the lowest mean loss on
    its training images, and trains it; each model becomes the mean of those trained from it, weighted by training
    images, and one that nobody chose stays. A client answers with the model, as it is now, that it chose in its last
    round; one that has taken part in none chooses when it is asked. A client without labels is answered by the
    ensemble of all models: the mean of their class probabilities, weighted by the clients that have chosen each.

    deviates: IFCA's paper takes the plain mean of the clients' models and gives no way to serve clients without labels;
    the weights, the ensemble and M, the true number of distributions, are FLUX's.
    """

    name = "ifca"
    title = "IFCA"

    clusters: int = clusters_knob()

    def __post_init__(self) -> None:
        check(self.clusters >= 0, self.name, "clusters", self.clusters, "at least 0")

    def check_setting(self, setting: Setting) -> None:
        check_clusters(self.name, self.clusters, setting)

    def describe(self, server: Server, federation: Federation, setting: Setting) -> tuple[int, int]:
        server.models = fresh_models(server, federation, setting, self.clusters or true_groups(federation))
        return 0, 0

    def broadcast(self, server: Server, client: int, t: int) -> State:
        return offer(server, client)

    def local(self, client: Client) -> Box:
        client.upload = {CHOICE: torch.tensor((yield from choose(client)))}
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.assigned |= {c.index: int(c.upload[CHOICE]) for c in cohort if CHOICE in c.upload}
        average_by_cluster(server, cohort)

    def traffic(self, server: Server, t: int) -> tuple[int, int]:
        one = size_in_bytes(server.shared)
        return one, one * len(server.models)

    def effort(self, setting: Setting) -> float:
        return 1 + asking(self.clusters or expected_groups(setting), setting)

    def serve(self, server: Server, who: Who) -> State:
        return ensemble(server) if who.kind == UNLABELLED else offer_to_strangers(server, who.index)

    def personalise(self, client: Client) -> Box:
        if client.kind == UNLABELLED:
            yield from answer_by_ensemble(client)
        elif count_of(client.state):
            yield from choose(client)
