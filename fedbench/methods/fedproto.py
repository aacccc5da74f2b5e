"""FedProto: personal models with shared class means of features (prototypes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Collect, Context, Loss, Train
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, cross_entropy, features, hyperparameter
from fedbench.methods.parts.prototypes import COUNT, MEAN, none, own_class_means, pooled

#: How a client may predict: by the nearest prototype, or by the head of its network.
ANSWERS = ("prototypes", "head")


@dataclass(frozen=True)
class FedProto(Method):
    """Federated prototype learning (Tan et al., AAAI 2022, Algorithm 1).

    Networks are personal. A client trains its network on the cross-entropy plus lambda times the mean squared distance
    of the features from their class's prototype (LocalUpdate, line 4, Eq. 7), and sends the mean features of its
    classes (Eq. 3). The server pools these by class over the images of the round's cohort (line 6, Eq. 6). A class
    without images in the cohort keeps its prototype; a class that no client has had yet has none, and no distance. With
    lambda = 0 networks are those of Local. The nearest prototype predicts. The logged loss includes the distance.

    deviates: Eq. 6 divides the mean over all images of a class once more, by the number of clients that have it, which
    is taken for a misprint; the authors' code has the plain mean of the clients' means.

    deviates: the distance is that of each image's features, as in the authors' code; Eq. 7 has that of a batch's means.

    deviates: means are taken in evaluation mode after training; the authors' code takes them during the last epoch.

    deviates: any class with a prototype can be answered; the authors' code lets a client answer with its own classes.

    deviates: clients start from one common network; in the paper they may have networks of several kinds.
    """

    name = "fedproto"
    title = "FedProto"
    personalised = True
    serves = (MEMBER,)
    takes_multi_label = False

    lambda_: float = hyperparameter(
        1.0, "weight of the distance; on CIFAR-10 the authors take 0.1", "λ", "Eq. 7; official code", least=0
    )
    answers: str = hyperparameter("prototypes", "what a client answers by", source="paper: prototypes", choices=ANSWERS)

    def is_personal(self, name: str) -> bool:
        return name not in (MEAN, COUNT)  # only these are sent

    def variables(self, model: Any, context: Context, generator: torch.Generator) -> State:
        return none(model, context)

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return the loss of Eq. 7; features of a class without a prototype have distance 0."""
        z = features(model, batch).float()
        has_prototype = batch.extras[COUNT][batch.y] > 0
        targets = torch.where(has_prototype[:, None], batch.extras[MEAN][batch.y], z.detach())
        classified = cross_entropy(model.head, batch._replace(x=z))
        return Loss(classified.total + self.lambda_ * F.mse_loss(z, targets))

    def local(self, client: Client) -> ClientUpdate:
        yield Train(self.loss, extras=prototypes(client.state))
        means = yield from own_class_means(client)
        client.state = {**client.state, MEAN: means, COUNT: client.class_counts}

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        before, now = server.shared, pooled([c.state for c in cohort])
        present = now[COUNT] > 0
        server.shared = {
            MEAN: torch.where(present[:, None], now[MEAN], before[MEAN]),
            COUNT: torch.where(present, now[COUNT], before[COUNT]),
        }

    def personalise(self, client: Client) -> ClientUpdate | None:
        if self.answers == "prototypes" and bool(client.state[COUNT].any()):
            client.answers_by = Collect(nearness, prototypes(client.state))
        return None


def prototypes(state: State) -> State:
    """Return the server's prototypes from a client's state."""
    return {name: state[name] for name in (MEAN, COUNT)}


def nearness(model: Any, batch: Batch) -> Tensor:
    """Return minus the distance of the features from each class's prototype [B, K]; minus infinity without one."""
    distance = torch.cdist(features(model, batch).float(), batch.extras[MEAN])
    return torch.where(batch.extras[COUNT] > 0, -distance, -torch.inf)
