"""IFCA: each client trains the one of M models with its lowest loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.methods.base import cross_entropy
from fedbench.methods.parts.clustered import Choice, LowestLoss, choice_cost, choose, expected_groups, offer
from fedbench.specs import Setting


@dataclass(frozen=True)
class IFCA(LowestLoss):
    """Iterative federated clustering (Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1, model averaging)
    as FLUX compares with it (NeurIPS 2025, App. E.1).

    The server holds M models. In each of its rounds a client receives all, chooses the one with the lowest mean loss on
    its training images, and trains it. Each model becomes the mean of those trained from it, weighted by training
    images, and one that no client chose stays (`unchosen` keep). A client predicts with the current state of the model
    that it chose in its last round; one that has never participated first chooses. A client without labels predicts
    with the ensemble of all models: the mean of their class probabilities, weighted by the number of clients that have
    chosen each.

    deviates: IFCA's paper takes the plain mean of the clients' models and gives no way to serve clients without labels;
    the weights, the ensemble and M, the true number of distributions, are FLUX's.

    deviates: in the code that FLUX names (FedRC's) a model that nobody chose in a round is the mean of no models, which
    are zeros (`unchosen` zero, which FLUX's protocol sets): its loss is that of a uniform answer, so that it draws in
    clients whom the specialised models serve worse, and nothing of it but the last bias can learn. That code's momentum
    lives on between rounds, with each client and each model that it has trained (`--momentum-lives`).
    """

    name = "ifca"
    title = "IFCA"
    clusters_by = "losses"

    def broadcast(self, server: Server, client: Client) -> None:
        offer(server, client)

    def local(self, client: Client) -> ClientUpdate:
        choice = yield from choose(client)
        client.upload = Choice(choice)
        yield Train(cross_entropy, momentum_of=str(choice))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.assigned |= {c.index: c.upload.model for c in cohort if c.upload}
        self.average(server, cohort)

    def relative_compute(self, setting: Setting) -> float:
        return 1 + choice_cost(self.clusters or expected_groups(setting), setting)
