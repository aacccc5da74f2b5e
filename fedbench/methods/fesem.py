"""FeSEM: clusters of the clients whose models lie nearest to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Box, Client, Train
from fedbench.core.server import Server
from fedbench.core.state import STATISTICS, State
from fedbench.core.who import UNLABELLED
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts.clustered import (
    CLUSTERS,
    answer_by_ensemble,
    average_by_cluster,
    check_clusters,
    clusters_knob,
    count_of,
    fresh_models,
    send_ensemble,
    true_groups,
)
from fedbench.methods.parts.lowest_loss import choose, offer_to_strangers
from fedbench.specs import Setting


@dataclass(frozen=True)
class FeSEM(Method):
    """Federated stochastic expectation maximization (Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center federated
    learning", World Wide Web 2023, Algorithm 1) as FLUX compares with it (NeurIPS 2025, App. E.1).

    The server keeps M models. In its first round a client receives all and takes the one with the lowest mean loss on
    its training images; later it receives that of its cluster. It trains the model, and the server moves it to the
    cluster whose model, before this round's average, is nearest to what the client has trained: the distance is the sum
    over parameter tensors of the L2 norms of the difference. Each model becomes the mean of its clients of the round,
    weighted by training images; one that nobody came to stays. A client answers with its cluster's model; one that has
    taken part in no round chooses by its loss when it is asked. A client without labels is answered by the ensemble of
    all models: the mean of their class probabilities, weighted by the clients of each.

    deviates: FeSEM's paper measures the squared L2 distance of whole models. The sum over tensors, the first choice by
    loss, the ensemble, and M, the true number of distributions, are those of FLUX's comparison. Running statistics of
    norm layers take no part in the distance.
    """

    name = "fesem"
    title = "FeSEM"
    measures = (CLUSTERS,)

    clusters: int = clusters_knob()

    def check_setting(self, setting: Setting) -> None:
        check_clusters(self.name, self.clusters, setting)

    def start(self, server: Server) -> None:
        server.models = fresh_models(server, self.clusters or true_groups(server.context))

    def broadcast(self, server: Server, client: Client) -> None:
        offer_to_strangers(server, client)

    def local(self, client: Client) -> Box:
        if count_of(client.state):
            yield from choose(client)
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.assigned |= {c.index: nearest(c.state, server.models) for c in cohort if server.models}
        average_by_cluster(server, cohort)

    def serve(self, server: Server, client: Client) -> None:
        (send_ensemble if client.kind == UNLABELLED else offer_to_strangers)(server, client)

    def personalise(self, client: Client) -> Box:
        if client.kind == UNLABELLED:
            yield from answer_by_ensemble(client)
        elif count_of(client.state):
            yield from choose(client)


def nearest(state: State, models: Sequence[State]) -> int:
    """The model nearest to a client's: by the sum over parameter tensors of the L2 norms of the difference."""
    names = [name for name in models[0] if not name.endswith(STATISTICS)]
    far = [torch.stack([(state[n].double() - model[n].double()).norm() for n in names]).sum() for model in models]
    return int(torch.stack(far).argmin())
