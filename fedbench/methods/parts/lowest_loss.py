"""A client among all models of the server: it goes on with the one that fits its training data best."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Client, ClientUpdate, Collect
from fedbench.core.server import Server
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.clustered import (
    GivenCount,
    average_by_cluster,
    count_of,
    each_model,
    fresh_models,
    losses,
    side_by_side,
)


def offer(server: Server, client: Client) -> None:
    """Send a client all models, that it shall choose from; the one that it holds is the first till then."""
    client.put(server.models[0])
    client.state = {**client.state, **side_by_side(server.models)}


def offer_to_unassigned(server: Server, client: Client) -> None:
    """The same, if the client has no cluster; another one holds its cluster's model."""
    if client.index not in server.assigned:
        offer(server, client)


def choose(client: Client) -> Generator[Collect, Any, int]:
    """Hold the model of the lowest mean loss on the client's training images, of equals the first, and return its
    number. A client that received one model makes no request."""
    count, best = count_of(client.state), 0
    if count > 1:
        each = yield from each_model(client, count, losses, "train")
        best = int(each.rows.double().mean(0).argmin())
    if count:
        client.put(client.model(str(best)))
    return best


@dataclass(frozen=True)
class LowestLoss(GivenCount):
    """A method with a given number of models, of which a client that has no cluster takes the one of lowest loss."""

    serves = (MEMBER, UNSEEN, UNLABELLED)

    unchosen: str = hyperparameter(
        "keep", "what becomes of a model that no client of a round has", source="IFCA, Alg. 1; FedRC's code: zero",
        choices=("keep", "zero"), later=True,
    )  # fmt: skip

    def start(self, server: Server) -> None:
        server.models = fresh_models(server, self.count(server.context))

    def average(self, server: Server, cohort: Sequence[Client]) -> None:
        """Each model becomes the mean of its clients of the round."""
        images = average_by_cluster(server, cohort)
        if self.unchosen == "zero":
            server.models = [
                model if n else {name: torch.zeros_like(t) for name, t in model.items()}
                for model, n in zip(server.models, images.tolist(), strict=True)
            ]

    def serve(self, server: Server, client: Client) -> None:
        super().serve(server, client)
        if client.kind != UNLABELLED:
            offer_to_unassigned(server, client)

    def personalise(self, client: Client) -> ClientUpdate | None:
        has_choice = client.kind != UNLABELLED and count_of(client.state)
        return _chosen(client) if has_choice else super().personalise(client)


def _chosen(client: Client) -> ClientUpdate:
    yield from choose(client)
