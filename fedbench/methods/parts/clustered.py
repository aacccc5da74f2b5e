"""One model a cluster: the server keeps and averages each, and a client may receive and evaluate all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Collect, Collected, Context
from fedbench.core.federation import task_of
from fedbench.core.network import OfEach
from fedbench.core.server import Server
from fedbench.core.state import State, as_model, matches, weighted_mean
from fedbench.measure import Measure
from fedbench.methods.base import BODY, FORWARD, HEAD, Method, check, hyperparameter
from fedbench.partitions import schemes
from fedbench.rng import stream
from fedbench.specs import Setting

#: What every clustered method reports of its rounds.
CLUSTERS = Measure(
    "clusters",
    "clusters that there are after a round; for the run those that clients are in at its end",
    "count", source="FLUX (NeurIPS 2025), section 5",
)  # fmt: skip

#: With more clients than this, a method that wants as many models as there are groups gets this many at most.
MANY_CLIENTS = MOST_MODELS = 10


def true_groups(context: Context) -> int:
    """M, the number of distinct distributions among the clients (FLUX, section 5): what methods with a given number of
    models are given. At most 10 with more than 10 clients, which the paper's run times show (protocol, section 8)."""
    return _at_most(context.groups, context.clients)


def expected_groups(setting: Setting) -> int:
    """As many, by the setting alone, to estimate how long a run takes: what the partitioner says of data of ten
    classes."""
    part = setting.partition
    return _at_most(schemes.of(part).true_groups(part, 10) if schemes.at_hand(part) else 1, part.clients)


def _at_most(groups: int, clients: int) -> int:
    return min(groups, MOST_MODELS) if clients > MANY_CLIENTS else groups


def choice_cost(count: int, setting: Setting) -> float:
    """What it costs a client to evaluate so many models on its training images, as a share of FedAvg's local work;
    nothing with one model."""
    return count * FORWARD / (setting.epochs or 1) if count > 1 else 0.0


def fresh_models(server: Server, count: int) -> list[State]:
    """So many models, of which the first is the one that all runs begin with and the others come from the seeds after
    its own. They hold the network's tensors and none of the method's variables."""
    first = {name: t for name, t in server.initial.items() if matches(name, (*BODY, *HEAD))}
    return [first, *(server.context.fresh(k) for k in range(1, count))]


def average_by_cluster(server: Server, cohort: Sequence[Client], behind: Tensor | None = None) -> Tensor:
    """Average the models of the cohort within each cluster, weighted by training images; a cluster none of whose
    clients takes part keeps its model. Clients without a cluster are left out.

    With `behind` [M], the training images behind each cluster's model so far, that model counts for as many: a running
    mean of all models that its clients have sent. Returns how many images are behind the models now, [M].
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
    """[M]: counts as shares of their sum; equal ones if there is nothing."""
    return counts / counts.sum() if bool(counts.any()) else torch.full_like(counts, 1 / len(counts))


def side_by_side(states: Sequence[State]) -> State:
    """The models "0", "1", ... of a client that is sent all of them."""
    return {name: t for m, state in enumerate(states) for name, t in as_model(state, str(m)).items()}


def count_of(state: State) -> int:
    """How many models such a state has."""
    return len({name.split("/", 1)[0] for name in state if "/" in name})


def names_of(count: int) -> str | tuple[str, ...]:
    """The models "0", "1", ... of a client that was sent so many, as a request names them."""
    return tuple(str(m) for m in range(count)) if count > 1 else "0"


def each_model(
    client: Client, count: int, of: Callable[[Tensor, Tensor], Tensor], split: str
) -> Generator[Collect, Any, Collected]:
    """Evaluate all models that the client received on a split of its data: rows [n, M, ...], of which `of` makes one
    model's [n, ...] from its scores [n, K] and the labels; and the labels."""
    answer: Collected = yield Collect(OfEach(of), split=split, model=names_of(count))
    return answer


def losses(scores: Tensor, y: Tensor) -> Tensor:
    """The loss of each image [B], of which `cross_entropy` is the mean."""
    return task_of(y).losses(scores, y)


def right(scores: Tensor, y: Tensor) -> Tensor:
    """Whether each image is answered rightly, 0 or 1 [B]; of many labels the share that are."""
    return task_of(y).right(scores, y)


def probabilities(scores: Tensor, y: Tensor) -> Tensor:
    """Probabilities [B, K] of the classes, or of each label by itself where images have many."""
    return task_of(y).probabilities(scores)


def sample_losses(model: Any, batch: Batch) -> Tensor:
    """The loss of each image [B] under one model."""
    return losses(model(batch.x).float(), batch.y)


def mixture(client: Client, weights: Tensor) -> Generator[Collect, Any, None]:
    """Let the client answer its test images with the mean, of these weights [M], of the class probabilities of the
    models that it was sent."""
    each = yield from each_model(client, len(weights), probabilities, "test")
    client.answer = torch.einsum("m,nmk->nk", weights.to(each.rows), each.rows)


def answer_at_random(client: Client) -> Generator[Collect, Any, None]:
    """Let each test image be answered by one of the models that the client was sent, each as likely: over many images
    the mean of the models' accuracies."""
    count = count_of(client.state)
    each = yield from each_model(client, count, probabilities, "test")
    images = np.arange(len(each.rows))
    rng = stream(client.setting.seed, "random cluster", client.index)
    client.answer = each.rows[images, rng.integers(count, size=len(images))]


@dataclass(frozen=True)
class Ensemble:
    """What a client without labels is sent where nothing assigns it to a cluster: the weights [M] of all models."""

    weights: Tensor


@dataclass(frozen=True)
class Choice:
    """What a client sends with its model: the number of the model, or the cluster, that it has chosen."""

    model: int


@dataclass(frozen=True)
class Clustered(Method):
    """A method that keeps one model a cluster. A client without labels is answered by the ensemble of all of them."""

    serves: ClassVar[tuple[str, ...]] = (MEMBER, UNLABELLED)
    measures = (CLUSTERS,)

    def weights(self, server: Server) -> Tensor:
        """[M] float64: those of the models in the ensemble: the share of the assigned clients that each cluster has
        (FLUX, section 5); equal shares while there is no assigned client."""
        members = torch.tensor(list(server.assigned.values()), dtype=torch.long)
        return shares_of(torch.bincount(members, minlength=len(server.models)).double())

    def serve(self, server: Server, client: Client) -> None:
        if client.kind == UNLABELLED:
            client.state = {**client.state, **side_by_side(server.models)}
            client.inbox = Ensemble(self.weights(server))

    def personalise(self, client: Client) -> ClientUpdate | None:
        return mixture(client, client.inbox.weights) if client.kind == UNLABELLED else None


@dataclass(frozen=True)
class GivenCount(Clustered):
    """One with a given number of models."""

    clusters: int = hyperparameter(0, "models; 0: as many as there are true groups", "M", "FLUX, Sec. 5", least=0)

    def check_setting(self, setting: Setting) -> None:
        # More models than clients that train: some could never be trained.
        most = setting.partition.trainees
        wanted = f"at most the number of clients that train, {most}"
        check(self.clusters <= most, self.name, "clusters", self.clusters, wanted)

    def count(self, context: Context) -> int:
        """M."""
        return self.clusters or true_groups(context)


# -- lowest loss -------------------------------------------------------------------------------------------------
# A client among all models of the server: it goes on with the one that fits its training data best.


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
