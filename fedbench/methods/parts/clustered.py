"""One model per cluster: the server averages each one, and a client may receive and evaluate all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Collect, Collected, Context
from fedbench.core.network import OfEach
from fedbench.core.server import Server
from fedbench.core.state import State, as_model, matches, weighted_mean
from fedbench.core.task import task_of
from fedbench.measure import Measure
from fedbench.methods.base import BODY, FORWARD, HEAD, Method, check, hyperparameter
from fedbench.partitions import schemes
from fedbench.rng import stream
from fedbench.specs import Setting

#: Measure that every clustered method reports for its rounds.
CLUSTERS = Measure(
    "clusters",
    "clusters that there are after a round; for the run those that clients are in at its end",
    "count",
    source="FLUX (NeurIPS 2025), section 5",
)

#: With more clients than MANY_CLIENTS, a method that wants one model per group gets at most MOST_MODELS.
MANY_CLIENTS = MOST_MODELS = 10


def true_groups(context: Context) -> int:
    """Return M, the number of distinct distributions among the clients (FLUX, section 5), for methods that need the
    number of models. At most 10 with more than 10 clients, as the paper's run times show (protocol, section 8)."""
    return _at_most(context.groups, context.clients)


def expected_groups(setting: Setting) -> int:
    """Return the same from the setting only, to estimate a run's time: the partitioner's number of true groups for data
    with ten classes."""
    part = setting.partition
    return _at_most(schemes.of(part).true_groups(part, 10) if schemes.at_hand(part) else 1, part.clients)


def _at_most(groups: int, clients: int) -> int:
    return min(groups, MOST_MODELS) if clients > MANY_CLIENTS else groups


def choice_cost(count: int, setting: Setting) -> float:
    """Return the cost of evaluating `count` models on a client's training images, as a share of FedAvg's local work; 0
    for one model."""
    return count * FORWARD / (setting.epochs or 1) if count > 1 else 0.0


def fresh_models(server: Server, count: int) -> list[State]:
    """Return `count` models: the first has the initial weights of all runs, the others come from the seeds after the
    run's. They hold the network's tensors and no variables of the method."""
    first = {name: t for name, t in server.initial.items() if matches(name, (*BODY, *HEAD))}
    return [first, *(server.context.fresh(k) for k in range(1, count))]


def average_by_cluster(server: Server, cohort: Sequence[Client], behind: Tensor | None = None) -> Tensor:
    """Average the cohort's models within each cluster, weighted by training images. A cluster without a client in the
    cohort keeps its model; clients without a cluster are ignored.

    `behind` [M] holds the number of training images behind each cluster's current model. With it, that model enters
    the mean with this weight, which gives a running mean. Returns the numbers of images behind the new models, [M].
    """
    members: dict[int, list[Client]] = {}
    for client in cohort:
        if client.index in server.assigned:
            members.setdefault(server.assigned[client.index], []).append(client)
    behind = torch.zeros(len(server.models), dtype=torch.float64) if behind is None else behind.clone()
    for m, those in members.items():
        states, images = [c.state for c in those], [float(c.n_train) for c in those]
        if behind[m]:
            states, images = [*states, server.models[m]], [*images, float(behind[m])]
        server.models[m] = weighted_mean(states, images, server.models[m])
        behind[m] = sum(images)
    return behind


def shares_of(counts: Tensor) -> Tensor:
    """[M]: counts divided by their sum; equal shares if all are 0."""
    return counts / counts.sum() if bool(counts.any()) else torch.full_like(counts, 1 / max(len(counts), 1))


def side_by_side(states: Sequence[State]) -> State:
    """Return one state that holds all models, named "0", "1", ..., for a client that receives all of them."""
    return {name: t for m, state in enumerate(states) for name, t in as_model(state, str(m)).items()}


def count_of(state: State) -> int:
    """Return the number of models in such a state."""
    return len({name.split("/", 1)[0] for name in state if "/" in name})


def names_of(count: int) -> str | tuple[str, ...]:
    """Return the names "0", "1", ... of `count` models, as a request needs them."""
    return tuple(str(m) for m in range(count)) if count > 1 else "0"


def each_model(
    client: Client, count: int, of: Callable[[Tensor, Tensor], Tensor], split: str
) -> Generator[Collect, Any, Collected]:
    """Evaluate all received models on a split of the client's data. Return rows [n, M, ...] and the labels; `of`
    computes one model's [n, ...] from its scores [n, K] and the labels."""
    answer: Collected = yield Collect(OfEach(of), split=split, model=names_of(count))
    return answer


def losses(scores: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each image [B]; `cross_entropy` is their mean."""
    return task_of(y).losses(scores, y)


def right(scores: Tensor, y: Tensor) -> Tensor:
    """Return 1 or 0 [B]: whether the prediction is correct; for multi-label images the share of correct labels."""
    return task_of(y).right(scores, y)


def probabilities(scores: Tensor, y: Tensor) -> Tensor:
    """Return probabilities [B, K] of the classes, or of each label independently for multi-label images."""
    return task_of(y).probabilities(scores)


def sample_losses(model: Any, batch: Batch) -> Tensor:
    """Return the loss of each image [B] under one model."""
    return losses(model(batch.x).float(), batch.y)


def mixture(client: Client, weights: Tensor) -> Generator[Collect, Any, None]:
    """Predict the client's test images with the mean of the received models' class probabilities, with weights [M]."""
    each = yield from each_model(client, len(weights), probabilities, "test")
    client.answer = torch.einsum("m,nmk->nk", weights.to(each.rows), each.rows)


def answer_at_random(client: Client) -> Generator[Collect, Any, None]:
    """Predict each test image with a random received model, all equally likely; the expected accuracy is the mean of
    the models' accuracies."""
    count = count_of(client.state)
    each = yield from each_model(client, count, probabilities, "test")
    images = np.arange(len(each.rows))
    rng = stream(client.setting.seed, "random cluster", client.index)
    client.answer = each.rows[images, rng.integers(count, size=len(images))]


@dataclass(frozen=True)
class Ensemble:
    """Message to a client without labels and without a cluster: the weights [M] of all models."""

    weights: Tensor


@dataclass(frozen=True)
class Choice:
    """Message from a client, sent with its model: the number of the model or cluster that it has chosen."""

    model: int


@dataclass(frozen=True)
class Clustered(Method):
    """A method with one model per cluster. The ensemble of all models predicts for clients without labels."""

    serves: ClassVar[tuple[str, ...]] = (MEMBER, UNLABELLED)
    measures = (CLUSTERS,)

    def weights(self, server: Server) -> Tensor:
        """[M] float64: the models' weights in the ensemble: each cluster's share of the assigned clients (FLUX, section
        5), or equal shares if no client is assigned."""
        members = torch.tensor(list(server.assigned.values()), dtype=torch.long)
        return shares_of(torch.bincount(members, minlength=len(server.models)).double())

    def serve(self, server: Server, client: Client) -> None:
        # Without clusters, as before the first cohort, it has the shared model.
        if client.kind == UNLABELLED and len(weights := self.weights(server)):
            client.state = {**client.state, **side_by_side(server.models)}
            client.inbox = Ensemble(weights)

    def personalise(self, client: Client) -> ClientUpdate | None:
        return mixture(client, client.inbox.weights) if client.kind == UNLABELLED and client.inbox else None


@dataclass(frozen=True)
class GivenCount(Clustered):
    """A clustered method with a given number of models."""

    clusters: int = hyperparameter(0, "models; 0: as many as there are true groups", "M", "FLUX, Sec. 5", least=0)

    def check_setting(self, setting: Setting) -> None:
        # With more models than clients that train, some models could never be trained.
        most = setting.partition.trainees
        wanted = f"at most the number of clients that train, {most}"
        check(self.clusters <= most, self.name, "clusters", self.clusters, wanted)

    def count(self, context: Context) -> int:
        """Return M."""
        return self.clusters or true_groups(context)


def offer(server: Server, client: Client) -> None:
    """Send a client all models to choose from; until it has chosen, it holds the first."""
    client.put(server.models[0])
    client.state = {**client.state, **side_by_side(server.models)}


def offer_to_unassigned(server: Server, client: Client) -> None:
    """Do the same for a client without a cluster; other clients already hold their cluster's model."""
    if client.index not in server.assigned:
        offer(server, client)


def choose(client: Client) -> Generator[Collect, Any, int]:
    """Load the model with the lowest mean loss on the client's training images (the first of equal ones) and return its
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
    """A method with a given number of models; a client without a cluster chooses the one with the lowest loss."""

    serves = (MEMBER, UNSEEN, UNLABELLED)

    unchosen: str = hyperparameter(
        "keep",
        "what becomes of a model that no client of a round has",
        source="IFCA, Alg. 1; FedRC's code: zero",
        choices=("keep", "zero"),
        later=True,
    )

    def start(self, server: Server) -> None:
        server.models = fresh_models(server, self.count(server.context))

    def average(self, server: Server, cohort: Sequence[Client]) -> None:
        """Set each model to the mean of its clients of the round."""
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
