"""FeSEM: clusters of clients with similar models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedbench.core.client import Batch, Client, ClientUpdate, Loss, Train
from fedbench.core.server import Server
from fedbench.core.state import STATISTICS, State
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.clustered import Choice, LowestLoss, choose, count_of, offer_to_unassigned

#: Name of the extra that scales a loss.
SHARE = "share"


@dataclass(frozen=True)
class FeSEM(LowestLoss):
    """Federated stochastic expectation maximization (Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center federated
    learning", World Wide Web 2023, Algorithm 1) as FLUX compares with it (NeurIPS 2025, App. E.1).

    The server holds M models. In its first round a client receives all and chooses the one with the lowest mean loss on
    its training images; later it receives that of its cluster. It trains the model. Then the server assigns the client
    to the cluster whose model, before this round's average, is nearest to the trained model: the distance is the sum
    over parameter tensors of the L2 norms of the difference. Each model becomes the mean of its clients of the round,
    weighted by training images; one without clients stays (`unchosen` keep). A client predicts with its cluster's
    model; a client that has never participated first chooses by its loss. A client without labels predicts with the
    ensemble of all models: the mean of their class probabilities, weighted by the number of clients of each.

    deviates: FeSEM's paper measures the squared L2 distance of whole models. The sum over tensors, the first choice by
    loss, the ensemble, and M, the true number of distributions, are those of FLUX's comparison. Running statistics of
    norm layers take no part in the distance.

    deviates: in the code that FLUX names (FedRC's; `variant` fedrc) a client trains all M models in its first round,
    each on 1/M of the loss, and stays in that round with the one of lowest loss then. Later one that moves to another
    cluster contributes that cluster's model as it received it, and what it has trained is lost. Models that nobody came
    to become zeros there (`unchosen` zero), and momentum lives on between rounds, with each client and each model that
    it has trained (`--momentum-lives`; a client is then told its cluster's number).
    """

    name = "fesem"
    title = "FeSEM"
    clusters_by = "parameters"

    variant: str = hyperparameter(
        "paper",
        "a client's first round, and what it contributes when it moves",
        source="Alg. 1; FedRC's code: fedrc",
        choices=("paper", "fedrc"),
        later=True,
    )

    def broadcast(self, server: Server, client: Client) -> None:
        offer_to_unassigned(server, client)
        if client.setting.momentum_lives and client.index in server.assigned:
            client.inbox = Choice(server.assigned[client.index])  # selects this model's momentum

    def local(self, client: Client) -> ClientUpdate:
        count = count_of(client.state)
        if count and self.variant == "fedrc":
            for m in range(count):
                yield Train(
                    shared_out, model=str(m), extras={SHARE: torch.tensor(1 / count, device=client.context.device)}
                )
            client.upload = Choice((yield from choose(client)))
            return
        choice = (yield from choose(client)) if count else client.inbox and client.inbox.model
        yield Train(cross_entropy, momentum_of=None if choice is None else str(choice))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        for client in cohort:
            old = server.assigned.get(client.index)
            new = client.upload.model if client.upload else nearest(client.state, server.models)
            if self.variant == "fedrc" and old not in (None, new):
                client.put(server.models[new])
            server.assigned[client.index] = new
        self.average(server, cohort)


def shared_out(model: Any, batch: Batch) -> Loss:
    """Return a share of the cross-entropy."""
    whole = cross_entropy(model, batch)
    return Loss(batch.extras[SHARE] * whole.total, logged=whole.total)


def nearest(state: State, models: Sequence[State]) -> int:
    """Return the model nearest to a client's, by the sum over parameter tensors of the L2 norms of the difference."""
    names = [name for name in models[0] if not name.endswith(STATISTICS)]
    far = [torch.stack([(state[n].double() - model[n].double()).norm() for n in names]).sum() for model in models]
    return int(torch.stack(far).argmin())
