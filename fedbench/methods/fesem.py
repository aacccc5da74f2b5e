"""FeSEM: clusters of the clients whose models lie nearest to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import STATISTICS, State
from fedbench.methods.base import cross_entropy
from fedbench.methods.parts.clustered import count_of
from fedbench.methods.parts.lowest_loss import LowestLoss, choose, offer_to_unassigned


@dataclass(frozen=True)
class FeSEM(LowestLoss):
    """Federated stochastic expectation maximization (Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center federated
    learning", World Wide Web 2023, Algorithm 1) as FLUX compares with it (NeurIPS 2025, App. E.1).

    The server keeps M models. In its first round a client receives all and takes the one with the lowest mean loss on
    its training images; later it receives that of its cluster. It trains the model, and the server moves it to the
    cluster whose model, before this round's average, is nearest to what the client has trained: the distance is the sum
    over parameter tensors of the L2 norms of the difference. Each model becomes the mean of its clients of the round,
    weighted by training images; one that nobody came to stays (`unchosen` keep). A client answers with its cluster's
    model; one that has taken part in no round chooses by its loss when it is asked. A client without labels is answered
    by the ensemble of all models: the mean of their class probabilities, weighted by the clients of each.

    deviates: FeSEM's paper measures the squared L2 distance of whole models. The sum over tensors, the first choice by
    loss, the ensemble, and M, the true number of distributions, are those of FLUX's comparison. Running statistics of
    norm layers take no part in the distance.
    """

    name = "fesem"
    title = "FeSEM"

    def broadcast(self, server: Server, client: Client) -> None:
        offer_to_unassigned(server, client)

    def local(self, client: Client) -> ClientUpdate:
        if count_of(client.state):
            yield from choose(client)
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.assigned |= {c.index: nearest(c.state, server.models) for c in cohort if server.models}
        self.average(server, cohort)


def nearest(state: State, models: Sequence[State]) -> int:
    """The model nearest to a client's: by the sum over parameter tensors of the L2 norms of the difference."""
    names = [name for name in models[0] if not name.endswith(STATISTICS)]
    far = [torch.stack([(state[n].double() - model[n].double()).norm() for n in names]).sum() for model in models]
    return int(torch.stack(far).argmin())
